package sse_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"treadle/sse"
)

// serve runs a server whose handler opens a stream and hands it to stream. The result of stream arrives in done.
func serve(tb testing.TB, opts sse.Options, stream func(*sse.Writer, *http.Request) error) (srv *httptest.Server, done chan error) {
	done = make(chan error, 1)
	srv = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w, err := sse.NewWriter(unwrapOnly{unwrapOnly{rw}}, opts)
		if err == nil {
			err = stream(w, r)
		}
		done <- err
	}))
	tb.Cleanup(srv.Close)
	return srv, done
}

func TestWriter_HeadersBeforeFirstEvent(t *testing.T) {
	more := make(chan struct{})
	srv, done := serve(t, sse.Options{}, func(w *sse.Writer, _ *http.Request) error {
		<-more
		w.Event("1", "a", []byte("x"))
		if err := w.Flush(); err != nil {
			return err
		}
		<-more
		return w.Close()
	})
	// Get would wait until the deadline of the test if the headers waited for the first event.
	res, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || res.ContentLength != -1 {
		t.Errorf("got %d %v", res.StatusCode, res.Header)
	}
	more <- struct{}{}
	r := sse.NewReader(res.Body, sse.ReaderOptions{})
	if ev, err := r.Next(); err != nil || ev.ID != "1" || ev.Type != "a" || string(ev.Data) != "x" {
		t.Fatalf("got %+v, %v", ev, err)
	}
	more <- struct{}{}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("got %v, want an orderly end", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWriter_FlushThroughUnwrapOnlyMiddleware(t *testing.T) {
	ticks := make(chan string)
	srv, done := serve(t, sse.Options{}, func(w *sse.Writer, _ *http.Request) error {
		for text := range ticks {
			w.Event("", "", []byte(text))
			if err := w.Flush(); err != nil {
				return err
			}
		}
		return w.Close()
	})
	res, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	r := sse.NewReader(res.Body, sse.ReaderOptions{})
	for i := range 5 {
		text := fmt.Sprint("tick ", i)
		ticks <- text
		// Each must arrive before the next is sent.
		if ev, err := r.Next(); err != nil || string(ev.Data) != text {
			t.Fatalf("got %+v, %v", ev, err)
		}
	}
	close(ticks)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWriter_DropsSlowReader(t *testing.T) {
	const timeout = 100 * time.Millisecond
	var stalled time.Duration
	srv, done := serve(t, sse.Options{WriteTimeout: timeout}, func(w *sse.Writer, _ *http.Request) error {
		frame := sse.AppendEvent(nil, "1", "text_delta", bytes.Repeat([]byte("x"), 1<<20))
		for {
			w.WriteFrame(frame)
			start := time.Now()
			if err := w.Flush(); err != nil {
				stalled = time.Since(start)
				return err
			}
		}
	})
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	// Nothing is ever read, so the kernel's buffers fill up.
	select {
	case err := <-done:
		if !errors.Is(err, os.ErrDeadlineExceeded) || stalled < timeout {
			t.Errorf("dropped after %s: %v", stalled, err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the stalled reader was not dropped")
	}
}

func TestWriter_ReaderHangsUp(t *testing.T) {
	srv, done := serve(t, sse.Options{}, func(w *sse.Writer, r *http.Request) error {
		w.Event("1", "", []byte("x"))
		if err := w.Flush(); err != nil {
			return err
		}
		<-r.Context().Done() // so the cleared read deadline did not stop the server from watching the connection
		for {
			w.Comment("")
			if err := w.Flush(); err != nil {
				return err
			}
		}
	})
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	conn.Close() // as a reset
	select {
	case err := <-done:
		if err == nil {
			t.Error("no error after the reader hung up")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the handler did not notice")
	}
}

// pipes is a network within one process, so that a real server runs by the clock of a synctest bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { close(p.closed); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p.conns <- server
	return client, nil
}

// runServer serves handler on pipes with every timeout that could end a stream at 200 ms.
func runServer(t *testing.T, protocols *http.Protocols, handler http.HandlerFunc) pipes {
	p := pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := &http.Server{
		Handler:      handler,
		Protocols:    protocols,
		ReadTimeout:  200 * time.Millisecond,
		WriteTimeout: 200 * time.Millisecond,
		IdleTimeout:  200 * time.Millisecond,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(p) }()
	t.Cleanup(func() {
		srv.Close()
		<-served
	})
	return p
}

// eachProtocol runs test in a bubble for each version of HTTP.
func eachProtocol(t *testing.T, test func(*testing.T, *http.Protocols)) {
	var http1, http2 http.Protocols
	http1.SetHTTP1(true)
	http2.SetUnencryptedHTTP2(true)
	for name, protocols := range map[string]*http.Protocols{"HTTP1": &http1, "HTTP2": &http2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, protocols) })
		})
	}
}

func mustGet(t *testing.T, p pipes, protocols *http.Protocols) *http.Response {
	t.Helper()
	transport := &http.Transport{DialContext: p.dial, Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	res, err := (&http.Client{Transport: transport}).Get("http://server/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

func TestWriter_DropsSlowReaderInTime(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocols *http.Protocols) {
		done := make(chan error, 1)
		p := runServer(t, protocols, func(rw http.ResponseWriter, _ *http.Request) {
			w, err := sse.NewWriter(rw, sse.Options{WriteTimeout: 7 * time.Second})
			for err == nil {
				w.Event("", "", bytes.Repeat([]byte("x"), 1<<20))
				err = w.Flush()
			}
			done <- err
		})
		res := mustGet(t, p, protocols)
		start := time.Now()
		if err := <-done; time.Since(start) != 7*time.Second {
			t.Errorf("dropped after %s over %s: %v", time.Since(start), res.Proto, err)
		}
	})
}

func TestWriter_OutlivesServerTimeouts(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocols *http.Protocols) {
		p := runServer(t, protocols, func(rw http.ResponseWriter, r *http.Request) {
			w, err := sse.NewWriter(rw, sse.Options{WriteTimeout: 50 * time.Millisecond})
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Close()
			for i := range 5 {
				select {
				case <-time.After(time.Hour):
				case <-r.Context().Done():
					t.Error("the server took its own timeout for a hang-up")
					return
				}
				w.Event(fmt.Sprint(i), "", []byte("x"))
				if err := w.Flush(); err != nil {
					t.Error(err)
				}
			}
		})
		res := mustGet(t, p, protocols)
		if got := parse(res.Body, sse.ReaderOptions{}); len(got.Events) != 5 || got.LastID != "4" || got.Err != io.EOF {
			t.Errorf("got %+v over %s", got, res.Proto)
		}
	})
}

// TestWriter_CloseBoundsUnreadRequest has a client that announces a body, never sends it and stays.
func TestWriter_CloseBoundsUnreadRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runServer(t, nil, func(rw http.ResponseWriter, _ *http.Request) {
			w, err := sse.NewWriter(rw, sse.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			w.Close()
		})
		conn, _ := p.dial(t.Context(), "", "")
		defer conn.Close()
		start := time.Now()
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("the connection was held for %s", took)
		}
	})
}
