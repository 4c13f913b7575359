package espalier

import (
	"fmt"
	"math"

	"espalier/sdk/bindings/imports/espalier_plugin_judge"
	"espalier/sdk/bindings/types"
)

// Judgement is what a judge gives.
type Judgement struct {
	// Scores are as those of a reward.
	Scores []Score
	Votes  []Vote
}

// Vote is one evaluation of one turn, or of the outcome.
type Vote struct {
	// Turn is the turn that it is about; nil: the outcome.
	Turn *uint32
	// Value is nil where the evaluation could not be parsed.
	Value *float64
	// Text is what the judge wrote, for people.
	Text string
	// Call is Answer.Call of the answer that it was read from: the tokens that the vote trains where the judge is trained.
	Call string
}

func (j *Judgement) out() (out espalier_plugin_judge.Judgement, err error) {
	if j == nil {
		return out, Invalid("judgement: expected a judgement or an error, got nil")
	}
	if out.Scores, err = scoresOut("judgement.Scores", j.Scores); err != nil {
		return out, err
	}
	for i, vote := range j.Votes {
		if vote.Value != nil && (math.IsNaN(*vote.Value) || math.IsInf(*vote.Value, 0)) {
			return out, Invalid("judgement.%s: expected a finite number, got %v", fmt.Sprintf("Votes[%d].Value", i), *vote.Value)
		}
		made := espalier_plugin_judge.Vote{
			Turn: types.FromPointer(vote.Turn), Value: types.FromPointer(vote.Value), Text: valid(vote.Text),
		}
		if vote.Call != "" {
			made.Call = types.Some(vote.Call)
		}
		out.Votes = append(out.Votes, made)
	}
	return out, nil
}
