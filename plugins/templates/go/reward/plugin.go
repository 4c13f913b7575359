// The reward {{name}}: compares the answer of a rollout with the one of its task.
package main

import (
	"fmt"
	"strings"

	espalier "espalier/sdk"
)

// Settings are what an experiment may set; the tags become their JSON Schema.
type Settings struct {
	CaseSensitive bool `json:"case_sensitive" default:"false" description:"Whether upper and lower case differ."`
}

// solution is the private part of a task.
type solution struct {
	Answer string `json:"answer"`
}

func init() { espalier.Reward(score) }

func main() {}

// score returns the scores of a rollout. An error leaves it unscored, which is not the same as 0.
func score(rollout *espalier.Rollout, settings Settings) ([]espalier.Score, error) {
	var expected solution
	if err := rollout.Task.DecodePrivate(&expected); err != nil {
		return nil, err
	}
	value, reason := 0.0, "no answer"
	if answer, given := rollout.Answer(); given {
		reason = fmt.Sprintf(`expected "%s", got "%s"`, expected.Answer, answer)
		if plain(answer, settings) == plain(expected.Answer, settings) {
			value = 1
		}
	}
	return []espalier.Score{
		// The score named `reward` is the one that the experiment weights; others are recorded.
		{Name: "reward", Value: value, Reason: reason},
		{Name: "turns", Value: float64(len(rollout.Turns))},
	}, nil
}

// plain is an answer as it is compared.
func plain(answer string, settings Settings) string {
	answer = strings.TrimSpace(answer)
	if settings.CaseSensitive {
		return answer
	}
	return strings.ToLower(answer)
}
