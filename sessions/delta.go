package sessions

import (
	"strings"
	"sync"
	"time"

	"treadle/api"
)

// coalesce is how long pieces of an answer are gathered before they go out as one delta; the first goes out at once.
const coalesce = 40 * time.Millisecond

// maxDelta is the size in bytes at which a delta goes out early.
const maxDelta = 16 << 10

// deltaWriter turns the pieces of one attempt into delta events.
type deltaWriter struct {
	emit          func(api.Event)
	step, attempt int

	mu        sync.Mutex
	text      strings.Builder
	reasoning bool // what text holds
	last      time.Time
	timer     *time.Timer
	shown     bool
	closed    bool
}

func newDeltaWriter(emit func(api.Event), step, attempt int) *deltaWriter {
	return &deltaWriter{emit: emit, step: step, attempt: attempt}
}

// add takes a piece of text or reasoning.
func (w *deltaWriter) add(p Part) {
	w.mu.Lock()
	defer w.mu.Unlock()
	piece, reasoning := p.Text, false
	if p.Reasoning != "" {
		piece, reasoning = p.Reasoning, true
	}
	if piece == "" || w.closed {
		return
	}
	if reasoning != w.reasoning {
		w.flush()
		w.reasoning = reasoning
	}
	w.text.WriteString(piece)
	wait := coalesce - time.Since(w.last)
	switch {
	case wait <= 0 || w.text.Len() >= maxDelta:
		w.flush()
	case w.timer == nil:
		w.timer = time.AfterFunc(wait, w.tick)
	}
}

func (w *deltaWriter) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.flush()
	}
}

// flush sends what was gathered. w.mu is held, so deltas keep their order.
func (w *deltaWriter) flush() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if w.text.Len() == 0 {
		return
	}
	text := w.text.String()
	w.text.Reset()
	w.last, w.shown = time.Now(), true
	if w.reasoning {
		w.emit(&api.ReasoningDelta{Step: w.step, Attempt: w.attempt, Text: text})
	} else {
		w.emit(&api.TextDelta{Step: w.step, Attempt: w.attempt, Text: text})
	}
}

// close sends the rest and tells whether anything was sent. Nothing goes out after it.
func (w *deltaWriter) close() (shown bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flush()
	w.closed = true
	return w.shown
}
