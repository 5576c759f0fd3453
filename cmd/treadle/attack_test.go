package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/contract"
)

// rawFill puts ids into a path of the contract, fresh ones where none is given.
func rawFill(path string, ids map[string]string) string {
	for _, name := range []string{"session_id", "turn_id", "tool_call_id", "name"} {
		path = strings.ReplaceAll(path, "{"+name+"}", cmp.Or(ids[name], uuid.Must(uuid.NewV7()).String()))
	}
	return path
}

// rawBodies holds a valid body for each operation that takes one.
var rawBodies = map[string]string{
	"createSession":  `{}`,
	"updateSession":  `{"metadata":{"a":"b"}}`,
	"startTurn":      `{"input":"hi"}`,
	"replaceTools":   `{"tools":[]}`,
	"submitResult":   `{"output":1}`,
	"claimToolCall":  `{"client_id":"tab"}`,
	"reportProgress": `{"message":"half"}`,
	"endSession":     `{}`,
	"cancelTurn":     `{}`,
}

// waiting is a session in the middle of a turn, and the ids of all that it has.
func (s *rawServer) waiting() (session string, ids map[string]string) {
	s.tb.Helper()
	session = s.session("ask")
	turn := s.start(session, "call ask {}")
	return session, map[string]string{
		"session_id": strings.TrimPrefix(session, "/v1/sessions/"), "turn_id": turn[strings.LastIndex(turn, "/")+1:],
		"tool_call_id": s.pending(session, 1)[0].ID.String(), "name": "ask",
	}
}

func (s *rawServer) cursor(session string) string {
	s.tb.Helper()
	return rawDecode[api.Session](s.tb, s.want(http.StatusOK, http.MethodGet, session, "")).Cursor
}

// TestAttack_pages: without keys, no page of another site reaches anything, be it by a name that points here or by a form.
func TestAttack_pages(t *testing.T) {
	t.Parallel()
	s := rawStart(t, "", "", "--admin-listen", "127.0.0.1:0")
	port := s.url[strings.LastIndex(s.url, ":"):]
	session, ids := s.waiting()
	before := s.cursor(session)
	for _, op := range contract.Load(t).Operations() {
		path, body := rawFill(op.Path, ids), rawBodies[op.ID]
		for _, host := range []string{"evil.example" + port, "localhost.evil.example" + port, "127.0.0.1.evil.example", "0.0.0.0" + port, "evil.example:localhost"} {
			s.want(http.StatusForbidden, op.Method, path, body, "Host", host)
			s.want(http.StatusForbidden, op.Method, path, body, "Host", host, "X-Forwarded-Host", "localhost", "Origin", "http://"+host)
		}
		for _, origin := range []string{"null", "http://evil.example", "http://localhost.evil.example", "http://localhost:1", "http://evil.example" + port, "file://"} {
			s.want(http.StatusForbidden, op.Method, path, body, "Origin", origin)
			s.want(http.StatusForbidden, op.Method, path, body, "Origin", origin, "Content-Type", "text/plain")
		}
		if op.Body == nil {
			continue
		}
		s.want(http.StatusForbidden, op.Method, path, body, "Sec-Fetch-Site", "cross-site")
		for _, contentType := range []string{
			"text/plain", "text/plain; a=application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "application/json-patch+json",
			"application/json, text/plain", "application/jsonx", "application/json; charset=utf-16", "",
		} {
			s.want(http.StatusUnsupportedMediaType, op.Method, path, body, "Content-Type", contentType)
		}
		s.want(http.StatusUnsupportedMediaType, op.Method, path, body, "Content-Encoding", "gzip")
	}
	for _, base := range []string{s.url, s.adminURL} {
		other := s.plain(base, new(http.Transport))
		for _, path := range []string{"/metrics", "/healthz", "/readyz", "/debug/pprof/", "/debug/pprof/heap", "/nothing"} {
			other.want(http.StatusForbidden, http.MethodGet, path, "", "Host", "evil.example"+port)
		}
	}
	for _, headers := range [][]string{{"Origin", "http://evil.example"}, {"Origin", "null"}, {"Sec-Fetch-Site", "cross-site"}} {
		s.plain(s.adminURL, new(http.Transport)).want(http.StatusForbidden, http.MethodGet, "/debug/pprof/trace?seconds=3600", "", headers...)
	}
	s.plain(s.url, new(http.Transport)).want(http.StatusForbidden, http.MethodGet, "/metrics", "", "Origin", "http://evil.example")
	if after := s.cursor(session); after != before {
		t.Errorf("the session went on from %s to %s", before, after)
	}
	for _, host := range []string{"localhost" + port, "127.0.0.1" + port, "[::1]" + port} {
		s.want(http.StatusOK, http.MethodPatch, session, `{}`, "Host", host, "Origin", "http://"+host, "Content-Type", "APPLICATION/JSON; charset=UTF-8")
	}
}

func TestAttack_listen(t *testing.T) {
	t.Parallel()
	suspended := mustConfig(t, "tenants: []\n")
	for _, args := range [][]string{
		{"--listen", "0.0.0.0:0"}, {"--listen", ":0"}, {"--listen", "[::]:0"}, {"--listen", "0:0"}, {"--listen", "*:0"}, {"--listen", "[::ffff:0.0.0.0]:0"},
		{"--listen", "127.0.0.1:0", "--admin-listen", "0.0.0.0:0"}, {"--listen", "0.0.0.0:0", "--config", suspended},
	} {
		_, stderr, code := runBinary(t, append([]string{"serve", "--data-dir", t.TempDir()}, args...)...)
		if code == exitOK || !strings.Contains(stderr, "without keys is refused") {
			t.Errorf("%v: exit code %d, %q", args, code, stderr)
		}
	}
}

// TestAttack_references: a schema makes the server fetch nothing, and nobody who is slow to answer keeps it waiting.
//
// Like every test that measures, it has the machine to itself.
func TestAttack_references(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepted atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			t.Cleanup(func() { conn.Close() }) // which is never answered
		}
	}()
	t.Cleanup(func() { listener.Close() })

	s := rawStart(t, "", "")
	session := s.session()
	remote := "http://" + listener.Addr().String() + "/x"
	for _, schema := range []string{
		`{"$ref":%q}`, `{"$defs":{"a":{"$ref":%q}}}`, `{"items":{"$ref":%q}}`, `{"properties":{"a":{"$ref":%q}}}`, `{"$dynamicRef":%q}`, `{"$schema":%q}`,
		`{"$id":%q,"$ref":"other.json"}`, `{"$id":%q,"properties":{"a":{"$ref":"other.json#/a"}}}`, `{"$recursiveRef":%q}`, `{"allOf":[{"if":{"$ref":%q}}]}`,
		`{"properties":{"a":{"$id":%q,"items":{"$ref":"b"}}}}`, `{"patternProperties":{"a":{"$ref":%q}}}`, `{"$schema":%q,"$ref":"#/definitions/a"}`,
		`{"definitions":{"a":{"$ref":%q}},"$ref":"#/definitions/a"}`, `{"contentSchema":{"$ref":%q}}`, `{"dependentSchemas":{"a":{"$ref":%q}}}`, `{"unevaluatedProperties":{"$ref":%q}}`,
	} {
		for _, ref := range []string{remote, strings.TrimPrefix(remote, "http:"), remote + "#/a", strings.Replace(remote, "http", "HTTP", 1)} {
			schema := fmt.Sprintf(schema, ref)
			for _, member := range []string{"args_schema", "result_schema"} {
				tool := fmt.Sprintf(`{"name":"a","description":"b",%q:%s}`, member, schema)
				refused := s.costs(schema, func(s *rawServer) rawAnswer {
					return s.do(http.MethodPost, "/v1/sessions", `{"skills":{"tools":[`+tool+`]}}`)
				})
				s.costs(schema+", as a replacement", func(s *rawServer) rawAnswer {
					return s.want(refused.StatusCode, http.MethodPut, session+"/tools", `{"tools":[`+tool+`]}`)
				})
				if refused.StatusCode != http.StatusBadRequest {
					t.Errorf("%s: %d %.200s", schema, refused.StatusCode, refused.body)
				}
			}
		}
	}
	if n := accepted.Load(); n > 0 {
		t.Errorf("%d connections were made", n)
	}
}

// rawRepeat joins n items.
func rawRepeat(n int, item func(i int) string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = item(i)
	}
	return strings.Join(items, ",")
}

// rawNested is inner within n times open and end.
func rawNested(n int, open, inner, end string) string {
	return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
}

// costs makes a request that is meant to be expensive, and holds the process to about a second of processor time and 100 MB. How
// long the answer takes by the clock depends on the machine's other work, so it has a multiple of patience.
func (s *rawServer) costs(name string, request func(*rawServer) rawAnswer) rawAnswer {
	s.tb.Helper()
	bounded := *s
	client := *s.http
	client.Timeout = 4 * patience
	bounded.http = &client
	memory, began := s.status("VmRSS"), s.processor()
	mustWrite(s.tb, fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), "5") // resets VmHWM
	a := request(&bounded)
	took, grown := s.processor()-began, (s.status("VmHWM")-memory)>>10
	if took > 300*time.Millisecond || grown > 30 {
		s.tb.Logf("%s: %d, %v, %d MB", name, a.StatusCode, took, grown)
	}
	if took > 1500*time.Millisecond { // a second, when no neighbour slows the processor down
		s.tb.Errorf("%s took %v", name, took)
	}
	if grown > 100 {
		s.tb.Errorf("%s took %d MB", name, grown)
	}
	if a.StatusCode >= http.StatusInternalServerError {
		s.tb.Errorf("%s: %d %.300s", name, a.StatusCode, a.body)
	}
	return a
}

// TestAttack_schemas: no registry costs much, however many tools make it up, and no call of what was accepted does.
func TestAttack_schemas(t *testing.T) {
	s := rawStart(t, "", "")
	properties := func(n int, schema string) string {
		return `"properties":{` + rawRepeat(n, func(i int) string { return fmt.Sprintf(`"p%d":%s`, i, schema) }) + `}`
	}
	for name, schema := range map[string]string{
		"nested allOf": rawNested(24, `{"allOf":[`, `{"type":"object"}`, `]}`),
		"nested anyOf": rawNested(24, `{"anyOf":[`, `{"type":"object"}`, `,{"type":"string"}]}`),
		"nested not":   rawNested(40, `{"not":`, `{}`, `}`),
		"too deep":     rawNested(250, `{"not":`, `{}`, `}`),
		"properties":   `{` + properties(9000, `{"type":"string"}`) + `}`,
		"references":   `{"$defs":{"a":{}},` + properties(4500, `{"$ref":"#/$defs/a"}`) + `}`,
		"references that double": `{"$ref":"#/$defs/d0","$defs":{` + rawRepeat(60, func(i int) string {
			return fmt.Sprintf(`"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, i+1, i+1)
		}) + `,"d60":{}}}`,
		"circle":                  `{"$ref":"#"}`,
		"patterns":                `{` + properties(40, `{"pattern":"(?:a?){950}"}`) + `}`,
		"pattern of patterns":     `{"properties":{"a":{"pattern":"((a{1000}){1000}){1000}"}}}`,
		"classes":                 `{"properties":{"a":{"pattern":"` + strings.Repeat(`\\pL`, 19) + `"}}}`,
		"enum":                    `{"properties":{"a":{"enum":[` + rawRepeat(40_000, func(i int) string { return fmt.Sprint(i) }) + `]}}}`,
		"required":                `{"required":[` + rawRepeat(20_000, func(i int) string { return fmt.Sprintf(`"%d"`, i) }) + `]}`,
		"numbers":                 `{"properties":{"a":{"multipleOf":1e-400,"maximum":1e400}}}`,
		"recursion":               `{"anyOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`,
		"recursion without bound": `{"unevaluatedProperties":false,"allOf":[` + rawRepeat(100, func(int) string { return `{"properties":{"a":{"$ref":"#"}}}` }) + `]}`,
	} {
		schema = `{"type":"object",` + schema[1:]
		for _, n := range []int{1, 480} {
			tools := rawRepeat(min(n, 3<<20/len(schema)+1), func(i int) string { return fmt.Sprintf(`{"name":"t%d","description":"d","args_schema":%s}`, i, schema) })
			a := s.costs(fmt.Sprintf("%s, at most %d times", name, n), func(s *rawServer) rawAnswer {
				return s.do(http.MethodPost, "/v1/sessions", `{"skills":{"tools":[`+tools+`]}}`)
			})
			if a.StatusCode != http.StatusCreated {
				continue
			}
			session := a.Header.Get("Location")
			s.costs(name+", called", func(s *rawServer) rawAnswer {
				turn := s.start(session, "call t0 "+rawNested(150, `{"a":`, `{"a":[`+rawRepeat(30_000, func(i int) string { return fmt.Sprint(i) })+`]}`, "}"))
				var a rawAnswer
				eventually(s.tb, "the call is offered or refused", func() bool {
					a = s.want(http.StatusOK, http.MethodGet, session, "")
					return !strings.Contains(a.body, `"status":"running"`)
				})
				s.want(http.StatusOK, http.MethodPost, turn+"/cancel", "")
				return a
			})
		}
	}
}

// TestAttack_json: bodies that are as bad as bodies can be are refused, or taken, for little.
func TestAttack_json(t *testing.T) {
	s := rawStart(t, "", "")
	const limit = 4 << 20
	members := func(size int) string {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			fmt.Fprintf(&b, `"%d":1,`, i)
		}
		return "{" + strings.TrimSuffix(b.String(), ",") + "}"
	}
	_, ids := s.waiting()
	for name, body := range map[string]string{
		"brackets": strings.Repeat("[", 10_000_000), "fewer brackets": strings.Repeat("[", limit), "braces": strings.Repeat(`{"a":`, limit/5),
		"members": members(12_000_000), "fewer members": members(limit - 100), "text": `{"input":"` + strings.Repeat("x", 50_000_000) + `"}`,
		"number": `{"max_steps":` + strings.Repeat("9", 100_000) + `}`, "exponent": `{"max_steps":1e999999999,"lease_ms":1e999999999,"fraction":1e999999999}`,
		"spaces": strings.Repeat(" ", limit-2) + "{{", "quotes": strings.Repeat(`"`, limit), "half": `{"input":"\ud800"}`,
	} {
		for _, op := range contract.Load(t).Operations() {
			if op.Body == nil {
				continue
			}
			a := s.costs(op.ID+", "+name, func(s *rawServer) rawAnswer { return s.do(op.Method, rawFill(op.Path, ids), body) })
			if a.StatusCode != http.StatusBadRequest && a.StatusCode != http.StatusRequestEntityTooLarge || len(a.body) > 2000 {
				t.Errorf("%s, %s: %d %.300s", op.ID, name, a.StatusCode, a.body)
			}
		}
	}
	for name, output := range map[string]string{
		"a long number": strings.Repeat("9", 100_000), "a large number": "1e1000000000", "empty lists": "[" + strings.Repeat("[],", limit/3-20) + "[]]",
		"members": members(limit - 1000), "depth": rawNested(190, "[", "", "]"), "text": `"` + strings.Repeat("x", limit-100) + `"`,
		"escapes": `"` + strings.Repeat(`\u0001`, limit/6-20) + `"`,
	} {
		_, ids := s.waiting()
		path := rawFill("/v1/sessions/{session_id}/tool_calls/{tool_call_id}/result", ids)
		for _, request := range []struct {
			name, output string
			status       int
		}{{"", output, http.StatusOK}, {", again", output, http.StatusOK}, {", and another", "[" + output + "]", http.StatusConflict}} {
			a := s.costs("a result of "+name+request.name, func(s *rawServer) rawAnswer { return s.do(http.MethodPost, path, `{"output":`+request.output+`}`) })
			if a.StatusCode != request.status {
				t.Errorf("a result of %s%s: %d %.300s", name, request.name, a.StatusCode, a.body)
			}
		}
	}
}

// TestAttack_requests: whatever stands in the first line and in the headers, the answer is a problem and no mistake of the server.
func TestAttack_requests(t *testing.T) {
	t.Parallel()
	s := rawStart(t, "", "")
	session, _ := s.waiting()
	for _, id := range []string{
		"%00", "%0d%0aSet-Cookie:%20a=b", "%f0%9f%92%a9", "%ff%fe", "%e2%80%ae", "..", "%2e%2e%2f", "%2f", "{session_id}", "*", "null", strings.Repeat("x", 50_000), "%",
		"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "٠١٢", strings.TrimPrefix(session, "/v1/sessions/") + "%20",
	} {
		for _, path := range []string{"/v1/sessions/" + id, "/v1/sessions/" + id + "/events", session + "/turns/" + id, session + "/tool_calls/" + id, session + "/tools/" + id, "/" + id} {
			status, header, body := s.line(http.MethodGet, path)
			if status != http.StatusNotFound && status != http.StatusBadRequest && status != http.StatusMethodNotAllowed || strings.Contains(body, "Set-Cookie:") && len(header["Set-Cookie"]) > 0 {
				t.Errorf("GET %.80s: %d %v %.300s", path, status, header, body)
			}
		}
	}
	for _, method := range []string{"BREW", "get", "Post", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "M-SEARCH", strings.Repeat("X", 5000), "POST", "DELETE"} {
		for _, path := range []string{"/v1/models", "/healthz", session + "/events", "/nothing"} {
			if status, _, body := s.line(method, path); status != http.StatusMethodNotAllowed && status != http.StatusNotFound || !json.Valid([]byte(body)) {
				t.Errorf("%.20s %s: %d %.300s", method, path, status, body)
			}
		}
	}
	for _, value := range []string{"", " ", "a b", "\x7f", "ä", "a\tb", strings.Repeat("k", 256), "\xff"} {
		for _, path := range []string{"/v1/sessions", s.session() + "/turns"} {
			if status, _, body := s.line(http.MethodPost, path, "Idempotency-Key: "+value, "Content-Type: application/json", `{"input":"hi"}`); status != http.StatusBadRequest {
				t.Errorf("the key %q: %d %.300s", value, status, body)
			}
		}
	}
	for _, value := range []string{"*, \"x\"", "\"", strings.Repeat("\"x\",", 2000), "\xff", "W/\"1\""} {
		status, header, body := s.line(http.MethodPut, session+"/tools", "If-Match: "+value, "Content-Type: application/json", `{"tools":[]}`)
		if status != http.StatusPreconditionFailed && status != http.StatusBadRequest || len(header["If-Match"]) > 0 {
			t.Errorf("If-Match %.40q: %d %v %.300s", value, status, header, body)
		}
	}
	for _, name := range []string{"key", "api_key", "token", "access_token"} {
		for _, op := range contract.Load(t).Operations() {
			if strings.HasPrefix(op.Path, "/v1/") {
				s.want(http.StatusUnauthorized, op.Method, rawFill(op.Path, nil)+"?"+name+"=CANARY", rawBodies[op.ID])
			}
		}
	}
	if log := s.stderr.String(); strings.Contains(log, "CANARY") || strings.Contains(log, "panic") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the log: %s", log)
	}
}

// line sends a request as it is: lines of headers, of which the last may be a body.
func (s *rawServer) line(method, path string, lines ...string) (int, http.Header, string) {
	s.tb.Helper()
	body := ""
	if n := len(lines); n > 0 && !strings.Contains(lines[n-1], ": ") {
		body = lines[n-1]
		lines = append(lines[:n-1:n-1], fmt.Sprintf("Content-Length: %d", len(body)))
	}
	head := strings.Join(append([]string{method + " " + path + " HTTP/1.1", "Host: localhost", "Connection: close"}, lines...), "\r\n")
	ctx, cancel := context.WithTimeout(s.tb.Context(), patience)
	defer cancel()
	conn := s.dial()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	go io.WriteString(conn, head+"\r\n\r\n"+body)
	res, answer, err := rawResponse(conn)
	if err != nil {
		s.tb.Fatalf("%.80s: %v", head, err)
	}
	return res.StatusCode, res.Header, answer
}
