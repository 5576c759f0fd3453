package sse_test

import (
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"treadle/sse"
)

// parsed is all that a Reader makes of a stream.
type parsed struct {
	Events   []sse.Event
	Comments []string
	LastID   string
	Retry    time.Duration
	HasRetry bool
	Err      error
}

func parse(src io.Reader, opts sse.ReaderOptions) parsed {
	var p parsed
	opts.OnComment = func(text []byte) { p.Comments = append(p.Comments, string(text)) }
	r := sse.NewReader(src, opts)
	for {
		ev, err := r.Next()
		if err != nil {
			p.Err = err
			break
		}
		p.Events = append(p.Events, ev)
	}
	p.LastID = r.LastEventID()
	p.Retry, p.HasRetry = r.Retry()
	return p
}

func event(id, typ, data string) sse.Event { return sse.Event{ID: id, Type: typ, Data: []byte(data)} }

func incomplete(id, typ, data string) sse.Event {
	return sse.Event{ID: id, Type: typ, Data: []byte(data), Incomplete: true}
}

// readerTests are written with LF; TestReader also runs them with CR and CRLF.
var readerTests = []struct {
	name   string
	stream string
	opts   sse.ReaderOptions
	want   parsed
}{
	{name: "empty stream"},
	{name: "blank lines only", stream: "\n\n\n"},
	{name: "all fields", stream: "id: 7\nevent: text_delta\ndata: x\n\n",
		want: parsed{Events: []sse.Event{event("7", "text_delta", "x")}, LastID: "7"}},
	{name: "data without a space", stream: "data:x\n\ndata:  x\n\n",
		want: parsed{Events: []sse.Event{event("", "", "x"), event("", "", " x")}}},
	{name: "multi-line data", stream: "data: YHOO\ndata: +2\ndata\ndata:\ndata: 10\n\n",
		want: parsed{Events: []sse.Event{event("", "", "YHOO\n+2\n\n\n10")}}},
	{name: "empty data is dispatched", stream: "data\n\ndata:\n\ndata\ndata\n\n",
		want: parsed{Events: []sse.Event{event("", "", ""), event("", "", ""), event("", "", "\n")}}},
	{name: "no data is not dispatched but moves the id", stream: "event: x\nid: 3\n\ndata: y\n\n",
		want: parsed{Events: []sse.Event{event("", "", "y")}, LastID: "3"}},
	{name: "comments", stream: ": hi\n:\n\n:no space\ndata: x\n: between\ndata: y\n\n",
		want: parsed{Events: []sse.Event{event("", "", "x\ny")}, Comments: []string{"hi", "", "no space", "between"}}},
	{name: "colon in value", stream: "data: a: b\n\n", want: parsed{Events: []sse.Event{event("", "", "a: b")}}},
	{name: "unknown fields and case", stream: "Data: x\nfoo: y\n data: z\n\n"},
	{name: "id persists, and is reset by an empty one", stream: "id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n",
		want: parsed{Events: []sse.Event{event("1", "", "a"), event("", "", "b"), event("", "", "c")}}},
	{name: "id with NUL is ignored", stream: "id: 1\ndata: a\n\nid: 2\x00\ndata: b\n\n",
		want: parsed{Events: []sse.Event{event("1", "", "a"), event("", "", "b")}, LastID: "1"}},
	{name: "last of several ids and types wins", stream: "id: 1\nid: 2\nevent: a\nevent: b\ndata: x\n\n",
		want: parsed{Events: []sse.Event{event("2", "b", "x")}, LastID: "2"}},
	{name: "type does not persist", stream: "event: a\n\ndata: x\n\n", want: parsed{Events: []sse.Event{event("", "", "x")}}},
	{name: "retry", stream: "retry: 1500\n\n", want: parsed{Retry: 1500 * time.Millisecond, HasRetry: true}},
	{name: "retry of zero", stream: "retry:0\n", want: parsed{HasRetry: true}},
	{name: "retry of other than digits", stream: "retry: 1\nretry: +2\nretry: -3\nretry: 4s\nretry: 5.0\nretry: 0x6\nretry:  7\nretry\nretry: 99999999999999\n",
		want: parsed{Retry: time.Millisecond, HasRetry: true}},
	{name: "BOM at the start", stream: "\uFEFFdata: x\n\n", want: parsed{Events: []sse.Event{event("", "", "x")}}},
	{name: "BOM alone on the first line", stream: "\uFEFF\ndata: x\n\n", want: parsed{Events: []sse.Event{event("", "", "x")}}},
	{name: "BOM elsewhere is data", stream: "\uFEFF\uFEFFdata: x\n\ndata: \uFEFFy\n\n\uFEFFdata: z\n\n",
		want: parsed{Events: []sse.Event{event("", "", "\uFEFFy")}}},
	{name: "characters of several bytes", stream: "data: 北京👍🏽\u2028\u0085é\n\n",
		want: parsed{Events: []sse.Event{event("", "", "北京👍🏽\u2028\u0085é")}}},
	{name: "no final blank line", stream: "id: 1\ndata: a\n\nid: 2\nevent: e\ndata: b\n",
		want: parsed{Events: []sse.Event{event("1", "", "a")}, LastID: "1"}},
	{name: "no final line break", stream: "data: a\n\nid: 2\ndata: b",
		want: parsed{Events: []sse.Event{event("", "", "a")}}},
	{name: "incomplete: no final blank line", stream: "id: 1\ndata: a\n\nid: 2\nevent: e\ndata: b\n",
		opts: sse.ReaderOptions{DispatchIncomplete: true},
		want: parsed{Events: []sse.Event{event("1", "", "a"), incomplete("2", "e", "b")}, LastID: "2"}},
	{name: "incomplete: no final line break", stream: "data: a\n\ndata: b\ndata: c",
		opts: sse.ReaderOptions{DispatchIncomplete: true},
		want: parsed{Events: []sse.Event{event("", "", "a"), incomplete("", "", "b\nc")}}},
	{name: "incomplete: nothing is missing", stream: "data: a\n\n",
		opts: sse.ReaderOptions{DispatchIncomplete: true}, want: parsed{Events: []sse.Event{event("", "", "a")}}},
	{name: "incomplete: one line with BOM", stream: "\uFEFFdata: a",
		opts: sse.ReaderOptions{DispatchIncomplete: true}, want: parsed{Events: []sse.Event{incomplete("", "", "a")}}},
	{name: "largest line", stream: "data: 4567890\n\ndata: 45678901\n\n", opts: sse.ReaderOptions{MaxEventSize: 13},
		want: parsed{Events: []sse.Event{event("", "", "4567890")}, Err: sse.ErrEventTooLarge}},
	{name: "endless line", stream: "data: a\n\n:" + strings.Repeat("x", 200), opts: sse.ReaderOptions{MaxEventSize: 100},
		want: parsed{Events: []sse.Event{event("", "", "a")}, Err: sse.ErrEventTooLarge}},
	{name: "endless event", stream: "data: a\n\n" + strings.Repeat("data\n", 200), opts: sse.ReaderOptions{MaxEventSize: 100},
		want: parsed{Events: []sse.Event{event("", "", "a")}, Err: sse.ErrEventTooLarge}},
	{name: "many small blocks are no large event", stream: strings.Repeat(":ping\n", 50) + strings.Repeat("data: x\n\n", 3),
		opts: sse.ReaderOptions{MaxEventSize: 20}, want: parsed{
			Events:   slices.Repeat([]sse.Event{event("", "", "x")}, 3),
			Comments: slices.Repeat([]string{"ping"}, 50),
		}},
	{name: "line longer than the first buffer", stream: "data: x\n\ndata: " + strings.Repeat("é", 9000) + "\ndata: y\n\ndata: z\n\n",
		want: parsed{Events: []sse.Event{event("", "", "x"), event("", "", strings.Repeat("é", 9000)+"\ny"), event("", "", "z")}}},
}

func TestReader(t *testing.T) {
	breaks := map[string]string{"LF": "\n", "CR": "\r", "CRLF": "\r\n"}
	for _, tt := range readerTests {
		if tt.want.Err == nil {
			tt.want.Err = io.EOF
		}
		for name, lineBreak := range breaks {
			stream := strings.ReplaceAll(tt.stream, "\n", lineBreak)
			sources := map[string]io.Reader{
				"whole":            strings.NewReader(stream),
				"byte at a time":   iotest.OneByteReader(strings.NewReader(stream)),
				"half":             iotest.HalfReader(strings.NewReader(stream)),
				"EOF with data":    iotest.DataErrReader(strings.NewReader(stream)),
				"byte and nothing": &hesitant{r: iotest.OneByteReader(strings.NewReader(stream))},
			}
			for how, src := range sources {
				t.Run(tt.name+"/"+name+"/"+how, func(t *testing.T) {
					if got := parse(src, tt.opts); !reflect.DeepEqual(got, tt.want) {
						t.Errorf("stream %.200q\n got %+v\nwant %+v", stream, got, tt.want)
					}
				})
			}
		}
	}
}

// hesitant returns nothing, without an error, from every other Read.
type hesitant struct {
	r    io.Reader
	idle bool
}

func (h *hesitant) Read(p []byte) (int, error) {
	if h.idle = !h.idle; h.idle {
		return 0, nil
	}
	return h.r.Read(p)
}

func TestReader_MixedBreaks(t *testing.T) {
	// CR LF CR is two breaks, LF CR as well.
	stream := "data: a\r\n\rdata: b\n\rdata: c\r\rdata: d\n\r\ndata: e\r\n\n"
	var want []sse.Event
	for _, s := range []string{"a", "b", "c", "d", "e"} {
		want = append(want, event("", "", s))
	}
	for cut := range len(stream) {
		src := io.MultiReader(strings.NewReader(stream[:cut]), strings.NewReader(stream[cut:]))
		if got := parse(src, sse.ReaderOptions{}); !reflect.DeepEqual(got.Events, want) {
			t.Errorf("cut at %d: got %+v", cut, got.Events)
		}
	}
}

func TestReader_DispatchesAtFirstByteOfFinalBreak(t *testing.T) {
	src, dst := io.Pipe()
	r := sse.NewReader(src, sse.ReaderOptions{})
	written := make(chan error, 1)
	go func() {
		_, err := dst.Write([]byte("data: x\r\n\r"))
		written <- err
	}()
	ev, err := r.Next() // would block for ever if it waited for the LF
	if err != nil || string(ev.Data) != "x" {
		t.Fatalf("got %+v, %v", ev, err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := dst.Write([]byte("\ndata: y\r\n\r\n"))
		dst.Close()
		written <- err
	}()
	ev, err = r.Next()
	if err != nil || string(ev.Data) != "y" {
		t.Fatalf("got %+v, %v", ev, err)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Fatalf("got %v, want EOF", err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

func TestReader_SourceError(t *testing.T) {
	broken := errors.New("connection reset")
	src := io.MultiReader(strings.NewReader("data: a\n\ndata: b\n"), iotest.ErrReader(broken))
	// A broken stream never yields an incomplete event: only an orderly end does.
	r := sse.NewReader(src, sse.ReaderOptions{DispatchIncomplete: true})
	if ev, err := r.Next(); err != nil || string(ev.Data) != "a" {
		t.Fatalf("got %+v, %v", ev, err)
	}
	for range 3 {
		if ev, err := r.Next(); err != broken {
			t.Fatalf("got %+v, %v", ev, err)
		}
	}
}

func TestReader_NoProgress(t *testing.T) {
	if got := parse(iotest.ErrReader(nil), sse.ReaderOptions{}); got.Err != io.ErrNoProgress {
		t.Fatalf("got %v", got.Err)
	}
}

func TestReader_DataBelongsToCaller(t *testing.T) {
	got := parse(strings.NewReader("data: first\n\ndata: other\n\n"), sse.ReaderOptions{})
	if string(got.Events[0].Data) != "first" {
		t.Fatalf("the second event overwrote the first: %q", got.Events[0].Data)
	}
	_ = append(got.Events[0].Data, "!!!!!!!!"...)
	if string(got.Events[1].Data) != "other" {
		t.Fatalf("appending to the first event changed the second: %q", got.Events[1].Data)
	}
}
