package espalier

import (
	"encoding/json"
	"strings"

	"espalier/sdk/bindings/imports/espalier_model_messages"
	"espalier/sdk/bindings/types"
)

// Role says who speaks.
type Role uint8

const (
	RoleSystem    Role = Role(espalier_model_messages.Role_System)
	RoleUser      Role = Role(espalier_model_messages.Role_User)
	RoleAssistant Role = Role(espalier_model_messages.Role_Assistant)
	RoleTool      Role = Role(espalier_model_messages.Role_Tool)
)

// String is the role as JSON and tables write it.
func (r Role) String() string {
	if int(r) < 4 {
		return [...]string{"system", "user", "assistant", "tool"}[r]
	}
	return "unknown"
}

// Message is one message of a conversation.
type Message struct {
	Role  Role
	Parts []Part
	// Extra has later additions, as JSON; nil for none.
	Extra json.RawMessage
}

// Part is one piece of a message: what is set of it.
type Part struct {
	Text string
	// TextBlob is a text over 64 KiB, in views of finished rollouts.
	TextBlob string
	// Image is a blob.
	Image      string
	ToolCall   *ToolCall
	ToolResult *ToolResult
	// Other is anything newer, as JSON.
	Other json.RawMessage
}

// ToolCall is a call of a tool by the model.
type ToolCall struct {
	// ID is unique in the conversation.
	ID   string
	Name string
	// Arguments are an object, as JSON.
	Arguments string
}

// ToolResult is the answer to a call.
type ToolResult struct {
	CallID string
	// Text is what the model is shown.
	Text string
	// IsError is shown to rewards, not to the model.
	IsError bool
}

// Say is a message of text.
func Say(role Role, text string) Message { return Message{Role: role, Parts: []Part{{Text: text}}} }

// Text is the text of the message, without other parts.
func (m Message) Text() string {
	text := strings.Builder{}
	for _, part := range m.Parts {
		text.WriteString(part.Text)
	}
	return text.String()
}

func messageIn(message espalier_model_messages.Message) Message {
	in := Message{Role: Role(message.Role), Parts: make([]Part, len(message.Parts)), Extra: jsonIn(message.Extra)}
	for i, part := range message.Parts {
		switch part.Tag() {
		case espalier_model_messages.Part_Text:
			in.Parts[i].Text = part.Text()
		case espalier_model_messages.Part_TextBlob:
			in.Parts[i].TextBlob = part.TextBlob()
		case espalier_model_messages.Part_Image:
			in.Parts[i].Image = part.Image()
		case espalier_model_messages.Part_ToolCall:
			call := toolCallIn(part.ToolCall())
			in.Parts[i].ToolCall = &call
		case espalier_model_messages.Part_ToolResult:
			result := part.ToolResult()
			in.Parts[i].ToolResult = &ToolResult{result.CallId, result.Text, result.IsError}
		default:
			in.Parts[i].Other = json.RawMessage(part.Other())
		}
	}
	return in
}

func messagesIn(messages []espalier_model_messages.Message) []Message {
	in := make([]Message, len(messages))
	for i, message := range messages {
		in[i] = messageIn(message)
	}
	return in
}

func toolCallIn(call espalier_model_messages.ToolCall) ToolCall {
	return ToolCall{call.Id, call.Name, call.Arguments}
}

func toolCallsIn(calls []espalier_model_messages.ToolCall) []ToolCall {
	in := make([]ToolCall, len(calls))
	for i, call := range calls {
		in[i] = toolCallIn(call)
	}
	return in
}

func messageOut(message Message) espalier_model_messages.Message {
	out := espalier_model_messages.Message{Role: espalier_model_messages.Role(message.Role)}
	if message.Extra != nil {
		out.Extra = types.Some(string(message.Extra))
	}
	for _, part := range message.Parts {
		out.Parts = append(out.Parts, partOut(part))
	}
	return out
}

func partOut(part Part) espalier_model_messages.Part {
	switch {
	case part.ToolCall != nil:
		call := *part.ToolCall
		return espalier_model_messages.MakePartToolCall(espalier_model_messages.ToolCall{
			Id: call.ID, Name: call.Name, Arguments: call.Arguments,
		})
	case part.ToolResult != nil:
		result := *part.ToolResult
		return espalier_model_messages.MakePartToolResult(espalier_model_messages.ToolResult{
			CallId: result.CallID, Text: valid(result.Text), IsError: result.IsError,
		})
	case part.Image != "":
		return espalier_model_messages.MakePartImage(part.Image)
	case part.TextBlob != "":
		return espalier_model_messages.MakePartTextBlob(part.TextBlob)
	case part.Other != nil:
		return espalier_model_messages.MakePartOther(string(part.Other))
	}
	return espalier_model_messages.MakePartText(valid(part.Text))
}

func messagesOut(messages []Message) []espalier_model_messages.Message {
	out := make([]espalier_model_messages.Message, len(messages))
	for i, message := range messages {
		out[i] = messageOut(message)
	}
	return out
}

// valid is a text with `?` in place of what is not UTF-8, which would end the plugin.
func valid(text string) string { return strings.ToValidUTF8(text, "?") }
