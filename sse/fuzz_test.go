package sse_test

import (
	"bytes"
	"errors"
	"io"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"treadle/sse"
)

// FuzzReader checks that no stream makes a Reader panic or hang, and that it makes the same of a stream however it is cut.
func FuzzReader(f *testing.F) {
	for _, tt := range readerTests {
		f.Add([]byte(tt.stream), tt.opts.DispatchIncomplete, uint16(tt.opts.MaxEventSize))
		f.Add([]byte(strings.ReplaceAll(tt.stream, "\n", "\r\n")), true, uint16(0))
	}
	f.Add([]byte("data: a\r\n\rdata: b\n\rdata: c\r\r"), true, uint16(9))
	f.Fuzz(func(t *testing.T, stream []byte, dispatchIncomplete bool, limit uint16) {
		opts := sse.ReaderOptions{DispatchIncomplete: dispatchIncomplete, MaxEventSize: int(limit)}
		whole := parse(bytes.NewReader(stream), opts)
		if whole.Err != io.EOF && whole.Err != sse.ErrEventTooLarge {
			t.Fatalf("unexpected error %v", whole.Err)
		}
		if got := parse(iotest.OneByteReader(bytes.NewReader(stream)), opts); !reflect.DeepEqual(got, whole) {
			t.Errorf("byte at a time\n got %+v\nwant %+v", got, whole)
		}
		if got := parse(iotest.DataErrReader(iotest.HalfReader(bytes.NewReader(stream))), opts); !reflect.DeepEqual(got, whole) {
			t.Errorf("in halves\n got %+v\nwant %+v", got, whole)
		}
		for _, ev := range whole.Events {
			if limit > 0 && len(ev.Data) > int(limit) {
				t.Errorf("data of %d bytes passed the limit %d", len(ev.Data), limit)
			}
		}
	})
}

// FuzzRoundTrip checks that a Reader gets back what a Writer was given, between neighbours that it cannot disturb, or
// that the Writer refused it.
func FuzzRoundTrip(f *testing.F) {
	for _, s := range hostile {
		f.Add("7", "text_delta", []byte(s), "")
		f.Add(s, s, []byte("x"), s)
	}
	f.Fuzz(func(t *testing.T, id, typ string, data []byte, comment string) {
		rec := httptest.NewRecorder()
		w, err := sse.NewWriter(rec, sse.Options{WriteTimeout: -1})
		if err != nil {
			t.Fatal(err)
		}
		w.Event("before", "ready", []byte("{}"))
		w.Comment(comment)
		w.Event(id, typ, data)
		w.Comment("")
		w.Event("after", "", nil)
		refused := strings.ContainsAny(id, "\r\n\x00") || strings.ContainsAny(typ+comment, "\r\n")
		if err := w.Flush(); refused {
			if !errors.Is(err, sse.ErrInvalidField) || rec.Body.Len() > 0 {
				t.Fatalf("got %v, sent %q", err, rec.Body)
			}
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if frame := sse.AppendEvent(nil, id, typ, data); !bytes.Contains(rec.Body.Bytes(), frame) {
			t.Fatalf("AppendEvent made %q, Writer %q", frame, rec.Body)
		}

		got := parse(bytes.NewReader(rec.Body.Bytes()), sse.ReaderOptions{})
		want := parsed{
			Events:   []sse.Event{event("before", "ready", "{}"), event(id, typ, normalized(string(data))), event("after", "", "")},
			Comments: []string{comment, ""},
			LastID:   "after",
			Err:      io.EOF,
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("stream %q\n got %+v\nwant %+v", rec.Body, got, want)
		}
	})
}
