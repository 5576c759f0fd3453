package memlog

import (
	"context"
	"sort"
	"time"

	"github.com/google/uuid"

	"treadle/sessions"
)

// Read implements [sessions.Log].
func (l *Log) Read(ctx context.Context, tenant string, id uuid.UUID, after sessions.Seq, limit int, deltas bool) ([]sessions.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read(key{tenant, id}, after, limit, deltas)
}

func (l *Log) read(k key, after sessions.Seq, limit int, deltas bool) ([]sessions.Entry, error) {
	s := l.sessions[k]
	if s != nil && l.DeltaTTL > 0 {
		s.expire()
	}
	if s == nil || len(s.entries) == 0 {
		if after > 0 {
			return nil, sessions.ErrPurged
		}
		return nil, nil
	}
	var entries []sessions.Entry
	first := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].Seq > after })
	size := 0
	for _, e := range s.entries[first:] {
		if limit > 0 && len(entries) == limit || size >= sessions.MaxRead {
			break
		}
		if deltas || e.Kind() != sessions.KindDelta {
			entries = append(entries, e.Entry)
			size += e.size
		}
	}
	return entries, nil
}

// expire drops the deltas whose time has passed.
func (s *session) expire() {
	now := time.Now()
	kept := s.entries[:0:0]
	for _, e := range s.entries {
		if e.vanishes.IsZero() || now.Before(e.vanishes) {
			kept = append(kept, e)
		}
	}
	s.entries = kept
}

// Follow implements [sessions.Log].
func (l *Log) Follow(ctx context.Context, tenant string, id uuid.UUID, after sessions.Seq) (sessions.Follower, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if after > l.last {
		return nil, sessions.ErrCursorAhead
	}
	k := key{tenant, id}
	if after > 0 {
		if _, err := l.read(k, after, 1, true); err != nil {
			return nil, err
		}
	}
	return &follower{log: l, key: k, cursor: after, closed: make(chan struct{})}, nil
}

type follower struct {
	log    *Log
	key    key
	cursor sessions.Seq
	closed chan struct{}
}

// Next implements [sessions.Follower].
func (f *follower) Next(ctx context.Context, wait time.Duration) ([]sessions.Entry, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		entries, changed, err := f.poll()
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 {
			f.cursor = entries[len(entries)-1].Seq
			return entries, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-f.closed:
			return nil, errClosed
		case <-timer.C:
			return nil, nil
		}
	}
}

func (f *follower) poll() ([]sessions.Entry, <-chan struct{}, error) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	select {
	case <-f.closed:
		return nil, nil, errClosed
	default:
	}
	s := f.log.sessions[f.key]
	if s == nil {
		// The session may begin later, and its followers wait for that.
		s = f.log.open(f.key)
	}
	entries, err := f.log.read(f.key, f.cursor, 0, true)
	return entries, s.changed, err
}

// Close implements [sessions.Follower].
func (f *follower) Close() {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	select {
	case <-f.closed:
	default:
		close(f.closed)
	}
}
