package telemetry

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"treadle/api"
)

func TestNew(t *testing.T) {
	registry := NewRegistry()
	metrics, err := New(registry)
	if err != nil {
		t.Fatal(err)
	}
	metrics.Sessions.TurnEnded(api.OutcomeFailed)
	metrics.Sessions.CallSettled(api.SettledByPage)
	metrics.Sessions.Appended("ok")
	metrics.Sessions.Appended("conflict")
	metrics.Sessions.Appended("conflict")
	metrics.Sessions.TakenOver()
	metrics.Sessions.TurnsRunning(2)
	metrics.Sessions.TurnsRunning(-1)
	metrics.Sessions.Streams(3)

	metrics.Request("/healthz", "GET", 200, time.Second, false)
	metrics.Request("/v1/sessions/{session_id}/events", "GET", 200, time.Hour, true)

	want := []string{
		`treadle_append_conflicts_total 2`,
		`treadle_appends_total{result="conflict"} 2`,
		`treadle_appends_total{result="ok"} 1`,
		`treadle_appends_total{result="too_large"} 0`,
		`treadle_appends_total{result="unavailable"} 0`,
		`treadle_http_request_duration_seconds_bucket{route="/healthz",le="0.001"} 0`,
		`treadle_http_request_duration_seconds_bucket{route="/healthz",le="0.005"} 0`,
		`treadle_http_request_duration_seconds_bucket{route="/healthz",le="0.025"} 0`,
		`treadle_http_request_duration_seconds_bucket{route="/healthz",le="0.1"} 0`,
		`treadle_http_request_duration_seconds_bucket{route="/healthz",le="0.5"} 0`,
		`treadle_http_request_duration_seconds_bucket{route="/healthz",le="2.5"} 1`,
		`treadle_http_request_duration_seconds_bucket{route="/healthz",le="30"} 1`,
		`treadle_http_request_duration_seconds_bucket{route="/healthz",le="+Inf"} 1`,
		`treadle_http_request_duration_seconds_sum{route="/healthz"} 1`,
		`treadle_http_request_duration_seconds_count{route="/healthz"} 1`,
		`treadle_http_requests_total{method="GET",route="/healthz",status="200"} 1`,
		`treadle_http_requests_total{method="GET",route="/v1/sessions/{session_id}/events",status="200"} 1`,
		`treadle_streams 3`,
		`treadle_takeovers_total 1`,
		`treadle_tool_calls_total{settled_by="page"} 1`,
		`treadle_turns_running 1`,
		`treadle_turns_total{outcome="canceled"} 0`,
		`treadle_turns_total{outcome="completed"} 0`,
		`treadle_turns_total{outcome="failed"} 1`,
	}
	if got := scrape(t, registry); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestNew_twice(t *testing.T) {
	registry := NewRegistry()
	if _, err := New(registry); err != nil {
		t.Fatal(err)
	}
	if _, err := New(registry); err == nil {
		t.Error("a registry took the same metrics twice")
	}
}

// scrape returns the lines of the server's own metrics.
func scrape(tb testing.TB, registry *prometheus.Registry) []string {
	tb.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "treadle_") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
