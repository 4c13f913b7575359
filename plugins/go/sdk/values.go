package espalier

import (
	"encoding/json"
	"fmt"
	"math"

	"espalier/sdk/bindings/imports/espalier_base_types"
	"espalier/sdk/bindings/imports/espalier_plugin_reports"
	"espalier/sdk/bindings/imports/espalier_plugin_scores"
	"espalier/sdk/bindings/types"
)

// NoSettings are the settings of a plugin without settings.
type NoSettings struct{}

// Task is what a plugin sees of a task.
type Task struct {
	// ID is unique in the set of tasks.
	ID string
	// Instruction is what the agent is asked to do.
	Instruction string
	// Environment and Sandboxes are names, where the task has them.
	Environment string
	Sandboxes   []string
	// Tags are words for filters and tables.
	Tags []string
	// Data is the task's `data` as JSON; null where it has none.
	Data json.RawMessage
	// Private is the private part as JSON; nil where it is not shown. Harnesses see it with the grant `private-task`.
	Private json.RawMessage
	// Extra has later additions, as JSON; nil for none.
	Extra json.RawMessage
}

// DecodeData reads the task's `data` as a type, with defaults as [SchemaOf] describes them. The error names the field.
func (t *Task) DecodeData(into any) error { return decodePart("task.data", t.Data, into) }

// DecodePrivate reads the private part as a type.
func (t *Task) DecodePrivate(into any) error { return decodePart("task.private", t.Private, into) }

func decodePart(name string, text json.RawMessage, into any) error {
	if text == nil {
		text = json.RawMessage("null")
	}
	if err := decode(string(text), into, false); err != nil {
		return Invalid("%s: %v", name, err)
	}
	return nil
}

func taskIn(task espalier_base_types.TaskView) *Task {
	return &Task{
		ID:          task.Id,
		Instruction: task.Instruction,
		Environment: task.Environment.SomeOr(""),
		Sandboxes:   task.Sandboxes,
		Tags:        task.Tags,
		Data:        json.RawMessage(task.Data),
		Private:     jsonIn(task.PrivateData),
		Extra:       jsonIn(task.Extra),
	}
}

func jsonIn(text types.Option[string]) json.RawMessage {
	if text.Tag() == types.OptionNone {
		return nil
	}
	return json.RawMessage(text.Some())
}

// jsonOut is a value as JSON; `name` says in errors what it is.
func jsonOut(name string, value any) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", Invalid("%s: %s", name, jsonProblem(err))
	}
	return string(text), nil
}

// optionOut is the same for a value that may be missing.
func optionOut(name string, value any) (types.Option[string], error) {
	if value == nil {
		return types.None[string](), nil
	}
	text, err := jsonOut(name, value)
	return types.Some(text), err
}

// Outcome says how a rollout ended, in the harness's own word.
type Outcome string

const (
	OutcomeSubmitted Outcome = "submitted"
	OutcomeGaveUp    Outcome = "gave-up"
	OutcomeLimit     Outcome = "limit"
)

// Limit is a bound that a harness met by its own count.
type Limit string

const (
	LimitTurns  Limit = "turns"
	LimitTokens Limit = "tokens"
	LimitCalls  Limit = "calls"
	LimitWall   Limit = "wall"
	LimitFormat Limit = "format"
)

// Report is how a harness says that a rollout ended.
type Report struct {
	Outcome Outcome
	// Limit belongs to OutcomeLimit.
	Limit Limit
	// Answer is the final answer; nil where there is none.
	Answer *string
	// Data is anything for rewards and people that encoding/json can write.
	Data any
}

// Submitted is the report of a rollout that is done: score it.
func Submitted() *Report { return &Report{Outcome: OutcomeSubmitted} }

// GaveUp is the report of a rollout that cannot be done: score it.
func GaveUp() *Report { return &Report{Outcome: OutcomeGaveUp} }

// Limited is the report of a rollout that met a bound of the harness.
func Limited(limit Limit) *Report { return &Report{Outcome: OutcomeLimit, Limit: limit} }

// WithAnswer adds the final answer.
func (r *Report) WithAnswer(answer string) *Report {
	r.Answer = &answer
	return r
}

// WithData adds facts for rewards and people.
func (r *Report) WithData(data any) *Report {
	r.Data = data
	return r
}

func (r *Report) out() (out espalier_plugin_reports.Report, err error) {
	if r == nil {
		return out, Invalid("report: expected a report or an error, got nil")
	}
	switch r.Outcome {
	case OutcomeSubmitted:
		out.Outcome = espalier_plugin_reports.MakeOutcomeSubmitted()
	case OutcomeGaveUp:
		out.Outcome = espalier_plugin_reports.MakeOutcomeGaveUp()
	case OutcomeLimit:
		out.Outcome = espalier_plugin_reports.MakeOutcomeLimit(limitOut(r.Limit))
	case "":
		return out, Invalid("report.Outcome: expected an outcome, got none; make reports by Submitted, GaveUp or Limited")
	default:
		out.Outcome = espalier_plugin_reports.MakeOutcomeOther(valid(string(r.Outcome)))
	}
	if r.Answer != nil {
		out.Answer = types.Some(valid(*r.Answer))
	}
	out.Data, err = jsonOut("report.Data", r.Data)
	return out, err
}

func limitOut(limit Limit) espalier_plugin_reports.Limit {
	switch limit {
	case LimitTurns:
		return espalier_plugin_reports.MakeLimitTurns()
	case LimitTokens:
		return espalier_plugin_reports.MakeLimitTokens()
	case LimitCalls:
		return espalier_plugin_reports.MakeLimitCalls()
	case LimitWall:
		return espalier_plugin_reports.MakeLimitWall()
	case LimitFormat:
		return espalier_plugin_reports.MakeLimitFormat()
	}
	return espalier_plugin_reports.MakeLimitOther(valid(string(limit)))
}

// limits are the bounds by their tags.
var limits = []Limit{LimitTurns, LimitTokens, LimitCalls, LimitWall, LimitFormat}

func reportIn(report espalier_plugin_reports.Report) *Report {
	in := &Report{Answer: report.Answer.Pointer(), Data: json.RawMessage(report.Data)}
	switch report.Outcome.Tag() {
	case espalier_plugin_reports.Outcome_Submitted:
		in.Outcome = OutcomeSubmitted
	case espalier_plugin_reports.Outcome_GaveUp:
		in.Outcome = OutcomeGaveUp
	case espalier_plugin_reports.Outcome_Limit:
		in.Outcome = OutcomeLimit
		if tag := report.Outcome.Limit().Tag(); int(tag) < len(limits) {
			in.Limit = limits[tag]
		} else {
			in.Limit = Limit(report.Outcome.Limit().Other())
		}
	default:
		in.Outcome = Outcome(report.Outcome.Other())
	}
	return in
}

// Score is one score of a rollout.
type Score struct {
	// Name is `reward` for the one that the experiment weights.
	Name  string
	Value float64
	// Turn is the turn that it is about; nil: the whole rollout.
	Turn *uint32
	// Reason is for people.
	Reason string
	// Extra are further facts; nil for none.
	Extra any
}

// RewardOf makes the score that the experiment weights.
func RewardOf(value float64, reason string) Score {
	return Score{Name: "reward", Value: value, Reason: reason}
}

func scoresOut(path string, scores []Score) ([]espalier_plugin_scores.Score, error) {
	out := make([]espalier_plugin_scores.Score, len(scores))
	for i, score := range scores {
		at := fmt.Sprintf("%s[%d]", path, i)
		if score.Name == "" {
			return nil, Invalid("%s.Name: expected a name such as \"reward\", got none", at)
		}
		if math.IsNaN(score.Value) || math.IsInf(score.Value, 0) {
			return nil, Invalid("%s.Value (%s): expected a finite number, got %v", at, score.Name, score.Value)
		}
		extra, err := optionOut(at+".Extra", score.Extra)
		if err != nil {
			return nil, err
		}
		out[i] = espalier_plugin_scores.Score{
			Name: valid(score.Name), Value: score.Value, Turn: types.FromPointer(score.Turn), Reason: valid(score.Reason), Extra: extra,
		}
	}
	return out, nil
}
