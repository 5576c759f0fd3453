package handlers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"treadle/api"
	"treadle/handlers"
	"treadle/internal/memlog"
	"treadle/internal/scripted"
	"treadle/sessions"
	"treadle/sse"
)

// pipeListener accepts connections that are made within the process.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.IPAddr{} }

// TestStream_heartbeatTimes: a stream is never silent for longer than the interval, and says nothing without need.
func TestStream_heartbeatTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A piece of text every 10 seconds, six times.
		model, err := scripted.Parse(strings.NewReader("answers:\n  - - text: abcdef\n      chunk: 1\n      every: 10s\n"))
		if err != nil {
			t.Fatal(err)
		}
		service, err := sessions.New(sessions.Config{
			Engine: memlog.New(), DefaultModel: "m", Models: []sessions.ModelEntry{{Name: "m", Provider: "scripted", Model: model}},
		})
		if err != nil {
			t.Fatal(err)
		}
		handler, err := handlers.New(handlers.Config{Service: service, Authenticate: authenticate})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = service.Run(ctx) }()
		server, listener := &http.Server{Handler: handler}, &pipeListener{make(chan net.Conn), make(chan struct{})}
		go func() { _ = server.Serve(listener) }()
		defer server.Close()

		session, err := service.CreateSession(ctx, "a", &api.SessionCreate{}, "")
		if err != nil {
			t.Fatal(err)
		}
		conn, end := net.Pipe()
		defer conn.Close()
		listener.conns <- end
		fmt.Fprintf(conn, "GET /v1/sessions/%s/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\n\r\n", session.ID)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()

		start := time.Now()
		var comments []time.Duration
		var last time.Time
		events := sse.NewReader(resp.Body, sse.ReaderOptions{OnComment: func([]byte) { comments = append(comments, time.Since(start)) }})
		started := time.AfterFunc(40*time.Second, func() {
			if _, err := service.StartTurn(ctx, "a", session.ID, &api.TurnCreate{Input: api.Input{{Type: "text", Text: "hi"}}}, ""); err != nil {
				t.Error(err)
			}
		})
		defer started.Stop()
		closed := time.AfterFunc(200*time.Second, func() { conn.Close() })
		defer closed.Stop()
		for {
			event, err := events.Next()
			if err != nil {
				break
			}
			if event.Type != "" {
				last = time.Now()
			}
		}
		// Idle until 40 s; then text comes more often than every 15 s; then it is idle again.
		want := []time.Duration{15 * time.Second, 30 * time.Second}
		for at := last.Sub(start) + 15*time.Second; at < 200*time.Second; at += 15 * time.Second {
			want = append(want, at)
		}
		if !slices.Equal(comments, want) || last.Sub(start) < 90*time.Second {
			t.Errorf("comments at %v, want %v; the last event came after %v", comments, want, last.Sub(start))
		}
		if err := server.Shutdown(ctx); err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}
