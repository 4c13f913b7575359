package espalier

import (
	"fmt"
	"strings"
)

// Tool is a function that a model may call.
type Tool struct {
	Name        string
	Description string
	// Parameters is the JSON Schema of the arguments.
	Parameters string
	// Call carries out a call with these arguments, as JSON. An error is what the model is told.
	Call func(arguments string) (string, error)
}

// Tools are the tools of a conversation.
//
//	type sum struct {
//		A float64 `json:"a" description:"The first number."`
//		B float64 `json:"b"`
//	}
//
//	tools := espalier.Tools{
//		espalier.NewTool("add", "Adds two numbers.", func(s sum) (string, error) { return fmt.Sprint(s.A + s.B), nil }),
//	}
//	answer, err := chat.Offer(tools).Complete()
//	...
//	tools.Answer(chat, answer)
type Tools []Tool

// NewTool makes a tool of a function; the schema follows from the type of its arguments, as [SchemaOf] says.
func NewTool[A any](name, description string, call func(A) (string, error)) Tool {
	return Tool{name, description, SchemaOf[A](), func(text string) (string, error) {
		var arguments A
		if err := decode(text, &arguments, true); err != nil {
			return "", fmt.Errorf("invalid arguments: %w", err)
		}
		return call(arguments)
	}}
}

// Call carries out one call. An unknown tool and arguments that do not fit are errors for the model.
func (t Tools) Call(name, arguments string) (string, error) {
	names := []string{}
	for _, tool := range t {
		if tool.Name == name {
			return tool.Call(arguments)
		}
		names = append(names, tool.Name)
	}
	return "", fmt.Errorf("unknown tool `%s`; there is: %s", name, strings.Join(names, ", "))
}

// Answer carries out the calls of an answer and appends their results. It returns how many there were.
func (t Tools) Answer(conversation *Conversation, answer *Answer) int {
	for _, call := range answer.ToolCalls {
		text, err := t.Call(call.Name, call.Arguments)
		if err != nil {
			text = err.Error()
		}
		conversation.ToolResult(call, text, err != nil)
	}
	return len(answer.ToolCalls)
}
