// The environment {{name}}: a number is to be guessed.
package main

import (
	"fmt"
	"strconv"
	"strings"

	espalier "espalier/sdk"
)

// Settings are what an experiment may set; the tags become their JSON Schema.
type Settings struct {
	MaxGuesses int `json:"max_guesses" default:"10" minimum:"1" description:"Guesses at most."`
}

// bounds are the `data` of a task, which the agent's harness sees too.
type bounds struct {
	Low  int `json:"low"`
	High int `json:"high"`
}

// hidden is its private part.
type hidden struct {
	Secret int `json:"secret"`
}

// game is one episode.
type game struct {
	secret, guesses, maxGuesses int
}

func init() { espalier.Environment(start) }

func main() {}

// start begins the episode of a task, and says what is seen first.
func start(task *espalier.Task, settings Settings) (*game, espalier.Observation, error) {
	var data bounds
	if err := task.DecodeData(&data); err != nil {
		return nil, espalier.Observation{}, err
	}
	var private hidden
	if err := task.DecodePrivate(&private); err != nil {
		return nil, espalier.Observation{}, err
	}
	seen := espalier.See(fmt.Sprintf("Guess a number between %d and %d.", data.Low, data.High))
	return &game{secret: private.Secret, maxGuesses: settings.MaxGuesses}, seen, nil
}

// Step carries out one action. One that makes no sense is told to the agent; an error would end the rollout.
func (g *game) Step(action string) (espalier.StepResult, error) {
	g.guesses++
	info := map[string]int{"guesses": g.guesses}
	guess, err := strconv.Atoi(strings.TrimSpace(action))
	text := ""
	switch {
	case err != nil:
		text = fmt.Sprintf("`%s` is not a number.", action)
	case guess == g.secret:
		return espalier.Seen("Correct.").WithReward(1).AndDone().WithInfo(info), nil
	case guess < g.secret:
		text = "The number is higher."
	default:
		text = "The number is lower."
	}
	if g.guesses == g.maxGuesses {
		return espalier.Seen(text + " No guesses left.").WithReward(0).AndDone().WithInfo(info), nil
	}
	return espalier.Seen(text).WithInfo(info), nil
}
