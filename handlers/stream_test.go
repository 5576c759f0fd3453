package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"treadle/api"
	"treadle/handlers"
	"treadle/sessions"
)

func TestStream_wholeSession(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	events := f.stream("GET", session+"/events", "", "Accept-Encoding", "gzip, br, zstd")
	f.want(f.do("PATCH", session, `{"metadata":{"a":"b"}}`), http.StatusOK)
	f.finish(f.start(session, "think"))
	f.finish(f.start(session, "stumble"))
	if a := f.finish(f.start(session, "break")); a.get("failure.class") != "authentication" {
		t.Errorf("the failure: %s", a.body)
	}
	one := f.start(session, "one call")
	call := f.pending(session, 1)
	f.want(f.do("POST", call+"/claim", `{"client_id":"tab"}`), http.StatusOK)
	f.want(f.do("POST", one+"/cancel", ""), http.StatusOK)
	f.want(f.do("POST", session+"/end", ""), http.StatusOK)

	types := events.rest()
	for _, want := range []string{
		api.TypeSessionUpdated, api.TypeTextDelta, api.TypeReasoningDelta, api.TypeAttemptVoided, api.TypeTurnFailed,
		api.TypeToolClaimed, api.TypeToolResult, api.TypeTurnCanceled, api.TypeTurnCompleted,
	} {
		if !slices.Contains(types, want) {
			t.Errorf("there is no %s in %v", want, types)
		}
	}
	if n := len(types); types[n-1] != api.TypeStreamEnd {
		t.Errorf("the last frame is %s", types[n-1])
	}
	if d, ok := events.Retry(); !ok || d < 750*time.Millisecond || d > 1250*time.Millisecond {
		t.Errorf("retry is %v", d)
	}

	again := f.stream("GET", session+"/events", "")
	again.rest()
	f.want(f.do("GET", session+"/events", "", "Last-Event-ID", again.LastEventID()), http.StatusNoContent)
}

func TestStream_turn(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	events := f.stream("POST", session+"/turns", `{"input":"hello"}`)
	if location := events.resp.Header.Get("Location"); !strings.HasPrefix(location, session+"/turns/") {
		t.Errorf("Location is %q", location)
	}
	types := events.rest()
	first, last := types[:2], types[len(types)-2:]
	if !slices.Equal(first, []string{api.TypeReady, api.TypeTurnStarted}) || !slices.Contains(types, api.TypeTurnCompleted) || last[1] != api.TypeStreamEnd {
		t.Errorf("the stream of a turn: %v", types)
	}

	dropped := f.stream("POST", session+"/turns", `{"input":"one call"}`)
	dropped.until(api.TypeToolCall)
	dropped.resp.Body.Close()
	f.want(f.do("POST", f.pending(session, 1)+"/result", `{"output":1}`), http.StatusOK)
	if a := f.finish(dropped.resp.Header.Get("Location")); a.get("outcome") != "completed" {
		t.Errorf("after its stream was dropped, the turn: %s", a.body)
	}
	f.want(f.do("POST", session+"/turns", `{"input":""}`, "Accept", "text/event-stream"), http.StatusBadRequest, sessions.CodeInvalidInput)
}

func TestNegotiation(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	f.want(f.do("POST", session+"/end", ""), http.StatusOK) // so that streams end
	for accept, want := range map[string]string{
		"": "text/event-stream", "*/*": "text/event-stream", "text/*": "text/event-stream", "application/json": "application/json",
		"text/event-stream, application/json": "text/event-stream", "text/event-stream;q=0.5, application/*": "application/json",
		"*/*;q=0.1, application/json;q=0.2": "application/json", "application/json;q=0, */*": "text/event-stream", "TEXT/EVENT-STREAM": "text/event-stream",
		"text/html, */*;q=0.8": "text/event-stream", ";;;, application/json": "application/json",
	} {
		a := f.want(f.do("GET", session+"/events", "", "Accept", accept), http.StatusOK)
		if got := a.Header.Get("Content-Type"); got != want {
			t.Errorf("Accept %q gives %s, want %s", accept, got, want)
		}
	}
	for _, accept := range []string{"text/html", "application/json;q=0", "application/json;q=x", "nonsense"} {
		f.want(f.do("GET", session+"/events", "", "Accept", accept), http.StatusNotAcceptable, handlers.CodeNotAcceptable)
	}
}

func TestStream_heartbeat(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.Heartbeat = 20 * time.Millisecond })
	session := f.session()
	visible := f.stream("GET", session+"/events?after=latest&heartbeat=event", "")
	visible.until(api.TypeReady)
	cursor := visible.LastEventID()
	for range 3 {
		if event := visible.until(api.TypeHeartbeat); event.ID != "" {
			t.Errorf("a heartbeat has the id %s", event.ID)
		}
	}
	if visible.LastEventID() != cursor || visible.comments > 0 {
		t.Errorf("heartbeats moved the cursor from %s to %s, with %d comments", cursor, visible.LastEventID(), visible.comments)
	}
}

// TestStream_serverTimeouts: no timeout of the http.Server ends a stream or a long poll.
func TestStream_serverTimeouts(t *testing.T) {
	f := newFixture(t, func(s *setup) {
		s.Heartbeat = 30 * time.Millisecond
		s.server = func(server *http.Server) {
			server.ReadTimeout, server.WriteTimeout = 50*time.Millisecond, 50*time.Millisecond
		}
	})
	session := f.session()
	events := f.stream("GET", session+"/events?heartbeat=event", "")
	for range 6 {
		events.until(api.TypeHeartbeat)
	}
	turn := f.start(session, "block")
	events.until(api.TypeTurnStarted)
	a := f.want(f.do("GET", turn+"?wait=1", ""), http.StatusOK)
	if a.get("outcome") != nil {
		t.Errorf("a blocked turn: %s", a.body)
	}
}

// TestStream_cursors: whatever a client sends as a cursor, it gets everything, is told to start over, or is refused.
func TestStream_cursors(t *testing.T) {
	f := newFixture(t)
	session, other := f.session(), f.session()
	f.finish(f.start(session, "hello"))
	full := f.stream("GET", session+"/events", "")
	full.until(api.TypeSessionCreated)
	early := full.LastEventID()
	full.until(api.TypeTurnCompleted)
	full.until(api.TypeStatusChanged)
	end := full.LastEventID()
	tag, _, _ := strings.Cut(end, "-")
	foreign := f.stream("GET", other+"/events", "")
	foreign.until(api.TypeSessionCreated)

	for _, cursor := range []string{
		"0", "-1", "abc", strings.Repeat("9", 10_000), tag + "-999999999", tag + "-" + strings.Repeat("9", 30), foreign.LastEventID(), "1.5", tag + "-", "%", "latest",
	} {
		events := f.stream("GET", session+"/events", "", "Last-Event-ID", cursor)
		events.until(api.TypeReset)
		events.until(api.TypeReady)
		events.until(api.TypeSessionCreated)
		page := f.do("GET", session+"/events", "", "Accept", "application/json")
		f.want(page, http.StatusOK)
		if cursor != "latest" {
			f.want(f.do("GET", session+"/events?after="+strings.ReplaceAll(cursor, "%", "%25"), "", "Accept", "application/json"), http.StatusBadRequest, sessions.CodeCursorInvalid)
		}
	}
	both := f.stream("GET", session+"/events?after="+early, "", "Last-Event-ID", end)
	both.until(api.TypeReady)
	f.start(session, "one call")
	if event, err := both.Next(); err != nil || event.Type != api.TypeTurnStarted {
		t.Errorf("after the end comes %s, %v", event.Type, err)
	}
	f.pending(session, 1)
	latest := f.stream("GET", session+"/events?after=latest", "", "Last-Event-ID", "")
	if event, err := latest.Next(); err != nil || event.Type != api.TypeToolCall || event.ID == "" {
		t.Errorf("the first of the latest events is %s, %v", event.Type, err)
	}
	latest.until(api.TypeReady)
}

func TestEventPages(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	f.finish(f.start(session, "hello"))
	var ids []string
	cursor := ""
	for more := true; more; {
		a := f.want(f.do("GET", session+"/events?limit=2&after="+cursor, "", "Accept", "application/json"), http.StatusOK)
		var page api.EventPage
		if err := json.Unmarshal([]byte(a.body), &page); err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			ids = append(ids, e.ID)
		}
		cursor, more = page.Cursor, page.More
	}
	stream := f.stream("GET", session+"/events", "")
	for _, id := range ids {
		event, err := stream.Next()
		for err == nil && event.Type == api.TypeReady {
			event, err = stream.Next()
		}
		if err != nil || event.ID != id {
			t.Fatalf("the page has %s where the stream has %s, %v", id, event.ID, err)
		}
	}

	answered := make(chan answer)
	go func() {
		answered <- f.do("GET", session+"/events?wait=60&after="+cursor, "", "Accept", "application/json")
	}()
	turn := f.start(session, "block")
	if a := f.want(<-answered, http.StatusOK); !strings.HasSuffix(turn, fmt.Sprint("/", a.get("events.0.event.turn_id"))) {
		t.Errorf("the long poll brought %s", a.body)
	}
}

// TestStream_strangeText: no text can end a line of a frame.
func TestStream_strangeText(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	texts := []string{"a\rb", "a\r\nb", "a\n\nb", "\rid: 999\rdata: x", "\u2028\u0085\ufeff", " leading", "\x00\x1b[31m", "<script>&amp;"}
	for _, text := range texts {
		f.finish(f.start(session, text+" hello"))
	}
	events := f.stream("GET", session+"/events", "")
	for _, text := range texts {
		event := events.until(api.TypeTurnStarted)
		var started api.TurnStarted
		if err := json.Unmarshal(event.Data, &started); err != nil || started.Input.Text() != text+" hello" || event.ID == "999" {
			t.Errorf("%q arrived as %q, id %s, %v", text, started.Input.Text(), event.ID, err)
		}
	}
}

func TestStream_limit(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.service.Limits.MaxStreams = 1 })
	session := f.session()
	events := f.stream("GET", session+"/events", "")
	a := f.want(f.do("GET", session+"/events", ""), http.StatusTooManyRequests, sessions.CodeTooManyStreams)
	if a.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	f.want(f.do("POST", session+"/turns", `{"input":"hi"}`, "Accept", "text/event-stream"), http.StatusTooManyRequests, sessions.CodeTooManyStreams)
	f.want(f.do("GET", session+"/events", "", "Accept", "application/json"), http.StatusOK)
	events.resp.Body.Close()
	f.eventually("a stream is free again", func() bool { return f.do("HEAD", session+"/events", "").StatusCode == http.StatusOK })
}

// TestStream_refusedTurn: a turn whose stream is refused is not started, however often it is asked for.
func TestStream_refusedTurn(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.service.Limits.MaxStreams = 1 })
	session := f.session()
	events := f.stream("GET", session+"/events", "")
	for range 2 {
		a := f.want(f.do("POST", session+"/turns", `{"input":"block"}`, "Accept", "text/event-stream"), http.StatusTooManyRequests, sessions.CodeTooManyStreams)
		if a.Header.Get("Location") != "" {
			t.Errorf("Location is %q", a.Header.Get("Location"))
		}
	}
	a := f.want(f.do("GET", session, ""), http.StatusOK)
	if a.get("status") != "idle" || fmt.Sprint(a.get("turns")) != "0" {
		t.Errorf("the session: %s", a.body)
	}
	events.resp.Body.Close()
	f.eventually("a stream is free again", func() bool { return f.do("HEAD", session+"/events", "").StatusCode == http.StatusOK })
	f.stream("POST", session+"/turns", `{"input":"hello"}`).until(api.TypeTurnCompleted)
}

func TestDrain(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	turn := f.start(session, "block")
	streams := []*events{f.stream("GET", session+"/events", ""), f.stream("GET", session+"/events?after=latest", "")}
	for _, s := range streams {
		s.until(api.TypeReady)
	}
	polls := []<-chan answer{f.later(turn + "?wait=60"), f.later(session+"/events?wait=60&after=latest", "Accept", "application/json")}
	f.eventually("the streams are open", func() bool { return strings.Count(f.log.String(), "Stream opened") == 2 })
	f.drain()
	for _, s := range streams {
		end := s.until(api.TypeStreamEnd)
		if !strings.Contains(string(end.Data), `"reason":"shutdown"`) || len(s.rest()) > 0 {
			t.Errorf("the end: %s", end.Data)
		}
	}
	for _, poll := range polls {
		f.want(<-poll, http.StatusOK)
	}
	f.want(f.do("GET", session+"/events", ""), http.StatusServiceUnavailable, sessions.CodeShuttingDown)
	f.want(f.do("GET", session, ""), http.StatusOK)
}

// openStreams counts what a service has open.
func openStreams(n *atomic.Int64) func(*setup) {
	return func(s *setup) { s.service.Metrics.Streams = func(delta int) { n.Add(int64(delta)) } }
}

// dial sends a raw request for a stream.
func (f *fixture) dial(path string) *net.TCPConn {
	f.tb.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { conn.Close() })
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\n\r\n", path); err != nil {
		f.tb.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// TestStream_slowReader: a reader that stalls is dropped, and nobody else notices.
func TestStream_slowReader(t *testing.T) {
	var open atomic.Int64
	f := newFixture(t, openStreams(&open), func(s *setup) {
		s.WriteTimeout = 100 * time.Millisecond
		s.server = func(server *http.Server) {
			server.ConnState = func(conn net.Conn, state http.ConnState) {
				if state == http.StateNew {
					_ = conn.(*net.TCPConn).SetWriteBuffer(16 << 10) // the default would take the whole stream
				}
			}
		}
	})
	session := f.session()
	big := `{"output":"` + strings.Repeat("x", 256<<10) + `"}`
	for range 4 {
		turn := f.start(session, "one call")
		f.want(f.do("POST", f.pending(session, 1)+"/result", big), http.StatusOK)
		f.finish(turn)
	}
	stalled := f.dial(session + "/events")
	if err := stalled.SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	events := f.stream("GET", session+"/events?after=latest", "")
	events.until(api.TypeReady)
	f.eventually("the stalled reader is dropped", func() bool {
		return strings.Contains(f.log.String(), "i/o timeout") && open.Load() == 1
	})
	f.start(session, "hello")
	events.until(api.TypeTurnCompleted)
}

// TestStream_abruptEnds: connections that break at any moment leave nothing behind.
func TestStream_abruptEnds(t *testing.T) {
	var open atomic.Int64
	f := newFixture(t, openStreams(&open))
	session := f.session()
	f.start(session, "block")
	for i := range 200 {
		conn := f.dial(session + "/events")
		if i%4 > 0 {
			if _, err := conn.Read(make([]byte, 1<<(i%10))); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	f.eventually("all streams are closed", func() bool { return open.Load() == 0 })
	f.want(f.do("GET", "/healthz", ""), http.StatusOK)
	f.session()
	if log := f.log.String(); strings.Contains(log, "panicked") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the log: %s", log)
	}
}

// TestClientGone: a client that hangs up during a long poll is no error of the server.
func TestClientGone(t *testing.T) {
	observed := make(chan handlers.Observation, 10)
	f := newFixture(t, func(s *setup) {
		s.Observe = func(o handlers.Observation) {
			if strings.HasSuffix(o.Route, "{turn_id}") {
				observed <- o
			}
		}
	})
	turn := f.start(f.session(), "block")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := f.client.Do(f.request("GET", turn+"?wait=60", "").WithContext(ctx))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if o := <-observed; o.Status != 499 {
		t.Errorf("the status is %d", o.Status)
	}
	if log := f.log.String(); strings.Contains(log, "level=ERROR") || strings.Contains(log, "level=WARN") {
		t.Errorf("the log: %s", log)
	}
}
