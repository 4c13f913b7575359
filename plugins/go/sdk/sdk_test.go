package espalier

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

type settings struct {
	Mode  string   `json:"mode" default:"fast" enum:"fast,slow" description:"How."`
	Count int      `json:"count" default:"3" minimum:"1"`
	Words []string `json:"words,omitempty"`
	Inner struct {
		Share float64 `json:"share"`
	} `json:"inner"`
	Limit *int `json:"limit"`
}

func TestSchemaOfAStruct(t *testing.T) {
	expected := `{"additionalProperties":false,"properties":{` +
		`"count":{"default":3,"minimum":1,"type":"integer"},` +
		`"inner":{"additionalProperties":false,"properties":{"share":{"type":"number"}},"required":["share"],"type":"object"},` +
		`"limit":{"type":"integer"},` +
		`"mode":{"default":"fast","description":"How.","enum":["fast","slow"],"type":"string"},` +
		`"words":{"items":{"type":"string"},"type":"array"}},"required":["inner"],"type":"object"}`
	if schema := SchemaOf[settings](); schema != expected {
		t.Errorf("got  %s\nwant %s", schema, expected)
	}
	if schema := SchemaOf[NoSettings](); !strings.Contains(schema, `"additionalProperties":false`) {
		t.Error(schema)
	}
}

func TestDecodingSaysWhichFieldAndWhatWasExpected(t *testing.T) {
	for text, expected := range map[string]string{
		`{"inner": {"share": 1}}`:   "",
		`{}`:                        "`inner` is missing",
		`{"inner": {}}`:             "`inner.share` is missing",
		`{"inner": {"share": "x"}}`: "`inner.share`: expected a number, got string",
		`{"inner": 3}`:              "`inner`: expected an object, got 3",
		`{"inner": {"share": 1}, "count": "many"}`:     "`count`: expected an integer, got string",
		`{"inner": {"share": 1}, "other": 1}`:          "unknown field \"other\"",
		`{"inner": {"share": null}}`:                   "`inner.share` is missing",
		`null`:                                         "expected an object, got null",
		`{"inner"`:                                     "unexpected EOF",
		`{"inner": {"share": 1}} {}`:                   "more than one value",
		`{"inner": {"share": 1}, "words": ["a", "b"]}`: "",
	} {
		var decoded settings
		err := decode(text, &decoded, true)
		if message := fmt.Sprint(err); err != nil && message != expected || err == nil && expected != "" {
			t.Errorf("%s: got %v, want %q", text, err, expected)
		}
		if err == nil && (decoded.Mode != "fast" || decoded.Count != 3) {
			t.Errorf("%s: defaults are missing: %+v", text, decoded)
		}
	}
}

func TestToolsTellTheModelWhatIsWrong(t *testing.T) {
	type sum struct {
		A float64 `json:"a"`
		B float64 `json:"b" default:"1"`
	}
	tools := Tools{NewTool("add", "Adds.", func(s sum) (string, error) { return fmt.Sprint(s.A + s.B), nil })}
	for arguments, expected := range map[string]string{
		`{"a": 2, "b": 3}`: "5", `{"a": 2}`: "3", `{"b": 2}`: "invalid arguments: `a` is missing",
		`{"a": "x"}`: "invalid arguments: `a`: expected a number, got string",
	} {
		text, err := tools.Call("add", arguments)
		if err != nil {
			text = err.Error()
		}
		if text != expected {
			t.Errorf("%s: got %q, want %q", arguments, text, expected)
		}
	}
	if _, err := tools.Call("sub", "{}"); err == nil || err.Error() != "unknown tool `sub`; there is: add" {
		t.Error(err)
	}
}

func TestAFailureStaysWhatItIs(t *testing.T) {
	for _, failure := range []*Failure{
		{Kind: Budget, Text: "turns"}, {Kind: Budget, Text: "new"}, {Kind: Cancelled}, {Kind: Denied, Text: "x"},
		{Kind: Unavailable, Text: "x"}, {Kind: InvalidUse, Text: "x"}, {Kind: OtherFailure, Code: "patch", Text: "x"},
	} {
		var back *Failure
		if !errors.As(failureIn(failureOut(fmt.Errorf("turn 1: %w", failure))), &back) || *back != *failure {
			t.Errorf("got %v, want %v", back, failure)
		}
	}
	if text := failureIn(failureOut(errors.New("plain"))).Error(); text != "error: plain" {
		t.Error(text)
	}
}

func TestExportsSayWhatTheyExpect(t *testing.T) {
	var none *Report
	_, nothing := none.out()
	_, noOutcome := (&Report{}).out()
	_, noJSON := Submitted().WithData(math.NaN()).out()
	_, infinite := scoresOut("scores", []Score{RewardOf(1, ""), {Name: "x", Value: math.Inf(1)}})
	_, nameless := scoresOut("scores", []Score{{Value: 1}})
	for i, err := range []error{nothing, noOutcome, noJSON, infinite, nameless} {
		want := []string{
			"invalid: report: expected a report or an error, got nil",
			"invalid: report.Outcome: expected an outcome, got none; make reports by Submitted, GaveUp or Limited",
			"invalid: report.Data: unsupported value: NaN",
			"invalid: scores[1].Value (x): expected a finite number, got +Inf",
			"invalid: scores[0].Name: expected a name such as \"reward\", got none",
		}[i]
		if fmt.Sprint(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	out, err := Limited(LimitTurns).WithData(map[string]int{"turns": 2}).out()
	back := reportIn(out)
	if err != nil || back.Limit != LimitTurns || string(back.Data.(json.RawMessage)) != `{"turns":2}` {
		t.Errorf("%v %+v", err, back)
	}
}

func TestWhatNoExportCanReturnIsSaid(t *testing.T) {
	var none *Failure
	if other := failureOut(fmt.Errorf("wrapped: %w", none)).Other(); other.Code != "error" || !strings.Contains(other.Text, "is nil") {
		t.Errorf("got %+v", other)
	}
	report, err := Submitted().WithAnswer("a\xffb").out()
	if err != nil || report.Answer.Some() != "a?b" {
		t.Errorf("got %q, %v", report.Answer.SomeOr(""), err)
	}
	for _, n := range []int{-1, 0, 257, 1 << 40} {
		if _, err := NewConversation("policy").CompleteMany(n); err == nil || !strings.Contains(err.Error(), "expected 1 to 256") {
			t.Errorf("%d: got %v", n, err)
		}
	}
}
