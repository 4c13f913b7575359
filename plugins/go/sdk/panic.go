package espalier

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// framesMax is the number of an author's functions that are named for a panic.
const framesMax = 12

// ended is deferred around everything that the engine calls. It gives a panic to the log with the places in the author's files,
// innermost first, and stops; otherwise it ends the line that was printed last.
func ended() {
	problem := recover()
	if problem == nil {
		endLines()
		return
	}
	text := fmt.Sprintf("panic: %v", problem)
	if err, ok := problem.(error); ok {
		text = "panic: " + err.Error()
	}
	for _, place := range places() {
		text += "\n    at " + place
	}
	Log(Error, text)
	os.Exit(2)
}

// places are the frames of the author's own functions, as `function (file:line)`.
func places() []string {
	pcs := make([]uintptr, 200)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	own := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		own = info.Main.Path + "/"
	}
	all, mine := []string{}, []string{}
	for {
		frame, more := frames.Next()
		file, isMine := strings.CutPrefix(frame.File, own)
		function := frame.Function[strings.LastIndex(frame.Function, "/")+1:]
		place := fmt.Sprintf("%s (%s:%d)", function, file, frame.Line)
		switch {
		case isMine && own != "":
			mine = append(mine, place)
		case strings.HasPrefix(frame.Function, "espalier/sdk"), strings.HasPrefix(frame.Function, "runtime."):
		case len(mine) == 0:
			all = append(all, place)
		}
		if !more || len(mine) == framesMax {
			break
		}
	}
	// Where the standard library panicked stands behind who called it: the first place is the author's.
	if len(mine) == 0 {
		return all
	}
	return mine
}
