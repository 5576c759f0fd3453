package handlers_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"treadle/handlers"
	"treadle/internal/contract"
	"treadle/sessions"
)

func TestRoutes(t *testing.T) {
	contract.Load(t).CheckRoutes(t, newFixture(t).routes.(chi.Routes))
}

// TestEveryOperation provokes, at every operation, each status that has nothing to do with what the operation does.
func TestEveryOperation(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.MaxBody = 1 << 10 })
	local := newFixture(t, development)
	local.key = ""
	for _, op := range contract.Load(t).Operations() {
		has := func(status int) bool { return slices.Contains(op.Statuses, status) }
		t.Run(op.ID, func(t *testing.T) {
			f, local := f.in(t), local.in(t)
			local.want(local.call(op, "", "Host", "evil.example:8080"), http.StatusForbidden, handlers.CodeHostNotAllowed)
			local.want(local.call(op, "", "Origin", "null"), http.StatusForbidden, handlers.CodeOriginNotAllowed)
			if !strings.HasPrefix(op.Path, "/v1/") {
				return
			}
			f.want(f.call(op, "", "Authorization", ""), http.StatusUnauthorized, handlers.CodeUnauthenticated)
			f.want(f.do(op.Method, fill(op.Path)+"?access_token=a", minimal[op.ID]), http.StatusUnauthorized, handlers.CodeUnauthenticated)
			f.want(f.call(op, "", "Authorization", "Bearer broken"), http.StatusInternalServerError, handlers.CodeInternal)
			f.want(f.call(op, "", "Authorization", "Bearer unavailable"), http.StatusServiceUnavailable, sessions.CodeStorageUnavailable)
			f.want(f.do(op.Method, fill(op.Path)+"?nonsense=1", minimal[op.ID]), http.StatusBadRequest, sessions.CodeInvalidInput)
			f.want(f.do(op.Method, fill(op.Path)+"?a=%zz", minimal[op.ID]), http.StatusBadRequest, sessions.CodeInvalidInput)
			for _, name := range op.Parameters {
				f.want(f.do(op.Method, fill(op.Path)+"?"+name+"=1&"+name+"=1", minimal[op.ID], "Accept", "application/json"), http.StatusBadRequest, sessions.CodeInvalidInput)
			}
			if has(http.StatusNotFound) {
				for _, path := range []string{fill(op.Path), strings.ReplaceAll(fill(op.Path), "/v1/sessions/", "/v1/sessions/x")} {
					if a := f.do(op.Method, path, minimal[op.ID]); a.StatusCode != http.StatusNotFound || !strings.HasSuffix(a.code(), "SESSION_NOT_FOUND") {
						t.Errorf("%s %s: %d %s", op.Method, path, a.StatusCode, a.body)
					}
				}
			}
			if has(http.StatusNotAcceptable) {
				f.want(f.call(op, "", "Accept", "text/html, application/json;q=0"), http.StatusNotAcceptable, handlers.CodeNotAcceptable)
			}
			if op.Body != nil {
				f.refuseBodies(op)
			}
		})
	}
}

// in returns the fixture for a subtest.
func (f *fixture) in(tb testing.TB) *fixture {
	sub := *f
	sub.tb, sub.client = tb, contract.Load(tb).Client(tb)
	return &sub
}

func (f *fixture) refuseBodies(op contract.Operation) {
	body := minimal[op.ID]
	for _, contentType := range []string{
		"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json-patch+json",
		"application/json; charset=latin1", "application/json, text/plain", "application", "*/*",
	} {
		f.want(f.call(op, body, "Content-Type", contentType), http.StatusUnsupportedMediaType, handlers.CodeUnsupportedMediaType)
	}
	f.want(f.call(op, body, "Content-Type", ""), http.StatusUnsupportedMediaType, handlers.CodeUnsupportedMediaType)
	f.want(f.call(op, body, "Content-Encoding", "gzip"), http.StatusUnsupportedMediaType, handlers.CodeUnsupportedMediaType)
	for _, contentType := range []string{"application/json; charset=utf-8", "APPLICATION/JSON", `application/json;charset="UTF-8"`} {
		if a := f.call(op, body, "Content-Type", contentType, "Content-Encoding", "identity"); a.StatusCode == http.StatusUnsupportedMediaType {
			f.tb.Errorf("%s: %s", contentType, a.body)
		}
	}
	large := strings.Repeat(" ", 1<<10) + body
	f.want(f.call(op, large), http.StatusRequestEntityTooLarge, sessions.CodeBodyTooLarge)
	chunked := f.request(op.Method, fill(op.Path), body)
	chunked.Body, chunked.ContentLength = io.NopCloser(strings.NewReader(large)), -1
	f.want(f.send(chunked), http.StatusRequestEntityTooLarge, sessions.CodeBodyTooLarge)

	slow := f.request(op.Method, fill(op.Path), body)
	stalled, stop := io.Pipe()
	defer stop.Close()
	slow.Body, slow.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("{"), stalled)), -1
	f.want(f.send(slow), http.StatusRequestTimeout, handlers.CodeRequestTimeout)

	for _, broken := range []string{
		`{`, `[]`, `null`, `"text"`, `1`, `{}{}`, body + "x", `{"` + "\xff" + `":1}`, `{"nonsense":1}`, `nonsense`,
		strings.Repeat("[", 300), `{"a":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`,
	} {
		a := f.want(f.call(op, broken), http.StatusBadRequest, sessions.CodeInvalidInput)
		if len(a.body) > 1<<10 {
			f.tb.Errorf("a long answer to %.40q: %s", broken, a.body)
		}
	}
	f.dropRequired(op)
}

// dropRequired leaves out each member that the contract requires.
func (f *fixture) dropRequired(op contract.Operation) {
	for _, name := range op.Body.Required {
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(minimal[op.ID]), &members); err != nil {
			f.tb.Fatal(err)
		}
		delete(members, name)
		body, err := json.Marshal(members)
		if err != nil {
			f.tb.Fatal(err)
		}
		f.want(f.call(op, string(body)), http.StatusBadRequest, sessions.CodeInvalidInput)
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	f := newFixture(t)
	for _, path := range []string{"/", "/v1", "/v1/", "/v2/sessions", "/v1/sessions/", "/%2e%2e/", "/v1/sessions/x/unknown"} {
		for _, method := range []string{"GET", "POST", "HEAD", "BREW"} {
			f.want(f.do(method, path, ""), http.StatusNotFound, map[bool][]sessions.Code{false: {handlers.CodeNotFound}}[method == "HEAD"]...)
		}
	}
	for path, allow := range map[string]string{
		"/v1/sessions":         "GET, HEAD, POST",
		"/v1/sessions/x":       "GET, HEAD, PATCH, DELETE",
		"/v1/sessions/x/end":   "POST",
		"/v1/models":           "GET, HEAD",
		"/healthz":             "GET, HEAD",
		"/v1/sessions/x/tools": "GET, HEAD, PUT",
	} {
		for _, method := range []string{"BREW", "OPTIONS", "TRACE"} {
			a := f.want(f.do(method, path, ""), http.StatusMethodNotAllowed, handlers.CodeMethodNotAllowed)
			if got := a.Header.Get("Allow"); got != allow {
				t.Errorf("%s: Allow is %q, want %q", path, got, allow)
			}
		}
	}
}

func TestHead(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	for path, contentType := range map[string]string{
		"/healthz": "application/json", "/openapi.yaml": "application/yaml", "/v1/models": "application/json",
		session: "application/json", session + "/events": "text/event-stream",
	} {
		a := f.want(f.do("HEAD", path, ""), http.StatusOK)
		if a.Header.Get("Content-Type") != contentType || a.body != "" {
			t.Errorf("HEAD %s: %s %q", path, a.Header.Get("Content-Type"), a.body)
		}
	}
	f.want(f.do("HEAD", fill("/v1/sessions/{session_id}/events"), ""), http.StatusNotFound)
}

// TestProblems ties the table of errors to the contract's.
func TestProblems(t *testing.T) {
	documented := maps.Clone(contract.Load(t).Problems)
	for code, row := range handlers.Problems() {
		if got := (contract.Problem{Status: row.Status, Title: row.Title}); documented[string(code)] != got {
			t.Errorf("%s is %+v, documented as %+v", code, got, documented[string(code)])
		}
		delete(documented, string(code))
	}
	for code := range documented {
		t.Errorf("%s is documented and has no row", code)
	}
}
