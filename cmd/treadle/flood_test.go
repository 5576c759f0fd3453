package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"treadle/internal/contract"
	"treadle/internal/logtest"
)

// rawResponse reads an answer.
func rawResponse(conn net.Conn) (*http.Response, string, error) {
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res, string(body), err
}

// flood sends a body of up to 1 GB until there is an answer, and returns that and how much was sent.
func (s *rawServer) flood(head string) (status int, sent int64) {
	s.tb.Helper()
	conn := s.dial()
	defer conn.Close()
	if _, err := io.WriteString(conn, head+"Transfer-Encoding: chunked\r\n\r\n"); err != nil {
		s.tb.Fatal(err)
	}
	answered := make(chan int, 1)
	go func() {
		defer close(answered)
		if res, _, err := rawResponse(conn); err == nil {
			answered <- res.StatusCode
		}
	}()
	chunk := []byte(fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat(" ", 64<<10)))
	for sent < 1<<30 {
		select {
		case status = <-answered:
			return status, sent
		default:
		}
		n, err := conn.Write(chunk)
		sent += int64(n)
		if err != nil {
			break
		}
	}
	return <-answered, sent
}

// TestFlood: an endless body is cut off at the limit, and is not read at all for strangers.
func TestFlood(t *testing.T) {
	t.Parallel()
	key, lines := mustNewKey(t, "acme")
	s := rawStart(t, lines, "", "--admin-listen", "127.0.0.1:0")
	s.as(key).want(http.StatusCreated, http.MethodPost, "/v1/sessions", `{}`)
	before := s.status("VmRSS")
	most := int64(0)
	var mu sync.Mutex
	var flooding sync.WaitGroup
	for _, op := range contract.Load(t).Operations() {
		if op.Body == nil {
			continue
		}
		head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n", op.Method, rawFill(op.Path, nil))
		for header, want := range map[string]int{
			"Authorization: Bearer " + key + "\r\n": http.StatusRequestEntityTooLarge, "": http.StatusUnauthorized, "Authorization: Bearer x\r\n": http.StatusUnauthorized,
		} {
			flooding.Go(func() {
				status, sent := s.flood(head + header)
				if status != want {
					t.Errorf("%s %s: %d after %d MB, want %d", op.Method, op.Path, status, sent>>20, want)
				}
				mu.Lock()
				most = max(most, sent)
				mu.Unlock()
			})
			if want == http.StatusUnauthorized {
				flooding.Go(func() { s.silent(head + header) })
			}
		}
	}
	flooding.Wait()
	peak := s.status("VmHWM")
	t.Logf("at most %d MB were sent, and %d MB of memory used besides %d MB", most>>20, (peak-before)>>10, before>>10)
	if most > 64<<20 {
		t.Errorf("the server took %d MB of a body", most>>20)
	}
	if grown := (peak - before) >> 10; grown > 150 { // for ten bodies of 4 MB at once
		t.Errorf("the process grew by %d MB", grown)
	}
}

// silent announces a body that never comes. A stranger is refused all the same, at once.
func (s *rawServer) silent(head string) {
	conn := s.dial()
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		s.tb.Error(err)
	}
	io.WriteString(conn, head+"Transfer-Encoding: chunked\r\n\r\n")
	if res, _, err := rawResponse(conn); err != nil || res.StatusCode != http.StatusUnauthorized {
		s.tb.Errorf("a stranger whose body does not come: %v, %v", res, err)
	}
}

// TestFlood_slow: those who send slowly, or nothing, are cut off after a while and disturb nobody meanwhile.
func TestFlood_slow(t *testing.T) {
	t.Parallel()
	s := rawStart(t, "", "")
	var slow sync.WaitGroup
	closed := func(name string, conn net.Conn, within time.Duration) string {
		began := time.Now()
		if err := conn.SetDeadline(began.Add(within)); err != nil {
			t.Error(err)
		}
		answer, err := io.ReadAll(conn)
		// Bytes that the server had not read when it closed make a reset of the close.
		if err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: open after %v: %v", name, time.Since(began), err)
		}
		return string(answer)
	}
	slow.Go(func() {
		conn := s.dial()
		fmt.Fprintf(conn, "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n{")
		if answer := closed("a body", conn, 40*time.Second); !strings.Contains(answer, " 408 ") {
			t.Errorf("a slow body is answered %q", answer)
		}
	})
	slow.Go(func() {
		conn := s.dial()
		fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		done := make(chan struct{})
		go func() {
			defer close(done)
			closed("a header", conn, 20*time.Second)
		}()
		for {
			select {
			case <-tick.C:
				io.WriteString(conn, "x") // which fails once it is cut off
			case <-done:
				return
			}
		}
	})
	n := 2000
	if logtest.Full() {
		n = 5000
	}
	for i := range n {
		conn := s.dial()
		if i%2 == 0 {
			io.WriteString(conn, "GET /healthz HT")
		}
	}
	for range 20 {
		began := time.Now()
		s.want(http.StatusOK, http.MethodGet, "/healthz", "")
		s.session()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("with %d idle connections an answer takes %v", n, took)
		}
	}
	slow.Wait()
}
