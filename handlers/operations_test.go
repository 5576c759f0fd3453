package handlers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/handlers"
	"treadle/sessions"
)

func TestSessions(t *testing.T) {
	f := newFixture(t)
	create := func(body string) answer {
		return f.want(f.do("POST", "/v1/sessions", body), http.StatusCreated)
	}
	first := create(`{"subject":"u1","metadata":{"a":"b"}}`)
	path := first.Header.Get("Location")
	if want := fmt.Sprintf("/v1/sessions/%v", first.get("id")); path != want {
		t.Errorf("Location is %q, want %q", path, want)
	}
	second := create(`{"subject":"u2"}`)

	page := f.want(f.do("GET", "/v1/sessions?limit=1", ""), http.StatusOK)
	if page.get("sessions.0.id") != second.get("id") || page.get("next") == nil {
		t.Errorf("first page: %s", page.body)
	}
	page = f.want(f.do("GET", fmt.Sprintf("/v1/sessions?limit=1&status=idle&before=%v", page.get("next")), ""), http.StatusOK)
	if page.get("sessions.0.id") != first.get("id") || page.get("next") != nil {
		t.Errorf("second page: %s", page.body)
	}
	page = f.want(f.do("GET", "/v1/sessions?subject=u1", ""), http.StatusOK)
	if page.get("sessions.0.id") != first.get("id") || page.get("sessions.1") != nil {
		t.Errorf("by subject: %s", page.body)
	}

	a := f.want(f.do("PATCH", path, `{"metadata":{"c":"d"},"model":"scripted"}`), http.StatusOK)
	if a.get("metadata.c") != "d" || a.get("metadata.a") != nil {
		t.Errorf("after PATCH: %s", a.body)
	}
	for range 2 {
		if a := f.want(f.do("POST", path+"/end", ""), http.StatusOK); a.get("status") != "ended" {
			t.Errorf("after the end: %s", a.body)
		}
	}
	f.want(f.do("PATCH", path, `{"metadata":{}}`), http.StatusConflict, sessions.CodeSessionEnded)
	f.want(f.do("PUT", path+"/tools", `{"tools":[]}`), http.StatusConflict, sessions.CodeSessionEnded)
	f.want(f.do("POST", path+"/turns", `{"input":"hi"}`), http.StatusConflict, sessions.CodeSessionEnded)
	f.want(f.do("DELETE", path, ""), http.StatusNoContent)
	f.want(f.do("GET", path, ""), http.StatusNotFound, sessions.CodeSessionNotFound)
	f.want(f.do("GET", "/v1/models", ""), http.StatusOK)
}

// TestTenants: what belongs to another tenant looks like what never existed.
func TestTenants(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	turn := f.start(session, "one call")
	call := f.pending(session, 1)
	other := f.in(t)
	other.key = "b"
	for _, paths := range [][2]string{{session, fill("/v1/sessions/{session_id}")}, {turn, fill("/v1/sessions/{session_id}/turns/{turn_id}")},
		{call, fill("/v1/sessions/{session_id}/tool_calls/{tool_call_id}")}, {session + "/events", fill("/v1/sessions/{session_id}/events")}} {
		theirs, never := other.do("GET", paths[0], ""), other.do("GET", paths[1], "")
		for _, a := range []*answer{&theirs, &never} {
			a.body = strings.ReplaceAll(a.body, fmt.Sprint(a.get("instance")), "")
		}
		if theirs.StatusCode != http.StatusNotFound || theirs.body != never.body {
			t.Errorf("%s: %d %s, want as for one that never existed: %d %s", paths[0], theirs.StatusCode, theirs.body, never.StatusCode, never.body)
		}
	}
	if a := other.want(other.do("GET", "/v1/sessions", ""), http.StatusOK); a.get("sessions.0") != nil {
		t.Errorf("the list of another tenant: %s", a.body)
	}
}

func TestModels(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.service.DefaultModel = "" })
	f.want(f.do("POST", "/v1/sessions", `{}`), http.StatusBadRequest, sessions.CodeModelRequired)
	f.want(f.do("POST", "/v1/sessions", `{"model":"nonsense"}`), http.StatusUnprocessableEntity, sessions.CodeModelUnavailable)
	session := f.want(f.do("POST", "/v1/sessions", `{"model":"scripted"}`), http.StatusCreated).Header.Get("Location")
	f.want(f.do("PATCH", session, `{"model":"nonsense"}`), http.StatusUnprocessableEntity, sessions.CodeModelUnavailable)
	f.want(f.do("POST", session+"/turns", `{"input":"hi","model":"nonsense"}`), http.StatusUnprocessableEntity, sessions.CodeModelUnavailable)
}

func TestTools(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	before := f.want(f.do("GET", session+"/tools", ""), http.StatusOK)
	etag := before.Header.Get("ETag")
	f.want(f.do("GET", session+"/tools/echo", ""), http.StatusOK)
	f.want(f.do("GET", session+"/tools/ec%68o", ""), http.StatusOK)
	for _, name := range []string{"nonsense", "%25", "e%2Fcho", strings.Repeat("x", 1000)} {
		f.want(f.do("GET", session+"/tools/"+name, ""), http.StatusNotFound, sessions.CodeToolNotFound)
	}
	events := f.stream("GET", session+"/events?after=latest", "")
	replaced := f.want(f.do("PUT", session+"/tools", `{"tools":[{"name":"other","description":"Other."}]}`, "If-Match", etag), http.StatusOK)
	if replaced.get("guidance") != "Be brief." || replaced.get("tools.0.name") != "other" || replaced.Header.Get("ETag") == etag {
		t.Errorf("after PUT: %s %s", replaced.Header.Get("ETag"), replaced.body)
	}
	events.until(api.TypeToolsReplaced)
	f.want(f.do("PUT", session+"/tools", `{"tools":[]}`, "If-Match", etag), http.StatusPreconditionFailed, sessions.CodePreconditionFailed)
	f.want(f.do("PUT", session+"/tools", `{"guidance":"","tools":[{"name":"1","description":"x"}]}`), http.StatusBadRequest, sessions.CodeInvalidInput)
}

func TestTurns(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	turn := f.start(session, "hello")
	if a := f.finish(turn); a.get("outcome") != "completed" || a.get("text") != "Hello." {
		t.Errorf("turn: %s", a.body)
	}
	blocked := f.start(session, "block")
	busy := f.want(f.do("POST", session+"/turns", `{"input":[{"type":"text","text":"hi"}]}`), http.StatusConflict, sessions.CodeSessionBusy)
	if !strings.HasSuffix(blocked, fmt.Sprint("/", busy.get("turn_id"))) {
		t.Errorf("the problem names another turn: %s", busy.body)
	}
	f.want(f.do("GET", blocked+"?wait=0", ""), http.StatusOK)
	for _, body := range []string{"", "{}"} {
		if a := f.want(f.do("POST", blocked+"/cancel", body), http.StatusOK); a.get("outcome") != "canceled" {
			t.Errorf("canceled turn: %s", a.body)
		}
	}
	page := f.want(f.do("GET", session+"/turns?limit=1", ""), http.StatusOK)
	page = f.want(f.do("GET", fmt.Sprintf("%s/turns?limit=1&before=%v", session, page.get("next")), ""), http.StatusOK)
	if !strings.HasSuffix(turn, fmt.Sprint("/", page.get("turns.0.id"))) {
		t.Errorf("second page: %s", page.body)
	}
	f.want(f.do("GET", session+"/turns?before="+uuid.NewString(), ""), http.StatusBadRequest, sessions.CodeCursorInvalid)

	messages := f.want(f.do("GET", session+"/messages?limit=1", ""), http.StatusOK)
	older := f.want(f.do("GET", fmt.Sprintf("%s/messages?limit=2&before=%v", session, messages.get("before")), ""), http.StatusOK)
	if older.get("messages.1.position") == nil {
		t.Errorf("older messages: %s", older.body)
	}
	for _, path := range []string{session + "/turns/" + uuid.NewString(), session + "/turns/x"} {
		f.want(f.do("GET", path, ""), http.StatusNotFound, sessions.CodeTurnNotFound)
		f.want(f.do("POST", path+"/cancel", ""), http.StatusNotFound, sessions.CodeTurnNotFound)
	}
}

func TestIdempotencyKey(t *testing.T) {
	f := newFixture(t)
	create := func(body, key string) answer { return f.do("POST", "/v1/sessions", body, "Idempotency-Key", key) }
	first := f.want(create(`{}`, "k"), http.StatusCreated)
	if again := f.want(create(` {} `, "k"), http.StatusCreated); again.get("id") != first.get("id") {
		t.Errorf("another session: %s", again.body)
	}
	f.want(create(`{"subject":"x"}`, "k"), http.StatusUnprocessableEntity, sessions.CodeIdempotencyKeyReused)

	turns := first.Header.Get("Location") + "/turns"
	start := func(body, key string) answer { return f.do("POST", turns, body, "Idempotency-Key", key) }
	turn := f.want(start(`{"input":"hi"}`, "k"), http.StatusAccepted)
	if again := f.want(start(`{"input":"hi"}`, "k"), http.StatusAccepted); again.get("id") != turn.get("id") {
		t.Errorf("another turn: %s", again.body)
	}
	f.want(start(`{"input":"ho"}`, "k"), http.StatusUnprocessableEntity, sessions.CodeIdempotencyKeyReused)

	for _, key := range []string{strings.Repeat("k", 256), "a b", "a\tb", "é"} {
		f.want(create(`{}`, key), http.StatusBadRequest, sessions.CodeIdempotencyKeyInvalid)
		f.want(start(`{"input":"hi"}`, key), http.StatusBadRequest, sessions.CodeIdempotencyKeyInvalid)
	}
	for _, keys := range [][]string{{""}, {"a", "a"}} {
		r := f.request("POST", "/v1/sessions", `{}`)
		r.Header["Idempotency-Key"] = keys
		f.want(f.send(r), http.StatusBadRequest, sessions.CodeIdempotencyKeyInvalid)
	}
	f.want(create(`{}`, strings.Repeat("k", 255)), http.StatusCreated)
}

func TestToolCalls(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	events := f.stream("GET", session+"/events", "")
	turn := f.start(session, "one call")
	call := f.pending(session, 1)

	claim := f.want(f.do("POST", call+"/claim", `{"client_id":"tab 1"}`), http.StatusOK)
	f.want(f.do("POST", call+"/claim", `{"client_id":"tab 2"}`), http.StatusConflict, sessions.CodeToolCallClaimed)
	f.want(f.do("POST", call+"/result", `{"output":1}`), http.StatusConflict, sessions.CodeToolCallClaimed)
	f.want(f.do("POST", call+"/progress", `{}`), http.StatusConflict, sessions.CodeToolCallClaimed)
	progress := fmt.Sprintf(`{"message":"half","fraction":0.5,"claim_id":"%v"}`, claim.get("claim_id"))
	f.want(f.do("POST", call+"/progress", progress), http.StatusOK)
	events.until(api.TypeToolProgress)

	const output = `{"n":12345678901234567890.10,"s":"<&\u2028>"}`
	result := fmt.Sprintf(`{"output":%s,"claim_id":"%v"}`, output, claim.get("claim_id"))
	settled := f.want(f.do("POST", call+"/result", result), http.StatusOK)
	if !strings.Contains(settled.body, `"output":`+output) {
		t.Errorf("the output was changed: %s", settled.body)
	}
	f.want(f.do("POST", call+"/result", `{"output":{"s":"<&\u2028>","n":12345678901234567890.10}}`), http.StatusOK)
	late := f.want(f.do("POST", call+"/result", `{"output":2}`), http.StatusConflict, sessions.CodeToolCallSettled)
	if late.get("tool_call.status") != "settled" {
		t.Errorf("the problem does not say what won: %s", late.body)
	}
	f.want(f.do("GET", call, ""), http.StatusOK)
	f.finish(turn)
	for _, path := range []string{session + "/tool_calls/" + uuid.NewString(), session + "/tool_calls/x"} {
		f.want(f.do("GET", path, ""), http.StatusNotFound, sessions.CodeToolCallNotFound)
		f.want(f.do("POST", path+"/result", `{"output":1}`), http.StatusNotFound, sessions.CodeToolCallNotFound)
	}
}

// TestResultBodies: any JSON value is an output, and what is no result leaves the call open.
func TestResultBodies(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	for _, output := range []string{"null", `""`, `"  "`, "[]", "{}", "0", "false", `"text"`, "[1,2]", "1e400", "-0.0"} {
		turn := f.start(session, "one call")
		call := f.pending(session, 1)
		for _, body := range []string{
			`{}`, `{"output":1,"error":{"code":"A","message":"b"}}`, `{"output":1,"error":null}`, `{"output":1,"extra":2}`, `{"Output":1}`,
			`{"error":{}}`, `{"error":{"code":"A"}}`, `{"error":{"message":"b"}}`, `{"error":"text"}`, `{"output":1,"output":2}`,
			`{"output":{"a":1,"a":2}}`, `{"output":1,"claim_id":"x"}`, `{"output":`, `{"output":1}}`, `{"output":` + output,
		} {
			f.want(f.do("POST", call+"/result", body), http.StatusBadRequest, sessions.CodeInvalidInput)
		}
		f.pending(session, 1)
		a := f.want(f.do("POST", call+"/result", `{"output":`+output+`}`), http.StatusOK)
		if !strings.Contains(a.body, `"output":`+output+"}") {
			t.Errorf("output %s became %s", output, a.body)
		}
		f.finish(turn)
	}
	f.start(session, "one call")
	call := f.pending(session, 1)
	f.want(f.do("POST", call+"/result", `{"error":{"code":"NO","message":"It did not work.","details":{"a":null},"retryable":true}}`), http.StatusOK)
}

func TestResultSchema(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	turn := f.start(session, "strict call")
	call := f.pending(session, 1)
	f.want(f.do("POST", call+"/result", `{"output":"text"}`), http.StatusUnprocessableEntity, sessions.CodeToolResultInvalid)
	f.want(f.do("POST", call+"/result", `{"output":1}`), http.StatusOK)
	f.finish(turn)
}

func TestProgressLimit(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	f.start(session, "one call")
	call := f.pending(session, 1)
	for range 1001 {
		if a := f.do("POST", call+"/progress", `{}`); a.StatusCode != http.StatusOK {
			f.want(a, http.StatusTooManyRequests, sessions.CodeProgressLimit)
			return
		}
	}
	t.Error("progress has no limit")
}

// TestCallsOfOthers: a call that waits for its turn, and one that the server runs itself, take no result.
func TestCallsOfOthers(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.service.Limits.MaxParallelCalls = 1 })
	session := f.session()
	turn := f.start(session, "two calls")
	f.pending(session, 1)
	calls := f.want(f.do("GET", session+"/tool_calls", ""), http.StatusOK)
	queued := fmt.Sprintf("%s/tool_calls/%v", session, calls.get("tool_calls.1.id"))
	for path, body := range map[string]string{"/result": `{"output":1}`, "/claim": `{"client_id":"tab"}`, "/progress": `{}`} {
		f.want(f.do("POST", queued+path, body), http.StatusConflict, sessions.CodeToolCallNotOffered)
	}

	id := uuid.MustParse(strings.TrimPrefix(session, "/v1/sessions/"))
	event := &api.ToolCallEvent{
		ToolCallID: uuid.MustParse(fmt.Sprint(calls.get("tool_calls.1.id"))), Tool: "echo", Source: "native", Args: json.RawMessage("{}"), Step: 1, Attempt: 1,
		Deadline: time.Now().Add(time.Minute),
	}
	event.Type, event.SessionID, event.TurnID = api.TypeToolCall, id, uuid.MustParse(turn[len(turn)-36:])
	f.append(id, 1, event)
	f.want(f.do("POST", queued+"/result", `{"output":1}`), http.StatusConflict, sessions.CodeToolNotClientSide)
}

// TestUnsupportedSession: a record of a newer server is not guessed at.
func TestUnsupportedSession(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	id := uuid.MustParse(strings.TrimPrefix(session, "/v1/sessions/"))
	f.append(id, 99, &api.StatusChanged{EventHeader: api.EventHeader{Type: "surprise", SessionID: id}})
	f.want(f.do("GET", session, ""), http.StatusServiceUnavailable, sessions.CodeSessionUnsupported)
}

// append writes a fact past the service.
func (f *fixture) append(session uuid.UUID, version int, event api.Event) {
	f.tb.Helper()
	entries, err := f.engine.Read(f.tb.Context(), "a", session, 0, 0, false)
	if err != nil {
		f.tb.Fatal(err)
	}
	raw, err := api.Marshal(event)
	if err != nil {
		f.tb.Fatal(err)
	}
	last := entries[len(entries)-1]
	record := &sessions.Record{V: version, CommandID: uuid.New(), N: last.N + 1, Events: []json.RawMessage{raw}}
	if _, err := f.engine.Append(f.tb.Context(), "a", session, last.Seq, record); err != nil {
		f.tb.Fatal(err)
	}
}

func TestParameters(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	for _, query := range []string{
		"/v1/sessions?limit=0", "/v1/sessions?limit=201", "/v1/sessions?limit=-1", "/v1/sessions?limit=1.5", "/v1/sessions?limit=",
		"/v1/sessions?limit=99999999999999999999", "/v1/sessions?limit=%31%00", "/v1/sessions?status=waiting", "/v1/sessions?status=", "/v1/sessions?before=x",
		"/v1/sessions?before=00000000-0000-0000-0000-000000000000", session + "/messages?before=0", session + "/messages?before=-1",
		session + "/tool_calls?status=open", session + "/events?heartbeat=often", session + "/events?wait=1", session + "/events?limit=1",
		session + "/turns/" + uuid.NewString() + "?wait=-1", session + "/turns/" + uuid.NewString() + "?wait=1s",
	} {
		f.want(f.do("GET", query, ""), http.StatusBadRequest, sessions.CodeInvalidInput)
	}
	long := f.want(f.do("GET", "/v1/sessions?"+strings.Repeat("x", 10_000)+"=1", ""), http.StatusBadRequest, sessions.CodeInvalidInput)
	if len(long.body) > 1000 {
		t.Errorf("a long answer: %s", long.body)
	}
	for _, id := range []string{"urn:uuid:" + uuid.NewString(), "{" + uuid.NewString() + "}", strings.ReplaceAll(uuid.NewString(), "-", ""), "%00", "..%2f"} {
		f.want(f.do("GET", "/v1/sessions/"+id, ""), http.StatusNotFound, sessions.CodeSessionNotFound)
	}
	f.want(f.do("GET", "/v1/sessions/"+strings.ToUpper(strings.TrimPrefix(session, "/v1/sessions/")), ""), http.StatusOK)
}

func TestProbes(t *testing.T) {
	f := newFixture(t)
	f.key = ""
	f.want(f.do("GET", "/healthz", ""), http.StatusOK)
	f.want(f.do("GET", "/readyz", ""), http.StatusOK)
	if a := f.want(f.do("GET", "/openapi.yaml", ""), http.StatusOK); a.body != "openapi: 3.1.0\n" {
		t.Errorf("the contract is %q", a.body)
	}
	f.engine.FailAppends(sessions.ErrUnavailable)
	f.want(f.do("GET", "/readyz", ""), http.StatusServiceUnavailable, sessions.CodeStorageUnavailable)
	f.want(f.do("GET", "/healthz", ""), http.StatusOK)
	f.engine.FailAppends(nil)
	f.drain()
	f.want(f.do("GET", "/readyz", ""), http.StatusServiceUnavailable, sessions.CodeShuttingDown)
	f.want(f.do("GET", "/healthz", ""), http.StatusOK)
}

func TestMounts(t *testing.T) {
	f := newFixture(t, development, func(s *setup) {
		s.Mounts = map[string]http.Handler{"/demo/*": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })}
	})
	plain := *f
	plain.client = http.DefaultClient
	if a := plain.do("GET", "/demo/a.js", ""); a.body != "/demo/a.js" || a.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("mount: %s %q", a.Status, a.body)
	}
	if a := plain.do("GET", "/demo/a.js", "", "Host", "evil.example"); a.code() != string(handlers.CodeHostNotAllowed) {
		t.Errorf("mount at a strange host: %s %q", a.Status, a.body)
	}
}
