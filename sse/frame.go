package sse

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrInvalidField reports a value that its field cannot hold: an id, event type or comment with a line break, an id with
// NUL, a negative retry, or a frame that [AppendEvent] did not make.
var ErrInvalidField = errors.New("sse: invalid field")

// AppendEvent appends one whole event to dst and returns the result, so that an event can be encoded once and sent on
// many streams by [Writer.WriteFrame].
//
// An empty id or event leaves out that field; an empty data is an event with empty data, which readers do dispatch. Each
// LF, CR or CRLF within data becomes a line break that readers see as LF; all other bytes arrive as they are.
//
// AppendEvent panics on an id or event that [Writer.Event] refuses. Use it with values that the program makes itself.
func AppendEvent(dst []byte, id, event string, data []byte) []byte {
	if err := checkEvent(id, event); err != nil {
		panic(err)
	}
	return appendEvent(dst, id, event, data)
}

func appendEvent(dst []byte, id, event string, data []byte) []byte {
	dst = slices.Grow(dst, len("id: \nevent: \ndata: \n\n")+len(id)+len(event)+len(data))
	if id != "" {
		dst = append(append(append(dst, "id: "...), id...), '\n')
	}
	if event != "" {
		dst = append(append(append(dst, "event: "...), event...), '\n')
	}
	for more := true; more; {
		var line []byte
		line, data, more = cutLine(data)
		// The space is never optional here: without it a reader would take a leading space of the data for it.
		dst = append(append(append(dst, "data: "...), line...), '\n')
	}
	return append(dst, '\n')
}

// cutLine splits data at its first line break; found is false if there is none.
func cutLine(data []byte) (line, rest []byte, found bool) {
	// Most data is one line of JSON: two vectorised searches beat one bytewise loop.
	end := bytes.IndexByte(data, '\n')
	before := data
	if end >= 0 {
		before = data[:end]
	}
	if cr := bytes.IndexByte(before, '\r'); cr >= 0 {
		return data[:cr], bytes.TrimPrefix(data[cr+1:], []byte("\n")), true
	}
	if end < 0 {
		return data, nil, false
	}
	return before, data[end+1:], true
}

func checkEvent(id, event string) error {
	if strings.IndexByte(id, 0) >= 0 {
		return fmt.Errorf("%w: id %.40q", ErrInvalidField, id)
	}
	if err := checkLine("id", id); err != nil {
		return err
	}
	return checkLine("event", event)
}

func checkLine(field, value string) error {
	if strings.ContainsAny(value, "\r\n") {
		return fmt.Errorf("%w: %s %.40q", ErrInvalidField, field, value)
	}
	return nil
}

func checkRetry(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%w: retry %s", ErrInvalidField, d)
	}
	return nil
}

// checkFrame cannot know whether a frame is good, but keeps it from melting into the next.
func checkFrame(frame []byte) error {
	if !bytes.HasSuffix(frame, []byte("\n\n")) {
		return fmt.Errorf("%w: frame without a blank line at its end", ErrInvalidField)
	}
	return nil
}
