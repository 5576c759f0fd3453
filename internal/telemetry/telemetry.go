// Package telemetry counts what the server does, for Prometheus.
//
// Each replica counts what it did itself. Labels are fixed enumerations: no id, no tenant, no path, and no name that a
// caller chose, so the number of series does not depend on what clients do.
package telemetry

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"treadle/api"
	"treadle/sessions"
)

// NewRegistry returns a registry with the metrics of the process, the Go runtime and the build.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return registry
}

// Metrics are what feeds the registry.
type Metrics struct {
	// Sessions is for the domain.
	Sessions sessions.Metrics
	// Request is told of each HTTP request when it is over: the pattern of its route, its method and status out of fixed sets,
	// and whether it was a stream. How long a stream was open says nothing about the server and is left out.
	Request func(route, method string, status int, duration time.Duration, stream bool)
}

// New registers the metrics. It fails if the registry has metrics of these names already.
func New(registry prometheus.Registerer) (*Metrics, error) {
	r := &registration{registry: registry}
	m := &Metrics{Sessions: newSessionMetrics(r), Request: newRequestMetrics(r)}
	if r.err != nil {
		return nil, fmt.Errorf("registering metrics: %w", r.err)
	}
	return m, nil
}

func newSessionMetrics(r *registration) sessions.Metrics {
	turns := r.counters("treadle_turns_total", "Turns that ended, by outcome.", "outcome")
	calls := r.counters("treadle_tool_calls_total", "Tool calls that were settled, by who settled them.", "settled_by")
	appends := r.counters("treadle_appends_total", "Appends of facts to the log, by result.", "result")
	conflicts := r.counter("treadle_append_conflicts_total", "Appends that lost against another fact and were decided again.")
	takeovers := r.counter("treadle_takeovers_total", "Turns that this process took over from another owner.")
	running := r.gauge("treadle_turns_running", "Turns that this process runs now.")
	streams := r.gauge("treadle_streams", "Event streams that are open now.")

	// Series that exist from the start show their first increment as a rate.
	for _, outcome := range []api.Outcome{api.OutcomeCompleted, api.OutcomeFailed, api.OutcomeCanceled} {
		turns.WithLabelValues(string(outcome))
	}
	for _, result := range []string{"ok", "conflict", "unavailable", "too_large"} {
		appends.WithLabelValues(result)
	}
	return sessions.Metrics{
		TurnEnded:   func(outcome api.Outcome) { turns.WithLabelValues(string(outcome)).Inc() },
		CallSettled: func(by api.SettledBy) { calls.WithLabelValues(string(by)).Inc() },
		Appended: func(result string) {
			appends.WithLabelValues(result).Inc()
			if result == "conflict" {
				conflicts.Inc()
			}
		},
		TakenOver:    takeovers.Inc,
		TurnsRunning: func(delta int) { running.Add(float64(delta)) },
		Streams:      func(delta int) { streams.Add(float64(delta)) },
	}
}

func newRequestMetrics(r *registration) func(string, string, int, time.Duration, bool) {
	requests := r.counters("treadle_http_requests_total", "HTTP requests, by route pattern, method and status.", "route", "method", "status")
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "treadle_http_request_duration_seconds",
		Help:    "Time to the end of an answer, streams left out; a request that asked to wait counts with its wait.",
		Buckets: []float64{.001, .005, .025, .1, .5, 2.5, 30},
	}, []string{"route"})
	r.add(seconds)
	return func(route, method string, status int, duration time.Duration, stream bool) {
		requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
		if !stream {
			seconds.WithLabelValues(route).Observe(duration.Seconds())
		}
	}
}

// registration makes and registers collectors, and keeps the first error.
type registration struct {
	registry prometheus.Registerer
	err      error
}

func (r *registration) add(c prometheus.Collector) {
	if err := r.registry.Register(c); err != nil && r.err == nil {
		r.err = err
	}
}

func (r *registration) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.add(c)
	return c
}

func (r *registration) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	r.add(c)
	return c
}

func (r *registration) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	r.add(g)
	return g
}
