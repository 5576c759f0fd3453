package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"treadle/api"
	"treadle/internal/logtest"
	"treadle/sse"
)

// nginx is of the Debian package nginx-light.
const nginx = "/usr/sbin/nginx"

// rawNginx puts a stock nginx in front of a server and returns a transport that leads through it.
func rawNginx(tb testing.TB, backend string) *http.Transport {
	tb.Helper()
	dir := tb.TempDir()
	socket, config := filepath.Join(dir, "socket"), filepath.Join(dir, "nginx.conf")
	mustWrite(tb, config, fmt.Sprintf(`
daemon off;
master_process off;
pid %[1]s/pid;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	server {
		listen unix:%[2]s;
		location / { proxy_pass %[3]s; }
	}
}
`, dir, socket, backend))
	var stderr lockedBuffer
	cmd := exec.Command(nginx, "-e", "stderr", "-p", dir, "-c", config)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if tb.Failed() {
			tb.Logf("nginx: %s", stderr.String())
		}
	})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	eventually(tb, "nginx listens", func() bool {
		conn, err := dial(tb.Context(), "", "")
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
	return &http.Transport{DialContext: dial}
}

// TestWire_buffering: five pieces of text, a second apart, arrive one by one; directly and through a proxy that nobody tuned,
// at both routes that answer with a stream. It is not parallel: it is about time.
func TestWire_buffering(t *testing.T) {
	s := rawStart(t, "", `
rules:
  - match: ""
    answers:
      - - {text: "`+strings.Repeat("12345678901234567890", 5)+`", chunk: 20, every: 1s}
`)
	streams := map[string]*rawStream{}
	open := func(name string, s *rawServer) {
		session := s.session()
		streams[name+"events"] = s.stream(http.MethodGet, session+"/events", "", "Accept-Encoding", "gzip, br, zstd")
		s.start(session, "go")
		streams[name+"turn"] = s.stream(http.MethodPost, s.session()+"/turns", `{"input":"go"}`, "Accept-Encoding", "gzip, br, zstd")
	}
	open("", s)
	for name, st := range streams {
		for header, want := range map[string]string{
			"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no", "Content-Encoding": "", "Content-Length": "",
		} {
			if got := st.res.Header.Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", name, header, got, want)
			}
		}
	}
	if _, err := os.Stat(nginx); err == nil {
		open("nginx ", s.plain("http://localhost", rawNginx(t, s.url)))
	} else {
		t.Logf("only the direct way is checked: %v", err)
	}
	for name, st := range streams {
		frames := st.until("the end of "+name, func(frames []rawFrame) bool { return len(rawOfType(frames, api.TypeTurnCompleted)) == 1 })
		deltas := rawOfType(frames, api.TypeTextDelta)
		if len(deltas) != 5 {
			t.Errorf("%s: %d pieces, want 5", name, len(deltas))
		}
		for i, d := range deltas {
			event := rawEvent[api.TextDelta](t, d)
			if late := d.at.Sub(event.Time); len(event.Text) != 20 || late > 300*time.Millisecond {
				t.Errorf("%s: piece %d, %q, arrived %v after it was sent", name, i, event.Text, late)
			}
			if i > 0 && d.at.Sub(deltas[i-1].at) < 500*time.Millisecond {
				t.Errorf("%s: pieces %d and %d arrived together", name, i-1, i)
			}
		}
	}
}

// TestWire_heartbeat: the first bytes come at once, no silence lasts, and nothing that the server itself limits ends a stream,
// whatever the stream waits for: for anything at all, for a page, or for the model.
func TestWire_heartbeat(t *testing.T) {
	t.Parallel()
	s := rawStart(t, "heartbeat: 1s\n", `
rules:
  - {match: call, answers: [[call: {tool: ask, args: {}}], [text: Done.]]}
  - {match: block, answers: [[block: true]]}
  - {match: "", answers: [[text: Hello.]]}
`)
	type waiting struct {
		session, turn string
		*rawStream
		since  time.Time
		before int
	}
	var all []*waiting
	for _, input := range []string{"", "call", "block"} {
		w := &waiting{session: s.session("ask")}
		began := time.Now()
		w.rawStream = s.stream(http.MethodGet, w.session+"/events", "")
		first := w.until("the first frames", func(frames []rawFrame) bool { return len(frames) >= 2 })
		if took := first[1].at.Sub(began); took > time.Second || first[0].text[:7] != "retry: " || first[1].Type != api.TypeReady || first[1].ID == "" {
			t.Errorf("%q begins after %v with %q, %q", input, took, first[0].text, first[1].text)
		}
		if input != "" {
			w.turn = s.start(w.session, input)
		}
		all = append(all, w)
	}
	s.pending(all[1].session, 1)
	all[2].has(1, api.TypeStepStarted)
	for _, w := range all {
		w.since, w.before = time.Now(), len(w.frames())
	}
	// Longer than the server takes headers to come and batches to leave.
	for _, w := range all {
		frames := w.until("11 heartbeats", func(frames []rawFrame) bool { return len(frames) >= w.before+11 })
		last := w.since
		for _, f := range frames[w.before:] {
			if !f.comment() || f.ID != "" || strings.Contains(f.text, "id:") {
				t.Errorf("%s is no heartbeat", f.text)
			}
			if silence := f.at.Sub(last); silence > 2500*time.Millisecond {
				t.Errorf("silence of %v", silence)
			}
			last = f.at
		}
	}
	s.start(all[0].session, "hello")
	all[0].has(1, api.TypeTurnCompleted)
	call := s.pending(all[1].session, 1)[0]
	s.want(http.StatusOK, http.MethodPost, fmt.Sprintf("%s/tool_calls/%v/result", all[1].session, call.ID), `{"output":null}`)
	all[1].has(1, api.TypeTurnCompleted)
	s.want(http.StatusOK, http.MethodPost, all[2].turn+"/cancel", "")
	all[2].has(1, api.TypeTurnCanceled)
	for _, w := range all {
		s.checkStream(w.session, w.frames())
	}
}

// rawHostile are texts that would end a line, a frame or a field if anything took them as they are.
var rawHostile = []string{
	"a\rb", "a\r\nb", "a\n\nb", "\rid: 999\rdata: x", "\n\nid: 999\nevent: turn_completed\ndata: {}\n\n", "\u2028", "\u0085", "\ufeff", " leading", "\x00\x1b[2J", "",
	":", "data:", "</script>&", "\U0001F44D\U0001F3FD",
}

// answerHostile lets the page say each of the texts wherever a page can say something.
func (s *rawServer) answerHostile(session string) {
	s.tb.Helper()
	turn := s.start(session, "call")
	send := func(path, body string) {
		s.want(http.StatusOK, http.MethodPost, session+"/tool_calls/"+path, body)
	}
	for i, text := range rawHostile {
		quoted := rawJSON(s.tb, text)
		id := s.pending(session, 1)[0].ID.String()
		if text != "" {
			send(id+"/claim", `{"client_id":`+quoted+`}`)
			s.want(http.StatusConflict, http.MethodPost, session+"/tool_calls/"+id+"/result", `{"output":1}`)
			s.want(http.StatusOK, http.MethodPatch, session, `{"metadata":{"a":`+quoted+`}}`)
			s.want(http.StatusOK, http.MethodPost, turn+"/cancel", "")
			turn = s.start(session, "call")
			id = s.pending(session, 1)[0].ID.String()
		}
		send(id+"/progress", `{"message":`+quoted+`}`)
		if i%2 == 0 {
			// Line breaks between the tokens of JSON are no better than those within its texts.
			send(id+"/result", "{\"output\":\r\n{\"a\"\r:\n"+quoted+"\r\n}\r}")
		} else {
			send(id+"/result", `{"error":{"code":"A`+"\\r"+`B","message":`+rawJSON(s.tb, "x"+text)+`,"details":[`+quoted+`]}}`)
		}
	}
	s.want(http.StatusOK, http.MethodPost, turn+"/cancel", "")
}

// TestWire_injection: whatever the model, the page and the user say arrives as it was said, one event for each.
func TestWire_injection(t *testing.T) {
	t.Parallel()
	var actions []string
	for _, text := range rawHostile {
		// Reasoning and text take turns, so that each piece is an event of its own.
		actions = append(actions, "{reasoning: "+strconv.QuoteToASCII(text)+"}", "{text: "+strconv.QuoteToASCII(text)+"}")
	}
	s := rawStart(t, "", fmt.Sprintf("rules:\n  - match: say\n    answers: [[%s]]\n  - match: call\n    answers: [[call: {tool: ask, args: {}}]]\n    repeat: last\n", strings.Join(actions, ", ")))
	session := s.session("ask")
	st := s.stream(http.MethodGet, session+"/events", "")
	said := s.finish(s.start(session, "say"))

	s.answerHostile(session)
	s.want(http.StatusOK, http.MethodPost, session+"/end", "")
	<-st.ended

	if strings.ContainsRune(string(st.bytes), '\r') {
		t.Error("the stream has a carriage return")
	}
	frames := st.frames()
	var pieces, claims, settled []string
	for _, f := range rawOfType(frames, api.TypeTextDelta, api.TypeReasoningDelta) {
		pieces = append(pieces, rawEvent[api.TextDelta](t, f).Text)
	}
	for _, f := range rawOfType(frames, api.TypeToolClaimed) {
		claims = append(claims, rawEvent[api.ToolClaimed](t, f).ClientID)
	}
	var want, answered []string
	for i, text := range rawHostile {
		if text != "" {
			want = append(want, text, text)
		}
		if i%2 == 0 {
			answered = append(answered, fmt.Sprintf(`{"a":%s}`, rawJSON(t, text)))
		} else {
			answered = append(answered, fmt.Sprintf(`[%s]`, rawJSON(t, text)))
		}
	}
	if named := slices.DeleteFunc(slices.Clone(rawHostile), func(text string) bool { return text == "" }); !slices.Equal(claims, named) {
		t.Errorf("the clients' names: %q\nwant: %q", claims, named)
	}
	if !slices.Equal(pieces, want) || said.Text != strings.Join(rawHostile, "") {
		t.Errorf("the model's pieces: %q\nwant: %q\nthe text: %q", pieces, want, said.Text)
	}
	for _, f := range rawOfType(frames, api.TypeToolResult) {
		result := rawEvent[api.ToolResultEvent](t, f)
		switch {
		case result.SettledBy != api.SettledByPage:
		case result.Result.OK:
			settled = append(settled, string(result.Result.Output))
		default:
			settled = append(settled, string(result.Result.Error.Details))
		}
	}
	if !slices.Equal(settled, answered) {
		t.Errorf("the page's results:\n%q\nwant:\n%q", settled, answered)
	}
	s.checkStream(session, frames)
}

// TestWire_cursors: no cursor leads to silence, to an internal error or to another session's events, across a restart too.
func TestWire_cursors(t *testing.T) {
	t.Parallel()
	s := rawStart(t, "", "")
	session, other := s.session("ask"), s.session()
	s.start(session, "call ask {}") // before anybody reads
	call := s.pending(session, 1)[0]
	full := s.stream(http.MethodGet, session+"/events", "")
	offered := full.has(1, api.TypeToolCall)[0]
	full.has(2, api.TypeStatusChanged) // to running, to waiting
	everything := len(full.frames())
	idle := s.stream(http.MethodGet, other+"/events?after=latest", "").has(1, api.TypeReady)[0]
	if idle.ID == "" {
		t.Error("a session in which nothing happened gives no cursor")
	}
	tag, position, _ := strings.Cut(offered.ID, "-")
	ahead, err := strconv.Atoi(position)
	if err != nil {
		t.Fatal(err)
	}
	for _, cursor := range []string{
		"0", "-1", "abc", strings.Repeat("9", 10_000), fmt.Sprintf("%s-%d", tag, ahead+1_000_000), idle.ID, "1.5", tag + "-01", tag + "- 1", "\xff", "00000000-" + position,
	} {
		st := s.stream(http.MethodGet, session+"/events?after="+offered.ID, "", "Last-Event-ID", cursor)
		frames := st.until("everything is there again", func(frames []rawFrame) bool { return len(frames) > everything })
		if len(rawOfType(frames, api.TypeReset)) != 1 || frames[1].Type != api.TypeReset {
			t.Errorf("cursor %.30q: no reset in %s", cursor, frames[1].text)
		}
		s.checkStream(session, frames)
	}
	for path, header := range map[string]string{"/events?after=": "", "/events?after=" + tag + "-0": "", "/events?after=nonsense": tag + "-0", "/events": tag + "-0"} {
		st := s.stream(http.MethodGet, session+path, "", "Last-Event-ID", header)
		if got := st.has(1, api.TypeToolCall)[0]; got.ID != offered.ID || len(rawOfType(st.frames(), api.TypeReset)) > 0 {
			t.Errorf("%s with %q: the call has the id %s, want %s", path, header, got.ID, offered.ID)
		}
	}
	late := s.stream(http.MethodGet, session+"/events", "", "Last-Event-ID", offered.ID)
	s.want(http.StatusOK, http.MethodPost, fmt.Sprintf("%s/tool_calls/%v/result", session, call.ID), `{"output":1}`)
	if frames := late.has(1, api.TypeTurnCompleted); len(rawOfType(late.frames(), api.TypeToolCall)) > 0 || len(frames) != 1 {
		t.Error("a reader with a cursor was told again what it knew")
	}
}

// TestWire_stalled: of twenty readers one never reads. The others get everything, and commands are answered meanwhile.
func TestWire_stalled(t *testing.T) {
	t.Parallel()
	const perStep, readers = 200, 19
	steps := 10
	if logtest.Full() {
		steps = 49
	}
	piece := strings.Repeat("x", 4000) // more, together, than the buffers of a connection hold
	script := "rules:\n  - match: \"\"\n    answers:\n"
	for i := range steps {
		if i == 0 {
			script += "      - &step\n        - {reasoning: &x " + piece + "}\n        - {text: " + piece + "}\n"
			script += strings.Repeat("        - {reasoning: *x }\n        - {text: *x }\n", perStep/2-1) + "        - {call: {tool: ask, args: {}}}\n"
			continue
		}
		script += "      - *step\n"
	}
	s := rawStart(t, "", script+"      - - {block: true}\n")
	session := s.session("ask")

	conn := s.dial()
	if err := conn.SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s/events HTTP/1.1\r\nHost: localhost\r\n\r\n", session)
	counts := make([]atomic.Int64, readers)
	var reading sync.WaitGroup
	for i := range readers {
		client := s
		if i > 0 { // one that checks everything is enough
			client = s.plain(s.url, new(http.Transport))
		}
		res, err := client.http.Do(client.request(http.MethodGet, session+"/events", ""))
		if err != nil {
			t.Fatal(err)
		}
		reading.Go(func() {
			defer res.Body.Close()
			events := sse.NewReader(res.Body, sse.ReaderOptions{})
			for {
				event, err := events.Next()
				if err != nil {
					t.Errorf("reader %d: %v", i, err)
					return
				}
				switch event.Type {
				case api.TypeTextDelta, api.TypeReasoningDelta:
					counts[i].Add(1)
				case api.TypeTurnCanceled:
					return
				}
			}
		})
	}
	eventually(t, "all streams are open", func() bool { return s.metric("treadle_streams") == readers+1 })

	began, slowest := time.Now(), time.Duration(0)
	timed := func(path, body string) {
		start := time.Now()
		s.want(http.StatusOK, http.MethodPost, path, body)
		slowest = max(slowest, time.Since(start))
	}
	turn := s.start(session, "go")
	for range steps {
		timed(fmt.Sprintf("%s/tool_calls/%v/result", session, s.pending(session, 1)[0].ID), `{"output":1}`)
	}
	timed(turn+"/cancel", "")
	took := time.Since(began)
	reading.Wait()
	for i := range counts {
		if got := counts[i].Load(); got != int64(steps*perStep) {
			t.Errorf("reader %d got %d pieces of text, want %d", i, got, steps*perStep)
		}
	}
	t.Logf("%d events to %d readers in %v; the slowest command took %v", steps*perStep, readers, took.Round(time.Millisecond), slowest.Round(time.Millisecond))
	if slowest > 5*time.Second { // the stalled reader would hold others up for 10 s
		t.Errorf("a command took %v", slowest)
	}
	eventually(t, "the stalled reader is dropped", func() bool { return s.metric("treadle_streams") == 0 })
}

// TestWire_abruptEnds resets connections at random moments while a turn speaks. Nothing of them is left.
func TestWire_abruptEnds(t *testing.T) {
	t.Parallel()
	s := rawStart(t, "", `
rules:
  - match: speak
    answers: [[{text: "`+strings.Repeat("x", 10_000)+`", chunk: 1, every: 20ms}]]
  - match: ""
    answers: [[text: Hello.]]
`, "--log-level", "debug")
	n := 300
	if logtest.Full() {
		n = 2000
	}
	session := s.session()
	s.finish(s.start(session, "hello"))
	before := s.metric("go_goroutines")
	turn := s.start(session, "speak")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	request := fmt.Sprintf("GET %s/events HTTP/1.1\r\nHost: localhost\r\n\r\n", session)
	for range n {
		conn := s.dial()
		cut := len(request)
		if random.IntN(4) == 0 {
			cut = random.IntN(len(request))
		}
		if _, err := io.WriteString(conn, request[:cut]); err != nil {
			t.Fatal(err)
		}
		if cut == len(request) && random.IntN(4) > 0 {
			if _, err := io.ReadFull(conn, make([]byte, random.IntN(1500))); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		if err := conn.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	s.want(http.StatusOK, http.MethodPost, turn+"/cancel", "")
	s.want(http.StatusOK, http.MethodGet, "/healthz", "")
	again := s.session()
	if got := s.finish(s.start(again, "hello")); *got.Outcome != api.OutcomeCompleted {
		t.Errorf("a turn afterwards: %+v", got)
	}
	s.http.CloseIdleConnections()
	eventually(t, "nothing of the streams is left", func() bool {
		return s.metric("treadle_streams") == 0 && s.metric("go_goroutines") <= before+5
	})
	if log := s.stderr.String(); strings.Contains(log, "panic") || strings.Contains(log, "level=ERROR") || strings.Contains(log, "level=WARN") {
		t.Errorf("the log: %s", log)
	}
}
