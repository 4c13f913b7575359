// The judge {{name}}: asks a model several times whether an answer meets a rubric.
package main

import (
	"fmt"
	"strings"

	espalier "espalier/sdk"
)

const system = `You are a strict judge. Think briefly, then end with \boxed{1} if the rubric is met, else \boxed{0}.`

// Settings are what an experiment may set; the tags become their JSON Schema.
type Settings struct {
	Rubric string `json:"rubric" default:"The answer is correct and complete." description:"What is asked of an answer."`
	Votes  int    `json:"votes" default:"3" minimum:"1" maximum:"9" description:"How often the model is asked."`
}

func init() { espalier.Judge(judge) }

func main() {}

// judge returns scores, and the votes behind them. An error leaves the rollout unjudged, which is not the same as 0.
func judge(rollout *espalier.Rollout, settings Settings) (*espalier.Judgement, error) {
	answer, given := rollout.Answer()
	if !given {
		answer = "(none)"
	}
	chat := espalier.NewConversation("judge").System(system)
	chat.User(fmt.Sprintf("Rubric: %s\n\nTask: %s\n\nAnswer: %s", settings.Rubric, rollout.Task.Instruction, answer))
	branches, err := chat.CompleteMany(settings.Votes)
	if err != nil {
		return nil, err
	}
	judgement := &espalier.Judgement{}
	parsed, sum := 0, 0.0
	for _, branch := range branches {
		value := verdict(branch.Answer.Text)
		if value != nil {
			parsed++
			sum += *value
		}
		vote := espalier.Vote{Value: value, Text: branch.Answer.Text, Call: branch.Answer.Call}
		judgement.Votes = append(judgement.Votes, vote)
	}
	if parsed == 0 {
		return nil, espalier.Other("no-verdict", "none of the %d votes could be parsed", len(branches))
	}
	reason := fmt.Sprintf("%g of %d votes for", sum, parsed)
	judgement.Scores = []espalier.Score{espalier.RewardOf(sum/float64(parsed), reason)}
	return judgement, nil
}

// verdict is the last verdict of a text; nil where there is none.
func verdict(text string) *float64 {
	yes, no := strings.LastIndex(text, `\boxed{1}`), strings.LastIndex(text, `\boxed{0}`)
	value := 0.0
	switch {
	case yes < 0 && no < 0:
		return nil
	case yes > no:
		value = 1
	}
	return &value
}
