package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

func checkStreamHeader(h http.Header) error {
	for name, want := range map[string]string{
		"Content-Type":      "text/event-stream",
		"Cache-Control":     "no-cache, no-transform",
		"X-Accel-Buffering": "no",
		"Content-Encoding":  "",
		"Content-Length":    "",
	} {
		if got := h.Get(name); got != want {
			return fmt.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	return nil
}

// streamBody checks the frames of a stream as they pass.
type streamBody struct {
	io.ReadCloser
	contract *Contract
	complain func(error)
	partial  []byte
	ids      map[string]bool
	ended    map[string]bool // turns
	over     bool
}

// Read implements [io.Reader].
func (b *streamBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.partial = append(b.partial, p[:n]...)
	for {
		frame, rest, found := bytes.Cut(b.partial, []byte("\n\n"))
		if !found {
			return n, err
		}
		if err := b.frame(string(frame)); err != nil {
			b.complain(fmt.Errorf("%w\n%s", err, frame))
		}
		b.partial = rest
	}
}

// frame takes the server's own spelling only: one space after the colon, one line of data.
func (b *streamBody) frame(text string) error {
	if b.over {
		return errors.New("a frame after stream_end")
	}
	if strings.ContainsRune(text, '\r') {
		return errors.New("a carriage return")
	}
	fields := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		name, value, found := strings.Cut(line, ": ")
		if _, twice := fields[name]; twice || !found {
			return fmt.Errorf("a malformed or repeated field %q", name)
		}
		fields[name] = value
	}
	if _, isEvent := fields["data"]; !isEvent {
		delete(fields, "")
		delete(fields, "retry")
		if len(fields) > 0 {
			return errors.New("a frame that is neither event, comment nor retry")
		}
		return nil
	}
	if len(fields) > 3 || fields["event"] == "" {
		return errors.New("an event with strange fields")
	}
	return b.event(fields["id"], fields["event"], fields["data"])
}

func (b *streamBody) event(id, event, data string) error {
	var header struct {
		Type   string `json:"type"`
		TurnID string `json:"turn_id"`
	}
	if err := json.Unmarshal([]byte(data), &header); err != nil {
		return err
	}
	schema := b.contract.events[event]
	switch {
	case header.Type != event:
		return fmt.Errorf("event is %s and type is %s", event, header.Type)
	case schema == nil:
		return fmt.Errorf("event type %s is not documented", event)
	}
	if err := validate(schema, []byte(data)); err != nil {
		return err
	}
	b.contract.see("event", event)
	return b.order(id, event, header.TurnID)
}

// order checks what holds between the frames of one stream.
func (b *streamBody) order(id, event, turn string) error {
	if b.ids == nil {
		b.ids, b.ended = map[string]bool{}, map[string]bool{}
	}
	switch event {
	case "heartbeat", "stream_end":
		b.over = event == "stream_end"
		if id != "" {
			return errors.New("a control frame that moves the cursor")
		}
		return nil
	case "ready", "reset":
		if id == "" {
			return errors.New("no cursor to come back with")
		}
		return nil
	case "turn_completed", "turn_failed", "turn_canceled":
		if b.ended[turn] {
			return fmt.Errorf("turn %s ends twice", turn)
		}
	}
	switch {
	case id == "":
		return errors.New("an event without an id")
	case b.ids[id]:
		return fmt.Errorf("id %s comes twice", id)
	case turn != "" && b.ended[turn]:
		return fmt.Errorf("turn %s goes on after its end", turn)
	}
	b.ids[id] = true
	if strings.HasPrefix(event, "turn_") && event != "turn_started" {
		b.ended[turn] = true
	}
	return nil
}
