package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sse"
)

// received is an event as it came.
type received struct {
	id, typ string
	data    []byte
	event   api.Event
	at      time.Time
}

// ends tells whether the event is the last of the turn.
func (r received) ends(turn uuid.UUID) bool {
	switch r.event.(type) {
	case *api.TurnCompleted, *api.TurnFailed, *api.TurnCanceled:
		return r.event.Header().TurnID == turn
	}
	return false
}

// position is the number in the id, which only this server's own tests may know to be one.
func (r received) position(tb testing.TB) uint64 {
	tb.Helper()
	_, digits, _ := strings.Cut(r.id, "-")
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		tb.Fatalf("event id %q: %v", r.id, err)
	}
	return n
}

// reader follows a session's events like an EventSource: when the connection is lost it comes back with the id that it saw last.
type reader struct {
	*client
	path string

	mu     sync.Mutex
	events []received
	// cursor is the last id; over is set when the server said that nothing will follow.
	cursor string
	over   bool
	// changed is closed and replaced with each event.
	changed chan struct{}
	// cut ends the connection of the moment.
	cut context.CancelFunc
}

// follow starts a reader, which ends with the test.
func (c *client) follow(path string) *reader {
	c.tb.Helper()
	ctx, cancel := context.WithCancel(c.tb.Context())
	r := &reader{client: c, path: path, changed: make(chan struct{}), cut: func() {}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx)
	}()
	c.tb.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// reconnect is the pause before a lost connection is made again.
const reconnect = 10 * time.Millisecond

func (r *reader) run(ctx context.Context) {
	tick := time.NewTicker(reconnect)
	defer tick.Stop()
	for !r.isOver() {
		if err := r.connect(ctx); err != nil {
			r.tb.Errorf("following %s: %v", r.path, err)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *reader) isOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}

// connect reads one connection to its end. Only what can never come right is an error.
func (r *reader) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.cut = cancel
	cursor := r.cursor
	r.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+r.path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	if cursor != "" {
		req.Header.Set("Last-Event-ID", cursor)
	}
	res, err := r.http.Do(req)
	if err != nil {
		return nil // the server is away
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNoContent, http.StatusNotFound: // the session ended, or was deleted, and the reader missed it
		r.finish()
		return nil
	case http.StatusServiceUnavailable:
		return nil
	default:
		text, _ := io.ReadAll(res.Body)
		return fmt.Errorf("%d: %s", res.StatusCode, text)
	}
	frames := sse.NewReader(res.Body, sse.ReaderOptions{})
	for {
		frame, err := frames.Next()
		if err != nil {
			return nil // cut off: come back
		}
		if err := r.take(frame); err != nil {
			return err
		}
	}
}

func (r *reader) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.change()
}

// change wakes those who wait. r.mu is held.
func (r *reader) change() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *reader) take(frame sse.Event) error {
	switch frame.Type {
	case api.TypeReset:
		return fmt.Errorf("a reset: %s", frame.Data)
	case api.TypeReady, api.TypeHeartbeat:
		return nil
	case api.TypeStreamEnd:
		var end api.StreamEnd
		if err := json.Unmarshal(frame.Data, &end); err != nil {
			return err
		}
		if end.Reason != "shutdown" {
			r.finish()
		}
		return nil
	}
	event, err := api.DecodeEvent(frame.Data)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cursor = frame.ID
	r.events = append(r.events, received{frame.ID, frame.Type, frame.Data, event, time.Now()})
	r.change()
	return nil
}

// all returns what came so far.
func (r *reader) all() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[:len(r.events):len(r.events)]
}

// drop cuts the connection, and the reader comes back.
func (r *reader) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut()
}

// wait returns what came, once that is more than the first n events; nil when ctx ends first.
func (r *reader) wait(ctx context.Context, n int) []received {
	for {
		r.mu.Lock()
		events, changed := r.events[:len(r.events):len(r.events)], r.changed
		r.mu.Unlock()
		if len(events) > n {
			return events
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// await returns the first event, of all that came or will come, of which ok is true.
func (r *reader) await(what string, ok func(received) bool) received {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(r.tb.Context(), patience)
	defer cancel()
	for n := 0; ; {
		events := r.wait(ctx, n)
		if events == nil {
			r.tb.Fatalf("never seen: %s\n%s", what, r)
		}
		for _, event := range events[n:] {
			if ok(event) {
				return event
			}
		}
		n = len(events)
	}
}

// awaitType is await for the first event of a type.
func (r *reader) awaitType(typ string) received {
	r.tb.Helper()
	return r.await(typ, func(e received) bool { return e.typ == typ })
}

// String lists what came.
func (r *reader) String() string {
	var b strings.Builder
	for _, e := range r.all() {
		fmt.Fprintf(&b, "%s %.300s\n", e.id, e.data)
	}
	return b.String()
}
