// The task generator {{name}}: sums whose numbers get longer when they are solved.
package main

import (
	"fmt"

	espalier "espalier/sdk"
)

// Settings are what an experiment may set; the tags become their JSON Schema.
type Settings struct {
	Digits int `json:"digits" default:"2" minimum:"1" maximum:"9" description:"Digits of the numbers of a new task."`
}

// sum is a task, as a line of a task file.
type sum struct {
	ID          string   `json:"id"`
	Instruction string   `json:"instruction"`
	Data        data     `json:"data"`
	Private     solution `json:"private"`
}

type data struct {
	Digits int `json:"digits"`
}

type solution struct {
	Answer string `json:"answer"`
}

func init() { espalier.TaskGenerator(generate, adapt) }

func main() {}

// generate makes as many tasks as are asked for. The same seed makes the same ones.
func generate(request espalier.Request, settings Settings) ([]sum, error) {
	tasks := []sum{}
	for i := range uint64(request.Count) {
		tasks = append(tasks, newSum(fmt.Sprintf("sum-%d-%d", request.Seed, i), request.Seed, i, settings.Digits))
	}
	return tasks, nil
}

// adapt makes a harder task of one that was solved often, an easier one of another.
func adapt(task sum, statistics espalier.Statistics, _ Settings) ([]sum, error) {
	digits, word := task.Data.Digits+1, "harder"
	if statistics.Accuracy < 0.5 {
		digits, word = task.Data.Digits-1, "easier"
	}
	if digits < 1 || digits > 9 {
		return nil, nil
	}
	return []sum{newSum(task.ID+"-"+word, uint64(len(task.ID)), 0, digits)}, nil
}

func newSum(id string, seed, i uint64, digits int) sum {
	const modulus = 2147483647
	bound := uint64(1)
	for range digits {
		bound *= 10
	}
	x := seed%modulus + i + 1
	draw := func() uint64 {
		x = x * 48271 % modulus
		return x % bound
	}
	a, b := draw(), draw()
	return sum{
		ID:          id,
		Instruction: fmt.Sprintf("What is %d + %d?", a, b),
		Data:        data{digits},
		Private:     solution{fmt.Sprint(a + b)},
	}
}
