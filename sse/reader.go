package sse

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

// DefaultMaxEventSize is the size in bytes of the largest event that a [Reader] takes, unless [ReaderOptions] says otherwise.
const DefaultMaxEventSize = 16 << 20

// maxKept is the largest buffer that a Reader keeps from event to event.
const maxKept = 64 << 10

// ErrEventTooLarge is the error of a [Reader] that met a line, or the data of an event, beyond its limit.
var ErrEventTooLarge = errors.New("sse: event too large")

// Event is what a [Reader] dispatches.
type Event struct {
	// ID is the id that this very event carried, or empty. See [Reader.LastEventID].
	ID string
	// Type is empty if the event named none; browsers then say "message".
	Type string
	// Data has its lines joined by LF. It belongs to the caller.
	Data []byte
	// Incomplete marks an event that the end of the stream cut off. See [ReaderOptions].
	Incomplete bool
}

// ReaderOptions are the choices of a [Reader]. The zero value follows the standard.
type ReaderOptions struct {
	// DispatchIncomplete makes a last event without a blank line after it count, if the stream ends with io.EOF. The
	// standard drops it, because it may be cut anywhere; but some servers end their streams like that.
	DispatchIncomplete bool
	// MaxEventSize bounds one line, and the data of one event, in bytes. 0 means DefaultMaxEventSize.
	MaxEventSize int
	// OnComment, if set, is called within Next for each comment line, which is how servers send heartbeats. The text
	// is valid only during the call.
	OnComment func(text []byte)
}

// Reader parses a stream. Make it with [NewReader]. It works on bytes and so never splits a character, wherever the
// network cuts the stream, and dispatches an event as soon as the first byte of its final line break is there.
//
// A Reader belongs to one goroutine. To end a blocked Next, close the source.
type Reader struct {
	src  io.Reader
	opts ReaderOptions

	// buf[start:end] is read but not yet parsed; buf[start:scanned] is known to hold no line break.
	buf                 []byte
	start, scanned, end int
	// err is what the source said last; it counts once buf is used up.
	err error
	// skipLF is set after CR, whose LF may come with a later read, or never.
	skipLF bool
	begun  bool

	id, event string
	data      []byte
	// idBuffer outlives the event; it becomes lastID only when its event is complete.
	idBuffer, lastID string
	retry            time.Duration
	hasRetry         bool
}

// NewReader returns a Reader of src, which needs no buffering of its own.
func NewReader(src io.Reader, opts ReaderOptions) *Reader {
	if opts.MaxEventSize <= 0 {
		opts.MaxEventSize = DefaultMaxEventSize
	}
	return &Reader{src: src, opts: opts}
}

// Next returns the next event. Its error is io.EOF at the end of the stream, ErrEventTooLarge, or what the source
// returned; it comes after all complete events before it, and every later call returns it again.
func (r *Reader) Next() (Event, error) {
	for {
		line, err := r.line()
		if err != nil {
			return r.finish(err)
		}
		if ev, ok := r.process(line); ok {
			return ev, nil
		}
	}
}

// LastEventID returns the id to resume after: that of the last complete block that had one, even if it was not
// dispatched for want of data.
func (r *Reader) LastEventID() string { return r.lastID }

// Retry returns the last reconnection time that the stream asked for; ok is false if it never did.
func (r *Reader) Retry() (d time.Duration, ok bool) { return r.retry, r.hasRetry }

func (r *Reader) finish(err error) (Event, error) {
	if errors.Is(err, io.EOF) && r.opts.DispatchIncomplete {
		r.opts.DispatchIncomplete = false
		rest := r.buf[r.start:r.end]
		r.start = r.end
		ev, ok := r.process(rest)
		if !ok {
			ev, ok = r.dispatch()
		}
		if ok {
			ev.Incomplete = true
			return ev, nil
		}
	}
	r.buf, r.data = nil, nil
	r.start, r.scanned, r.end = 0, 0, 0
	return Event{}, err
}

// line returns the next line without its break. It is valid until the next call.
func (r *Reader) line() ([]byte, error) {
	for {
		if r.skipLF && r.start < r.end {
			r.skipLF = false
			if r.buf[r.start] == '\n' {
				r.start++
				r.scanned = r.start
			}
		}
		i := r.scanned
		for i < r.end && r.buf[i] != '\n' && r.buf[i] != '\r' {
			i++
		}
		r.scanned = i
		line := r.buf[r.start:i]
		if len(line)+len(r.data) > r.opts.MaxEventSize {
			r.err = ErrEventTooLarge
			return nil, r.err
		}
		if i < r.end {
			r.skipLF = r.buf[i] == '\r'
			r.start, r.scanned = i+1, i+1
			return line, nil
		}
		if r.err != nil {
			return nil, r.err
		}
		r.fill()
	}
}

// fill reads once, into a buffer that grows only for a line that does not fit.
func (r *Reader) fill() {
	if r.start == r.end {
		r.start, r.scanned, r.end = 0, 0, 0
		if len(r.buf) > maxKept {
			r.buf = nil
		}
	}
	if r.end == len(r.buf) {
		to := r.buf
		if r.start == 0 {
			to = make([]byte, max(4<<10, 2*len(r.buf)))
		}
		copy(to, r.buf[r.start:r.end])
		r.buf = to
		r.start, r.scanned, r.end = 0, r.scanned-r.start, r.end-r.start
	}
	for range 100 {
		n, err := r.src.Read(r.buf[r.end:])
		r.end += n
		r.err = err
		if n > 0 || err != nil {
			return
		}
	}
	r.err = io.ErrNoProgress
}

// process takes one line and returns the event that it completes, if any.
func (r *Reader) process(line []byte) (Event, bool) {
	if !r.begun {
		r.begun = true
		line = bytes.TrimPrefix(line, []byte("\uFEFF"))
	}
	if len(line) == 0 {
		return r.dispatch()
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "":
		if r.opts.OnComment != nil {
			r.opts.OnComment(value)
		}
	case "data":
		r.data = append(append(r.data, value...), '\n')
	case "event":
		r.event = string(value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			r.id = string(value)
			r.idBuffer = r.id
		}
	case "retry":
		// ParseUint takes digits only; 43 bits of milliseconds are the most that a Duration holds.
		if ms, err := strconv.ParseUint(string(value), 10, 43); err == nil {
			r.retry, r.hasRetry = time.Duration(ms)*time.Millisecond, true
		}
	}
	return Event{}, false
}

// dispatch ends a block. One without data line is no event.
func (r *Reader) dispatch() (Event, bool) {
	r.lastID = r.idBuffer
	ev := Event{ID: r.id, Type: r.event}
	ok := len(r.data) > 0
	if ok {
		ev.Data = bytes.Clone(r.data[:len(r.data)-1])
	}
	r.id, r.event, r.data = "", "", r.data[:0]
	if cap(r.data) > maxKept {
		r.data = nil
	}
	return ev, ok
}
