package sse_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"treadle/sse"
)

// A stream with a heartbeat: one goroutine waits for both.
func ExampleWriter() {
	events := make(chan string, 2)
	events <- `{"text":"hello"}`
	events <- `{"text":"world"}`
	close(events)

	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w, err := sse.NewWriter(rw, sse.Options{})
		if err != nil {
			http.Error(rw, "Streaming is not possible.", http.StatusInternalServerError)
			return
		}
		defer w.Close()
		heartbeat := time.NewTicker(15 * time.Second)
		defer heartbeat.Stop()
		for n := 1; ; {
			select {
			case <-r.Context().Done():
				return
			case data, ok := <-events:
				if !ok {
					return
				}
				w.Event(fmt.Sprint(n), "text_delta", []byte(data))
				n++
			case <-heartbeat.C:
				w.Comment("")
			}
			if w.Flush() != nil {
				return
			}
		}
	}))
	defer srv.Close()

	res, err := http.Get(srv.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer res.Body.Close()
	r := sse.NewReader(res.Body, sse.ReaderOptions{})
	for {
		ev, err := r.Next()
		if err != nil {
			fmt.Println(err)
			break
		}
		fmt.Printf("%s %s %s\n", ev.ID, ev.Type, ev.Data)
	}
	fmt.Println("resume after", r.LastEventID())
	// Output:
	// 1 text_delta {"text":"hello"}
	// 2 text_delta {"text":"world"}
	// EOF
	// resume after 2
}

// A frame is encoded once and sent on many streams.
func ExampleAppendEvent() {
	fmt.Printf("%q\n", sse.AppendEvent(nil, "tag-1000", "text_delta", []byte("two\nlines")))
	// Output:
	// "id: tag-1000\nevent: text_delta\ndata: two\ndata: lines\n\n"
}
