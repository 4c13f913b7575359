package espalier

import (
	"encoding/json"
	"fmt"

	"espalier/sdk/bindings/imports/espalier_plugin_task_generator"
)

// Request says which tasks are asked for.
type Request struct {
	// Count is how many tasks, from 1. Fewer may be made; none says that there are none at the moment.
	Count uint32
	// Seed follows from the run's seed and the batch; below 2^53.
	Seed uint64
	// Extra is `{"batch": N, "accepted": N}`; nil for none.
	Extra json.RawMessage
}

// Statistics say how a task went.
type Statistics struct {
	// Attempts are the rollouts of the group with a reward; Accuracy is the share of them that solved it, 0 to 1.
	Attempts uint32
	Accuracy float64
	// Turns is their mean number of turns.
	Turns float64
	// Endings counts rollouts by stop reason.
	Endings map[string]uint32
	// Failures are summaries of what did not solve it.
	Failures []string
	// Extra has later additions; nil for none.
	Extra json.RawMessage
}

func requestIn(request espalier_plugin_task_generator.Request) Request {
	return Request{Count: request.Count, Seed: request.Seed, Extra: jsonIn(request.Extra)}
}

func statisticsIn(statistics espalier_plugin_task_generator.Statistics) Statistics {
	in := Statistics{
		Attempts: statistics.Attempts,
		Accuracy: statistics.Accuracy,
		Turns:    statistics.Turns,
		Endings:  map[string]uint32{},
		Failures: statistics.Failures,
		Extra:    jsonIn(statistics.Extra),
	}
	for _, ending := range statistics.Endings {
		in.Endings[ending.F0] = ending.F1
	}
	return in
}

func tasksOut[T any](tasks []T, err error) ([]string, error) {
	if err != nil {
		return nil, err
	}
	lines := []string{}
	for i, task := range tasks {
		line, err := jsonOut(fmt.Sprintf("tasks[%d]", i), task)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, nil
}
