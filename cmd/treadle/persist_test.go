package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// smallDisk mounts a disk in memory, or skips the test.
func smallDisk(tb testing.TB, size string) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		tb.Skipf("mounting a small disk needs more rights than this test has: %v", err)
	}
	tb.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			tb.Errorf("unmounting %s: %v", dir, err)
		}
	})
	return dir
}

// fill takes all space that is left. free gives it back.
func fill(tb testing.TB, dir string) (free func()) {
	tb.Helper()
	path := filepath.Join(dir, "filler")
	file, err := os.Create(path)
	if err != nil {
		tb.Fatal(err)
	}
	block := make([]byte, 64<<10)
	for size := len(block); size > 0; {
		if _, err := file.Write(block[:size]); err != nil {
			size /= 2
		}
	}
	if err := file.Close(); err != nil {
		tb.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			tb.Error(err)
		}
	}
}

// slowly says a hundred characters in two seconds.
const slowly = `{text: "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789", chunk: 2, every: 40ms}`

// TestDiskFull fills the disk in the middle of turns, twice. What is not stored is refused, and said; with space, everything goes
// on without a restart; and after one, whatever was acknowledged is there.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "48m")
	h := newHostOn(t, filepath.Join(disk, "data"), "rules:\n  - {match: slowly, answers: [["+slowly+"]]}\n"+strings.TrimPrefix(script(stepAsk, stepDone), "rules:\n"))
	c := h.client()
	waiting, talking := c.newPage(asking), c.newPage(asking)
	w := startWriter(c)
	for round := range 2 {
		asked, talk := waiting.start("go"), talking.start("slowly")
		call := waiting.offerIn(asked)
		free := fill(t, disk)
		eventually(t, "the server is not ready", func() bool { return !ready(c) })
		for path, body := range map[string]string{
			waiting.callPath(call) + "/result": `{"output":"too early"}`, waiting.turnPath(asked) + "/cancel": "", "/v1/sessions": asking,
		} {
			if a, err := c.do(http.MethodPost, path, body); err != nil || a.code() != "STORAGE_UNAVAILABLE" {
				t.Errorf("POST %s on a full disk: %d %s %v", path, a.status, a.body, err)
			}
		}
		w.isRefused()
		if status := waiting.state().Status; status != api.StatusWaitingToolResult {
			t.Errorf("the waiting session is %s", status)
		}
		free()

		eventually(t, "the server is ready again", func() bool { return ready(c) })
		waiting.result(call, fmt.Sprint(round))
		waiting.ended(asked, api.TypeTurnCompleted)
		if text := talking.ended(talk, api.TypeTurnCompleted).(*api.TurnCompleted).Text; len(text) != 100 {
			t.Errorf("what was said while the disk was full came out as %q", text)
		}
		w.goesOn()
	}
	if n := metric(t, c.url, `treadle_appends_total{result="unavailable"}`); n == 0 {
		t.Error("no append is counted as unavailable")
	}
	if log := h.process.stderr.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "is full") {
		t.Errorf("the log does not tell of a full disk: %s", log)
	}
	w.stop()

	h.kill()
	h.start()
	c.conns.CloseIdleConnections()
	w.check()
	waiting.check()
	talking.check()
}

func ready(c *client) bool {
	a, err := c.do(http.MethodGet, "/readyz", "")
	if err != nil || a.status != http.StatusOK && a.code() != "STORAGE_UNAVAILABLE" {
		c.tb.Errorf("readiness: %d %s %v", a.status, a.body, err)
	}
	return a.status == http.StatusOK
}

// offerIn waits for the offer of a turn's only call.
func (p *page) offerIn(turn uuid.UUID) (call uuid.UUID) {
	p.tb.Helper()
	offer := p.events.await("the offer of a call", func(r received) bool {
		return r.typ == api.TypeToolCall && r.event.Header().TurnID == turn
	})
	return offer.event.(*api.ToolCallEvent).ToolCallID
}

// writer creates sessions of some size one after the other, and remembers those that were acknowledged.
type writer struct {
	client *client
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	accepted []uuid.UUID
	refused  int
}

var guidance = strings.Repeat("guide ", 2000)

func startWriter(c *client) *writer {
	ctx, cancel := context.WithCancel(c.tb.Context())
	w := &writer{client: c, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			w.write()
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	c.tb.Cleanup(w.stop)
	return w
}

func (w *writer) stop() {
	w.cancel()
	<-w.done
}

func (w *writer) write() {
	a, err := w.client.do(http.MethodPost, "/v1/sessions", `{"skills":{"guidance":"`+guidance+`"}}`)
	var created api.Session
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil && a.status == http.StatusCreated && json.Unmarshal(a.body, &created) == nil:
		w.accepted = append(w.accepted, created.ID)
	case err == nil && a.code() == "STORAGE_UNAVAILABLE":
		w.refused++
	default:
		w.client.tb.Errorf("creating a session while the disk fills: %d %s %v", a.status, a.body, err)
	}
}

func (w *writer) counts() (accepted, refused int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.accepted), w.refused
}

// isRefused waits until a session is refused. One that was on its way when the disk filled may wait for space instead.
func (w *writer) isRefused() {
	w.client.tb.Helper()
	_, before := w.counts()
	eventually(w.client.tb, "sessions are refused", func() bool { _, n := w.counts(); return n > before })
}

// goesOn waits until sessions are created again.
func (w *writer) goesOn() {
	w.client.tb.Helper()
	before, _ := w.counts()
	eventually(w.client.tb, "sessions are created again", func() bool { n, _ := w.counts(); return n > before+5 })
}

// check looks for everything that was acknowledged.
func (w *writer) check() {
	w.client.tb.Helper()
	for _, id := range w.accepted {
		var s api.Session
		w.client.must(http.StatusOK, http.MethodGet, "/v1/sessions/"+id.String(), "", &s)
		if s.Skills.Guidance != guidance {
			w.client.tb.Errorf("session %s lost its guidance", id)
		}
	}
	w.client.tb.Logf("%d sessions were created, %d refused", len(w.accepted), w.refused)
}
