package sse_test

import (
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"treadle/sse"
)

func TestAppendEvent(t *testing.T) {
	tests := []struct {
		name, id, event, data string
		want                  string
	}{
		{"all", "tag-1000", "text_delta", `{"text":"x"}`, "id: tag-1000\nevent: text_delta\ndata: {\"text\":\"x\"}\n\n"},
		{"data only", "", "", "x", "data: x\n\n"},
		{"empty data", "", "", "", "data: \n\n"},
		{"leading space", " 1", " e", " x", "id:  1\nevent:  e\ndata:  x\n\n"},
		{"LF", "", "", "a\nb\n", "data: a\ndata: b\ndata: \n\n"},
		{"CR", "", "", "a\rb\r", "data: a\ndata: b\ndata: \n\n"},
		{"CRLF", "", "", "a\r\nb", "data: a\ndata: b\n\n"},
		{"mixed breaks", "", "", "\n\r\r\n\n", "data: \ndata: \ndata: \ndata: \ndata: \n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := sse.AppendEvent([]byte("before "), tt.id, tt.event, []byte(tt.data))
			if string(got) != "before "+tt.want {
				t.Errorf("got %q\nwant %q", got, tt.want)
			}
		})
	}
}

// hostile are texts that must never be taken for fields or line breaks of the stream.
var hostile = []string{
	"a\rb", "a\r\nb", "a\n\nb", "a\n\rb", "\r", "\n", "\r\n", "x\r", "x\n",
	"\rid: 999\rdata: x", "\nid: 999\ndata: x\n\n", "\r\nevent: evil\r\n\r\n", "\nretry: 1\n", "\n: comment\n",
	"a\u2028b", "a\u2029b", "a\u0085b", "a\vb\fb", "\uFEFFx", "\uFEFF", " leading", "  ", "", ":", "data: x", "a\x00b",
	"北京👍🏽", "\xff\xfe",
}

func TestAppendEvent_Injection(t *testing.T) {
	for _, data := range hostile {
		stream := sse.AppendEvent(nil, "5", "text_delta", []byte(data))
		got := parse(strings.NewReader(string(stream)), sse.ReaderOptions{})
		want := parsed{
			Events: []sse.Event{event("5", "text_delta", normalized(data))},
			LastID: "5",
			Err:    io.EOF,
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("data %q\n got %+v\nwant %+v", data, got, want)
		}
	}
}

// normalized is what readers see of a text: its line breaks as LF.
func normalized(data string) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(data)
}

func TestAppendEvent_PanicsOnInvalidField(t *testing.T) {
	for _, bad := range [][2]string{{"1\n", ""}, {"1\r2", ""}, {"\x00", ""}, {"", "a\nb"}, {"", "a\rb"}} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !errors.Is(err, sse.ErrInvalidField) {
					t.Errorf("id %q, event %q: panicked with %v", bad[0], bad[1], err)
				}
			}()
			sse.AppendEvent(nil, bad[0], bad[1], nil)
		}()
	}
}
