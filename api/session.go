package api

import (
	"time"

	"github.com/google/uuid"
)

// SessionStatus is what a session is doing. It is derived from the log, never stored.
type SessionStatus string

// The session states. WaitingToolResult means that at least one page call is offered and unanswered.
const (
	StatusIdle              SessionStatus = "idle"
	StatusRunning           SessionStatus = "running"
	StatusWaitingToolResult SessionStatus = "waiting_tool_result"
	StatusEnded             SessionStatus = "ended"
)

// SessionCreate is the body of POST /v1/sessions.
type SessionCreate struct {
	// Model names an entry of GET /v1/models; empty means the server's default.
	Model  string `json:"model,omitempty"`
	Skills Skills `json:"skills,omitzero"`
	// Metadata is the application's own: at most 32 entries, keys of 1 to 64 and values of up to 512 characters.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Subject is the end user that a backend speaks for; at most 256 characters. It cannot be changed later.
	Subject string `json:"subject,omitempty"`
}

// SessionPatch is the body of PATCH /v1/sessions/{session_id}. A nil field is left alone.
type SessionPatch struct {
	// Metadata replaces the whole map.
	Metadata *map[string]string `json:"metadata,omitempty"`
	Model    *string            `json:"model,omitempty"`
}

// SessionSummary is a session as listings show it.
type SessionSummary struct {
	ID       uuid.UUID         `json:"id"`
	Status   SessionStatus     `json:"status"`
	Model    string            `json:"model"`
	Subject  string            `json:"subject,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Turns counts the turns that were started.
	Turns     int64     `json:"turns"`
	CreatedAt time.Time `json:"created_at"`
	// UpdatedAt is the time of the last change that listings show.
	UpdatedAt time.Time `json:"updated_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
}

// Session is the state of one session: what a client needs after a reload.
type Session struct {
	SessionSummary
	Skills Skills `json:"skills"`
	// TurnID is the running turn, if any.
	TurnID uuid.UUID `json:"turn_id,omitzero"`
	// PendingToolCalls are the page calls that are offered and unanswered.
	PendingToolCalls []ToolCall `json:"pending_tool_calls"`
	// Cursor is the position of the event stream that this state corresponds to: GET …/events?after={cursor} continues it.
	Cursor string `json:"cursor"`
}

// SessionList answers GET /v1/sessions, newest first.
type SessionList struct {
	Sessions []SessionSummary `json:"sessions"`
	// Next continues the list as ?before=; absent at the end.
	Next string `json:"next,omitempty"`
}
