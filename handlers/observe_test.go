package handlers_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/handlers"
	"treadle/sessions"
)

// TestInternalErrors: what went wrong inside is in the log, under the id that the client is told, and nowhere else.
func TestInternalErrors(t *testing.T) {
	f := newFixture(t)
	a := f.want(f.do("GET", "/v1/models", "", "Authorization", "Bearer broken"), http.StatusInternalServerError, handlers.CodeInternal)
	id := fmt.Sprint(a.get("instance"))
	f.want(f.do("GET", "/v1/models", "", "Authorization", "Bearer unavailable"), http.StatusServiceUnavailable, sessions.CodeStorageUnavailable)
	if strings.Contains(a.body, "SECRET") {
		t.Errorf("the answer: %s", a.body)
	}
	f.eventually("the log tells", func() bool { return strings.Count(f.log.String(), id) == 2 })
	if log := f.log.String(); !strings.Contains(log, "/etc/SECRET") {
		t.Errorf("the log: %s", log)
	}
}

func TestPanics(t *testing.T) {
	f := newFixture(t, func(s *setup) {
		s.Mounts = map[string]http.Handler{
			"/early": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("early SECRET") }),
			"/late": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "half")
				_ = http.NewResponseController(w).Flush()
				panic("late")
			}),
		}
	})
	f.client = http.DefaultClient
	a := f.want(f.do("GET", "/early", ""), http.StatusInternalServerError, handlers.CodeInternal)
	if strings.Contains(a.body, "SECRET") {
		t.Errorf("the answer: %s", a.body)
	}
	resp, err := f.client.Do(f.request("GET", "/late", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half an answer looks whole: %q, %v", body, err)
	}
	f.want(f.do("GET", "/healthz", ""), http.StatusOK)
	f.eventually("both are logged with their stacks", func() bool { return strings.Count(f.log.String(), "observe_test.go") >= 2 })
}

// TestObserve: whatever clients ask for, the labels stay few.
func TestObserve(t *testing.T) {
	var mu sync.Mutex
	seen := map[[2]string]bool{}
	streams := 0
	f := newFixture(t, func(s *setup) {
		s.Observe = func(o handlers.Observation) {
			mu.Lock()
			defer mu.Unlock()
			seen[[2]string{o.Method, o.Route}] = true
			if o.Stream {
				streams++
			}
		}
	})
	session := f.session()
	for i := range 200 {
		f.do("GET", "/"+uuid.NewString(), "")
		f.do(fmt.Sprintf("ODD%d", i%50), "/v1/models", "")
		f.do("GET", fill("/v1/sessions/{session_id}/turns/{turn_id}"), "")
	}
	f.do("HEAD", session, "")
	f.stream("GET", session+"/events", "").resp.Body.Close()
	f.eventually("the stream is observed", func() bool { mu.Lock(); defer mu.Unlock(); return streams == 1 })
	mu.Lock()
	defer mu.Unlock()
	for _, want := range [][2]string{
		{"GET", "unmatched"}, {"other", "unmatched"}, {"GET", "/v1/sessions/{session_id}/turns/{turn_id}"}, {"POST", "/v1/sessions"},
		{"HEAD", "/v1/sessions/{session_id}"}, {"GET", "/v1/sessions/{session_id}/events"},
	} {
		if !seen[want] {
			t.Errorf("there is no %v", want)
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d pairs of labels: %v", len(seen), seen)
	}
}

// TestLogHasNoSecrets: nothing that a client sends is in the log, even at level debug.
func TestLogHasNoSecrets(t *testing.T) {
	f := newFixture(t)
	f.key = "a"
	session := f.session()
	f.finish(f.start(session, "CANARY_USER\n\x1b[31m hello"))
	turn := f.start(session, "one call CANARY_USER")
	call := f.pending(session, 1)
	f.do("POST", call+"/claim", `{"client_id":"CANARY_CLIENT"}`)
	f.do("POST", call+"/result", `{"output":"CANARY_RES","CANARY_MEMBER":1}`)
	f.do("POST", call+"/result", `{"error":{"code":"CANARY_CODE","message":"CANARY_RES"}}`)
	f.do("POST", turn+"/cancel", "")
	f.do("GET", "/v1/sessions?key=CANARY_KEY", "")
	f.do("GET", "/v1/sessions?CANARY_PARAM=1", "")
	f.do("GET", "/CANARY_PATH%0a%1b", "")
	f.do("CANARYMETHOD", "/v1/sessions", "")
	f.do("GET", "/v1/models", "", "X-Secret", "CANARY_HEADER", "Cookie", "CANARY_COOKIE", "Idempotency-Key", "CANARY_IDEM", "Authorization", "CANARY_AUTH")
	f.eventually("everything is logged", func() bool { return strings.Contains(f.log.String(), "method=other") })
	log := f.log.String()
	if i := strings.Index(log, "CANARY"); i >= 0 {
		t.Errorf("the log has %q", log[max(0, i-200):min(len(log), i+100)])
	}
}

// TestSlowBody: a client that stops in the middle of its body loses the connection, authenticated or not.
func TestSlowBody(t *testing.T) {
	f := newFixture(t)
	for name, auth := range map[string]string{"with a key": "Authorization: Bearer a\r\n", "without": ""} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\n%sContent-Type: application/json\r\nContent-Length: 5\r\n\r\n{", auth)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			want := map[bool]int{true: http.StatusRequestTimeout, false: http.StatusUnauthorized}[auth != ""]
			if resp.StatusCode != want {
				t.Errorf("the status is %d, want %d", resp.StatusCode, want)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Errorf("the connection stayed open: %v", err)
			}
		})
	}
}

// TestLargeBodyUnauthenticated: without a key, the body is not even asked for.
func TestLargeBodyUnauthenticated(t *testing.T) {
	f := newFixture(t)
	r := f.request("POST", "/v1/sessions", "", "Authorization", "", "Content-Type", "application/json", "Expect", "100-continue")
	body := new(countingReader)
	r.Body, r.ContentLength = io.NopCloser(io.LimitReader(body, 1<<30)), -1
	transport := &http.Transport{ExpectContinueTimeout: time.Minute}
	defer transport.CloseIdleConnections()
	f.client = &http.Client{Transport: transport}
	f.want(f.send(r), http.StatusUnauthorized, handlers.CodeUnauthenticated)
	if body.n > 0 {
		t.Errorf("%d bytes of the body were read", body.n)
	}
}

type countingReader struct{ n int }

func (r *countingReader) Read(p []byte) (int, error) {
	r.n += len(p)
	return len(p), nil
}
