// The group reward {{name}}: of the rollouts of one task, those with the most frequent answer are rewarded.
package main

import (
	"fmt"
	"strings"

	espalier "espalier/sdk"
)

func init() { espalier.GroupReward(score) }

func main() {}

// score returns one list of scores for each rollout, in their order.
func score(rollouts []*espalier.Rollout, _ espalier.NoSettings) ([][]espalier.Score, error) {
	counts := map[string]int{}
	for _, rollout := range rollouts {
		if answer, given := plain(rollout); given {
			counts[answer]++
		}
	}
	// In the order of the rollouts, so that of several the first wins.
	best, most, reason := "", 0, "no answers"
	for _, rollout := range rollouts {
		if answer, given := plain(rollout); given && counts[answer] > most {
			best, most = answer, counts[answer]
			reason = fmt.Sprintf(`majority: "%s" (%d of %d)`, best, most, len(rollouts))
		}
	}
	scores := [][]espalier.Score{}
	for _, rollout := range rollouts {
		value := 0.0
		if answer, given := plain(rollout); given && answer == best {
			value = 1
		}
		scores = append(scores, []espalier.Score{espalier.RewardOf(value, reason)})
	}
	return scores, nil
}

// plain is the answer of a rollout as it is compared; false where there is none.
func plain(rollout *espalier.Rollout) (string, bool) {
	answer, given := rollout.Answer()
	return strings.ToLower(strings.TrimSpace(answer)), given
}
