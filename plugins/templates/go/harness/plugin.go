// The harness {{name}}: plays a text world by one action per answer of the model.
package main

import (
	"fmt"
	"strings"

	espalier "espalier/sdk"
)

// Settings are what an experiment may set; the tags become their JSON Schema. In a tag, \u0060 is a backquote.
type Settings struct {
	System   string `json:"system" default:"You act in a text world. End each answer with one line \u0060Action: <action>\u0060." description:"The first message to the model."`
	MaxTurns int    `json:"max_turns" default:"10" minimum:"1" description:"Answers of the model at most."`
}

// result is kept with the rollout, for rewards and people.
type result struct {
	Turns  int     `json:"turns"`
	Reward float64 `json:"reward"`
}

func init() { espalier.Harness(run) }

func main() {}

func run(task *espalier.Task, settings Settings) (*espalier.Report, error) {
	world, err := espalier.OpenWorld()
	if err != nil {
		return nil, err
	}
	seen, err := world.Reset()
	if err != nil {
		return nil, err
	}
	chat := espalier.NewConversation("policy")
	chat.System(settings.System).User(task.Instruction + "\n\n" + seen.Text)
	total := result{}
	for total.Turns < settings.MaxTurns {
		// What was said since the last answer is sent now.
		answer, err := chat.Complete()
		if err != nil {
			return nil, fmt.Errorf("turn %d: %w", total.Turns, err)
		}
		total.Turns++
		action := actionIn(answer.Text)
		if action == "" {
			chat.User("There was no action in your answer. End it with one line `Action: <action>`.")
			continue
		}
		step, err := world.Step(action)
		if err != nil {
			return nil, err
		}
		if step.Reward != nil {
			total.Reward += *step.Reward
		}
		if step.Done {
			return espalier.Submitted().WithAnswer(step.Text).WithData(total), nil
		}
		chat.User(step.Text)
	}
	return espalier.Limited(espalier.LimitTurns).WithData(total), nil
}

// actionIn is what stands behind the last line that starts with `Action:`; empty where there is none.
func actionIn(answer string) string {
	action := ""
	for line := range strings.Lines(answer) {
		if rest, found := strings.CutPrefix(strings.TrimSpace(line), "Action:"); found {
			action = strings.TrimSpace(rest)
		}
	}
	return action
}
