package handlers_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"treadle/api"
)

func quiet(s *setup) { s.Logger, s.service.Logger = slog.New(slog.DiscardHandler), nil }

// BenchmarkRoundTrip is a turn with one tool call as a script makes it: POST the turn, read its stream, POST the result.
func BenchmarkRoundTrip(b *testing.B) {
	f := newFixture(b, quiet)
	f.client = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	defer f.client.CloseIdleConnections()
	for b.Loop() {
		b.StopTimer()
		session := f.session()
		b.StartTimer()
		events := f.stream("POST", session+"/turns", `{"input":"one call"}`)
		_, after, _ := strings.Cut(string(events.until(api.TypeToolCall).Data), `"tool_call_id":"`)
		f.want(f.do("POST", fmt.Sprintf("%s/tool_calls/%.36s/result", session, after), `{"output":1}`), http.StatusOK)
		events.rest()
	}
}

// BenchmarkIdleStream reports what one idle stream holds, this client's side of the connection included.
func BenchmarkIdleStream(b *testing.B) {
	f := newFixture(b, quiet)
	session := f.session()
	memory := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	const streams = 1000
	buf := make([]byte, 4<<10)
	for b.Loop() {
		before := memory()
		for range streams {
			conn := f.dial(session + "/events?after=latest")
			for read := ""; !strings.Contains(read, "ready"); {
				n, err := conn.Read(buf)
				if err != nil {
					b.Fatal(err)
				}
				read += string(buf[:n])
			}
		}
		b.ReportMetric(float64(memory()-before)/streams, "B/stream")
	}
}
