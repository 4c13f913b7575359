package espalier

import (
	"encoding/json"

	"espalier/sdk/bindings/imports/espalier_browser_browsers"
	"espalier/sdk/bindings/types"
)

// Browser is a browser of the rollout: tabs of Chromium with tools for agents, descriptions of pages, screenshots. What a tool could
// not do is an outcome of its step, not an error; an error of kind [Unavailable] means that the browser is lost.
type Browser struct {
	// Handle has every function of espalier:browser/browsers.
	Handle *espalier_browser_browsers.Session
}

// OpenBrowser opens the browser of this name: `main`, or as the task names it. The first call starts it, at its start page.
func OpenBrowser(name string) (*Browser, error) {
	handle, err := answered(espalier_browser_browsers.Open(valid(name)))
	if err != nil {
		return nil, err
	}
	return &Browser{handle}, nil
}

// Close lets go of the browser. It stays until the rollout is scored.
func (b *Browser) Close() { b.Handle.Drop() }

// BrowserStep is one action, carried out or not.
type BrowserStep struct {
	// Name is the tool.
	Name string
	// Outcome is done, failed, skipped, ended, asked, or other for anything newer.
	Outcome string
	// Code is, of a failed one, a word for programs: stale-reference, invalid-arguments, blocked-url, covered ...
	Code string
	// Reason is, of a failed or skipped one, why.
	Reason string
	// Message is the answer of a model that ended the episode, or what it asks the user.
	Message string
	// Status is, of an episode ended by `terminate`, success or failure.
	Status string
	// Text is what the model is told.
	Text string
	// Step has everything that is known: element, position, effects ...
	Step espalier_browser_browsers.Step
}

// Done says whether the action was carried out.
func (s BrowserStep) Done() bool { return s.Outcome == "done" }

// Tab, PageSnapshot and Picture are what a browser shows; PageEffect is what an action led to.
type (
	Tab          = espalier_browser_browsers.Tab
	PageSnapshot = espalier_browser_browsers.Snapshot
	Picture      = espalier_browser_browsers.Picture
	PageEffect   = espalier_browser_browsers.Effect
)

// Tools are the tools that the experiment gives the model in this browser, for a conversation. [Tools.Answer] carries out each call by
// itself; [Browser.Act] also skips those that were meant for a page that is not there any more. A tool's error is one that the browser
// as a whole had, such as its loss: it also comes from the next call of the browser.
func (b *Browser) Tools() Tools {
	tools := Tools{}
	for _, tool := range b.Handle.Tools() {
		name := tool.Name
		call := func(arguments string) (string, error) {
			steps, err := b.act([]espalier_browser_browsers.Action{{Name: name, Arguments: arguments}})
			if err != nil {
				return "", err
			}
			return steps[0].Text, nil
		}
		tools = append(tools, Tool{name, tool.Description, tool.Parameters, call})
	}
	return tools
}

// Act carries out calls of the model one after another, 32 at most, each until the page has settled. One step for each.
func (b *Browser) Act(calls []ToolCall) ([]BrowserStep, error) {
	actions := make([]espalier_browser_browsers.Action, len(calls))
	for i, call := range calls {
		actions[i] = espalier_browser_browsers.Action{Name: valid(call.Name), Arguments: valid(call.Arguments)}
	}
	return b.act(actions)
}

// Tool carries out one tool with arguments of the plugin's own: anything that encoding/json writes as an object.
func (b *Browser) Tool(name string, arguments any) (BrowserStep, error) {
	text, err := jsonOut("arguments", arguments)
	if err != nil {
		return BrowserStep{}, err
	}
	steps, err := b.act([]espalier_browser_browsers.Action{{Name: valid(name), Arguments: text}})
	if err != nil {
		return BrowserStep{}, err
	}
	return steps[0], nil
}

func (b *Browser) act(actions []espalier_browser_browsers.Action) ([]BrowserStep, error) {
	steps, err := answered(b.Handle.Act(actions))
	if err != nil {
		return nil, err
	}
	if len(steps) != len(actions) {
		return nil, Invalid("%d actions: %d steps came back", len(actions), len(steps))
	}
	in := make([]BrowserStep, len(steps))
	for i, step := range steps {
		in[i] = browserStepIn(step)
	}
	return in, nil
}

func browserStepIn(step espalier_browser_browsers.Step) BrowserStep {
	in := BrowserStep{Name: step.Name, Text: step.Text, Step: step}
	switch outcome := step.Outcome; outcome.Tag() {
	case espalier_browser_browsers.Outcome_Done:
		in.Outcome = "done"
	case espalier_browser_browsers.Outcome_Failed:
		in.Outcome, in.Code, in.Reason = "failed", outcome.Failed().Code, outcome.Failed().Text
	case espalier_browser_browsers.Outcome_Skipped:
		in.Outcome, in.Reason = "skipped", outcome.Skipped()
	case espalier_browser_browsers.Outcome_Ended:
		in.Outcome, in.Message, in.Status = "ended", outcome.Ended().Response, outcome.Ended().Status.SomeOr("")
	case espalier_browser_browsers.Outcome_Asked:
		in.Outcome, in.Message = "asked", outcome.Asked()
	default:
		in.Outcome = "other"
	}
	return in
}

// Tabs are the tabs.
func (b *Browser) Tabs() ([]Tab, error) { return answered(b.Handle.Tabs()) }

// SnapshotOptions say what a snapshot tells; the zero value is what is in the viewport.
type SnapshotOptions struct {
	// TokensMax bounds the text in tokens, estimated; 0: 2,000.
	TokensMax uint32
	// Changes leaves only what is new or changed since the last one, and what is gone.
	Changes bool
	// WholePage adds what is scrolled away.
	WholePage bool
}

// Snapshot is the active tab as text, with references that are good until the next one.
func (b *Browser) Snapshot(options SnapshotOptions) (PageSnapshot, error) {
	out := espalier_browser_browsers.SnapshotOptions{Changes: options.Changes, WholePage: options.WholePage}
	if options.TokensMax > 0 {
		out.TokensMax = types.Some(options.TokensMax)
	}
	return answered(b.Handle.Snapshot(out))
}

// ScreenshotOptions say what a picture shows, and how; the zero value is the viewport as PNG.
type ScreenshotOptions struct {
	// Format is png, jpeg or webp; "": png.
	Format string
	// Quality is 1 to 100, not for PNG; 0: 80.
	Quality uint8
	// Scale is the size over that of the viewport, up to 4; 0: the browser's own.
	Scale float64
	// FullPage shows the page from top to bottom.
	FullPage bool
}

// Screenshot is the active tab as a picture, kept as a blob.
func (b *Browser) Screenshot(options ScreenshotOptions) (Picture, error) {
	out := espalier_browser_browsers.ScreenshotOptions{FullPage: options.FullPage}
	switch options.Format {
	case "", "png":
		out.Format = espalier_browser_browsers.Format_Png
	case "jpeg":
		out.Format = espalier_browser_browsers.Format_Jpeg
	case "webp":
		out.Format = espalier_browser_browsers.Format_Webp
	default:
		return Picture{}, Invalid("options.Format: expected png, jpeg or webp, got %q", options.Format)
	}
	if options.Quality > 0 {
		out.Quality = types.Some(options.Quality)
	}
	if options.Scale != 0 {
		out.Scale = types.Some(options.Scale)
	}
	return answered(b.Handle.Screenshot(out))
}

// Evaluate reads the value of a JavaScript expression where the page's own scripts run; promises are awaited. The page can forge it: a
// reward uses [Browser.EvaluateIsolated], or asks the page's server. One that throws is an [OtherFailure] with the code `script`.
func (b *Browser) Evaluate(expression string, into any) error {
	return b.evaluate(expression, espalier_browser_browsers.ScriptWorld_Page, into)
}

// EvaluateIsolated does the same in a world of its own on the same document.
func (b *Browser) EvaluateIsolated(expression string, into any) error {
	return b.evaluate(expression, espalier_browser_browsers.ScriptWorld_Isolated, into)
}

func (b *Browser) evaluate(expression string, world espalier_browser_browsers.ScriptWorld, into any) error {
	text, err := answered(b.Handle.Evaluate(valid(expression), world))
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return Invalid("the expression's value %s: %s", text, jsonProblem(err))
	}
	return nil
}

// StorageState are the cookies and the local storage of each origin, as JSON: {"cookies": [...], "origins": [...]}.
func (b *Browser) StorageState() (json.RawMessage, error) {
	text, err := answered(b.Handle.StorageState())
	return json.RawMessage(text), err
}
