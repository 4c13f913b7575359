package espalier

import (
	"encoding/json"

	"espalier/sdk/bindings/imports/espalier_model_conversations"
	"espalier/sdk/bindings/types"
)

// Conversation is one branch of a conversation with a model. Messages are sent with the next answer that is asked for.
//
//	chat := espalier.NewConversation("policy")
//	answer, err := chat.System("Answer briefly.").User("What is 2 + 3?").Complete()
type Conversation struct {
	// Options say how answers are asked for.
	Options Options

	model   string
	tools   []espalier_model_conversations.Tool
	pending []Message
	// open is nil until the first answer.
	open *espalier_model_conversations.Conversation
}

// Options say how an answer is asked for; what is left out is as the experiment's `sampling` says.
type Options struct {
	// MaxTokens is the most tokens to sample; 0: as the experiment says.
	MaxTokens uint32
	// Stop are texts that end the answer and are not part of it.
	Stop []string
	// Temperature is 0 for greedy; nil: as the experiment says.
	Temperature *float64
	// ToolChoice is `auto`, `none`, `required`, or the name of a tool.
	ToolChoice string
}

// Answer is one answer of a model.
type Answer struct {
	// Text is the answer, calls of tools included as the model wrote them.
	Text    string
	Message Message
	// ToolCalls are the calls that were parsed; Malformed says why one could not be.
	ToolCalls []ToolCall
	Malformed string
	// Finish says why it ended: stop, length, tool-calls, filtered, or anything newer.
	Finish string
	// Usage are the counters after it.
	Usage Usage
	// Call names the answer in the votes of a judge.
	Call string
}

// Usage are the counters of a conversation.
type Usage struct {
	PromptTokens  uint64
	SampledTokens uint64
	// Turns are answers in this conversation.
	Turns uint32
	// TokensLeft and TurnsLeft are what budgets still allow, where known.
	TokensLeft *uint64
	TurnsLeft  *uint32
}

// Branch is one of several answers, with the conversation that holds it.
type Branch struct {
	*Conversation
	Answer *Answer
}

// NewConversation is a conversation with the model that the experiment calls so: `policy`; a judge's is `judge`.
func NewConversation(model string) *Conversation { return &Conversation{model: model} }

// Offer offers these tools to the model. Before the first answer.
func (c *Conversation) Offer(tools Tools) *Conversation {
	c.tools = nil
	for _, tool := range tools {
		c.tools = append(c.tools, espalier_model_conversations.Tool{
			Name: tool.Name, Description: tool.Description, Parameters: tool.Parameters,
		})
	}
	return c
}

// System adds a message of the system.
func (c *Conversation) System(text string) *Conversation { return c.Add(Say(RoleSystem, text)) }

// User adds a message of the user, with images behind its text.
func (c *Conversation) User(text string, images ...string) *Conversation {
	message := Say(RoleUser, text)
	for _, image := range images {
		message.Parts = append(message.Parts, Part{Image: image})
	}
	return c.Add(message)
}

// Assistant adds an answer that the plugin writes itself, for examples; it does not train.
func (c *Conversation) Assistant(text string) *Conversation { return c.Add(Say(RoleAssistant, text)) }

// ToolResult adds the answer to a call of a tool.
func (c *Conversation) ToolResult(call ToolCall, text string, isError bool) *Conversation {
	result := &ToolResult{CallID: call.ID, Text: text, IsError: isError}
	return c.Add(Message{Role: RoleTool, Parts: []Part{{ToolResult: result}}})
}

// Add adds any messages.
func (c *Conversation) Add(messages ...Message) *Conversation {
	c.pending = append(c.pending, messages...)
	return c
}

// Complete samples one answer and adds it. After an error the conversation is as before.
func (c *Conversation) Complete() (*Answer, error) {
	if err := c.send(); err != nil {
		return nil, err
	}
	completion, err := answered(c.open.Complete(c.Options.out()))
	if err != nil {
		return nil, err
	}
	return answerIn(completion), nil
}

// CompleteMany samples n answers at once, 1 to 256, each in a branch of its own; this one stays without an answer.
func (c *Conversation) CompleteMany(n int) ([]Branch, error) {
	if n < 1 || n > 256 {
		return nil, Invalid("CompleteMany: expected 1 to 256 answers, got %d", n)
	}
	if err := c.send(); err != nil {
		return nil, err
	}
	many, err := answered(c.open.CompleteMany(uint32(n), c.Options.out()))
	branches := []Branch{}
	for _, branch := range many {
		branches = append(branches, Branch{c.branch(branch.Conversation), answerIn(branch.Completion)})
	}
	return branches, err
}

// Fork is a second branch with the same past.
func (c *Conversation) Fork() (*Conversation, error) {
	if err := c.send(); err != nil {
		return nil, err
	}
	open, err := answered(c.open.Fork())
	if err != nil {
		return nil, err
	}
	return c.branch(open), nil
}

func (c *Conversation) branch(open *espalier_model_conversations.Conversation) *Conversation {
	return &Conversation{Options: c.Options, model: c.model, open: open}
}

// Discard gives this branch up: its tokens do not train, and it cannot be used any more.
func (c *Conversation) Discard() {
	if c.open != nil {
		c.open.Discard()
	}
}

// Rewrite replaces the whole history, for compaction: a new training segment opens, the old one stays.
func (c *Conversation) Rewrite(messages ...Message) error {
	c.pending = nil
	if c.open == nil {
		c.pending = messages
		return nil
	}
	return done(c.open.Rewrite(messagesOut(messages)))
}

// ElideImages replaces all images but the last `keep` by a fixed text, and returns how many.
func (c *Conversation) ElideImages(keep uint32) (uint32, error) {
	if err := c.send(); err != nil {
		return 0, err
	}
	return answered(c.open.ElideImages(keep))
}

// SetTrainable says whether the answer at this index of the conversation may train.
func (c *Conversation) SetTrainable(message uint32, trainable bool) error {
	if err := c.send(); err != nil {
		return err
	}
	return done(c.open.SetTrainable(message, trainable))
}

// Usage are the counters as they stand; false before the first answer.
func (c *Conversation) Usage() (Usage, bool) {
	if c.open == nil {
		return Usage{}, false
	}
	return usageIn(c.open.Usage()), true
}

// send opens the conversation, or appends what is new.
func (c *Conversation) send() error {
	if c.open == nil {
		open, err := answered(espalier_model_conversations.Open(c.model, messagesOut(c.pending), c.tools))
		if err != nil {
			return err
		}
		c.open = open
	} else if len(c.pending) > 0 {
		if err := done(c.open.Append(messagesOut(c.pending))); err != nil {
			return err
		}
	}
	c.pending = nil
	return nil
}

func (o Options) out() espalier_model_conversations.Options {
	out := espalier_model_conversations.Options{Stop: o.Stop, Temperature: types.FromPointer(o.Temperature)}
	if o.MaxTokens > 0 {
		out.MaxTokens = types.Some(o.MaxTokens)
	}
	if o.ToolChoice != "" {
		out.ToolChoice = types.Some(o.ToolChoice)
	}
	return out
}

// finishes are the ends of an answer by their tags.
var finishes = []string{"stop", "length", "tool-calls", "filtered"}

func answerIn(completion espalier_model_conversations.Completion) *Answer {
	message := messageIn(completion.Message)
	answer := &Answer{
		Text:      message.Text(),
		Message:   message,
		ToolCalls: toolCallsIn(completion.ToolCalls),
		Malformed: completion.Malformed.SomeOr(""),
		Usage:     usageIn(completion.Usage),
	}
	if tag := completion.Finish.Tag(); int(tag) < len(finishes) {
		answer.Finish = finishes[tag]
	} else {
		answer.Finish = completion.Finish.Other()
	}
	var extra struct{ Call string }
	if json.Unmarshal(jsonIn(completion.Extra), &extra) == nil {
		answer.Call = extra.Call
	}
	return answer
}

func usageIn(usage espalier_model_conversations.Usage) Usage {
	return Usage{
		PromptTokens:  usage.PromptTokens,
		SampledTokens: usage.SampledTokens,
		Turns:         usage.Turns,
		TokensLeft:    usage.TokensLeft.Pointer(),
		TurnsLeft:     usage.TurnsLeft.Pointer(),
	}
}
