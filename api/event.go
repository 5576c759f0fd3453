package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"
)

// EventHeader is what every event carries.
type EventHeader struct {
	// Type equals the SSE event field and is the snake_case of the Go type.
	Type      string    `json:"type"`
	SessionID uuid.UUID `json:"session_id"`
	// TurnID is absent on events that belong to no turn.
	TurnID uuid.UUID `json:"turn_id,omitzero"`
	Time   time.Time `json:"time"`
}

// Header returns the header itself, so that every event type has it.
func (h *EventHeader) Header() *EventHeader { return h }

// Event is one of the pointer types of this file.
type Event interface{ Header() *EventHeader }

// SessionCreated is the first event of every session.
type SessionCreated struct {
	EventHeader
	Model    string            `json:"model"`
	Subject  string            `json:"subject,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Tools are the names of the declared tools.
	Tools []string `json:"tools"`
}

// SessionUpdated tells that the metadata or model changed; the values are the new ones.
type SessionUpdated struct {
	EventHeader
	Model    string            `json:"model"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// ToolsReplaced tells that the registry changed; the next model call sees it.
type ToolsReplaced struct {
	EventHeader
	Tools []string `json:"tools"`
}

// SessionEnded is the last event of a session.
type SessionEnded struct {
	EventHeader
	// Deleted is true when the session was purged: nothing but this event remains.
	Deleted bool `json:"deleted,omitempty"`
}

// StatusChanged follows the event that changed the status.
type StatusChanged struct {
	EventHeader
	Status SessionStatus `json:"status"`
}

// TurnStarted carries what the user said.
type TurnStarted struct {
	EventHeader
	Input    Input  `json:"input"`
	Model    string `json:"model"`
	MaxSteps int    `json:"max_steps"`
}

// TurnOwned is hidden from readers: a replica took the turn. The Seq of its record is the owner's term.
type TurnOwned struct {
	EventHeader
	// Takeover counts the owners before this one.
	Takeover int `json:"takeover"`
}

// StepStarted announces a model call.
type StepStarted struct {
	EventHeader
	Step int `json:"step"`
}

// AttemptVoided tells readers to drop the text and reasoning shown for this step so far: the model call is made again, or was given up.
type AttemptVoided struct {
	EventHeader
	Step int `json:"step"`
	// Attempt is the one that is void, from 1.
	Attempt int    `json:"attempt"`
	Reason  string `json:"reason"`
}

// TextDelta is a piece of the answer as it comes. The message event is authoritative.
type TextDelta struct {
	EventHeader
	Step    int    `json:"step"`
	Attempt int    `json:"attempt"`
	Text    string `json:"text"`
}

// ReasoningDelta is a piece of what the model shows of its thinking.
type ReasoningDelta struct {
	EventHeader
	Step    int    `json:"step"`
	Attempt int    `json:"attempt"`
	Text    string `json:"text"`
}

// MessageEvent is a whole answer of the model; its type is "message". It fixes the ids of its calls.
type MessageEvent struct {
	EventHeader
	Step      int               `json:"step"`
	Text      string            `json:"text"`
	Reasoning string            `json:"reasoning,omitempty"`
	ToolCalls []MessageToolCall `json:"tool_calls"`
	// StopReason is end, tool_calls, max_tokens, content_filter or canceled (the turn was canceled; Text is what had been shown).
	StopReason string `json:"stop_reason"`
	Usage      *Usage `json:"usage,omitempty"`
}

// ToolCallEvent offers a call; its type is "tool_call". For source page it is the permission, and the request, to run it.
type ToolCallEvent struct {
	EventHeader
	ToolCallID uuid.UUID       `json:"tool_call_id"`
	Tool       string          `json:"tool"`
	Source     ToolSource      `json:"source"`
	Args       json.RawMessage `json:"args"`
	Step       int             `json:"step"`
	Attempt    int             `json:"attempt"`
	MayHaveRun bool            `json:"may_have_run"`
	Deadline   time.Time       `json:"deadline"`
}

// ToolClaimed tells that a client holds a call until Expires.
type ToolClaimed struct {
	EventHeader
	ToolCallID uuid.UUID `json:"tool_call_id"`
	ClientID   string    `json:"client_id"`
	Expires    time.Time `json:"expires"`
}

// ClaimRenewed is hidden from readers: the holder of a call keeps it for longer.
type ClaimRenewed struct {
	EventHeader
	ToolCallID uuid.UUID `json:"tool_call_id"`
	ClientID   string    `json:"client_id"`
	Expires    time.Time `json:"expires"`
}

// ToolProgress tells how far a call is; Deadline is the one now in force.
type ToolProgress struct {
	EventHeader
	ToolCallID uuid.UUID `json:"tool_call_id"`
	Message    string    `json:"message,omitempty"`
	Fraction   *float64  `json:"fraction,omitempty"`
	Deadline   time.Time `json:"deadline"`
}

// ToolResultEvent closes a call; its type is "tool_result". A page that still runs the call should stop.
type ToolResultEvent struct {
	EventHeader
	ToolCallID uuid.UUID  `json:"tool_call_id"`
	Tool       string     `json:"tool"`
	Source     ToolSource `json:"source,omitempty"`
	Result     ToolResult `json:"result"`
	SettledBy  SettledBy  `json:"settled_by"`
	Step       int        `json:"step"`
	DurationMS int64      `json:"duration_ms"`
}

// TurnCompleted ends a turn that the model brought to its end.
type TurnCompleted struct {
	EventHeader
	// Text is the last message's.
	Text  string `json:"text"`
	Steps int    `json:"steps"`
	Usage *Usage `json:"usage,omitempty"`
}

// TurnFailed ends a turn that could not go on.
type TurnFailed struct {
	EventHeader
	Failure Failure `json:"failure"`
	Steps   int     `json:"steps"`
	Usage   *Usage  `json:"usage,omitempty"`
}

// TurnCanceled ends a turn that somebody canceled, or whose session was ended.
type TurnCanceled struct {
	EventHeader
	// Reason is cancel or session_ended.
	Reason string `json:"reason"`
	Steps  int    `json:"steps"`
	Usage  *Usage `json:"usage,omitempty"`
}

// Ready is a control frame that does not move the cursor. It stands at the beginning of a stream and, if something was stored behind
// the reader's cursor, again after all that: then, or at once if there is nothing, CaughtUp is true. A call that was offered before
// that and has no result by then is pending; what comes after it is live.
type Ready struct {
	EventHeader
	// Status is the session's when the stream was opened.
	Status SessionStatus `json:"status"`
	// Cursor is where the stream goes on from.
	Cursor   string `json:"cursor"`
	CaughtUp bool   `json:"caught_up"`
}

// Reset is a control frame: the cursor that the client sent does not belong to this history. Everything follows from the beginning; what the client had is void.
type Reset struct {
	EventHeader
	Reason string `json:"reason"`
	Cursor string `json:"cursor"`
}

// StreamEnd is a control frame: the server closes the stream.
type StreamEnd struct {
	EventHeader
	// Reason is shutdown (reconnect with the last id), session_ended, deleted or turn_ended (do not reconnect).
	Reason string `json:"reason"`
}

// Heartbeat is a control frame, sent in place of the comment when a client asked for it with ?heartbeat=event.
type Heartbeat struct {
	EventHeader
}

// The event types, as they stand in "type" and in the SSE event field.
const (
	TypeSessionCreated = "session_created"
	TypeSessionUpdated = "session_updated"
	TypeToolsReplaced  = "tools_replaced"
	TypeSessionEnded   = "session_ended"
	TypeStatusChanged  = "status_changed"
	TypeTurnStarted    = "turn_started"
	TypeTurnOwned      = "turn_owned"
	TypeStepStarted    = "step_started"
	TypeAttemptVoided  = "attempt_voided"
	TypeTextDelta      = "text_delta"
	TypeReasoningDelta = "reasoning_delta"
	TypeMessage        = "message"
	TypeToolCall       = "tool_call"
	TypeToolClaimed    = "tool_claimed"
	TypeClaimRenewed   = "claim_renewed"
	TypeToolProgress   = "tool_progress"
	TypeToolResult     = "tool_result"
	TypeTurnCompleted  = "turn_completed"
	TypeTurnFailed     = "turn_failed"
	TypeTurnCanceled   = "turn_canceled"
	TypeReady          = "ready"
	TypeReset          = "reset"
	TypeStreamEnd      = "stream_end"
	TypeHeartbeat      = "heartbeat"
)

// eventTypes makes an empty event of each type that a log may hold.
var eventTypes = map[string]func() Event{
	TypeSessionCreated: func() Event { return new(SessionCreated) },
	TypeSessionUpdated: func() Event { return new(SessionUpdated) },
	TypeToolsReplaced:  func() Event { return new(ToolsReplaced) },
	TypeSessionEnded:   func() Event { return new(SessionEnded) },
	TypeStatusChanged:  func() Event { return new(StatusChanged) },
	TypeTurnStarted:    func() Event { return new(TurnStarted) },
	TypeTurnOwned:      func() Event { return new(TurnOwned) },
	TypeStepStarted:    func() Event { return new(StepStarted) },
	TypeAttemptVoided:  func() Event { return new(AttemptVoided) },
	TypeTextDelta:      func() Event { return new(TextDelta) },
	TypeReasoningDelta: func() Event { return new(ReasoningDelta) },
	TypeMessage:        func() Event { return new(MessageEvent) },
	TypeToolCall:       func() Event { return new(ToolCallEvent) },
	TypeToolClaimed:    func() Event { return new(ToolClaimed) },
	TypeClaimRenewed:   func() Event { return new(ClaimRenewed) },
	TypeToolProgress:   func() Event { return new(ToolProgress) },
	TypeToolResult:     func() Event { return new(ToolResultEvent) },
	TypeTurnCompleted:  func() Event { return new(TurnCompleted) },
	TypeTurnFailed:     func() Event { return new(TurnFailed) },
	TypeTurnCanceled:   func() Event { return new(TurnCanceled) },
}

// controlTypes are the frames that no log holds.
var controlTypes = map[string]func() Event{
	TypeReady:     func() Event { return new(Ready) },
	TypeReset:     func() Event { return new(Reset) },
	TypeStreamEnd: func() Event { return new(StreamEnd) },
	TypeHeartbeat: func() Event { return new(Heartbeat) },
}

var typeNames = func() map[reflect.Type]string {
	names := map[reflect.Type]string{}
	for _, types := range []map[string]func() Event{eventTypes, controlTypes} {
		for name, make := range types {
			names[reflect.TypeOf(make())] = name
		}
	}
	return names
}()

// TypeOf returns the type name of an event of this package.
func TypeOf(e Event) string { return typeNames[reflect.TypeOf(e)] }

// EventType reads the type of an encoded event without decoding the rest.
// Events are encoded by this package, so "type" is always the first member.
func EventType(raw json.RawMessage) string {
	const prefix = `{"type":"`
	if len(raw) < len(prefix) || string(raw[:len(prefix)]) != prefix {
		return ""
	}
	rest := raw[len(prefix):]
	for i, c := range rest {
		if c == '"' {
			return string(rest[:i])
		}
	}
	return ""
}

// DecodeEvent decodes an event that a log holds. An unknown type is an [*UnknownEventError].
func DecodeEvent(raw json.RawMessage) (Event, error) {
	t := EventType(raw)
	make, ok := eventTypes[t]
	if !ok {
		return nil, &UnknownEventError{Type: t}
	}
	e := make()
	if err := json.Unmarshal(raw, e); err != nil {
		return nil, fmt.Errorf("decoding event %s: %w", t, err)
	}
	return e, nil
}

// UnknownEventError tells of an event that this version does not know: a newer replica wrote it.
type UnknownEventError struct{ Type string }

func (e *UnknownEventError) Error() string { return fmt.Sprintf("unknown event type %q", e.Type) }

// EventPage answers GET …/events as JSON.
type EventPage struct {
	Events []EventItem `json:"events"`
	// Cursor continues as ?after=; it equals the request's when there was nothing new.
	Cursor string `json:"cursor"`
	// More is true when further events are already stored.
	More bool `json:"more"`
}

// EventItem is one stored event with the id that it has in the stream.
type EventItem struct {
	ID    string          `json:"id"`
	Event json.RawMessage `json:"event"`
}
