package sessions

import "fmt"

// Code is the stable name of a refusal, as it stands in a problem's "code".
type Code string

// The refusals of this package. The HTTP status and title of each stand in the error table of package handlers.
const (
	CodeInvalidInput          Code = "INVALID_INPUT"
	CodeModelRequired         Code = "MODEL_REQUIRED"
	CodeModelUnavailable      Code = "MODEL_UNAVAILABLE"
	CodeCursorInvalid         Code = "CURSOR_INVALID"
	CodeToolResultInvalid     Code = "TOOL_RESULT_INVALID"
	CodeSessionNotFound       Code = "SESSION_NOT_FOUND"
	CodeTurnNotFound          Code = "TURN_NOT_FOUND"
	CodeToolNotFound          Code = "TOOL_NOT_FOUND"
	CodeToolCallNotFound      Code = "TOOL_CALL_NOT_FOUND"
	CodeSessionBusy           Code = "SESSION_BUSY"
	CodeSessionEnded          Code = "SESSION_ENDED"
	CodeToolCallSettled       Code = "TOOL_CALL_SETTLED"
	CodeToolCallClaimed       Code = "TOOL_CALL_CLAIMED"
	CodeToolCallNotOffered    Code = "TOOL_CALL_NOT_OFFERED"
	CodeToolNotClientSide     Code = "TOOL_NOT_CLIENT_SIDE"
	CodePreconditionFailed    Code = "PRECONDITION_FAILED"
	CodeIdempotencyKeyReused  Code = "IDEMPOTENCY_KEY_REUSED"
	CodeIdempotencyKeyInvalid Code = "IDEMPOTENCY_KEY_INVALID"
	CodeBodyTooLarge          Code = "BODY_TOO_LARGE"
	CodeProgressLimit         Code = "PROGRESS_LIMIT"
	CodeTooManyStreams        Code = "TOO_MANY_STREAMS"
	CodeStorageUnavailable    Code = "STORAGE_UNAVAILABLE"
	CodeShuttingDown          Code = "SHUTTING_DOWN"
	CodeSessionUnsupported    Code = "SESSION_UNSUPPORTED"
)

// Error is a refusal that the caller is told in full. Every other error of this package is internal: its text is for the log.
type Error struct {
	Code Code
	// Detail says what was wrong and what to do, in one sentence for a client's author.
	Detail string
	// Facts are machine-readable members of the problem, such as "turn_id", "limit", "pointer", "tool" or "tool_call".
	Facts map[string]any
	// Err is the cause, for the log only; may be nil.
	Err error
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Detail, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Detail)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func refuse(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

func (e *Error) with(key string, value any) *Error {
	if e.Facts == nil {
		e.Facts = map[string]any{}
	}
	e.Facts[key] = value
	return e
}
