package handlers_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"treadle/handlers"
	"treadle/internal/contract"
	"treadle/internal/memlog"
	"treadle/internal/scripted"
	"treadle/sessions"
	"treadle/sse"
)

// TestMain fails, after a complete run, for everything in openapi.yaml that no test of this package saw.
func TestMain(m *testing.M) {
	code := contract.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// script is what the model of these tests says, by the words of the user.
const script = `
rules:
  - match: one call
    answers:
      - - call: {tool: echo, args: {n: 1}}
      - - text: Done.
  - match: two calls
    answers:
      - - call: {tool: echo, args: {n: 1}}
        - call: {tool: echo, args: {n: 2}}
      - - text: Done.
  - match: strict call
    answers:
      - - call: {tool: strict, args: {}}
      - - text: Done.
  - match: think
    answers:
      - - reasoning: Thinking.
        - texts: ["Half a ", "sentence."]
        - usage: {input_tokens: 3}
  - match: stumble
    answers:
      - - attempts:
            - - text: Half a sen
              - delay: 100ms
              - fail: {class: overloaded, message: Busy., retryable: true, retry_after: 1ms}
            - - text: Whole.
  - match: break
    answers:
      - - fail: {class: authentication, message: The key is wrong.}
  - match: block
    answers:
      - - block: true
  - match: flood
    answers:
      - - text: "0123456789"
          chunk: 1
  - match: ""
    answers:
      - - text: Hello.
`

// fixture is a whole service behind the handler, on a real socket.
type fixture struct {
	tb     testing.TB
	url    string
	client *http.Client
	key    string
	routes http.Handler
	engine *memlog.Log
	log    *logBuffer
	drain  context.CancelFunc
}

type setup struct {
	handlers.Config
	service sessions.Config
	server  func(*http.Server)
}

// newFixture starts everything; change may alter what it is made of. Requests are those of tenant "a".
func newFixture(tb testing.TB, change ...func(*setup)) *fixture {
	tb.Helper()
	model, err := scripted.Parse(strings.NewReader(script))
	if err != nil {
		tb.Fatal(err)
	}
	f := &fixture{tb: tb, client: contract.Load(tb).Client(tb), key: "a", engine: memlog.New(), log: new(logBuffer)}
	logger := slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := &setup{
		Config: handlers.Config{
			Authenticate: authenticate, OpenAPI: []byte("openapi: 3.1.0\n"), Logger: logger,
			DrainSpread: 20 * time.Millisecond, BodyTimeout: 200 * time.Millisecond,
		},
		service: sessions.Config{
			Engine: f.engine, Models: []sessions.ModelEntry{{Name: "scripted", Provider: "scripted", Model: model}}, DefaultModel: "scripted",
			Logger: logger,
		},
		server: func(*http.Server) {},
	}
	s.Draining, f.drain = context.WithCancel(tb.Context())
	for _, c := range change {
		c(s)
	}
	if s.Service, err = sessions.New(s.service); err != nil {
		tb.Fatal(err)
	}
	if f.routes, err = handlers.New(s.Config); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Service.Run(ctx); err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	web := httptest.NewUnstartedServer(f.routes)
	web.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.server(web.Config)
	web.Start()
	f.url = web.URL
	tb.Cleanup(func() {
		f.drain()
		web.CloseClientConnections()
		web.Close()
		cancel()
		running.Wait()
	})
	return f
}

func development(s *setup) {
	s.Development = true
	s.Authenticate = func(*http.Request) (handlers.Identity, error) { return handlers.Identity{Tenant: "a"}, nil }
}

// authenticate takes the bearer token for the tenant. Two tokens stand for an authenticator in trouble.
func authenticate(r *http.Request) (handlers.Identity, error) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch token {
	case "":
		return handlers.Identity{}, &sessions.Error{Code: handlers.CodeUnauthenticated, Detail: "send a key"}
	case "broken":
		return handlers.Identity{}, errors.New("reading /etc/SECRET")
	case "unavailable":
		return handlers.Identity{}, &sessions.Error{Code: sessions.CodeStorageUnavailable, Detail: "later", Err: errors.New("SECRET")}
	}
	return handlers.Identity{Tenant: token}, nil
}

// logBuffer is a log that many goroutines write.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// request makes a request. Body is JSON unless the headers (pairs of name and value; an empty value removes) say otherwise.
func (f *fixture) request(method, path, body string, headers ...string) *http.Request {
	f.tb.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(f.tb.Context(), method, f.url+path, reader)
	if err != nil {
		f.tb.Fatal(err)
	}
	if f.key != "" {
		r.Header.Set("Authorization", "Bearer "+f.key)
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

// answer is a response whose body was read.
type answer struct {
	*http.Response
	body string
}

// do sends a request and reads the whole answer.
func (f *fixture) do(method, path, body string, headers ...string) answer {
	f.tb.Helper()
	return f.send(f.request(method, path, body, headers...))
}

func (f *fixture) send(r *http.Request) answer {
	f.tb.Helper()
	a, err := f.try(r)
	if err != nil {
		f.tb.Fatal(err)
	}
	return a
}

func (f *fixture) try(r *http.Request) (answer, error) {
	resp, err := f.client.Do(r)
	if err != nil {
		return answer{&http.Response{Request: r}, ""}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp, string(body)}, err
}

// later sends a request that waits, and gives the answer when it comes.
func (f *fixture) later(path string, headers ...string) <-chan answer {
	r := f.request("GET", path, "", headers...)
	answers := make(chan answer, 1)
	go func() {
		a, err := f.try(r)
		if err != nil {
			f.tb.Error(err)
		}
		answers <- a
	}()
	return answers
}

// get reads one member of an answer's object, by a path of names and indices such as "tool_calls.0.id".
func (a answer) get(path string) any {
	var value any
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.UseNumber() // outputs may be larger than any float
	if dec.Decode(&value) != nil {
		return nil
	}
	for name := range strings.SplitSeq(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			value = v[name]
		case []any:
			var i int
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(v) {
				return nil
			}
			value = v[i]
		default:
			return nil
		}
	}
	return value
}

func (a answer) code() string { code, _ := a.get("code").(string); return code }

// want fails the test unless the answer has the status and, for a problem, the code.
func (f *fixture) want(a answer, status int, code ...sessions.Code) answer {
	f.tb.Helper()
	expected := ""
	if len(code) > 0 {
		expected = string(code[0])
	}
	if a.StatusCode != status || a.code() != expected {
		f.tb.Fatalf("%s %s: %d %s, want %d %s\n%s", a.Request.Method, a.Request.URL.Path, a.StatusCode, a.code(), status, expected, a.body)
	}
	return a
}

// session creates a session with the tools echo and strict and returns its path.
func (f *fixture) session() string {
	f.tb.Helper()
	a := f.want(f.do("POST", "/v1/sessions", `{"skills":{"guidance":"Be brief.","tools":[
		{"name":"echo","description":"Says it again.","args_schema":{"type":"object"},"max_timeout_ms":600000},
		{"name":"strict","description":"Gives a number.","result_schema":{"type":"number"}}]}}`), http.StatusCreated)
	return a.Header.Get("Location")
}

// start starts a turn and returns its path.
func (f *fixture) start(session, input string) string {
	f.tb.Helper()
	body, err := json.Marshal(map[string]string{"input": input})
	if err != nil {
		f.tb.Fatal(err)
	}
	return f.want(f.do("POST", session+"/turns", string(body)), http.StatusAccepted).Header.Get("Location")
}

// finish waits for a turn's end.
func (f *fixture) finish(turn string) answer {
	f.tb.Helper()
	a := f.want(f.do("GET", turn+"?wait=60", ""), http.StatusOK)
	if a.get("outcome") == nil {
		f.tb.Fatalf("the turn still runs: %s", a.body)
	}
	return a
}

// pending waits for n offered calls and returns the path of the first.
func (f *fixture) pending(session string, n int) string {
	f.tb.Helper()
	var path string
	f.eventually("calls are offered", func() bool {
		a := f.want(f.do("GET", session+"/tool_calls?status=pending", ""), http.StatusOK)
		calls, _ := a.get("tool_calls").([]any)
		path = fmt.Sprintf("%s/tool_calls/%v", session, a.get("tool_calls.0.id"))
		return len(calls) == n
	})
	return path
}

// eventually waits for a condition.
func (f *fixture) eventually(what string, condition func() bool) {
	f.tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			f.tb.Fatalf("never came true: %s", what)
		}
	}
}

// events is an open stream.
type events struct {
	f    *fixture
	resp *http.Response
	*sse.Reader
	comments int
}

// stream opens a stream, which the test's end closes.
func (f *fixture) stream(method, path, body string, headers ...string) *events {
	f.tb.Helper()
	resp, err := f.client.Do(f.request(method, path, body, append([]string{"Accept", "text/event-stream"}, headers...)...))
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		f.tb.Fatalf("%s %s: %s", method, path, resp.Status)
	}
	e := &events{f: f, resp: resp}
	e.Reader = sse.NewReader(resp.Body, sse.ReaderOptions{OnComment: func([]byte) { e.comments++ }})
	return e
}

// until reads to the first event of a type, and returns it.
func (e *events) until(types ...string) sse.Event {
	e.f.tb.Helper()
	for {
		event, err := e.Next()
		if err != nil {
			e.f.tb.Fatalf("waiting for %v: %v", types, err)
		}
		for _, t := range types {
			if event.Type == t {
				return event
			}
		}
	}
}

// rest reads to the end and returns the types, control frames included.
func (e *events) rest() []string {
	e.f.tb.Helper()
	var types []string
	for {
		event, err := e.Next()
		if errors.Is(err, io.EOF) {
			return types
		}
		if err != nil {
			e.f.tb.Fatal(err)
		}
		types = append(types, event.Type)
	}
}

// minimal holds a valid body for each operation that must have one.
var minimal = map[string]string{
	"createSession":  `{}`,
	"updateSession":  `{}`,
	"startTurn":      `{"input":"hi"}`,
	"replaceTools":   `{"tools":[]}`,
	"submitResult":   `{"output":null}`,
	"claimToolCall":  `{"client_id":"tab"}`,
	"reportProgress": `{}`,
	"endSession":     `{}`,
	"cancelTurn":     `{}`,
}

// fill puts ids that name nothing into a path of the contract.
func fill(path string) string {
	for _, name := range []string{"session_id", "turn_id", "tool_call_id", "name"} {
		path = strings.ReplaceAll(path, "{"+name+"}", uuid.NewString())
	}
	return path
}

// call sends an operation's minimal request, with another body if one is given.
func (f *fixture) call(op contract.Operation, body string, headers ...string) answer {
	f.tb.Helper()
	if op.Body == nil {
		return f.do(op.Method, fill(op.Path), "", headers...)
	}
	return f.do(op.Method, fill(op.Path), cmp.Or(body, minimal[op.ID]), headers...)
}
