package natslog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"treadle/sessions"
)

// maxQueued bounds what waits for a follower. One that is slower reads the log instead.
const maxQueued = 256

var errClosed = errors.New("the follower is closed")

// follower has no goroutine: the hub puts records into its queue, and Next takes them out.
type follower struct {
	hub *hub
	// reader belongs to the goroutine that calls Next. Its cursor is the last position that Next returned.
	reader *reader

	mu     sync.Mutex
	queue  []sessions.Entry
	behind bool // the queue has a hole before it: read the log first
	closed bool
	wake   chan struct{}
}

// Follow implements [sessions.Log].
func (l *Log) Follow(ctx context.Context, tenant string, id uuid.UUID, after sessions.Seq) (sessions.Follower, error) {
	pl, err := l.place(tenant, id)
	if err != nil {
		return nil, fmt.Errorf("following a session: %w", err)
	}
	f := &follower{hub: l.allHubs()[pl.partition], reader: newReader(l, pl, after, true), wake: make(chan struct{}, 1)}
	// The hub first: what is stored after the leader named the target will come through it.
	f.hub.add(f)
	if err := f.start(ctx); err != nil {
		f.Close()
		return nil, fmt.Errorf("following a session: %w", err)
	}
	return f, nil
}

func (f *follower) start(ctx context.Context) error {
	err := f.reader.aim(ctx)
	if err != nil && !errors.Is(err, sessions.ErrPurged) {
		return err
	}
	if f.reader.cursor > f.reader.target {
		// Either the cursor is a delta that has vanished, or it is not of this history.
		last, lastErr := f.reader.log.lastOfAll(ctx, f.reader.place.stream())
		if lastErr != nil {
			return lastErr
		}
		if f.reader.cursor > last {
			return sessions.ErrCursorAhead
		}
	}
	return err
}

// Next implements [sessions.Follower].
func (f *follower) Next(ctx context.Context, wait time.Duration) ([]sessions.Entry, error) {
	var timer *time.Timer
	for {
		entries, err := f.take(ctx)
		if err != nil || len(entries) > 0 {
			return entries, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if timer == nil {
			timer = time.NewTimer(wait)
			defer timer.Stop()
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
			return nil, nil
		}
	}
}

// take returns what is there: from the log up to the target, then from the queue.
func (f *follower) take(ctx context.Context) ([]sessions.Entry, error) {
	for {
		f.mu.Lock()
		closed, behind := f.closed, f.behind
		f.behind = false
		f.mu.Unlock()
		if closed {
			return nil, errClosed
		}
		if behind {
			// The flag was cleared before: what is stored after this is queued, or sets the flag again.
			if err := f.reader.aim(ctx); err != nil {
				f.refill()
				return nil, err
			}
		}
		entries, err := f.reader.next(ctx, 0)
		if err != nil || len(entries) > 0 {
			return entries, err
		}
		f.mu.Lock()
		if f.behind {
			f.mu.Unlock()
			continue
		}
		queue := f.queue
		f.queue = nil
		f.mu.Unlock()
		for len(queue) > 0 && uint64(queue[0].Seq) <= f.reader.cursor {
			queue = queue[1:]
		}
		if len(queue) > 0 {
			f.reader.cursor = uint64(queue[len(queue)-1].Seq)
		}
		return queue, nil
	}
}

// push is called by the hub, in the order of the log.
func (f *follower) push(e sessions.Entry) {
	f.mu.Lock()
	switch {
	case f.closed || f.behind:
		f.mu.Unlock()
		return
	case len(f.queue) == maxQueued:
		f.queue, f.behind = nil, true
	default:
		f.queue = append(f.queue, e)
	}
	f.mu.Unlock()
	f.signal()
}

// refill makes the follower read the log from its cursor before anything that is pushed later.
func (f *follower) refill() {
	f.mu.Lock()
	f.queue, f.behind = nil, true
	f.mu.Unlock()
	f.signal()
}

func (f *follower) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Close implements [sessions.Follower].
func (f *follower) Close() {
	f.mu.Lock()
	closed := f.closed
	f.closed, f.queue = true, nil
	f.mu.Unlock()
	if !closed {
		f.hub.remove(f)
		f.signal()
	}
}
