package treadle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"treadle"
)

const hash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func TestNew_refused(t *testing.T) {
	for _, c := range []struct {
		name   string
		config treadle.Config
		want   string
	}{
		{"open listening", treadle.Config{Listen: ":0"}, "without keys is refused"},
		{"malformed tenant", treadle.Config{Tenants: []treadle.Tenant{{ID: "Acme"}}}, `tenant id "Acme"`},
		{"malformed key", treadle.Config{Tenants: []treadle.Tenant{{ID: "acme", Keys: []string{"x"}}}}, `tenant "acme": a key is kept as`},
		{"unknown provider", treadle.Config{Models: []treadle.Model{{Name: "a", Provider: "b"}}}, `model "a": provider "b" is unknown`},
		{"no script", treadle.Config{Models: []treadle.Model{{Name: "a", Provider: "scripted"}}}, "needs a file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.config.DataDir = t.TempDir()
			server, err := treadle.New(t.Context(), c.config)
			if err == nil {
				server.Close()
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("err = %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestNew_undone: what a failed New had opened is free again.
func TestNew_undone(t *testing.T) {
	dir, registry := t.TempDir(), prometheus.NewRegistry()
	first := mustNew(t, treadle.Config{DataDir: dir, Registry: registry})
	if second, err := treadle.New(t.Context(), treadle.Config{DataDir: t.TempDir(), Registry: registry}); err == nil {
		second.Close()
		t.Error("two servers share the names of one registry")
	}
	if second, err := treadle.New(t.Context(), treadle.Config{DataDir: dir}); err == nil {
		second.Close()
		t.Error("two servers share a data directory")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	mustNew(t, treadle.Config{DataDir: dir})
}

func TestServer_ends(t *testing.T) {
	server := mustNew(t, treadle.Config{Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", DataDir: t.TempDir()})
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	for _, url := range []string{server.URL() + "/healthz", server.URL() + "/readyz", server.AdminURL() + "/readyz"} {
		if status, body := get(t, url); status != http.StatusOK {
			t.Errorf("GET %s: %d %s", url, status, body)
		}
	}
	for range 2 {
		if err := server.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := server.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if err := server.Listen(); !errors.Is(err, treadle.ErrClosed) {
		t.Errorf("Listen after Close: %v, want ErrClosed", err)
	}
}

func TestServer_Serve_withoutListen(t *testing.T) {
	server := mustNew(t, treadle.Config{DataDir: t.TempDir()})
	if err := server.Serve(); err == nil {
		t.Error("nothing was served without an error")
	}
	if server.URL() != "" || server.AdminURL() != "" {
		t.Errorf("URLs %q and %q before Listen", server.URL(), server.AdminURL())
	}
}

// TestServer_Shutdown_drains: while a turn is waited for, the server is not ready and takes nothing new, but still answers.
func TestServer_Shutdown_drains(t *testing.T) {
	server := mustNew(t, treadle.Config{DataDir: t.TempDir()})
	web := httptest.NewServer(server.Handler())
	defer web.Close()
	session := create(t, web.URL, `{"skills":{"tools":[{"name":"ask","description":"Ask","args_schema":{}}]}}`)
	if status, body := send(t, session+"/turns", `{"input":"call ask {}"}`); status != http.StatusAccepted {
		t.Fatalf("turn: %d %s", status, body)
	}
	pending := func() string {
		_, body := get(t, session+"/tool_calls?status=pending")
		_, after, _ := strings.Cut(body, `{"id":"`)
		id, _, _ := strings.Cut(after, `"`)
		return id
	}
	eventually(t, "the call is offered", func() bool { return pending() != "" })
	call := pending()

	ended := make(chan error, 1)
	go func() { ended <- server.Shutdown(context.Background()) }()
	eventually(t, "the server is not ready", func() bool {
		status, _ := get(t, web.URL+"/readyz")
		return status == http.StatusServiceUnavailable
	})
	if status, body := send(t, web.URL+"/v1/sessions", `{}`); status != http.StatusServiceUnavailable || !strings.Contains(body, "SHUTTING_DOWN") {
		t.Errorf("new session: %d %s, want 503 SHUTTING_DOWN", status, body)
	}
	if status, body := send(t, session+"/tool_calls/"+call+"/result", `{"output":1}`); status != http.StatusOK {
		t.Errorf("result: %d %s, want 200", status, body)
	}
	// The turn ends with the result, and nothing is left to wait for.
	if err := <-ended; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestServer_ReplaceTenants(t *testing.T) {
	server := mustNew(t, treadle.Config{DataDir: t.TempDir()})
	if err := server.ReplaceTenants([]treadle.Tenant{{ID: "acme", Keys: []string{hash}}}); err == nil {
		t.Error("a development server took tenants")
	}
	server = mustNew(t, treadle.Config{DataDir: t.TempDir(), Tenants: []treadle.Tenant{{ID: "acme"}}})
	if err := server.ReplaceTenants(nil); err == nil {
		t.Error("the last tenant went")
	}
	if err := server.ReplaceTenants([]treadle.Tenant{{ID: "acme"}, {ID: "acme"}}); err == nil {
		t.Error("a repeated tenant was taken")
	}
	if err := server.ReplaceTenants([]treadle.Tenant{{ID: "globex", Keys: []string{hash}}}); err != nil {
		t.Error(err)
	}
}

// TestMetrics_cardinality: the number of series does not follow what clients do.
func TestMetrics_cardinality(t *testing.T) {
	server := mustNew(t, treadle.Config{DataDir: t.TempDir()})
	web := httptest.NewServer(server.Handler())
	defer web.Close()
	busy := func(n int) {
		for i := range n {
			session := create(t, web.URL, fmt.Sprintf(`{"skills":{"tools":[{"name":"tool_%d","description":"A tool"}]}}`, i))
			send(t, session+"/turns", `{"input":"hello","model":"none-`+fmt.Sprint(i)+`"}`)
			get(t, fmt.Sprintf("%s/wp-admin/%d.php", web.URL, i))
			do(t, fmt.Sprintf("ODD%d", i), session, "")
		}
	}
	series := func() (n int, text string) {
		_, text = get(t, web.URL+"/metrics")
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "treadle_") {
				n++
			}
		}
		return n, text
	}
	series() // the scrape itself is a request, too
	busy(1)
	before, _ := series()
	busy(50)
	after, text := series()
	if after != before {
		t.Errorf("%d series became %d", before, after)
	}
	for _, word := range []string{"tool_4", "none-4", "wp-admin", "ODD4"} {
		if strings.Contains(text, word) {
			t.Errorf("the metrics hold %s, a caller's word", word)
		}
	}
}

func mustNew(tb testing.TB, config treadle.Config) *treadle.Server {
	tb.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	server, err := treadle.New(tb.Context(), config)
	if err != nil {
		tb.Fatalf("New in %s: %v", filepath.Base(config.DataDir), err)
	}
	tb.Cleanup(func() { server.Close() })
	return server
}

// create makes a session and returns its URL.
func create(tb testing.TB, url, body string) string {
	tb.Helper()
	status, answer := send(tb, url+"/v1/sessions", body)
	_, after, found := strings.Cut(answer, `{"id":"`)
	id, _, _ := strings.Cut(after, `"`)
	if status != http.StatusCreated || !found {
		tb.Fatalf("create: %d %s", status, answer)
	}
	return url + "/v1/sessions/" + id
}

func get(tb testing.TB, url string) (status int, body string) {
	tb.Helper()
	return do(tb, http.MethodGet, url, "")
}

func send(tb testing.TB, url, body string) (status int, answer string) {
	tb.Helper()
	return do(tb, http.MethodPost, url, body)
}

func do(tb testing.TB, method, url, body string) (status int, answer string) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, url, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := new(http.Client).Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// eventually polls until ok returns true.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline, tick := time.After(30*time.Second), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			tb.Fatalf("never happened: %s", what)
		}
	}
}
