package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// Seq is a position in a log: it rises from record to record within a session, with gaps. 0 is before everything.
type Seq uint64

// RecordVersion is the version that this code writes. A record of a later version is not understood, and a session that
// holds one is not driven by this replica.
const RecordVersion = 1

// Record is what a log stores: a batch of events that became true together.
//
// A fact is a record that is part of [State]; a delta (text or reasoning as it comes) is not, and may vanish later.
type Record struct {
	V int `json:"v"`
	// CommandID is unique for each append of a fact, so that a writer that heard no answer can look for its own record; zero for a delta.
	CommandID uuid.UUID `json:"command_id,omitzero"`
	// N numbers the facts of a session from 1 without a hole; 0 for a delta.
	N int64 `json:"n,omitempty"`
	// Term is the Seq of the turn_owned fact of the replica that wrote this as a turn's owner; 0 for everybody else.
	Term Seq `json:"term,omitempty"`
	// Events are encoded api events, at least one and at most MaxRecordEvents. Readers see them in this order.
	Events []json.RawMessage `json:"events"`
	// Private is kept and never reaches a stream.
	Private *Private `json:"private,omitempty"`
	// Summary is present on facts that change what listings show, and is complete by itself. See [Record.Kind].
	Summary *Summary `json:"summary,omitempty"`
}

// MaxRead is about how many bytes of encoded records one Read returns, at least one record.
const MaxRead = 4 << 20

// MaxRecordEvents bounds the events of one record; a cursor counts them within their record.
const MaxRecordEvents = 1000

// Private is the part of a record that no reader sees.
type Private struct {
	// Registry is the complete guidance and tools that session_created or tools_replaced put in force.
	Registry *api.Skills `json:"registry,omitempty"`
	// Idempotency says which request made this record.
	Idempotency *Idempotency `json:"idempotency,omitempty"`
	// ClaimID is the secret of a tool_claimed event.
	ClaimID uuid.UUID `json:"claim_id,omitzero"`
	// Opaque is what the model wants back unchanged with its message, and Origin is who made it.
	Opaque json.RawMessage `json:"opaque,omitempty"`
	Origin string          `json:"origin,omitempty"`
	// WireIDs are the provider's own ids of a message's calls, in order.
	WireIDs []string `json:"wire_ids,omitempty"`
}

// Idempotency ties a request to the record that it created. Both values are hashes in hexadecimal.
type Idempotency struct {
	Key  string `json:"key"`
	Body string `json:"body"`
}

// Summary is the listing's view of a session.
type Summary struct {
	api.SessionSummary
	Deleted bool `json:"deleted,omitempty"`
}

// Kind sorts records by who listens for them.
type Kind string

// The kinds of records.
const (
	// KindTurn is a fact that starts a turn: a job for one replica.
	KindTurn Kind = "turn"
	// KindEnd is a fact with a Summary: session created, updated or ended, turn ended.
	KindEnd Kind = "end"
	// KindFact is every other fact.
	KindFact Kind = "fact"
	// KindDelta is not a fact.
	KindDelta Kind = "delta"
)

// Kind returns where the record belongs. A record never both starts a turn and carries a summary.
func (r *Record) Kind() Kind {
	switch {
	case r.N == 0:
		return KindDelta
	case r.Summary != nil:
		return KindEnd
	case len(r.Events) > 0 && api.EventType(r.Events[0]) == api.TypeTurnStarted:
		return KindTurn
	default:
		return KindFact
	}
}

// Entry is a stored record with its position. Entries are shared between readers: nobody changes them.
type Entry struct {
	Seq Seq
	*Record
}

// decode returns the entry's events. It refuses those of a newer version: what they mean is not known here.
func (e Entry) decode() ([]api.Event, error) {
	if e.V > RecordVersion {
		return nil, refuse(CodeSessionUnsupported, "this session was written by a newer version of the server; upgrade this replica")
	}
	events := make([]api.Event, len(e.Events))
	for i, raw := range e.Events {
		event, err := decodeEvent(raw)
		if err != nil {
			return nil, err
		}
		events[i] = event
	}
	return events, nil
}

func decodeEvent(raw json.RawMessage) (api.Event, error) {
	event, err := api.DecodeEvent(raw)
	if err != nil {
		return nil, &Error{Code: CodeSessionUnsupported, Detail: "this session holds a fact that this replica does not know; upgrade this replica", Err: err}
	}
	return event, nil
}

// The errors of a Log. Everything else that a Log returns is a fault of the engine, to be retried or reported as such.
var (
	// ErrConflict: the session's last fact is not the one that the writer expected. Nothing was stored.
	ErrConflict = errors.New("another fact came first")
	// ErrPurged: what the reader had is gone; the session was deleted.
	ErrPurged = errors.New("the session's records were purged")
	// ErrCursorAhead: the position lies beyond everything that the log ever stored.
	ErrCursorAhead = errors.New("the position is ahead of the log")
	// ErrUnavailable: the engine cannot take or give anything now (disk full, no quorum, starting or stopping). Nothing was acknowledged.
	ErrUnavailable = errors.New("the log is unavailable")
	// ErrTooLarge: the record exceeds what the engine takes.
	ErrTooLarge = errors.New("the record is too large for the log")
)

// Log is the ordered, durable record of every session. All methods are safe for concurrent use.
type Log interface {
	// Append stores a fact if the session's last fact is base (0: the session has none) and returns its position.
	// When it returns nil the fact is stored and will be seen by every later Read and by every Follower, once, in order.
	// ErrConflict and ErrTooLarge mean that it was not stored; after any other error it may or may not have been.
	// Append itself settles lost answers by looking for rec.CommandID; rec is not changed and may not be changed afterwards.
	Append(ctx context.Context, tenant string, session uuid.UUID, base Seq, rec *Record) (Seq, error)

	// AppendDelta stores a delta without moving the base. Deltas of one caller keep their order, also before that caller's
	// next Append. It may return before the delta is stored; a lost delta is not reported.
	AppendDelta(ctx context.Context, tenant string, session uuid.UUID, rec *Record) error

	// Read returns the session's entries after the position, at least all that were acknowledged before the call, oldest first.
	// It stops after limit entries (0: no limit) or some MaxRead bytes, whatever comes first: whoever wants all goes on from the
	// last entry until there is none. With deltas false it returns facts only. It never returns entries with a hole between them.
	// A session without entries gives none and no error; ErrPurged, if after > 0 and the session has nothing left.
	Read(ctx context.Context, tenant string, session uuid.UUID, after Seq, limit int, deltas bool) ([]Entry, error)

	// Follow returns a reader of everything after the position, stored first and then live, without seam, hole or repetition.
	// ErrCursorAhead if nothing that was ever stored can have that position.
	Follow(ctx context.Context, tenant string, session uuid.UUID, after Seq) (Follower, error)
}

// Follower reads one session's entries as they come. It belongs to one goroutine.
type Follower interface {
	// Next returns the next entries in order, at least one, or none and no error when wait has passed without any.
	// It returns ctx's error when ctx ends, ErrPurged when the session was deleted and its end is not stored any more.
	// The slice is valid until the next call.
	Next(ctx context.Context, wait time.Duration) ([]Entry, error)
	// Close releases the follower. It may be called twice, and from another goroutine.
	Close()
}

// Job is a started turn that some replica must bring to its end.
type Job struct {
	Tenant  string
	Session uuid.UUID
	// Turn is the position of the record that started it.
	Turn Seq
	// Redelivered is true when the job was handed out before.
	Redelivered bool
	// Keep tells the engine that this replica still works on the job; it must be called at least every KeepInterval.
	Keep func() error
	// Done removes the job. Only a turn whose end is in the log is done: a job that is merely lost is left alone.
	Done func(ctx context.Context) error
	// Release gives the job back, to be handed out again at once.
	Release func() error
}

// Jobs hands each started turn to one replica, and to another when the first one stops keeping it.
type Jobs interface {
	// Receive waits for the next job. It returns ctx's error when ctx ends, and retries the engine's faults itself.
	// A job may be handed out more than once, also to the replica that has it; receivers recognise that.
	Receive(ctx context.Context) (*Job, error)
	// KeepInterval is how often a job must be kept.
	KeepInterval() time.Duration
}

// Index lists sessions. It is a projection of the records of kinds end and turn and can be rebuilt from them.
type Index interface {
	// Sessions returns summaries newest first, those older than before (zero: from the newest), at most limit. What this replica
	// appended before the call is included. Status tells idle, running or ended. match (nil: all) filters, and is called without I/O.
	Sessions(ctx context.Context, tenant string, before uuid.UUID, limit int, match func(*Summary) bool) ([]Summary, error)
}

// Store keeps small values beside the log: idempotency keys of session creation, and checkpoints of State.
type Store interface {
	// Create stores value under key unless there is one, and returns the value that is there now and whether it was created.
	// A value created with a ttl (at least a second; 0: none) may vanish after it.
	Create(ctx context.Context, tenant, key string, value []byte, ttl time.Duration) (stored []byte, created bool, err error)
	// Put stores value under key. A Put that is lost does no harm.
	Put(ctx context.Context, tenant, key string, value []byte) error
	// Get returns the value, or nil and no error if there is none.
	Get(ctx context.Context, tenant, key string) ([]byte, error)
	// Delete removes the value; a missing one is no error.
	Delete(ctx context.Context, tenant, key string) error
}

// Engine is everything that stores: one value with all roles, since they share a failure domain.
type Engine interface {
	Log
	Jobs
	Index
	Store
	// Purge removes every record of the session before end, the position of its session_ended fact, which stays as a tombstone.
	Purge(ctx context.Context, tenant string, session uuid.UUID, end Seq) error
	// Epoch names this history. It changes when a store is restored or moved, so that old cursors are recognised.
	Epoch() string
	// MaxRecord is the largest encoded record, in bytes, that Append takes.
	MaxRecord() int
	// Healthy returns nil, or why appends would fail now (wrapping ErrUnavailable). It is cheap.
	Healthy() error
}
