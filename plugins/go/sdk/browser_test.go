package espalier

import (
	"fmt"
	"strings"
	"testing"

	"espalier/sdk/bindings/imports/espalier_browser_browsers"
	"espalier/sdk/bindings/types"
)

func TestABrowsersStepSaysWhatBecameOfIt(t *testing.T) {
	ended := espalier_browser_browsers.End{Response: "ok", Status: types.Some("success")}
	stale := espalier_browser_browsers.Problem{Code: "stale-reference", Text: "e1 is gone"}
	for want, outcome := range map[string]espalier_browser_browsers.Outcome{
		"done | | | | ": espalier_browser_browsers.MakeOutcomeDone(),
		"failed | stale-reference | e1 is gone | | ": espalier_browser_browsers.MakeOutcomeFailed(stale),
		"skipped | | another page | | ":              espalier_browser_browsers.MakeOutcomeSkipped("another page"),
		"ended | | | ok | success":                   espalier_browser_browsers.MakeOutcomeEnded(ended),
		"asked | | | Which? | ":                      espalier_browser_browsers.MakeOutcomeAsked("Which?"),
		"other | | | | ":                             espalier_browser_browsers.MakeOutcomeOther("[1]"),
	} {
		step := browserStepIn(espalier_browser_browsers.Step{Name: "click", Outcome: outcome, Text: "Told."})
		told := strings.Join([]string{step.Outcome, step.Code, step.Reason, step.Message, step.Status}, " | ")
		if told = strings.ReplaceAll(told, "|  |", "| |"); strings.ReplaceAll(told, "|  |", "| |") != want {
			t.Errorf("got %q, want %q", told, want)
		}
		if step.Done() != (step.Outcome == "done") || step.Name != "click" || step.Text != "Told." {
			t.Errorf("%+v", step)
		}
	}
}

func TestAPictureOfAnUnknownFormatIsRefused(t *testing.T) {
	_, err := (&Browser{}).Screenshot(ScreenshotOptions{Format: "gif"})
	if fmt.Sprint(err) != `invalid: options.Format: expected png, jpeg or webp, got "gif"` {
		t.Error(err)
	}
}

func TestAServicesAnswerIsReadOrSaysWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		`200 {"cart":["lamp"]}`: "<nil>",
		`404 {"error":{}}`:      `invalid: shop/go: status 404: {"error":{}}`,
		`200 <p>`:               "invalid: shop/go: invalid character '<' looking for beginning of value: <p>",
	} {
		var status uint16
		var state struct{ Cart []string }
		body := text[4:]
		fmt.Sscan(text[:3], &status)
		err := Service("shop").decode("/go", ServiceResponse{Status: status, Body: []byte(body)}, &state)
		if fmt.Sprint(err) != want || err == nil && state.Cart[0] != "lamp" {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}
