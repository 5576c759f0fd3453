package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"treadle/api"
)

func TestServe_development(t *testing.T) {
	t.Parallel()
	p := startServer(t, "--data-dir", t.TempDir())
	for _, path := range []string{"/v1/models", "/healthz", "/readyz", "/metrics"} {
		if status := call(t, http.MethodGet, p.url+path, "", "", nil); status != http.StatusOK {
			t.Errorf("GET %s: %d, want 200", path, status)
		}
	}
	if status := call(t, http.MethodGet, p.url+"/debug/pprof/", "", "", nil); status != http.StatusNotFound {
		t.Errorf("profiles on the main listener: %d, want 404", status)
	}
}

// TestServe_rebinding: a page whose name points to loopback reaches nothing.
func TestServe_rebinding(t *testing.T) {
	t.Parallel()
	p := startServer(t, "--data-dir", t.TempDir(), "--admin-listen", "127.0.0.1:0")
	for _, url := range []string{
		p.url + "/v1/models", p.url + "/metrics", p.url + "/healthz", p.url + "/readyz",
		p.adminURL + "/metrics", p.adminURL + "/healthz", p.adminURL + "/debug/pprof/",
	} {
		for host, allowed := range map[string]bool{"evil.example": false, "localhost.evil.example": false, "localhost": true, "[::1]": true} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host + ":8080"
			res, err := new(http.Client).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			refused := res.StatusCode == http.StatusForbidden || res.StatusCode == http.StatusMisdirectedRequest
			if refused == allowed {
				t.Errorf("GET %s with Host %s: %d", url, host, res.StatusCode)
			}
		}
	}
}

func TestServe_secondProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startServer(t, "--data-dir", dir)
	_, stderr, code := runBinary(t, "serve", "--listen", "127.0.0.1:0", "--data-dir", dir)
	if code != exitFailure || !strings.Contains(stderr, dir) || !strings.Contains(stderr, "in use by process") {
		t.Errorf("exit code %d, stderr %q: want a refusal that names the directory", code, stderr)
	}
}

func TestServe_portInUse(t *testing.T) {
	t.Parallel()
	p := startServer(t, "--data-dir", t.TempDir())
	address := strings.TrimPrefix(p.url, "http://")
	_, stderr, code := runBinary(t, "serve", "--listen", address, "--data-dir", t.TempDir())
	if code != exitFailure || !strings.Contains(stderr, "listen address "+address+" is in use by another process") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

func TestServe_tenants(t *testing.T) {
	t.Parallel()
	acme, acmeLines := mustNewKey(t, "acme")
	globex, globexLines := mustNewKey(t, "globex")
	config := mustConfig(t, acmeLines+strings.TrimPrefix(globexLines, "tenants:\n"))
	p := startServer(t, "--data-dir", t.TempDir(), "--config", config, "--listen", "0.0.0.0:0", "--admin-listen", "127.0.0.1:0")

	for name, key := range map[string]string{"no key": "", "a wrong key": acme + "x", "a hash": regexp.MustCompile(`sha256:\w+`).FindString(acmeLines)} {
		if status := call(t, http.MethodGet, p.url+"/v1/models", key, "", nil); status != http.StatusUnauthorized {
			t.Errorf("%s: %d, want 401", name, status)
		}
	}
	var session api.Session
	if status := call(t, http.MethodPost, p.url+"/v1/sessions", acme, `{}`, &session); status != http.StatusCreated {
		t.Fatalf("create: %d, want 201", status)
	}
	own := p.url + "/v1/sessions/" + session.ID.String()
	if status := call(t, http.MethodGet, own, acme, "", nil); status != http.StatusOK {
		t.Errorf("own session: %d, want 200", status)
	}
	var foreign, unknown api.Problem
	call(t, http.MethodGet, own, globex, "", &foreign)
	call(t, http.MethodGet, p.url+"/v1/sessions/"+uuid.Must(uuid.NewV7()).String(), globex, "", &unknown)
	if foreign.Code != "SESSION_NOT_FOUND" || foreign.Code != unknown.Code || foreign.Status != unknown.Status {
		t.Errorf("a foreign session gives %+v, an unknown one %+v", foreign, unknown)
	}
	var list api.SessionList
	if call(t, http.MethodGet, p.url+"/v1/sessions", globex, "", &list); len(list.Sessions) != 0 {
		t.Errorf("globex lists %d sessions of others", len(list.Sessions))
	}

	if status := call(t, http.MethodGet, p.url+"/metrics", acme, "", nil); status != http.StatusNotFound {
		t.Errorf("metrics on the main listener: %d, want 404", status)
	}
	for _, path := range []string{"/metrics", "/healthz", "/readyz", "/debug/pprof/"} {
		if status := call(t, http.MethodGet, p.adminURL+path, "", "", nil); status != http.StatusOK {
			t.Errorf("GET %s of the admin listener: %d, want 200", path, status)
		}
	}
	if log := p.stderr.String(); strings.Contains(log, acme) || strings.Contains(log, globex) {
		t.Errorf("the log holds a key: %s", log)
	}
}

func TestServe_reload(t *testing.T) {
	t.Parallel()
	old, oldLines := mustNewKey(t, "acme")
	fresh, freshLines := mustNewKey(t, "acme")
	config := mustConfig(t, oldLines)
	p := startServer(t, "--data-dir", t.TempDir(), "--config", config)
	models := p.url + "/v1/models"
	if status := call(t, http.MethodGet, models, old, "", nil); status != http.StatusOK {
		t.Fatalf("old key: %d, want 200", status)
	}

	mustWrite(t, config, freshLines)
	p.signal(syscall.SIGHUP)
	eventually(t, "the new key works", func() bool { return call(t, http.MethodGet, models, fresh, "", nil) == http.StatusOK })
	if status := call(t, http.MethodGet, models, old, "", nil); status != http.StatusUnauthorized {
		t.Errorf("withdrawn key: %d, want 401", status)
	}

	mustWrite(t, config, "tenants: []\n")
	p.signal(syscall.SIGHUP)
	eventually(t, "the fault is logged", func() bool { return strings.Contains(p.stderr.String(), "Tenants not reloaded") })
	if status := call(t, http.MethodGet, models, fresh, "", nil); status != http.StatusOK {
		t.Errorf("key after a faulty reload: %d, want 200", status)
	}
}

func TestServe_terminate(t *testing.T) {
	t.Parallel()
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			p := startServer(t, "--data-dir", t.TempDir())
			var session api.Session
			call(t, http.MethodPost, p.url+"/v1/sessions", "", `{}`, &session)
			events := openEvents(t, p.url+"/v1/sessions/"+session.ID.String()+"/events")
			p.signal(s)
			text, err := io.ReadAll(events)
			if err != nil {
				t.Errorf("the stream broke off: %v", err)
			}
			if !strings.Contains(string(text), "event: stream_end") || !strings.Contains(string(text), `"shutdown"`) {
				t.Errorf("the stream ended without stream_end: %s", text)
			}
			if code := p.exitCode(); code != exitOK {
				t.Errorf("exit code %d, want 0", code)
			}
		})
	}
}

// TestServe_terminate_waiting: a turn that waits for its page is not lost with a gentle end, and holds it up for a while only.
func TestServe_terminate_waiting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startServer(t, "--data-dir", dir)
	session, before := startCall(t, p)
	p.signal(syscall.SIGTERM)
	if code := p.exitCode(); code != exitOK {
		t.Errorf("exit code %d, want 0", code)
	}
	p = startServer(t, "--data-dir", dir)
	var after api.ToolCallList
	eventually(t, "the call is offered again", func() bool {
		call(t, http.MethodGet, p.url+session+"/tool_calls?status=pending", "", "", &after)
		return len(after.ToolCalls) == 1 && after.ToolCalls[0].Attempt > before.Attempt
	})
	if after.ToolCalls[0].ID != before.ID {
		t.Errorf("call %v became %v", before.ID, after.ToolCalls[0].ID)
	}
}

func TestServe_terminate_twice(t *testing.T) {
	t.Parallel()
	p := startServer(t, "--data-dir", t.TempDir())
	startCall(t, p)
	p.signal(syscall.SIGTERM)
	eventually(t, "the first signal is seen", func() bool { return strings.Contains(p.stderr.String(), "Shutting down") })
	p.signal(syscall.SIGTERM)
	if code := p.exitCode(); code != exitFailure || !strings.Contains(p.stderr.String(), "ended by a second signal") {
		t.Errorf("exit code %d, want 1", code)
	}
}

// startCall brings a turn to the point where it waits for its page. It returns the session's path and the call.
func startCall(tb testing.TB, p *process) (path string, offered api.ToolCall) {
	tb.Helper()
	var session api.Session
	call(tb, http.MethodPost, p.url+"/v1/sessions", "", `{"skills":{"tools":[{"name":"ask","description":"Ask"}]}}`, &session)
	path = "/v1/sessions/" + session.ID.String()
	if status := call(tb, http.MethodPost, p.url+path+"/turns", "", `{"input":"call ask {}"}`, nil); status != http.StatusAccepted {
		tb.Fatalf("turn: %d, want 202", status)
	}
	var pending api.ToolCallList
	eventually(tb, "the call is offered", func() bool {
		call(tb, http.MethodGet, p.url+path+"/tool_calls?status=pending", "", "", &pending)
		return len(pending.ToolCalls) == 1
	})
	return path, pending.ToolCalls[0]
}

// TestServe_kill: what was acknowledged is there after kill -9, and the data directory is not locked for ever.
func TestServe_kill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startServer(t, "--data-dir", dir)
	var created, found api.Session
	if status := call(t, http.MethodPost, p.url+"/v1/sessions", "", `{"metadata":{"order":"42"}}`, &created); status != http.StatusCreated {
		t.Fatalf("create: %d, want 201", status)
	}
	p.signal(syscall.SIGKILL)
	p.exitCode()

	p = startServer(t, "--data-dir", dir)
	if status := call(t, http.MethodGet, p.url+"/v1/sessions/"+created.ID.String(), "", "", &found); status != http.StatusOK {
		t.Fatalf("session after the restart: %d, want 200", status)
	}
	if found.Metadata["order"] != "42" {
		t.Errorf("metadata %v, want order 42", found.Metadata)
	}
}

// TestServe_hugeHeader: a header beyond the limit is refused, and the server goes on.
func TestServe_hugeHeader(t *testing.T) {
	t.Parallel()
	p := startServer(t, "--data-dir", t.TempDir())
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Huge: "+strings.Repeat("x", 1<<20)+"\r\n\r\n")
	answer, _ := io.ReadAll(conn) // the server may reset the connection after its answer
	if !strings.HasPrefix(string(answer), "HTTP/1.1 431 ") {
		t.Errorf("answer %.80q, want 431", answer)
	}
	if status := call(t, http.MethodGet, p.url+"/healthz", "", "", nil); status != http.StatusOK {
		t.Errorf("healthz afterwards: %d", status)
	}
}

// openEvents opens an event stream and returns its body once the headers are there.
func openEvents(tb testing.TB, url string) io.Reader {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := new(http.Client).Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		tb.Fatalf("GET %s: %d", url, res.StatusCode)
	}
	return res.Body
}

// mustNewKey makes a key with treadle key new and returns it with the lines for the config file.
func mustNewKey(tb testing.TB, tenant string) (key, lines string) {
	tb.Helper()
	stdout, stderr, code := runBinary(tb, "key", "new", tenant)
	if code != exitOK {
		tb.Fatalf("key new: exit code %d: %s", code, stderr)
	}
	key = regexp.MustCompile(`tdl_` + tenant + `_[\w-]{43}`).FindString(stdout)
	start := strings.Index(stdout, "tenants:\n")
	if key == "" || start < 0 {
		tb.Fatalf("key new printed %q", stdout)
	}
	return key, stdout[start:]
}

func mustWrite(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}
