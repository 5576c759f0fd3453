package api

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Outcome is how a turn ended; empty (null on the wire) while it runs.
type Outcome string

// The three endings of a turn.
const (
	OutcomeCompleted Outcome = "completed"
	OutcomeFailed    Outcome = "failed"
	OutcomeCanceled  Outcome = "canceled"
)

// TurnCreate is the body of POST …/turns.
type TurnCreate struct {
	Input Input `json:"input"`
	// Model overrides the session's model for this turn.
	Model string `json:"model,omitempty"`
	// MaxSteps lowers the server's bound on model calls in this turn; 0 means the server's.
	MaxSteps int `json:"max_steps,omitempty"`
}

// Input is what a user says: a list of parts. On the wire a plain string stands for one text part.
type Input []InputPart

// InputPart is one piece of a user's input.
type InputPart struct {
	// Type is "text".
	Type string `json:"type"`
	Text string `json:"text"`
}

// Text joins the text parts with newlines.
func (in Input) Text() string {
	text := ""
	for i, p := range in {
		if i > 0 {
			text += "\n"
		}
		text += p.Text
	}
	return text
}

// UnmarshalJSON accepts a string or a list of parts. It keeps no unknown field: the parts are checked by the caller's schema.
func (in *Input) UnmarshalJSON(b []byte) error {
	var text string
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		*in = Input{{Type: "text", Text: text}}
		return nil
	}
	var parts []InputPart
	if err := unmarshalStrict(b, &parts); err != nil {
		return err
	}
	*in = parts
	return nil
}

// Failure is why a turn failed.
type Failure struct {
	// Class is lower_snake and stable; openapi.yaml lists the values.
	Class string `json:"class"`
	// Message tells the page's author what to do; it never holds a secret or an internal error's text.
	Message string `json:"message"`
}

// Usage counts tokens. A nil field is unknown, which is not the same as 0.
type Usage struct {
	InputTokens     *int64 `json:"input_tokens"`
	CachedTokens    *int64 `json:"cached_tokens"`
	OutputTokens    *int64 `json:"output_tokens"`
	ReasoningTokens *int64 `json:"reasoning_tokens"`
}

// TurnSummary is a turn as listings show it.
type TurnSummary struct {
	ID        uuid.UUID `json:"id"`
	SessionID uuid.UUID `json:"session_id"`
	// Outcome is nil (null) while the turn runs.
	Outcome *Outcome `json:"outcome"`
	Input   Input    `json:"input"`
	Model   string   `json:"model"`
	Failure *Failure `json:"failure,omitempty"`
	// Steps counts the model calls that were started.
	Steps     int       `json:"steps"`
	Usage     *Usage    `json:"usage,omitempty"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
}

// Turn is one turn and, once Outcome is set, its result.
type Turn struct {
	TurnSummary
	// Text is the last thing that the model said in a whole message of this turn.
	Text string `json:"text"`
	// ToolResults are the settled calls in the order in which the model made them.
	ToolResults []TurnToolResult `json:"tool_results"`
}

// TurnToolResult is one settled call in a turn result.
type TurnToolResult struct {
	ToolCallID uuid.UUID       `json:"tool_call_id"`
	Tool       string          `json:"tool"`
	Source     ToolSource      `json:"source,omitempty"`
	Args       json.RawMessage `json:"args"`
	Result     ToolResult      `json:"result"`
	SettledBy  SettledBy       `json:"settled_by"`
	Step       int             `json:"step"`
	// DurationMS is the time from the first offer to the result, in milliseconds; 0 when the call was never offered.
	DurationMS int64     `json:"duration_ms"`
	Time       time.Time `json:"time"`
}

// TurnList answers GET …/turns, newest first.
type TurnList struct {
	Turns []TurnSummary `json:"turns"`
	// Next continues the list as ?before=; absent at the end.
	Next string `json:"next,omitempty"`
}

// Message is one entry of the transcript.
type Message struct {
	// Position numbers the messages of a session from 1.
	Position int64     `json:"position"`
	TurnID   uuid.UUID `json:"turn_id"`
	// Step is the model call that the message belongs to; absent for role user.
	Step int `json:"step,omitempty"`
	// Role is user, assistant or tool.
	Role string `json:"role"`
	// Text is what was said; for role tool it is empty.
	Text string `json:"text"`
	// Reasoning is what the model chose to show of its thinking.
	Reasoning string `json:"reasoning,omitempty"`
	// ToolCalls are the calls that an assistant message makes.
	ToolCalls []MessageToolCall `json:"tool_calls,omitempty"`
	// ToolCallID, Tool, Result and SettledBy are set for role tool.
	ToolCallID uuid.UUID   `json:"tool_call_id,omitzero"`
	Tool       string      `json:"tool,omitempty"`
	Result     *ToolResult `json:"result,omitempty"`
	SettledBy  SettledBy   `json:"settled_by,omitempty"`
	Time       time.Time   `json:"time"`
}

// MessageToolCall is a call as the model made it: Args are its bytes, or {} when it sent none.
type MessageToolCall struct {
	ToolCallID uuid.UUID       `json:"tool_call_id"`
	Tool       string          `json:"tool"`
	Args       json.RawMessage `json:"args"`
}

// MessageList answers GET …/messages, in order of position.
type MessageList struct {
	Messages []Message `json:"messages"`
	// Before continues towards older messages as ?before=; absent at the beginning of the transcript.
	Before int64 `json:"before,omitempty"`
}

// ModelInfo is one entry of GET /v1/models.
type ModelInfo struct {
	Name        string `json:"name"`
	Provider    string `json:"provider"`
	Description string `json:"description,omitempty"`
	Default     bool   `json:"default"`
	Available   bool   `json:"available"`
	// Reason says why a model is not available.
	Reason string `json:"reason,omitempty"`
}

// ModelList answers GET /v1/models.
type ModelList struct {
	Models []ModelInfo `json:"models"`
}
