package contract

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// spy is a test that only remembers what it is told.
type spy struct {
	testing.TB
	errors []string
}

func (s *spy) Errorf(format string, args ...any) {
	s.errors = append(s.errors, fmt.Sprintf(format, args...))
}

const (
	id      = "0198c6a0-7c1e-7b1a-9a51-1f5c4b7c9d10"
	events  = "/v1/sessions/" + id + "/events"
	summary = `"id":"` + id + `","status":"idle","model":"m","turns":0,"created_at":"2025-01-01T00:00:00Z","updated_at":"2025-01-01T00:00:00Z"`
	header  = `"session_id":"` + id + `","time":"2025-01-01T00:00:00Z"`
	turn    = `"turn_id":"` + id + `"`
)

func problem(code string, status int, title string) string {
	return fmt.Sprintf(`{"type":"/problems/x","title":%q,"status":%d,"code":%q,"detail":"d","instance":"i"}`, title, status, code)
}

func frame(id, event, members string) string {
	text := ""
	if id != "" {
		text = "id: " + id + "\n"
	}
	return text + "event: " + event + "\ndata: " + `{"type":"` + event + `",` + header + members + "}\n\n"
}

func TestTransport(t *testing.T) {
	const (
		jsonType    = "application/json"
		problemType = "application/problem+json"
		streamType  = "text/event-stream"
	)
	gone := problem("SESSION_NOT_FOUND", 404, "There is no such session")
	for _, c := range []struct {
		name, path, contentType string
		status                  int
		body, want              string
	}{
		{"good", "/v1/sessions", jsonType, 200, `{"sessions":[{` + summary + `}]}`, ""},
		{"status", "/v1/sessions", jsonType, 201, `{}`, "status is not supported"},
		{"content type", "/v1/sessions", "text/plain", 200, `{"sessions":[]}`, "content type text/plain is not documented"},
		{"missing member", "/v1/sessions", jsonType, 200, `{}`, "missing property 'sessions'"},
		{"null", "/v1/sessions", jsonType, 200, `{"sessions":null}`, "got null, want array"},
		{"undeclared member", "/v1/sessions", jsonType, 200, `{"sessions":[],"total":1}`, "at '/total': false schema"},
		{"undeclared member within", "/v1/models", jsonType, 200, `{"models":[{"name":"a","provider":"b","default":true,"available":true,"cost":1}]}`, "at '/models/0/cost': false schema"},
		{"format", "/v1/sessions", jsonType, 200, `{"sessions":[],"next":"x"}`, "not valid uuid"},
		{"broken", "/v1/sessions", jsonType, 200, `{"sessions":[]`, "unexpected EOF"},
		{"required header", "/v1/sessions", problemType, 503, problem("SHUTTING_DOWN", 503, "The server is shutting down"), "Retry-After"},
		{"problem", "/v1/sessions/x", problemType, 404, gone, ""},
		{"problem of another status", "/v1/sessions/x", problemType, 400, gone, "SESSION_NOT_FOUND"},
		{"problem with another title", "/v1/sessions/x", problemType, 404, problem("SESSION_NOT_FOUND", 404, "x"), "documented as"},
		{"unknown code", "/v1/sessions/x", problemType, 404, problem("SURPRISE", 404, "x"), "value must be one of"},
		{"unknown path", "/x", problemType, 404, problem("NOT_FOUND", 404, "There is nothing here"), ""},
		{"unknown path that is there", "/x", jsonType, 200, `{}`, "matches no operation"},

		{"stream", events, streamType, 200, "retry: 1\n\n" + frame("c", "ready", `,"status":"idle","cursor":"c","caught_up":true`) + ": \n\n" + frame("1", "session_ended", "") + frame("", "stream_end", `,"reason":"session_ended"`), ""},
		{"malformed event", events, streamType, 200, frame("1", "step_started", ","+turn), "missing property 'step'"},
		{"undeclared member of an event", events, streamType, 200, frame("1", "step_started", ","+turn+`,"step":1,"x":1`), "at '/x': false schema"},
		{"undocumented event", events, streamType, 200, frame("1", "surprise", ""), "surprise is not documented"},
		{"two types", events, streamType, 200, strings.Replace(frame("1", "session_ended", ""), "event: session_ended", "event: message", 1), "event is message and type is session_ended"},
		{"no id", events, streamType, 200, frame("", "session_ended", ""), "without an id"},
		{"heartbeat with an id", events, streamType, 200, frame("1", "heartbeat", ""), "moves the cursor"},
		{"repeated id", events, streamType, 200, frame("1", "session_ended", "") + frame("1", "session_ended", ""), "comes twice"},
		{"two ends", events, streamType, 200, frame("1", "turn_completed", ","+turn+`,"text":"","steps":1`) + frame("2", "turn_canceled", ","+turn+`,"reason":"cancel","steps":1`), "ends twice"},
		{"after the end", events, streamType, 200, frame("1", "turn_completed", ","+turn+`,"text":"","steps":1`) + frame("2", "step_started", ","+turn+`,"step":1`), "goes on after its end"},
		{"after stream_end", events, streamType, 200, frame("", "stream_end", `,"reason":"shutdown"`) + frame("2", "session_ended", ""), "after stream_end"},
		{"carriage return", events, streamType, 200, ": a\rb\n\n", "carriage return"},
		{"two lines of data", events, streamType, 200, "event: x\ndata: {\ndata: }\n\n", "repeated field"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				h := w.Header()
				h.Set("Content-Type", c.contentType)
				h.Set("X-Content-Type-Options", "nosniff")
				h.Set("Referrer-Policy", "no-referrer")
				h.Set("Cache-Control", "no-store")
				if c.contentType == streamType {
					h.Set("Cache-Control", "no-cache, no-transform")
					h.Set("X-Accel-Buffering", "no")
				}
				w.WriteHeader(c.status)
				_ = http.NewResponseController(w).Flush()
				_, _ = io.WriteString(w, c.body)
			}))
			defer server.Close()
			told := &spy{TB: t}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := Load(t).Client(told).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != c.body {
				t.Errorf("the body is %q, %v", body, err)
			}
			if all := strings.Join(told.errors, "\n"); (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
				t.Errorf("the complaints are %q, want one of %q", all, c.want)
			}
		})
	}
}

func TestUnseen(t *testing.T) {
	raw, err := read()
	if err != nil {
		t.Fatal(err)
	}
	c, err := parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	everything := c.Unseen()
	for _, what := range []string{"status createSession 201", "code SESSION_BUSY", "event tool_call"} {
		if !slices.Contains(everything, what) {
			t.Errorf("%s is not among what is documented", what)
		}
	}
	c.see("event", "tool_call")
	if left := c.Unseen(); len(left) != len(everything)-1 || slices.Contains(left, "event tool_call") {
		t.Errorf("%d of %d are left", len(left), len(everything))
	}
}
