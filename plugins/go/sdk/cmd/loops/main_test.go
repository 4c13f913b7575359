package main

import (
	"strings"
	"testing"
)

func TestEachLoopHasACallOnItsOwnLine(t *testing.T) {
	source := "package x\n\nfunc f(list []int) {\n\tfor i := range []int{1, 2} {\n\t\tfor i < 3 { i++ }\n\t}\n}\n"
	with, in := withCalls("a/x.go", "/p/a/x.go", []byte(source))
	expected := "//line /p/a/x.go:1\n" + source
	expected = strings.Replace(expected, "2} {", `2} {espalierAt("a/x.go", 4);/*line /p/a/x.go:4:30*/`, 1)
	expected = strings.Replace(expected, "3 {", `3 {espalierAt("a/x.go", 5);/*line /p/a/x.go:5:14*/`, 1)
	if string(with) != expected || in != "x" {
		t.Errorf("got  %s\nwant %s", with, expected)
	}
	for _, source := range []string{"package x\n", "package x\nfunc {"} {
		if with, _ := withCalls("x.go", "/x.go", []byte(source)); with != nil {
			t.Errorf("%s", with)
		}
	}
}
