package sse

import (
	"net/http/httptest"
	"testing"
)

func TestWriter_IdleBuffer(t *testing.T) {
	w, err := NewWriter(httptest.NewRecorder(), Options{WriteTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		size     int
		min, max int // of what is kept
	}{
		{"nothing yet", 0, 0, 0},
		{"delta", 200, 200, minBuffer},
		{"burst", 30_000, 30_000, maxBuffer},
		{"heartbeat after the burst", 0, 0, minBuffer},
		{"message", 1 << 20, 0, 0},
	}
	for _, tt := range tests {
		if tt.size > 0 {
			w.Event("1", "", make([]byte, tt.size))
		} else if tt.name != "nothing yet" {
			w.Comment("")
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if kept := cap(w.batch); kept < tt.min || kept > tt.max {
			t.Errorf("%s: kept %d bytes, want %d to %d", tt.name, kept, tt.min, tt.max)
		}
	}
}
