package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// fill takes the space of a disk but for what is to be left. free gives it back.
func fill(tb testing.TB, dir string, left int64) (free func()) {
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
	size, err := file.Seek(0, io.SeekCurrent)
	if err := errors.Join(err, file.Truncate(size-left), file.Close()); err != nil {
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

// TestDiskFull fills the disk in the middle of turns: to the last byte, so that writes fail, and then into the reserve that is kept
// free. What is not stored is refused, and said; with space, everything goes on without a restart; and after one, whatever was
// acknowledged is there.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "48m")
	h := newHostOn(t, filepath.Join(disk, "data"), "rules:\n  - {match: slowly, answers: [["+slowly+"]]}\n"+strings.TrimPrefix(script(stepAsk, stepDone), "rules:\n"))
	c := h.client()
	waiting, talking := c.newPage(asking), c.newPage(asking)
	w := startWriter(c)
	for round, left := range []int64{0, 4 << 20} {
		asked, talk := waiting.start("go"), talking.start("slowly")
		call := waiting.offerIn(asked)
		free := fill(t, disk, left)
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
		if left > 0 { // sessions can be deleted to make space
			c.must(http.StatusNoContent, http.MethodDelete, "/v1/sessions/"+w.forgo().String(), "", nil)
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

// forgo gives a session up, which may then be deleted.
func (w *writer) forgo() uuid.UUID {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.accepted[0]
	w.accepted = w.accepted[1:]
	return id
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

// canary is in everything that the deleted session ever held.
const canary = "CANARY-7f3a"

// TestDelete: of a deleted session nothing is served any more, now or after a restart, and it looks like one that never was.
func TestDelete(t *testing.T) {
	t.Parallel()
	h := newHost(t, script(`{text: `+canary+`}, {reasoning: `+canary+`}, {call: {tool: ask, args: {n: `+canary+`}}}`, `{text: `+canary+`}`))
	c := h.client()
	gone, kept := c.newPage(`{"subject":"`+canary+`","metadata":{"m":"`+canary+`"},"skills":{"guidance":"`+canary+`","tools":[{"name":"ask","description":"`+canary+`","args_schema":{"type":"object"}}]}}`), c.newPage(asking)
	turn := gone.start(canary)
	call := gone.offerIn(turn)
	gone.result(call, `"`+canary+`"`)
	gone.ended(turn, api.TypeTurnCompleted)
	cursor := gone.state().Cursor
	gone.check()
	if before := served(c, gone, turn, call, cursor); strings.Count(before, canary) < 10 {
		t.Fatalf("the canary is hardly served while the session is there: %s", before)
	}

	gone.must(http.StatusNoContent, http.MethodDelete, gone.path, "", nil)
	gone.must(http.StatusNotFound, http.MethodDelete, gone.path, "", nil)
	for _, restarted := range []bool{false, true} {
		if restarted {
			h.kill()
			h.start()
			c.conns.CloseIdleConnections()
		}
		if after := served(c, gone, turn, call, cursor); strings.Contains(after, canary) {
			t.Errorf("restarted %t: the canary is served after the delete: %s", restarted, after)
		}
		if a, err := c.do(http.MethodGet, gone.path, ""); err != nil || a.code() != "SESSION_NOT_FOUND" {
			t.Errorf("restarted %t: the deleted session: %d %s %v", restarted, a.status, a.body, err)
		}
		if strings.Contains(h.process.stderr.String(), canary) {
			t.Errorf("restarted %t: the log has the canary", restarted)
		}
	}
	kept.ended(kept.start("next"), api.TypeTurnCompleted)
	kept.check()
}

// served is everything that any operation says about a session.
func served(c *client, p *page, turn, call uuid.UUID, cursor string) string {
	c.tb.Helper()
	var all strings.Builder
	for _, path := range []string{
		"/v1/sessions", "/v1/sessions?subject=" + canary, p.path, p.path + "/messages", p.path + "/turns", p.turnPath(turn),
		p.path + "/tools", p.path + "/tools/ask", p.path + "/tool_calls", p.callPath(call), p.path + "/events", p.path + "/events?after=" + cursor,
	} {
		a, err := c.do(http.MethodGet, path, "", "Accept", "application/json, application/problem+json")
		if err != nil {
			c.tb.Fatal(err)
		}
		all.Write(a.body)
	}
	return all.String()
}
