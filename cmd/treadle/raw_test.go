package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"treadle/api"
	"treadle/internal/contract"
	"treadle/sse"
)

// rawServer is a running treadle seen by a client that trusts nothing. Every answer is held against the contract.
type rawServer struct {
	*process
	tb   testing.TB
	base string
	key  string
	http *http.Client
}

// rawStart runs treadle with a config file; a script, if there is one, becomes the model. Args are further flags.
func rawStart(tb testing.TB, config, script string, args ...string) *rawServer {
	tb.Helper()
	if script != "" {
		path := filepath.Join(tb.TempDir(), "script.yaml")
		mustWrite(tb, path, script)
		config += fmt.Sprintf("\nmodels:\n  - {name: scripted, provider: scripted, file: %q}\n", path)
	}
	args = append([]string{"--data-dir", tb.TempDir(), "--config", mustConfig(tb, config)}, args...)
	p := startServer(tb, args...)
	return &rawServer{process: p, tb: tb, base: p.url, http: contract.Load(tb).Client(tb)}
}

// as is the same server for the holder of a key.
func (s *rawServer) as(key string) *rawServer {
	other := *s
	other.key = key
	return &other
}

// plain is the same server without the contract: for what is not part of it, and for what a proxy changed.
func (s *rawServer) plain(base string, transport *http.Transport) *rawServer {
	s.tb.Cleanup(transport.CloseIdleConnections)
	other := *s
	other.base, other.http = base, &http.Client{Transport: transport}
	return &other
}

// rawAnswer is an answer that was read to its end.
type rawAnswer struct {
	*http.Response
	body string
}

// request makes a request. Headers are pairs; an empty value removes one.
func (s *rawServer) request(method, path, body string, headers ...string) *http.Request {
	s.tb.Helper()
	r, err := http.NewRequestWithContext(s.tb.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.tb.Fatal(err)
	}
	if s.key != "" {
		r.Header.Set("Authorization", "Bearer "+s.key)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		switch {
		case headers[i] == "Host":
			r.Host = headers[i+1]
		case headers[i+1] == "":
			r.Header.Del(headers[i])
		default:
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	return r
}

func (s *rawServer) do(method, path, body string, headers ...string) rawAnswer {
	s.tb.Helper()
	res, err := s.http.Do(s.request(method, path, body, headers...))
	if err != nil {
		s.tb.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		s.tb.Fatal(err)
	}
	return rawAnswer{res, string(answer)}
}

// want is do, and fails the test unless the answer has the status.
func (s *rawServer) want(status int, method, path, body string, headers ...string) rawAnswer {
	s.tb.Helper()
	a := s.do(method, path, body, headers...)
	if a.StatusCode != status {
		s.tb.Fatalf("%s %.80s: %d, want %d: %.500s", method, path, a.StatusCode, status, a.body)
	}
	return a
}

// code is the code of a problem.
func (a rawAnswer) code() string {
	var problem api.Problem
	_ = json.Unmarshal([]byte(a.body), &problem) // anything else has none
	return problem.Code
}

func rawDecode[T any](tb testing.TB, a rawAnswer) T {
	tb.Helper()
	var value T
	if err := json.Unmarshal([]byte(a.body), &value); err != nil {
		tb.Fatalf("%.200q: %v", a.body, err)
	}
	return value
}

// session creates a session with the page tools of these names and returns its path.
func (s *rawServer) session(tools ...string) string {
	s.tb.Helper()
	var create api.SessionCreate
	for _, name := range tools {
		create.Skills.Tools = append(create.Skills.Tools, api.Tool{Name: name, Description: "A tool of the page."})
	}
	return s.want(http.StatusCreated, http.MethodPost, "/v1/sessions", rawJSON(s.tb, create)).Header.Get("Location")
}

func rawJSON(tb testing.TB, value any) string {
	tb.Helper()
	raw, err := api.Marshal(value)
	if err != nil {
		tb.Fatal(err)
	}
	return string(raw)
}

// start starts a turn and returns its path.
func (s *rawServer) start(session, input string) string {
	s.tb.Helper()
	body := rawJSON(s.tb, map[string]string{"input": input})
	return s.want(http.StatusAccepted, http.MethodPost, session+"/turns", body).Header.Get("Location")
}

// pending waits for the offer of n calls.
func (s *rawServer) pending(session string, n int) []api.ToolCall {
	s.tb.Helper()
	var list api.ToolCallList
	eventually(s.tb, "the calls are offered", func() bool {
		list = rawDecode[api.ToolCallList](s.tb, s.want(http.StatusOK, http.MethodGet, session+"/tool_calls?status=pending&wait=5", ""))
		return len(list.ToolCalls) == n
	})
	return list.ToolCalls
}

// finish waits for the end of a turn.
func (s *rawServer) finish(turn string) api.Turn {
	s.tb.Helper()
	t := rawDecode[api.Turn](s.tb, s.want(http.StatusOK, http.MethodGet, turn+"?wait=20", ""))
	if t.Outcome == nil {
		s.tb.Fatalf("turn %s does not end", turn)
	}
	return t
}

// metric reads the sum of the series of a metric.
func (s *rawServer) metric(name string) float64 {
	s.tb.Helper()
	sum := 0.0
	for _, series := range s.metrics() {
		if metric, value, found := strings.Cut(series, " "); found && (metric == name || strings.HasPrefix(metric, name+"{")) {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				s.tb.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}

// metrics scrapes, and returns the lines of the series.
func (s *rawServer) metrics() []string {
	s.tb.Helper()
	base := s.adminURL
	if base == "" {
		base = s.url
	}
	a := s.plain(base, &http.Transport{DisableKeepAlives: true}).want(http.StatusOK, http.MethodGet, "/metrics", "")
	var series []string
	for line := range strings.Lines(a.body) {
		if !strings.HasPrefix(line, "#") {
			series = append(series, strings.TrimSpace(line))
		}
	}
	return series
}

// status reads a number of KB from the process's status, such as VmRSS.
func (s *rawServer) status(name string) int {
	s.tb.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.tb.Skipf("without /proc nothing can be measured: %v", err)
	}
	_, rest, _ := strings.Cut(string(raw), name+":")
	var kb int
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		s.tb.Fatalf("%s: %v", name, err)
	}
	return kb
}

// processor is the time that processors spent on the process, which does not depend on what else the machine does.
func (s *rawServer) processor() time.Duration {
	s.tb.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		s.tb.Skipf("without /proc nothing can be measured: %v", err)
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		s.tb.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// rawStream keeps the bytes of an event stream and when they came.
type rawStream struct {
	tb  testing.TB
	res *http.Response

	mu       sync.Mutex
	bytes    []byte
	arrivals []rawArrival
	// ended is closed when the server has ended the stream, or the connection broke.
	ended chan struct{}
}

// rawArrival is one piece as the connection delivered it.
type rawArrival struct {
	at  time.Time
	end int // in bytes of the whole
}

// rawFrame is one frame: an event, a comment or a retry.
type rawFrame struct {
	sse.Event
	text string
	at   time.Time
}

// stream opens a stream that ends with the test.
func (s *rawServer) stream(method, path, body string, headers ...string) *rawStream {
	s.tb.Helper()
	r := s.request(method, path, body, append([]string{"Accept", "text/event-stream"}, headers...)...)
	res, err := s.http.Do(r)
	if err != nil {
		s.tb.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(res.Body)
		res.Body.Close()
		s.tb.Fatalf("%s %s: %s: %s", method, path, res.Status, answer)
	}
	st := &rawStream{tb: s.tb, res: res, ended: make(chan struct{})}
	go st.read()
	s.tb.Cleanup(st.close)
	return st
}

func (st *rawStream) close() {
	st.res.Body.Close()
	<-st.ended
}

func (st *rawStream) read() {
	defer close(st.ended)
	buffer := make([]byte, 64<<10)
	for {
		n, err := st.res.Body.Read(buffer)
		now := time.Now()
		st.mu.Lock()
		if n > 0 {
			st.bytes = append(st.bytes, buffer[:n]...)
			st.arrivals = append(st.arrivals, rawArrival{now, len(st.bytes)})
		}
		st.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// frames returns what has come so far, whole frames only.
func (st *rawStream) frames() []rawFrame {
	st.tb.Helper()
	st.mu.Lock()
	defer st.mu.Unlock()
	var frames []rawFrame
	end, piece := 0, 0
	for rest := st.bytes; ; {
		text, after, found := bytes.Cut(rest, []byte("\n\n"))
		if !found {
			return frames
		}
		rest, end = after, end+len(text)+2
		for st.arrivals[piece].end < end {
			piece++
		}
		f := rawFrame{text: string(text), at: st.arrivals[piece].at}
		if event, err := sse.NewReader(strings.NewReader(f.text+"\n\n"), sse.ReaderOptions{}).Next(); err == nil {
			f.Event = event
		}
		frames = append(frames, f)
	}
}

// comment tells whether the frame is a heartbeat that pages do not see.
func (f rawFrame) comment() bool { return strings.HasPrefix(f.text, ":") }

// until waits until the frames satisfy a condition.
func (st *rawStream) until(what string, ok func([]rawFrame) bool) []rawFrame {
	st.tb.Helper()
	var frames []rawFrame
	eventually(st.tb, what, func() bool {
		frames = st.frames()
		return ok(frames)
	})
	return frames
}

// has waits for n events of a type, and returns them.
func (st *rawStream) has(n int, typ string) []rawFrame {
	st.tb.Helper()
	return rawOfType(st.until(fmt.Sprintf("%d %s", n, typ), func(frames []rawFrame) bool { return len(rawOfType(frames, typ)) >= n }), typ)
}

func rawOfType(frames []rawFrame, types ...string) []rawFrame {
	var found []rawFrame
	for _, f := range frames {
		for _, typ := range types {
			if f.Type == typ {
				found = append(found, f)
			}
		}
	}
	return found
}

// rawEvent decodes the data of a frame.
func rawEvent[T any](tb testing.TB, f rawFrame) T {
	tb.Helper()
	var event T
	if err := json.Unmarshal(f.Data, &event); err != nil {
		tb.Fatalf("%s: %v", f.Data, err)
	}
	return event
}

// checkStream holds what a stream brought from its beginning against the JSON pages: the same events in the same order. What is
// true of every stream by itself, such as one end for each turn, the contract has checked.
func (s *rawServer) checkStream(session string, frames []rawFrame) {
	s.tb.Helper()
	var stored, streamed []string
	deltas := map[string]bool{api.TypeTextDelta: true, api.TypeReasoningDelta: true}
	page := api.EventPage{More: true}
	for page.More {
		path := session + "/events?limit=200&after=" + page.Cursor
		page = rawDecode[api.EventPage](s.tb, s.want(http.StatusOK, http.MethodGet, path, "", "Accept", "application/json"))
		for _, e := range page.Events {
			if !deltas[api.EventType(e.Event)] {
				stored = append(stored, e.ID)
			}
		}
	}
	last := uint64(0)
	for _, f := range frames {
		if f.ID == "" || f.Type == api.TypeReady || f.Type == api.TypeReset {
			continue
		}
		_, digits, _ := strings.Cut(f.ID, "-")
		position, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || position <= last {
			s.tb.Errorf("id %s comes after position %d: %v", f.ID, last, err)
		}
		if last = position; !deltas[f.Type] {
			streamed = append(streamed, f.ID)
		}
	}
	if !slices.Equal(stored, streamed) {
		s.tb.Errorf("%s: the stream has %d events, the pages have %d:\n%v\n%v", session, len(streamed), len(stored), streamed, stored)
	}
}

// dial opens a connection of the test's own.
func (s *rawServer) dial() *net.TCPConn {
	s.tb.Helper()
	conn, err := new(net.Dialer).DialContext(s.tb.Context(), "tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}
