package handlers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"treadle/api"
	"treadle/sessions"
	"treadle/sse"
)

var errDraining = refuse(sessions.CodeShuttingDown, "this server is shutting down; try again in a moment")

const (
	// reconnectDelay is what clients are told to wait, give or take reconnectJitter, before they connect again.
	reconnectDelay  = time.Second
	reconnectJitter = 250 * time.Millisecond
	// maxBatch is how much of a replay is collected before it is sent, in bytes.
	maxBatch = 64 << 10
)

func (h *handler) streamEvents(c *call, _ *none) (*sessions.Stream, error) {
	choice(c, "heartbeat", "comment", "event")
	if c.err != nil {
		return nil, c.err
	}
	q := sessions.StreamQuery{After: c.query.Get("after"), LastEventID: c.Header.Get("Last-Event-ID")}
	return h.Service.OpenStream(c.Context(), c.tenant, c.sessionID, q)
}

func (h *handler) streamTurn(c *call, req *api.TurnCreate) (*sessions.Stream, error) {
	key := c.idempotencyKey()
	if c.err != nil {
		return nil, c.err
	}
	turn, events, err := h.Service.StreamTurn(c.Context(), c.tenant, c.sessionID, req, key)
	if err == nil {
		c.created("%s/turns/%s", c.sessionID, turn.ID)
	}
	return events, err
}

// stream adapts an operation whose answer is an event stream: open makes the domain call. Params are the query parameters that
// it takes. What goes wrong before the stream begins is a problem; afterwards it ends the stream.
func stream[Q any](h *handler, open func(*call, *Q) (*sessions.Stream, error), params ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, req, err := prepare[Q](h, w, r, params)
		if err == nil && h.Draining.Err() != nil {
			err = errDraining
		}
		if err != nil {
			h.fail(w, r, err)
			return
		}
		events, err := open(c, req)
		if errors.Is(err, sessions.ErrStreamOver) {
			w.WriteHeader(http.StatusNoContent) // an EventSource comes back after everything else
			return
		}
		if err != nil {
			h.fail(w, r, err)
			return
		}
		defer events.Close()
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Type", typeStream)
			w.WriteHeader(http.StatusOK)
			return
		}
		out, err := sse.NewWriter(w, sse.Options{WriteTimeout: h.WriteTimeout})
		if err != nil {
			h.fail(w, r, fmt.Errorf("opening a stream: %w", err))
			return
		}
		h.Logger.Debug("Stream opened", "request_id", requestID(r), "session_id", c.sessionID)
		err = h.pump(c, events, out)
		h.Logger.Debug("Stream ended", "request_id", requestID(r), "session_id", c.sessionID, "err", errors.Join(err, out.Close()))
	}
}

// pump writes events and heartbeats until the stream is over (nil), the reader is gone or too slow, the log fails, or the
// server drains.
func (h *handler) pump(c *call, events *sessions.Stream, out *sse.Writer) error {
	ctx, cancel := h.drainLater(c.Context())
	defer cancel()
	visible := c.query.Get("heartbeat") == "event"
	// The first bytes are on their way before anything is read from the log. What is wrong with a batch, its Flush tells.
	_ = out.Retry(reconnectDelay - reconnectJitter + rand.N(2*reconnectJitter))
	for {
		if err := out.Flush(); err != nil {
			return err
		}
		// Silence is counted from here: whatever was written before began the interval anew.
		frames, err := events.Next(ctx, h.Heartbeat)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil && c.Context().Err() == nil:
			end := events.End("shutdown")
			return out.Event(end.ID, end.Type, end.Data)
		case err != nil:
			return err
		case len(frames) == 0 && visible:
			frames = []sessions.Frame{events.Heartbeat()}
		case len(frames) == 0:
			_ = out.Comment("")
		}
		for _, f := range frames {
			_ = out.Event(f.ID, f.Type, f.Data)
			if out.Buffered() >= maxBatch {
				if err := out.Flush(); err != nil {
					return err
				}
			}
		}
	}
}

// drainLater returns a context that ends, besides with its parent, some time after the server began to drain.
func (h *handler) drainLater(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	stop := context.AfterFunc(h.Draining, func() {
		time.AfterFunc(rand.N(h.DrainSpread), cancel)
	})
	return ctx, func() { stop(); cancel() }
}
