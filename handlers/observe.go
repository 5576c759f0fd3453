package handlers

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
)

// answerTimeout bounds the time that a client may take to read an answer that is no stream: long enough for the largest page on a
// slow line.
const answerTimeout = time.Minute

type requestIDKey struct{}

// requestID returns the id that the log and a problem's instance share.
func requestID(r *http.Request) string {
	id, _ := r.Context().Value(requestIDKey{}).(uuid.UUID)
	return id.String()
}

// observe gives each request an id and bounds to its reading and writing, and sees to its end: the log, the metrics, and a panic.
func (h *handler) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &recorder{ResponseWriter: w}
		r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, newRequestID()))
		// What the server's own WriteTimeout, or the connection's last request, left behind would cut long polls.
		_ = http.NewResponseController(rec).SetWriteDeadline(time.Time{})
		if r.ContentLength != 0 {
			// It holds for what the server itself skips of a body that nobody reads, too.
			_ = http.NewResponseController(rec).SetReadDeadline(start.Add(h.BodyTimeout))
		}
		defer func() { h.finish(rec, r, start, recover()) }()
		next.ServeHTTP(rec, r)
	})
}

func newRequestID() uuid.UUID {
	id, err := uuid.NewV7()
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	return id
}

// finish is told what next panicked with, if it did.
func (h *handler) finish(rec *recorder, r *http.Request, start time.Time, panicked any) {
	abort, _ := panicked.(error)
	if panicked != nil && !errors.Is(abort, http.ErrAbortHandler) {
		h.Logger.Error("Handler panicked", "request_id", requestID(r), "route", route(r), "panic", panicked, "stack", string(debug.Stack()))
		if rec.status == 0 {
			h.fail(rec, r, refuse(CodeInternal, "the server made a mistake; its log has more under the id in \"instance\""))
			panicked = nil
		} else {
			panicked = http.ErrAbortHandler // all that can still be told is that the answer is not whole
		}
	}
	o := Observation{Route: route(r), Method: method(r), Status: rec.status, Duration: time.Since(start), Stream: rec.stream}
	if o.Status == 0 {
		o.Status = http.StatusOK
	}
	level := slog.LevelInfo
	if o.Stream || o.Route == "/healthz" || o.Route == "/readyz" {
		level = slog.LevelDebug
	}
	h.Logger.Log(r.Context(), level, "Request served", "request_id", requestID(r), "route", o.Route, "method", o.Method,
		"status", o.Status, "duration_ms", float64(o.Duration.Microseconds())/1000)
	h.Observe(o)
	if panicked != nil {
		panic(panicked)
	}
}

// route is the pattern that matched: one of few, whatever clients ask for.
func route(r *http.Request) string {
	if ctx := chi.RouteContext(r.Context()); ctx != nil && r.Pattern != "" {
		return r.Pattern
	}
	return "unmatched"
}

// method is one of HTTP's own methods.
func method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return r.Method
	}
	return "other"
}

// recorder remembers what became of the answer.
type recorder struct {
	http.ResponseWriter
	// status is 0 until the header is sent.
	status int
	stream bool
}

// WriteHeader remembers the status. Only the first one counts; informational ones are no answer.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		// Streams go on to set deadlines of their own. Recorders of tests have none.
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTimeout))
		w.status = status
		w.stream = w.Header().Get("Content-Type") == typeStream
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write counts as status 200, like everywhere in net/http.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets [http.ResponseController] through.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
