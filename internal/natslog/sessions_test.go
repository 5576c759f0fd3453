package natslog_test

import (
	"context"
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/natslog"
	"treadle/internal/scripted"
	"treadle/sessions"
)

// newService makes a service on the log whose model plays the script. Running counts its turns.
func newService(t testing.TB, l *natslog.Log, script string, limits sessions.Limits) (svc *sessions.Service, running *atomic.Int64) {
	t.Helper()
	model, err := scripted.Parse(strings.NewReader(script))
	if err != nil {
		t.Fatal(err)
	}
	running = new(atomic.Int64)
	svc, err = sessions.New(sessions.Config{
		Engine: l, DefaultModel: "scripted", Limits: limits,
		Models:  []sessions.ModelEntry{{Name: "scripted", Provider: "scripted", Model: model}},
		Metrics: sessions.Metrics{TurnsRunning: func(delta int) { running.Add(int64(delta)) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	return svc, running
}

// run runs a service until stop is called or the test ends.
func run(t testing.TB, svc *sessions.Service) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		if err := svc.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	stop = func() { cancel(); <-ran }
	t.Cleanup(stop)
	return stop
}

func startTurn(t testing.TB, svc *sessions.Service, tools ...api.Tool) uuid.UUID {
	t.Helper()
	s, err := svc.CreateSession(t.Context(), "acme", &api.SessionCreate{Skills: api.Skills{Tools: tools}}, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := svc.StartTurn(t.Context(), "acme", s.ID, &api.TurnCreate{Input: api.Input{{Type: "text", Text: "go"}}}, ""); err != nil {
		t.Fatal(err)
	}
	return s.ID
}

// Whatever a turn is doing when its session is deleted, the tombstone is all that is left.
func TestSessions_deleteOfRunning(t *testing.T) {
	l := newLog(t)
	svc, running := newService(t, l, "answers:\n- - text: Hello.\n", sessions.Limits{})
	stop := run(t, svc)
	var ids []uuid.UUID
	for round := range 60 {
		id := startTurn(t, svc)
		ids = append(ids, id)
		if err := l.Put(t.Context(), "acme", "state."+id.String(), []byte("{}")); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Duration(round%20) * 100 * time.Microsecond) // the turn is a little further each time
		if err := svc.DeleteSession(t.Context(), "acme", id); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "no turn runs", func() bool { return running.Load() == 0 })
	stop()
	for _, id := range ids {
		// A delta that was on its way may come after the purge. Nobody is shown it, and it vanishes by itself.
		entries, err := l.Read(t.Context(), "acme", id, 0, 0, false)
		if err != nil || len(entries) != 1 || api.EventType(entries[0].Events[0]) != api.TypeSessionEnded {
			t.Errorf("%d entries are left, %v", len(entries), err)
		}
		if raw, err := l.Get(t.Context(), "acme", "state."+id.String()); raw != nil || err != nil {
			t.Errorf("a checkpoint is left: %.100s, %v", raw, err)
		}
	}
}

// One Read returns about MaxRead bytes, and whoever goes on gets all.
func TestRead_bounded(t *testing.T) {
	const count, size = 24, 700_000
	l := newLog(t)
	id, base := uuid.New(), sessions.Seq(0)
	for range count {
		base = mustAppend(t, l, id, base, fact(strings.Repeat("x", size)))
	}
	total := 0
	for after := sessions.Seq(0); after < base; {
		entries, err := l.Read(t.Context(), "acme", id, after, 0, false)
		if err != nil || len(entries) == 0 {
			t.Fatalf("after %d of %d: %v", total, count, err)
		}
		if n := len(entries) * size; n > 2*sessions.MaxRead || n < sessions.MaxRead && total+len(entries) < count {
			t.Errorf("a read returned %d bytes", n)
		}
		total += len(entries)
		after = entries[len(entries)-1].Seq
	}
	if total != count {
		t.Errorf("%d records were read, want %d", total, count)
	}
}

// A session is opened and read piece by piece, never with all of its results in memory.
func TestSessions_memory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes its own memory, and minutes")
	}
	const calls = 20
	l := newLog(t)
	limits := sessions.Limits{MaxParallelCalls: calls}
	script := "answers:\n- " + strings.Repeat("- call: {tool: a}\n  ", calls) + "\n- - text: Done.\n"
	svc, _ := newService(t, l, script, limits)
	stop := run(t, svc)
	id := startTurn(t, svc, api.Tool{Name: "a", Description: "A", TimeoutMS: 3_600_000})
	list, err := svc.ToolCalls(t.Context(), "acme", id, api.ToolCallPending, 30*time.Second)
	if err != nil || len(list.ToolCalls) != calls {
		t.Fatalf("%d calls, %v", len(list.ToolCalls), err)
	}
	result := &api.ResultSubmit{Output: json.RawMessage(`"` + strings.Repeat("x", 4<<20-100) + `"`)}
	for _, c := range list.ToolCalls[1:] {
		if _, err := svc.SubmitResult(t.Context(), "acme", id, c.ID, result); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // so that the heap is little more than what is in use
	other, _ := newService(t, l, script, limits)
	peak := heapPeak(func() { _, err = other.ToolCall(t.Context(), "acme", id, list.ToolCalls[calls-1].ID) })
	if err != nil || peak > 100<<20 {
		t.Errorf("opening the session and finding a call took %d MB, %v", peak>>20, err)
	}
}

// heapPeak returns by how much the heap grows at most while do runs.
func heapPeak(do func()) int64 {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	runtime.GC()
	before := heap()
	done := make(chan struct{})
	peak := make(chan int64)
	go func() {
		most := before
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				most = max(most, heap())
			case <-done:
				peak <- max(most, heap())
				return
			}
		}
	}()
	do()
	close(done)
	return <-peak - before
}
