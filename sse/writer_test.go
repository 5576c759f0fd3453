package sse_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"treadle/sse"
)

// recorder records like httptest.ResponseRecorder, and has deadlines.
type recorder struct {
	*httptest.ResponseRecorder
	status          int
	writes, flushes int
	read, write     []time.Time
	err             error
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseRecorder.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.writes++
	if r.err != nil {
		return 0, r.err
	}
	return r.ResponseRecorder.Write(p)
}

func (r *recorder) FlushError() error {
	r.flushes++
	r.Flush()
	return r.err
}

func (r *recorder) SetReadDeadline(t time.Time) error {
	r.read = append(r.read, t)
	return nil
}

func (r *recorder) SetWriteDeadline(t time.Time) error {
	r.write = append(r.write, t)
	return nil
}

// unwrapOnly is what a middleware makes of a ResponseWriter.
type unwrapOnly struct{ inner http.ResponseWriter }

func (u unwrapOnly) Header() http.Header         { return u.inner.Header() }
func (u unwrapOnly) Write(p []byte) (int, error) { return u.inner.Write(p) }
func (u unwrapOnly) WriteHeader(status int)      { u.inner.WriteHeader(status) }
func (u unwrapOnly) Unwrap() http.ResponseWriter { return u.inner }

// opaque is a careless middleware, which remembered the deadlines only.
type opaque struct {
	http.ResponseWriter
	deadlines *recorder
}

func (o opaque) SetReadDeadline(t time.Time) error  { return o.deadlines.SetReadDeadline(t) }
func (o opaque) SetWriteDeadline(t time.Time) error { return o.deadlines.SetWriteDeadline(t) }

func mustWriter(tb testing.TB, rw http.ResponseWriter, opts sse.Options) *sse.Writer {
	tb.Helper()
	w, err := sse.NewWriter(rw, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

func TestWriter_Bytes(t *testing.T) {
	rec := &recorder{ResponseRecorder: httptest.NewRecorder()}
	w := mustWriter(t, rec, sse.Options{})
	w.Retry(1500 * time.Millisecond)
	w.Event("tag-0", "ready", []byte(`{}`))
	w.Comment("heartbeat")
	w.Comment("")
	w.WriteFrame(sse.AppendEvent(nil, "tag-1000", "text_delta", []byte("a\nb")))
	want := "retry: 1500\n\n" +
		"id: tag-0\nevent: ready\ndata: {}\n\n" +
		": heartbeat\n\n" +
		": \n\n" +
		"id: tag-1000\nevent: text_delta\ndata: a\ndata: b\n\n"
	if w.Buffered() != len(want) || rec.Body.Len() > 0 {
		t.Errorf("buffered %d of %d bytes, sent %d", w.Buffered(), len(want), rec.Body.Len())
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := rec.Body.String(); got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if rec.writes != 1 || rec.flushes != 2 {
		t.Errorf("%d writes, %d flushes: want one of each per batch, and a flush of the headers", rec.writes, rec.flushes)
	}
	if err := w.Flush(); err != nil || rec.writes != 1 || w.Buffered() != 0 {
		t.Errorf("an empty batch was written: %v", err)
	}
}

func TestWriter_Headers(t *testing.T) {
	rec := &recorder{ResponseRecorder: httptest.NewRecorder()}
	rec.Header().Set("Content-Length", "5")
	rec.Header().Set("Content-Encoding", "gzip")
	rec.Header().Set("X-Other", "kept")
	mustWriter(t, rec, sse.Options{})
	want := http.Header{
		"Content-Type":      {"text/event-stream"},
		"Cache-Control":     {"no-cache, no-transform"},
		"X-Accel-Buffering": {"no"},
		"X-Other":           {"kept"},
	}
	if got := rec.Result().Header; rec.status != http.StatusOK || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("status %d, headers %v\nwant %v", rec.status, got, want)
	}
}

func TestWriter_DeadlineOnlyWhileWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{ResponseRecorder: httptest.NewRecorder()}
		w := mustWriter(t, rec, sse.Options{})
		<-time.After(time.Hour)
		w.Comment("")
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		want := []time.Time{now.Add(-time.Hour + 10*time.Second), {}, now.Add(10 * time.Second), {}, now.Add(10 * time.Second)}
		if fmt.Sprint(rec.write) != fmt.Sprint(want) {
			t.Errorf("write deadlines %v\nwant %v", rec.write, want)
		}
		if want := []time.Time{now.Add(-time.Hour + 10*time.Second), {}, now.Add(10 * time.Second)}; fmt.Sprint(rec.read) != fmt.Sprint(want) {
			t.Errorf("read deadlines %v\nwant %v", rec.read, want)
		}
	})
}

func TestNewWriter_Unsupported(t *testing.T) {
	tests := map[string]func(*httptest.ResponseRecorder) http.ResponseWriter{
		"no flush": func(rec *httptest.ResponseRecorder) http.ResponseWriter {
			return opaque{rec, &recorder{}}
		},
		"no flush behind Unwrap": func(rec *httptest.ResponseRecorder) http.ResponseWriter {
			return unwrapOnly{opaque{rec, &recorder{}}}
		},
		"no deadlines": func(rec *httptest.ResponseRecorder) http.ResponseWriter { return rec },
	}
	for name, wrap := range tests {
		t.Run(name, func(t *testing.T) {
			rec := httptest.NewRecorder()
			w, err := sse.NewWriter(wrap(rec), sse.Options{})
			if w != nil || !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("got %v, %v", w, err)
			}
			if rec.Flushed || len(rec.Header()) > 0 {
				t.Error("something was sent")
			}
		})
	}
}

func TestWriter_FirstErrorIsFinal(t *testing.T) {
	broken := errors.New("broken pipe")
	tests := []struct {
		name string
		do   func(*recorder, *sse.Writer) error
		want error
	}{
		{"id with LF", func(_ *recorder, w *sse.Writer) error { return w.Event("1\n2", "", nil) }, sse.ErrInvalidField},
		{"id with CR", func(_ *recorder, w *sse.Writer) error { return w.Event("1\r2", "", nil) }, sse.ErrInvalidField},
		{"id with NUL", func(_ *recorder, w *sse.Writer) error { return w.Event("1\x002", "", nil) }, sse.ErrInvalidField},
		{"event with LF", func(_ *recorder, w *sse.Writer) error { return w.Event("", "a\nid: 9", nil) }, sse.ErrInvalidField},
		{"event with CR", func(_ *recorder, w *sse.Writer) error { return w.Event("", "a\rid: 9", nil) }, sse.ErrInvalidField},
		{"comment with LF", func(_ *recorder, w *sse.Writer) error { return w.Comment("a\nid: 9") }, sse.ErrInvalidField},
		{"comment with CR", func(_ *recorder, w *sse.Writer) error { return w.Comment("a\rid: 9") }, sse.ErrInvalidField},
		{"negative retry", func(_ *recorder, w *sse.Writer) error { return w.Retry(-1) }, sse.ErrInvalidField},
		{"half a frame", func(_ *recorder, w *sse.Writer) error { return w.WriteFrame([]byte("data: x\n")) }, sse.ErrInvalidField},
		{"connection", func(rec *recorder, w *sse.Writer) error {
			rec.err = broken
			w.Comment("")
			return w.Flush()
		}, broken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rec := &recorder{ResponseRecorder: httptest.NewRecorder()}
			w := mustWriter(t, rec, sse.Options{})
			w.Event("1", "", []byte("dropped with its batch"))
			first := tt.do(rec, w)
			if !errors.Is(first, tt.want) {
				t.Fatalf("got %v, want %v", first, tt.want)
			}
			rec.err = nil
			later := []error{w.Event("2", "", nil), w.Event("\n", "", nil), w.Comment(""), w.Retry(0), w.WriteFrame([]byte("data\n\n")), w.Flush(), w.Close()}
			for i, err := range later {
				if err != first {
					t.Errorf("call %d: got %v, want %v", i, err, first)
				}
			}
			if rec.Body.Len() > 0 || w.Buffered() != 0 {
				t.Errorf("sent %q after the error, kept %d bytes", rec.Body, w.Buffered())
			}
		})
	}
}

func TestWriter_HeartbeatHasNoID(t *testing.T) {
	rec := &recorder{ResponseRecorder: httptest.NewRecorder()}
	w := mustWriter(t, rec, sse.Options{})
	w.Event("1", "", []byte("x"))
	w.Comment("heartbeat")
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(rec.Body.String(), "id:"); n != 1 {
		t.Errorf("%d ids in %q", n, rec.Body)
	}
	got := parse(bytes.NewReader(rec.Body.Bytes()), sse.ReaderOptions{})
	if len(got.Events) != 1 || len(got.Comments) != 1 || got.LastID != "1" {
		t.Errorf("got %+v", got)
	}
}
