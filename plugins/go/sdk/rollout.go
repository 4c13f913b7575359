package espalier

import (
	"encoding/json"

	"espalier/sdk/bindings/imports/espalier_plugin_scores"
)

// Rollout is a finished rollout, as rewards and judges see it. Texts over 64 KiB are blobs.
type Rollout struct {
	// ID is unique in the store.
	ID string
	// Task has its private part.
	Task *Task
	// Status is completed, truncated or time-exceeded; StopReason says more: submitted, gave-up, limit-turns ...
	Status     string
	StopReason string
	// Report is what the harness returned; nil where it did not. Its Data is a json.RawMessage.
	Report *Report
	Turns  []Turn
	Steps  []Step
	// Blobs are references by name.
	Blobs map[string]string
	// Extra has for rewards `judges`, for group rewards `reward`, `scores` and `judges`; nil for none.
	Extra json.RawMessage
}

// Turn is one answer of the policy and what followed it.
type Turn struct {
	// Index counts from 0.
	Index     uint32
	Message   Message
	ToolCalls []ToolCall
	// Answers are the messages behind it, up to the next answer.
	Answers []Message
	Extra   json.RawMessage
}

// Step is one step in the environment.
type Step struct {
	// Turn is the policy's last turn when it was taken; 0 before the first.
	Turn uint32
	// Action is as the harness sent it.
	Action string
	// Observation is cut to 64 KiB; then ObservationBlob has the whole.
	Observation     string
	ObservationBlob string
	// Reward is nil where none was given.
	Reward *float64
	Done   bool
	Info   json.RawMessage
	Extra  json.RawMessage
}

// Answer is the final answer of the harness's report; false where there is none.
func (r *Rollout) Answer() (string, bool) {
	if r.Report == nil || r.Report.Answer == nil {
		return "", false
	}
	return *r.Report.Answer, true
}

func rolloutIn(view espalier_plugin_scores.RolloutView) *Rollout {
	in := &Rollout{
		ID:         view.RolloutId,
		Task:       taskIn(view.Task),
		Status:     view.Status,
		StopReason: view.StopReason,
		Blobs:      map[string]string{},
		Extra:      jsonIn(view.Extra),
	}
	if report := view.Report.Pointer(); report != nil {
		in.Report = reportIn(*report)
	}
	for _, turn := range view.Turns {
		in.Turns = append(in.Turns, Turn{
			Index:     turn.Index,
			Message:   messageIn(turn.Message),
			ToolCalls: toolCallsIn(turn.ToolCalls),
			Answers:   messagesIn(turn.Answers),
			Extra:     jsonIn(turn.Extra),
		})
	}
	for _, step := range view.Steps {
		in.Steps = append(in.Steps, Step{
			Turn:            step.Turn,
			Action:          step.Action,
			Observation:     step.Observation,
			ObservationBlob: step.ObservationBlob.SomeOr(""),
			Reward:          step.Reward.Pointer(),
			Done:            step.Done,
			Info:            json.RawMessage(step.Info),
			Extra:           jsonIn(step.Extra),
		})
	}
	for _, blob := range view.Blobs {
		in.Blobs[blob.F0] = blob.F1
	}
	return in
}
