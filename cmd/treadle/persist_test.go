package main

import (
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

// slowly says fifty pieces in two seconds.
const slowly = `{text: "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789", chunk: 2, every: 40ms}`

// TestDiskFull fills the disk in the middle of turns, twice. What is not stored is refused, and said; with space, everything goes
// on without a restart; and after one, whatever was acknowledged is there.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "24m")
	h := newHostOn(t, filepath.Join(disk, "data"), "rules:\n  - {match: next, answers: [[{text: Next.}]]}\n  - {match: slowly, answers: [["+slowly+"]]}\n  - answers: [["+stepAsk+"], ["+stepDone+"]]\n")
	c := h.client()
	waiting, talking, idle := c.newPage(asking), c.newPage(asking), c.newPage(asking)
	w := &writer{page: idle}
	for round := 1; round <= 2; round++ {
		asked, talk := waiting.start("go"), talking.start("slowly")
		call := waiting.offer(args(1), 1+0)
		for _, r := range waiting.events.all() {
			if offer, ok := r.event.(*api.ToolCallEvent); ok && offer.TurnID == asked {
				call = r
			}
		}
		id := call.event.(*api.ToolCallEvent).ToolCallID
		free := fill(t, disk)
		eventually(t, "the server is not ready", func() bool { return !ready(c) })
		w.refused()
		for _, refused := range []struct{ method, path, body string }{
			{http.MethodPost, waiting.callPath(id) + "/result", `{"output":"too early"}`},
			{http.MethodPost, waiting.turnPath(asked) + "/cancel", ""},
			{http.MethodPost, idle.path + "/turns", turnBody("next")},
			{http.MethodPost, "/v1/sessions", asking},
		} {
			a, err := c.do(refused.method, refused.path, refused.body)
			if err != nil || a.status != http.StatusServiceUnavailable || a.code() != "STORAGE_UNAVAILABLE" {
				t.Errorf("%s %s on a full disk: %d %s %v", refused.method, refused.path, a.status, a.body, err)
			}
		}
		if status := waiting.state().Status; status != api.StatusWaitingToolResult {
			t.Errorf("the waiting session is %s", status)
		}
		free()

		eventually(t, "the server is ready again", func() bool { return ready(c) })
		waiting.result(id, fmt.Sprint(round))
		waiting.ended(asked, api.TypeTurnCompleted)
		if text := talking.ended(talk, api.TypeTurnCompleted).(*api.TurnCompleted).Text; len(text) != 100 {
			t.Errorf("what was said when the disk was full came out as %q", text)
		}
		w.accepted(round)
	}
	if n := metric(t, c.url, `treadle_appends_total{result="unavailable"}`); n == 0 {
		t.Error("no append is counted as unavailable")
	}
	if log := h.process.stderr.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "is full") {
		t.Errorf("the log does not tell of a full disk: %s", log)
	}

	h.kill()
	h.start()
	c.conns.CloseIdleConnections()
	w.check()
	for _, p := range []*page{waiting, talking, idle} {
		p.check()
	}
}

// writer starts turns with a large input and remembers what was accepted.
type writer struct {
	page   *page
	turns  []uuid.UUID
	inputs []string
}
