package handlers_test

import (
	"bufio"
	"net/http"
	"runtime"
	"testing"
)

// BenchmarkRoundTrip is a turn with one tool call: two requests and the wait for two events.
func BenchmarkRoundTrip(b *testing.B) {
	f := newFixture(b)
	f.client = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	defer f.client.CloseIdleConnections()
	session := f.session()
	events := f.stream("GET", session+"/events", "")
	events.until("ready")
	for b.Loop() {
		turn := f.start(session, "one call")
		events.until("tool_call")
		f.want(f.do("POST", f.pending(session, 1)+"/result", `{"output":1}`), http.StatusOK)
		events.until("turn_completed")
		_ = turn
	}
}

// BenchmarkIdleStream reports what one idle stream holds, this client's side of the connection included.
func BenchmarkIdleStream(b *testing.B) {
	f := newFixture(b)
	session := f.session()
	memory := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	const streams = 1000
	for b.Loop() {
		before := memory()
		for range streams {
			conn := f.dial(session + "/events?after=latest")
			line, err := bufio.NewReaderSize(conn, 16).ReadSlice('\n')
			if err != nil {
				b.Fatalf("%q %v", line, err)
			}
		}
		b.ReportMetric(float64(memory()-before)/streams, "B/stream")
	}
}
