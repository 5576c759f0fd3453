package api

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Tool is the declaration of one tool, as the page sends it and as the model is told of it.
type Tool struct {
	// Name matches ^[a-zA-Z][a-zA-Z0-9_.-]*$, has at most 64 characters and is unique in its session.
	Name string `json:"name"`
	// Description tells the model when and how to use the tool; never empty.
	Description string `json:"description"`
	// ArgsSchema is a JSON Schema 2020-12 whose root is an object. Absent or {} means that the tool takes no parameters.
	ArgsSchema json.RawMessage `json:"args_schema,omitempty"`
	// TimeoutMS bounds the wait for a result, in milliseconds; 0 means the server's default (60,000).
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// MaxTimeoutMS is how far progress may extend the deadline, in milliseconds from the offer; 0 means not at all.
	MaxTimeoutMS int64 `json:"max_timeout_ms,omitempty"`
	// ResultSchema, if present, is what a successful output must satisfy.
	ResultSchema json.RawMessage `json:"result_schema,omitempty"`
}

// Skills is what a page declares: guidance for the model and the tools that the page can run.
type Skills struct {
	// Guidance is product text for the model; never composed from page content, user input or results.
	Guidance string `json:"guidance,omitempty"`
	Tools    []Tool `json:"tools,omitempty"`
}

// ToolSource says who runs a tool.
type ToolSource string

// SourcePage is a tool that a page declared and runs.
const SourcePage ToolSource = "page"

// ToolCallStatus is where a tool call stands.
type ToolCallStatus string

// The states of a tool call.
const (
	ToolCallQueued  ToolCallStatus = "queued"  // made by the model, not yet offered
	ToolCallPending ToolCallStatus = "pending" // offered; a result is awaited
	ToolCallSettled ToolCallStatus = "settled" // has its one result
)

// SettledBy says who closed a tool call.
type SettledBy string

// The ways in which a tool call is closed.
const (
	SettledByPage        SettledBy = "page"
	SettledByNative      SettledBy = "native"
	SettledByValidation  SettledBy = "validation"
	SettledByPolicy      SettledBy = "policy"
	SettledByTimeout     SettledBy = "timeout"
	SettledByCancel      SettledBy = "cancel"
	SettledByInterrupted SettledBy = "interrupted"
)

// ToolCall is one call of a tool by the model, as the API shows it.
type ToolCall struct {
	ID        uuid.UUID       `json:"id"`
	SessionID uuid.UUID       `json:"session_id"`
	TurnID    uuid.UUID       `json:"turn_id"`
	Tool      string          `json:"tool"`
	Source    ToolSource      `json:"source"`
	Args      json.RawMessage `json:"args"`
	Step      int             `json:"step"`
	Status    ToolCallStatus  `json:"status"`
	// Attempt counts the offers, from 1; 0 while queued or when the call was never offered.
	Attempt int `json:"attempt"`
	// MayHaveRun is true when an earlier offer may already have been acted upon.
	MayHaveRun bool `json:"may_have_run"`
	// Deadline is when the call times out; absent when it was never offered.
	Deadline time.Time `json:"deadline,omitzero"`
	// Claim is present while a client holds the call.
	Claim     *ClaimInfo  `json:"claim,omitempty"`
	Result    *ToolResult `json:"result,omitempty"`
	SettledBy SettledBy   `json:"settled_by,omitempty"`
	// Time is when the model made the call.
	Time time.Time `json:"time"`
}

// ClaimInfo names the client that holds a call; it never carries the claim_id, which only the holder knows.
type ClaimInfo struct {
	ClientID string    `json:"client_id"`
	Expires  time.Time `json:"expires"`
}

// ToolResult is the outcome of a tool call: an output or an error, never both.
type ToolResult struct {
	OK bool `json:"ok"`
	// Output is any JSON value, null included; nil exactly when OK is false.
	Output json.RawMessage `json:"output,omitempty"`
	Error  *ToolError      `json:"error,omitempty"`
}

// ToolError is why a tool call produced no output.
type ToolError struct {
	// Code is UPPER_SNAKE, see the TOOL_* codes and whatever the page chose.
	Code      string          `json:"code"`
	Message   string          `json:"message"`
	Details   json.RawMessage `json:"details,omitempty"`
	Retryable bool            `json:"retryable,omitempty"`
}

// ResultSubmit is the body of POST …/tool_calls/{tool_call_id}/result: exactly one of Output and Error.
type ResultSubmit struct {
	// Output is nil when the field was absent; an explicit null arrives as the bytes "null".
	Output json.RawMessage `json:"output,omitempty"`
	Error  *ToolError      `json:"error,omitempty"`
	// ClaimID is needed while the call is claimed.
	ClaimID uuid.UUID `json:"claim_id,omitzero"`
}

// ClaimRequest is the body of POST …/tool_calls/{tool_call_id}/claim.
type ClaimRequest struct {
	// ClientID is a name that the client chose for itself, shown to others; 1 to 128 characters.
	ClientID string `json:"client_id"`
	// LeaseMS is how long the claim lasts, in milliseconds: 1,000 to 300,000, default 30,000.
	LeaseMS int64 `json:"lease_ms,omitempty"`
}

// Claim answers a successful claim; ClaimID goes with the result and with progress.
type Claim struct {
	ClaimID    uuid.UUID `json:"claim_id"`
	ToolCallID uuid.UUID `json:"tool_call_id"`
	ClientID   string    `json:"client_id"`
	Expires    time.Time `json:"expires"`
	// Attempt is the offer that was claimed.
	Attempt int `json:"attempt"`
	// MayHaveRun is true when anybody may have begun the call before this claim, the same client before a reload included.
	MayHaveRun bool `json:"may_have_run"`
}

// ProgressRequest is the body of POST …/tool_calls/{tool_call_id}/progress.
type ProgressRequest struct {
	Message string `json:"message,omitempty"`
	// Fraction is the part that is done, 0 to 1; absent when unknown.
	Fraction *float64  `json:"fraction,omitempty"`
	ClaimID  uuid.UUID `json:"claim_id,omitzero"`
}

// ToolCallList answers GET …/tool_calls.
type ToolCallList struct {
	ToolCalls []ToolCall `json:"tool_calls"`
}

// ToolsReplace is the body of PUT …/tools; an absent Guidance leaves the guidance as it is.
type ToolsReplace struct {
	Guidance *string `json:"guidance,omitempty"`
	Tools    []Tool  `json:"tools"`
}
