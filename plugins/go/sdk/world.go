package espalier

import (
	"encoding/json"
	"math"

	"espalier/sdk/bindings/imports/espalier_environment_environments"
	"espalier/sdk/bindings/imports/espalier_environment_types"
	"espalier/sdk/bindings/types"
)

// Observation is what the agent sees.
type Observation struct {
	Text string
	// Images are blobs, in order.
	Images []string
}

// StepResult is what one action led to.
type StepResult struct {
	Observation
	// Reward is of this step alone; nil: none is given here, which is not 0.
	Reward *float64
	// Done says whether the episode is over.
	Done bool
	// Info are facts for rewards and people: anything that encoding/json can write. From an environment it is JSON.
	Info any
}

// See is an observation of text.
func See(text string) Observation { return Observation{Text: text} }

// Seen is a step without a reward, after which the episode goes on.
func Seen(text string) StepResult { return StepResult{Observation: See(text)} }

// WithReward adds the reward of the step.
func (s StepResult) WithReward(reward float64) StepResult {
	s.Reward = &reward
	return s
}

// AndDone says that the episode is over.
func (s StepResult) AndDone() StepResult {
	s.Done = true
	return s
}

// WithInfo adds facts for rewards and people.
func (s StepResult) WithInfo(info any) StepResult {
	s.Info = info
	return s
}

// World is the environment of a rollout, for a harness.
type World struct {
	open *espalier_environment_environments.Environment
}

// OpenWorld opens the environment of the task, once in a rollout.
func OpenWorld() (*World, error) {
	open, err := answered(espalier_environment_environments.Open())
	if err != nil {
		return nil, err
	}
	return &World{open}, nil
}

// Reset puts the world into its first state.
func (w *World) Reset() (Observation, error) {
	seen, err := answered(w.open.Reset())
	return Observation{Text: seen.Text, Images: seen.Images}, err
}

// Step carries out one action, taken as it is. One that the world refuses is an observation, not an error.
func (w *World) Step(action string) (StepResult, error) {
	step, err := answered(w.open.Step(valid(action)))
	return StepResult{
		Observation: Observation{Text: step.Observation.Text, Images: step.Observation.Images},
		Reward:      step.Reward.Pointer(),
		Done:        step.Done,
		Info:        json.RawMessage(step.Info),
	}, err
}

// Actions are the actions possible now, where the world lists them; otherwise none.
func (w *World) Actions() ([]string, error) { return answered(w.open.Actions()) }

func (o Observation) out() espalier_environment_types.Observation {
	return espalier_environment_types.Observation{Text: valid(o.Text), Images: o.Images}
}

func (s StepResult) out() (out espalier_environment_types.StepResult, err error) {
	if s.Reward != nil && (math.IsNaN(*s.Reward) || math.IsInf(*s.Reward, 0)) {
		return out, Invalid("step.Reward: expected a finite number, got %v", *s.Reward)
	}
	out.Observation = s.Observation.out()
	out.Reward = types.FromPointer(s.Reward)
	out.Done = s.Done
	out.Info, err = jsonOut("step.Info", s.Info)
	return out, err
}
