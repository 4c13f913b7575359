// Command loops is a step of `espalier plugin build`: it copies the author's files with a call of loops.At in each loop, on the same
// line, and writes the overlay that gives the copies to the compiler. The files of the author stay as they are.
//
//	go run espalier/sdk/cmd/loops FOLDER     in the project; writes FOLDER/overlay.json
package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// added is the file that a package with loops gets, beside its own.
const added = "espalier_loops.go"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: loops FOLDER")
		os.Exit(2)
	}
	if err := overlay(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func overlay(out string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	replace := map[string]string{}
	put := func(file string, text []byte) error {
		copied := filepath.Join(out, strings.ReplaceAll(file, string(filepath.Separator), "+"))
		replace[filepath.Join(here, file)] = copied
		return os.WriteFile(copied, text, 0o644)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	err = filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			skipped := path == "sdk" || path == "build" || name == "testdata" || name == "vendor"
			if path != "." && (skipped || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// What does not parse is left to the compiler to refuse.
		with, in := withCalls(path, filepath.Join(here, path), text)
		if with == nil {
			return nil
		}
		if err := put(path, with); err != nil {
			return err
		}
		calls := "package " + in + "\n\nimport \"espalier/sdk/loops\"\n\nfunc espalierAt(file string, line uint32) { loops.At(file, line) }\n"
		return put(filepath.Join(filepath.Dir(path), added), []byte(calls))
	})
	if err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "overlay.json"), text, 0o644)
}

// withCalls is a file with a call in each of its loops, and its package; nil for a file without loops. To the compiler each place is
// where the author has it, in the file `whole`.
func withCalls(path, whole string, text []byte) (with []byte, in string) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, ""
	}
	type call struct {
		line   int
		behind token.Position
	}
	calls := []call{}
	ast.Inspect(file, func(node ast.Node) bool {
		var body *ast.BlockStmt
		switch loop := node.(type) {
		case *ast.ForStmt:
			body = loop.Body
		case *ast.RangeStmt:
			body = loop.Body
		default:
			return true
		}
		calls = append(calls, call{files.PositionFor(node.Pos(), false).Line, files.PositionFor(body.Lbrace+1, false)})
		return true
	})
	if len(calls) == 0 {
		return nil, ""
	}
	slices.SortFunc(calls, func(a, b call) int { return a.behind.Offset - b.behind.Offset })
	done := 0
	with = fmt.Appendf(with, "//line %s:1\n", whole)
	for _, call := range calls {
		with = append(with, text[done:call.behind.Offset]...)
		with = fmt.Appendf(with, "espalierAt(%q, %d);", filepath.ToSlash(path), call.line)
		with = fmt.Appendf(with, "/*line %s:%d:%d*/", whole, call.behind.Line, call.behind.Column)
		done = call.behind.Offset
	}
	return append(with, text[done:]...), file.Name.Name
}
