package sessions

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// Model is an LLM. Implementations only translate: retries, deadlines and limits live in this package.
type Model interface {
	// Stream makes exactly one request and yields the parts of the answer as they come: text and reasoning pieces, then one
	// part with Answer set, which is authoritative and the last. An error (a *ModelError, or ctx's) ends the sequence instead.
	// A sequence that ends with neither is taken as a truncated answer. The prompt is not changed. Safe for concurrent use.
	Stream(ctx context.Context, prompt *Prompt) iter.Seq2[Part, error]
}

// Prompt is everything that a model is told for one step.
type Prompt struct {
	// System is product text, in order: guidance first.
	System []string
	// Messages is the well-formed history: every call has exactly one result, directly after its message, in call order.
	Messages []Message
	Tools    []api.Tool
}

// Role is who speaks in a message.
type Role string

// The roles. A message of RoleTool holds the result of one call.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Message is one entry of a prompt's history.
type Message struct {
	Role Role
	Text string
	// Reasoning is shown thinking of an assistant message.
	Reasoning string
	// Calls are the calls of an assistant message.
	Calls []Call
	// Result answers the call CallID of tool Tool, for RoleTool.
	CallID uuid.UUID
	Tool   string
	Result *api.ToolResult
	// Opaque goes back unchanged to Origin, and to nobody else.
	Opaque json.RawMessage
	Origin string
}

// Call is a tool call in a prompt's history.
type Call struct {
	ID uuid.UUID
	// WireID is the provider's own id, meaningful to the message's Origin only; may be empty or repeated.
	WireID string
	Tool   string
	Args   json.RawMessage
}

// Part is one piece of a streaming answer: exactly one field is set.
type Part struct {
	Text      string
	Reasoning string
	Answer    *Answer
}

// Answer is a model's whole answer for one step.
type Answer struct {
	Text      string
	Reasoning string
	Calls     []AnswerCall
	// StopReason is end, tool_calls, max_tokens or content_filter.
	StopReason string
	// Usage is nil when unknown.
	Usage  *api.Usage
	Opaque json.RawMessage
	Origin string
}

// AnswerCall is a call as a model made it. Args are its bytes, whatever they are: this package checks them.
type AnswerCall struct {
	WireID string
	Tool   string
	Args   []byte
}

// ModelError is a failed model call.
type ModelError struct {
	// Class is lower_snake, one of openapi.yaml's failure classes.
	Class string
	// Message tells the page's author what to do. It is shown: no secret, no raw body of a provider.
	Message string
	// Retryable errors are tried again, not before RetryAfter.
	Retryable  bool
	RetryAfter time.Duration
	// Err is the cause, for the log only.
	Err error
}

func (e *ModelError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("model: %s: %s: %v", e.Class, e.Message, e.Err)
	}
	return fmt.Sprintf("model: %s: %s", e.Class, e.Message)
}

// Unwrap returns the cause.
func (e *ModelError) Unwrap() error { return e.Err }

// ModelEntry is a named model that sessions can choose.
type ModelEntry struct {
	Name, Provider, Description string
	Model                       Model
	// Unavailable says why the model cannot be used now; empty means that it can.
	Unavailable string
}
