package sse_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"treadle/sse"
)

// delta is an event of the usual size.
var delta = []byte(`{"type":"text_delta","session_id":"0197c7a2-7d5c-7000-8000-1a2b3c4d5e6f","turn_id":"0197c7a2-7d5c-7000-8000-1a2b3c4d5e70",` +
	`"time":"2026-01-02T03:04:05.678Z","step":1,"attempt":1,"text":"some words of an answer"}`)

// sink is a ResponseWriter at the end of which there is nothing.
type sink struct{ header http.Header }

func (s sink) Header() http.Header            { return s.header }
func (sink) Write(p []byte) (int, error)      { return len(p), nil }
func (sink) WriteHeader(int)                  {}
func (sink) FlushError() error                { return nil }
func (sink) SetReadDeadline(time.Time) error  { return nil }
func (sink) SetWriteDeadline(time.Time) error { return nil }

func BenchmarkAppendEvent(b *testing.B) {
	b.ReportAllocs()
	b.SetBytes(int64(len(delta)))
	var buf []byte
	for b.Loop() {
		buf = sse.AppendEvent(buf[:0], "abcdef-123000", "text_delta", delta)
	}
}

func BenchmarkWriter(b *testing.B) {
	for name, events := range map[string]int{"1 event": 1, "100 events": 100} {
		b.Run(name, func(b *testing.B) {
			w := mustWriter(b, sink{http.Header{}}, sse.Options{})
			b.ReportAllocs()
			b.SetBytes(int64(events * len(delta)))
			for b.Loop() {
				for range events {
					w.Event("abcdef-123000", "text_delta", delta)
				}
				if err := w.Flush(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkReader(b *testing.B) {
	stream := bytes.Repeat(sse.AppendEvent(nil, "abcdef-123000", "text_delta", delta), 1000)
	b.ReportAllocs()
	b.SetBytes(int64(len(stream)))
	for b.Loop() {
		r := sse.NewReader(bytes.NewReader(stream), sse.ReaderOptions{})
		n := 0
		for {
			if _, err := r.Next(); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != 1000 {
			b.Fatalf("%d events", n)
		}
	}
}
