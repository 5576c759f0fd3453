package sse

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// DefaultWriteTimeout is the time that a reader has to take one batch, unless [Options] says otherwise.
const DefaultWriteTimeout = 10 * time.Second

// An idle stream keeps no more than minBuffer, which is enough for the deltas of a text and little beside what net/http
// itself holds for a connection; a busy one no more than maxBuffer.
const (
	minBuffer = 1 << 10
	maxBuffer = 64 << 10
)

// Options are the choices of a [Writer]. The zero value is good for servers.
type Options struct {
	// WriteTimeout bounds the time that one batch may take to leave, whatever its size. 0 means DefaultWriteTimeout. A
	// negative value sets no deadline, for ResponseWriters that have none, such as httptest.ResponseRecorder.
	WriteTimeout time.Duration
}

// Writer is the server's side of one stream. Make it with [NewWriter].
//
// Its methods collect events in a batch, which [Writer.Flush] sends. The first error, be it a refused value or a broken
// connection, is final: nothing is sent any more and every later call returns that same error. So it is enough to look at
// the error of Flush.
//
// A Writer belongs to one goroutine: events and heartbeats must come from the same one.
type Writer struct {
	rw      http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	batch   []byte
	err     error
}

// NewWriter opens the stream: it sends status 200 and the headers at once, and takes the deadlines that the [http.Server]
// set off the connection.
//
// An error means that nothing was sent: rw cannot flush, or cannot have deadlines although opts wants them. Both are
// [errors.ErrUnsupported]. If the reader is gone already, the first Flush says so.
func NewWriter(rw http.ResponseWriter, opts Options) (*Writer, error) {
	w := &Writer{rw: rw, rc: http.NewResponseController(rw), timeout: opts.WriteTimeout}
	if w.timeout == 0 {
		w.timeout = DefaultWriteTimeout
	}
	if !canFlush(rw) {
		return nil, fmt.Errorf("sse: %T cannot flush (does a middleware lack Unwrap?): %w", rw, http.ErrNotSupported)
	}
	// Sending the headers makes net/http read the rest of the request first, so this needs a read deadline, too.
	deadline := w.deadline()
	if err := errors.Join(w.set(w.rc.SetReadDeadline, deadline), w.set(w.rc.SetWriteDeadline, deadline)); err != nil {
		return nil, err
	}
	h := rw.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	h.Del("Content-Length")
	h.Del("Content-Encoding")
	rw.WriteHeader(http.StatusOK)
	if w.err = w.send(nil); w.err == nil {
		// A read timeout of the server would look like a reader that hung up.
		w.err = w.set(w.rc.SetReadDeadline, time.Time{})
	}
	return w, nil
}

// canFlush tells without side effect whether [http.ResponseController.Flush] would find a flusher.
func canFlush(rw http.ResponseWriter) bool {
	for {
		switch t := rw.(type) {
		case interface{ FlushError() error }, http.Flusher:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			rw = t.Unwrap()
		default:
			return false
		}
	}
}

// Event adds an event as [AppendEvent] encodes it, and refuses an id with CR, LF or NUL and an event type with CR or LF.
// It keeps no reference to data.
func (w *Writer) Event(id, event string, data []byte) error {
	if err := w.accept(checkEvent(id, event)); err != nil {
		return err
	}
	w.batch = appendEvent(w.batch, id, event, data)
	return nil
}

// WriteFrame adds one or more events that were encoded by [AppendEvent]. It keeps no reference to frame.
func (w *Writer) WriteFrame(frame []byte) error {
	if err := w.accept(checkFrame(frame)); err != nil {
		return err
	}
	w.batch = append(w.batch, frame...)
	return nil
}

// Comment adds a line that readers skip: a heartbeat. It has no id, so it never moves a cursor. Text may be empty; one
// with CR or LF is refused.
func (w *Writer) Comment(text string) error {
	if err := w.accept(checkLine("comment", text)); err != nil {
		return err
	}
	w.batch = append(append(append(w.batch, ": "...), text...), "\n\n"...)
	return nil
}

// Retry tells the reader how long to wait before it connects again, in whole milliseconds. A negative d is refused.
func (w *Writer) Retry(d time.Duration) error {
	if err := w.accept(checkRetry(d)); err != nil {
		return err
	}
	w.batch = append(w.batch, "retry: "...)
	w.batch = append(strconv.AppendInt(w.batch, d.Milliseconds(), 10), "\n\n"...)
	return nil
}

// Buffered returns the size of the batch in bytes. A caller that replays a long history flushes whenever this is large:
// the whole batch is held in memory, and all of it must leave within the write timeout.
func (w *Writer) Buffered() int { return len(w.batch) }

// Flush sends the batch in one write and waits until the connection has taken it. A reader that does not take it within
// the write timeout is an error. An empty batch sends nothing.
func (w *Writer) Flush() error {
	if w.err != nil || len(w.batch) == 0 {
		return w.err
	}
	if w.err = w.set(w.rc.SetWriteDeadline, w.deadline()); w.err == nil {
		w.err = w.send(w.batch)
	}
	// A buffer must be worth its size: a burst keeps it, and the first heartbeat after the burst lets it go.
	if size := cap(w.batch); w.err != nil || size > maxBuffer || size > max(minBuffer, 4*len(w.batch)) {
		w.batch = nil
	}
	w.batch = w.batch[:0]
	return w.err
}

// Close flushes, and gives the server as long as for a batch to write the end of the body and to skip what is unread of
// the request. Call it when the handler returns; it does not close the connection.
func (w *Writer) Close() error {
	err := w.Flush()
	// An error here adds nothing: the connection is gone.
	deadline := w.deadline()
	_ = w.set(w.rc.SetWriteDeadline, deadline)
	_ = w.set(w.rc.SetReadDeadline, deadline)
	return err
}

// accept makes the first error final and drops the batch, of which an event would be missing.
func (w *Writer) accept(err error) error {
	if w.err == nil && err != nil {
		w.err, w.batch = err, nil
	}
	return w.err
}

func (w *Writer) deadline() time.Time {
	if w.timeout < 0 {
		return time.Time{}
	}
	return time.Now().Add(w.timeout)
}

// set applies a deadline; the zero Time clears it.
func (w *Writer) set(setter func(time.Time) error, deadline time.Time) error {
	if err := setter(deadline); err != nil && w.timeout > 0 {
		return fmt.Errorf("sse: set deadline: %w", err)
	}
	return nil
}

func (w *Writer) send(batch []byte) error {
	if len(batch) > 0 {
		if _, err := w.rw.Write(batch); err != nil {
			return fmt.Errorf("sse: write: %w", err)
		}
	}
	if err := w.rc.Flush(); err != nil {
		return fmt.Errorf("sse: flush: %w", err)
	}
	// HTTP/2 resets a stream at its deadline even if nothing waits to be written.
	return w.set(w.rc.SetWriteDeadline, time.Time{})
}
