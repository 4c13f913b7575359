// A harness that fails as its task says: one mode for each way in which plugins fail.
package main

import (
	"fmt"
	"net"
	"strings"

	espalier "espalier/sdk"
	"espalier/sdk/bindings/imports/espalier_model_conversations"
)

// Settings are what an experiment may set.
type Settings struct {
	Lines int `json:"lines" default:"10000" minimum:"1" description:"Lines of a flood."`
}

type data struct {
	Mode string `json:"mode"`
}

type sum struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
}

// start is what is done before the first call: a test writes another word over this one in the component.
var start = "start: as usual"

func init() {
	if strings.HasSuffix(start, "a panic ") {
		panic("a panic in a constructor")
	}
	for strings.HasSuffix(start, "no stop ") {
	}
}

func init() { espalier.Harness(run) }

func main() {}

func run(task *espalier.Task, settings Settings) (*espalier.Report, error) {
	var asked data
	if err := task.DecodeData(&asked); err != nil {
		return nil, err
	}
	switch asked.Mode {
	case "loop":
		return espalier.Submitted().WithData(endless()), nil
	case "memory":
		return espalier.Submitted().WithData(hoard()), nil
	case "stack":
		return espalier.Submitted().WithData(descend(1)), nil
	case "panic":
		panic("a panic on purpose")
	case "wrong-json":
		return espalier.Submitted().WithData(make(chan int)), nil
	case "unknown-tool":
		return useTools()
	case "invalid-handle":
		return espalier.Submitted().WithData(forgedHandle()), nil
	case "foreign-blob":
		bytes, err := espalier.ReadBlob("of-another-rollout")
		return espalier.Submitted().WithData(len(bytes)), err
	case "call-after-end":
		return goOn()
	case "random":
		return espalier.Submitted().WithData(drawn()), nil
	case "log-flood":
		return flood(settings.Lines)
	case "error":
		return nil, espalier.Other("no-plan", "a failure on purpose")
	case "oversized":
		return espalier.Submitted().WithAnswer(strings.Repeat("x", 20<<20)), nil
	case "network":
		_, err := net.Dial("tcp", "127.0.0.1:80")
		return espalier.Submitted(), err
	}
	return espalier.Submitted().WithData(asked.Mode), nil
}

func endless() (rounds uint64) {
	for {
		rounds++
	}
}

func hoard() (pieces [][]byte) {
	for {
		pieces = append(pieces, make([]byte, 1<<20))
	}
}

func descend(depth int) int {
	return descend(depth+1) + depth
}

func useTools() (*espalier.Report, error) {
	tools := espalier.Tools{
		espalier.NewTool("add", "Adds two numbers.", func(s sum) (string, error) { return fmt.Sprint(s.A + s.B), nil }),
	}
	chat := espalier.NewConversation("policy").Offer(tools).User("Use a tool.")
	answer, err := chat.Complete()
	if err != nil {
		return nil, err
	}
	tools.Answer(chat, answer)
	answer, err = chat.Complete()
	if err != nil {
		return nil, err
	}
	return espalier.Submitted().WithAnswer(answer.Text), nil
}

// forgedHandle uses a number that is no handle of this plugin's.
func forgedHandle() uint32 {
	return espalier_model_conversations.ConversationFromOwnHandle(4711).Usage().Turns
}

// goOn goes on after its budget of turns is used up.
func goOn() (*espalier.Report, error) {
	chat := espalier.NewConversation("policy").User("Go on.")
	for {
		_, _ = chat.Complete()
	}
}

// drawn is what differs from run to run in a program of its own.
func drawn() map[string]any {
	numbers := map[int]bool{}
	for number := range 100 {
		numbers[number] = true
	}
	order := []int{}
	for number := range numbers {
		order = append(order, number)
	}
	return map[string]any{"random": espalier.Rand().Uint64(), "order": order}
}

func flood(lines int) (*espalier.Report, error) {
	for range lines {
		espalier.Log(espalier.Info, strings.Repeat("x", 1024))
	}
	return espalier.Submitted(), nil
}
