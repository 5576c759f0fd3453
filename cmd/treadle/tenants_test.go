package main

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/contract"
)

// rawTenants starts a server with the tenants and returns it once for each, as the holder of its key.
func rawTenants(tb testing.TB, config, script string, names []string, args ...string) []*rawServer {
	tb.Helper()
	var keys []string
	config += "\ntenants:\n"
	for _, name := range names {
		key, lines := mustNewKey(tb, name)
		keys = append(keys, key)
		config += strings.TrimPrefix(lines, "tenants:\n")
	}
	s := rawStart(tb, config, script, append([]string{"--admin-listen", "127.0.0.1:0"}, args...)...)
	var servers []*rawServer
	for _, key := range keys {
		servers = append(servers, s.as(key))
	}
	return servers
}

var rawInstance = regexp.MustCompile(`"instance":"[^"]*"`)

// shape is what two answers that look the same have in common: everything but the ids of the requests.
func (a rawAnswer) shape() string {
	header := a.Header.Clone()
	header.Del("Date")
	return fmt.Sprint(a.StatusCode, header, rawInstance.ReplaceAllString(a.body, ""))
}

// TestTenants_isolation asks for everything that belongs to one tenant with the key of another. Each answer is byte for byte the one
// for what never existed, and nothing has changed afterwards.
func TestTenants_isolation(t *testing.T) {
	t.Parallel()
	tenants := rawTenants(t, "", "", []string{"acme", "globex"})
	acme, globex := tenants[0], tenants[1]
	session, ids := acme.waiting()
	idle := acme.session("ask")
	before := acme.cursor(session)
	own, ownIDs := globex.waiting()

	for _, op := range contract.Load(t).Operations() {
		if !strings.Contains(op.Path, "{") {
			continue
		}
		never := globex.do(op.Method, rawFill(op.Path, map[string]string{"name": "ask"}), rawBodies[op.ID])
		if never.StatusCode != http.StatusNotFound || never.code() != "SESSION_NOT_FOUND" {
			t.Fatalf("%s: %d %s for a session that never existed", op.ID, never.StatusCode, never.body)
		}
		for name, foreign := range map[string]map[string]string{
			"all ids":                      ids,
			"an idle session":              {"session_id": strings.TrimPrefix(idle, "/v1/sessions/"), "name": "ask"},
			"a session, other things' own": {"session_id": ids["session_id"], "turn_id": ownIDs["turn_id"], "tool_call_id": ownIDs["tool_call_id"], "name": "ask"},
		} {
			for _, method := range []string{op.Method, http.MethodHead} {
				if method == http.MethodHead && op.Method != http.MethodGet {
					continue
				}
				theirs := globex.do(method, rawFill(op.Path, foreign), rawBodies[op.ID])
				want := never
				if method == http.MethodHead {
					want = globex.do(method, rawFill(op.Path, nil), "")
				}
				if theirs.shape() != want.shape() {
					t.Errorf("%s with %s:\n%s\nwant as for one that never existed:\n%s", op.ID, name, theirs.shape(), want.shape())
				}
			}
		}
		// What belongs to another tenant is not found in one's own session either.
		if !strings.Contains(op.Path, "{turn_id}") && !strings.Contains(op.Path, "{tool_call_id}") {
			continue
		}
		mixed := func(turn, call string) rawAnswer {
			return globex.do(op.Method, rawFill(op.Path, map[string]string{"session_id": ownIDs["session_id"], "turn_id": turn, "tool_call_id": call}), rawBodies[op.ID])
		}
		theirs, none := mixed(ids["turn_id"], ids["tool_call_id"]), mixed("", "")
		if theirs.StatusCode != http.StatusNotFound || theirs.shape() != none.shape() {
			t.Errorf("%s in one's own session:\n%s\nwant:\n%s", op.ID, theirs.shape(), none.shape())
		}
	}

	globex.seesOnly(own, session, before)
	if after := acme.cursor(session); after != before {
		t.Errorf("the session of acme went on from %s to %s", before, after)
	}
	acme.want(http.StatusOK, http.MethodGet, idle, "")
	for _, line := range append(acme.metrics(), acme.stderr.String()) {
		if strings.Contains(line, "acme") || strings.Contains(line, "globex") || strings.Contains(line, ids["session_id"]) {
			t.Errorf("a tenant or session is named: %s", line)
		}
	}
}

// seesOnly checks that a tenant with one session sees nothing of another tenant's, whose id and cursor it knows.
func (s *rawServer) seesOnly(own, foreign, foreignCursor string) {
	s.tb.Helper()
	foreignID := strings.TrimPrefix(foreign, "/v1/sessions/")
	for _, cursor := range []string{foreignCursor, s.cursor(own)} {
		page := s.do(http.MethodGet, own+"/events?after="+cursor, "", "Accept", "application/json")
		events := s.stream(http.MethodGet, own+"/events", "", "Last-Event-ID", cursor)
		foreign := cursor == foreignCursor
		frames := events.until("the first frames", func(frames []rawFrame) bool { return len(frames) > 1 })
		if (page.code() == "CURSOR_INVALID") != foreign || (frames[1].Type == api.TypeReset) != foreign {
			s.tb.Errorf("a cursor, foreign %v, gives %s and %s", foreign, page.body, frames[1].text)
		}
		for _, f := range events.frames() {
			if strings.Contains(f.text, foreignID) {
				s.tb.Errorf("an event of another tenant: %s", f.text)
			}
		}
	}
	var listed []string
	for _, summary := range rawDecode[api.SessionList](s.tb, s.want(http.StatusOK, http.MethodGet, "/v1/sessions", "")).Sessions {
		listed = append(listed, "/v1/sessions/"+summary.ID.String())
	}
	if !slices.Equal(listed, []string{own}) {
		s.tb.Errorf("the tenant lists %v, has %s", listed, own)
	}
	page := s.do(http.MethodGet, "/v1/sessions?before="+foreignID, "")
	if page.StatusCode >= http.StatusInternalServerError || strings.Contains(page.body, foreignID) {
		s.tb.Errorf("the list before another tenant's session: %s", page.body)
	}
}

// TestTenants_idempotency: the same key of two tenants, or in two sessions, names two things.
func TestTenants_idempotency(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	once := func(path string) {
		t.Helper()
		if seen[path] {
			t.Errorf("%s was there before", path)
		}
		seen[path] = true
	}
	for _, s := range rawTenants(t, "", "", []string{"acme", "globex"}) {
		create := func(body string, status int) rawAnswer {
			return s.want(status, http.MethodPost, "/v1/sessions", body, "Idempotency-Key", "k")
		}
		first := create(`{"subject":"a"}`, http.StatusCreated).Header.Get("Location")
		if again := create(`{"subject":"a"}`, http.StatusCreated).Header.Get("Location"); again != first {
			t.Errorf("a repeated create gives %s, not %s", again, first)
		}
		create(`{"subject":"b"}`, http.StatusUnprocessableEntity)
		once(first)
		for _, session := range []string{first, s.session()} {
			turn := s.want(http.StatusAccepted, http.MethodPost, session+"/turns", `{"input":"hello"}`, "Idempotency-Key", "k").Header.Get("Location")
			s.finish(turn)
			again := s.want(http.StatusAccepted, http.MethodPost, session+"/turns", `{"input":"hello"}`, "Idempotency-Key", "k").Header.Get("Location")
			if again != turn {
				t.Errorf("a repeated turn is %s, not %s", again, turn)
			}
			once(turn)
		}
	}
}

// TestTenants_ids: what names a session cannot be guessed: beyond the time, ids are random.
func TestTenants_ids(t *testing.T) {
	t.Parallel()
	s := rawStart(t, "", "")
	const n = 300
	var tails []string
	for range n {
		id := uuid.MustParse(strings.TrimPrefix(s.session(), "/v1/sessions/"))
		if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
			t.Errorf("%v is no UUIDv7", id)
		}
		tails = append(tails, id.String()[20:]) // what is neither time nor version nor variant
	}
	rising := 0
	for i := range tails[1:] {
		if tails[i] < tails[i+1] {
			rising++
		}
	}
	slices.Sort(tails)
	if distinct := len(slices.Compact(tails)); distinct != n {
		t.Errorf("%d of %d are distinct", distinct, n)
	}
	if rising < n/3 || rising > 2*n/3 { // which chance alone does not do
		t.Errorf("%d of %d rise: the ids have an order", rising, n)
	}
}
