// Package memlog is a [sessions.Engine] in memory, for tests. A restart of a service is simulated by giving the same Log to the next one.
package memlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

// maxRecord is what the embedded engine takes as well.
const maxRecord = 8 << 20

var errClosed = errors.New("the follower is closed")

// Log keeps everything in memory. It starts no goroutine, so that it works within a testing/synctest bubble.
// The exported fields may be set before the first use.
type Log struct {
	// AckWait is how long a job stays with a receiver that does not keep it.
	AckWait time.Duration
	// DeltaTTL is how long deltas are kept; 0 means forever.
	DeltaTTL time.Duration

	epoch string

	mu       sync.Mutex
	last     sessions.Seq
	sessions map[key]*session
	jobs     []*job
	// queued is closed, and replaced, when a job becomes free.
	queued chan struct{}
	values map[valueKey]value

	fault error
	lost  int
}

type key struct {
	tenant string
	id     uuid.UUID
}

type session struct {
	entries []stored
	// base is the last fact, 0 if there is none.
	base sessions.Seq
	turn sessions.Seq
	// end is the last fact with a summary.
	end     sessions.Seq
	summary *sessions.Summary
	// changed is closed, and replaced, with every new entry and by a purge.
	changed chan struct{}
}

type stored struct {
	sessions.Entry
	// size is about that of the encoded record.
	size int
	// vanishes is zero for what stays.
	vanishes time.Time
}

var _ sessions.Engine = (*Log)(nil)

// New returns an empty Log with an AckWait of five seconds.
func New() *Log {
	return &Log{
		AckWait:  5 * time.Second,
		epoch:    uuid.NewString(),
		sessions: map[key]*session{},
		queued:   make(chan struct{}),
		values:   map[valueKey]value{},
	}
}

// FailAppends makes every append and delta fail with err, unstored, until it is called with nil.
func (l *Log) FailAppends(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = err
}

// LoseAnswers makes the next n appends of facts store their record, and then fail as if the answer had been lost.
func (l *Log) LoseAnswers(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = n
}

// Append implements [sessions.Log].
func (l *Log) Append(ctx context.Context, tenant string, id uuid.UUID, base sessions.Seq, rec *sessions.Record) (sessions.Seq, error) {
	if rec.Kind() == sessions.KindDelta {
		return 0, fmt.Errorf("appending a fact: the record has no number")
	}
	own, err := clone(ctx, rec)
	if err != nil {
		return 0, fmt.Errorf("appending a fact: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault != nil {
		return 0, fmt.Errorf("appending a fact: %w", l.fault)
	}
	k := key{tenant, id}
	s := l.sessions[k]
	switch {
	case s == nil && base != 0:
		return 0, sessions.ErrConflict
	case s != nil && s.base != base:
		return s.again(base, own.CommandID)
	case s == nil:
		s = l.open(k)
	}
	seq := l.store(s, own)
	s.base = seq
	switch own.Kind() {
	case sessions.KindTurn:
		s.turn = seq
		l.queue(k, seq)
	case sessions.KindEnd:
		s.end, s.summary = seq, own.Summary
	}
	if l.lost > 0 {
		l.lost--
		return 0, fmt.Errorf("appending a fact: %w: the answer was lost", sessions.ErrUnavailable)
	}
	return seq, nil
}

// AppendDelta implements [sessions.Log].
func (l *Log) AppendDelta(ctx context.Context, tenant string, id uuid.UUID, rec *sessions.Record) error {
	if rec.Kind() != sessions.KindDelta {
		return fmt.Errorf("appending a delta: the record is a fact")
	}
	own, err := clone(ctx, rec)
	if err != nil {
		return fmt.Errorf("appending a delta: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault != nil {
		return fmt.Errorf("appending a delta: %w", l.fault)
	}
	k := key{tenant, id}
	s := l.sessions[k]
	if s == nil {
		s = l.open(k)
	}
	l.store(s, own)
	return nil
}

// Purge implements [sessions.Engine]. It drops the session's jobs as well.
func (l *Log) Purge(_ context.Context, tenant string, id uuid.UUID, end sessions.Seq) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := key{tenant, id}
	s := l.sessions[k]
	if s == nil {
		return nil
	}
	i := 0
	for i < len(s.entries) && s.entries[i].Seq < end {
		i++
	}
	s.entries = append([]stored(nil), s.entries[i:]...)
	if s.turn < end {
		s.turn = 0
		l.dropJobs(k)
	}
	if s.base < end {
		s.base, s.end, s.summary = 0, 0, nil
	}
	s.announce()
	return nil
}

// Epoch implements [sessions.Engine].
func (l *Log) Epoch() string { return l.epoch }

// MaxRecord implements [sessions.Engine].
func (l *Log) MaxRecord() int { return maxRecord }

// Healthy implements [sessions.Engine]: it tells what FailAppends was given.
func (l *Log) Healthy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault != nil {
		return fmt.Errorf("%w: %w", sessions.ErrUnavailable, l.fault)
	}
	return nil
}

func (l *Log) open(k key) *session {
	s := &session{changed: make(chan struct{})}
	l.sessions[k] = s
	return s
}

func (l *Log) store(s *session, rec *sessions.Record) sessions.Seq {
	l.last++
	e := stored{Entry: sessions.Entry{Seq: l.last, Record: rec}}
	if rec.Kind() == sessions.KindDelta && l.DeltaTTL > 0 {
		e.vanishes = time.Now().Add(l.DeltaTTL)
	}
	for _, raw := range rec.Events {
		e.size += len(raw)
	}
	s.entries = append(s.entries, e)
	s.announce()
	return l.last
}

// again returns the position of the command's record if that is what came directly after base: its writer heard no answer.
func (s *session) again(base sessions.Seq, command uuid.UUID) (sessions.Seq, error) {
	for _, e := range s.entries {
		if e.Seq > base && e.Kind() != sessions.KindDelta {
			if e.CommandID == command {
				return e.Seq, nil
			}
			break
		}
	}
	return 0, sessions.ErrConflict
}

func (s *session) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// clone sends the record through its encoding, so that tests meet what a log on disk would make of it.
func clone(ctx context.Context, rec *sessions.Record) (*sessions.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := api.Marshal(rec)
	if err != nil {
		return nil, err
	}
	if len(b) > maxRecord {
		return nil, fmt.Errorf("%w: %d bytes", sessions.ErrTooLarge, len(b))
	}
	own := new(sessions.Record)
	if err := json.Unmarshal(b, own); err != nil {
		return nil, err
	}
	return own, nil
}
