package sessions_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

// gate stands between one replica and the log. A frozen replica is one whose process got SIGSTOP: nothing that it does goes
// through until it is thawed, and then everything does.
type gate struct {
	sessions.Engine
	mu     sync.Mutex
	frozen chan struct{} // nil when open
}

func (g *gate) freeze() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frozen = make(chan struct{})
}

func (g *gate) thaw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen != nil {
		close(g.frozen)
		g.frozen = nil
	}
}

func (g *gate) pass() {
	g.mu.Lock()
	frozen := g.frozen
	g.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

func (g *gate) Append(ctx context.Context, tenant string, id uuid.UUID, base sessions.Seq, rec *sessions.Record) (sessions.Seq, error) {
	g.pass()
	return g.Engine.Append(ctx, tenant, id, base, rec)
}

func (g *gate) AppendDelta(_ context.Context, tenant string, id uuid.UUID, rec *sessions.Record) error {
	g.pass()
	return g.Engine.AppendDelta(context.Background(), tenant, id, rec) // a delta that had left already is not called back
}

func (g *gate) Receive(ctx context.Context) (*sessions.Job, error) {
	job, err := g.Engine.Receive(ctx)
	if err != nil {
		return nil, err
	}
	g.pass()
	keep, done, release := job.Keep, job.Done, job.Release
	job.Keep = func() error { g.pass(); return keep() }
	job.Done = func(ctx context.Context) error { g.pass(); return done(ctx) }
	job.Release = func() error { g.pass(); return release() }
	return job, nil
}

func (g *gate) Follow(ctx context.Context, tenant string, id uuid.UUID, after sessions.Seq) (sessions.Follower, error) {
	f, err := g.Engine.Follow(ctx, tenant, id, after)
	return &gatedFollower{f, g}, err
}

type gatedFollower struct {
	sessions.Follower
	gate *gate
}

func (f *gatedFollower) Next(ctx context.Context, wait time.Duration) ([]sessions.Entry, error) {
	entries, err := f.Follower.Next(ctx, wait)
	f.gate.pass()
	return entries, err
}

// gated replaces the fixture's replica by a gated one; second starts another, which the fixture uses from then on.
func gated(f *fixture) (first *gate, second func()) {
	for _, r := range f.replicas {
		r.stop()
	}
	first = &gate{Engine: f.engine}
	f.Service = f.replicaOn(first).Service
	return first, func() { f.Service = f.replica().Service }
}

// The zombie: an owner frozen in mid-text is not heard again.
func TestTakeover_zombie(t *testing.T) {
	bubble(t, `
answers:
  - - attempts:
      - - text: "Half"
        - delay: 20s
        - text: "ZOMBIE"
        - delay: 1s
      - - text: "Whole"
`, func(f *fixture) {
		first, second := gated(f)
		id := f.create()
		r := f.open(id, sessions.StreamQuery{})
		turn := f.turn(id, "go")
		r.until(api.TypeTextDelta)
		first.freeze()
		second()
		r = f.open(id, sessions.StreamQuery{})
		result := f.ended(id, turn)
		<-time.After(time.Minute)
		first.thaw()
		<-time.After(time.Minute)
		if result.Text != "Whole" {
			t.Errorf("turn: %+v", result)
		}
		var texts []string
		for _, item := range f.pages(id) {
			switch event, _ := api.DecodeEvent(item.Event); ev := event.(type) {
			case *api.TextDelta:
				texts = append(texts, ev.Text)
			case *api.AttemptVoided:
				texts = append(texts, "void "+ev.Reason)
			}
		}
		if want := []string{"Half", "void interrupted", "Whole"}; !slices.Equal(texts, want) {
			t.Errorf("texts: %q", texts)
		}
		r.rest()
		for _, frame := range r.frames {
			if strings.Contains(string(frame.Data), "ZOMBIE") {
				t.Errorf("the zombie was heard: %s", frame.Data)
			}
		}
		f.invariants(id)
	})
}

// An owner that dies while the page is awaited: the call is offered again, and whoever answers settles it.
func TestTakeover_pendingCall(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n  - call: {tool: b}\n  - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		first, second := gated(f)
		quick := tool("b")
		quick.TimeoutMS = 4000
		id := f.create(tool("a"), quick)
		turn := f.turn(id, "go")
		calls := f.pending(id, 3)
		f.submit(id, calls[0].ID, `"before"`)
		if _, err := f.ClaimToolCall(f.ctx, tenant, id, calls[2].ID, &api.ClaimRequest{ClientID: "tab", LeaseMS: 60_000}); err != nil {
			t.Fatal(err)
		}
		first.freeze()
		second()
		r := f.open(id, sessions.StreamQuery{})
		for range 4 {
			r.until(api.TypeToolCall)
		}
		again, err := f.ToolCall(f.ctx, tenant, id, calls[1].ID)
		if err != nil || again.Attempt != 2 || !again.MayHaveRun || time.Until(again.Deadline) < 14*time.Second {
			t.Errorf("offered again: %+v, %v", again, err)
		}
		if held, err := f.ToolCall(f.ctx, tenant, id, calls[2].ID); err != nil || held.Attempt != 1 {
			t.Errorf("the claimed call: %+v, %v", held, err)
		}
		f.submit(id, calls[1].ID, `"after"`)
		if _, err := f.CancelTurn(f.ctx, tenant, id, turn); err != nil {
			t.Fatal(err)
		}
		first.thaw()
		result := f.ended(id, turn)
		if string(result.ToolResults[0].Result.Output) != `"before"` || string(result.ToolResults[1].Result.Output) != `"after"` {
			t.Errorf("results: %+v", result.ToolResults)
		}
	})
}

// A graceful stop hands the turn over at once.
func TestTakeover_release(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0].ID
		f.replicas[0].stop()
		began := time.Now()
		f.Service = f.replica().Service
		r := f.open(id, sessions.StreamQuery{})
		r.until(api.TypeToolCall)
		r.until(api.TypeToolCall)
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the call was offered again after %s", took)
		}
		f.submit(id, call, "1")
		f.ended(id, turn)
	})
}

// A service that drains hands over what only waits, finishes what does not, and takes no more.
func TestTakeover_drain(t *testing.T) {
	bubble(t, "rules:\n- match: talk\n  answers: [[{text: One}, {delay: 20s}, {text: two.}]]\n- answers: [[{call: {tool: a}}], [{text: Done.}]]\n", func(f *fixture) {
		waits, talks := f.create(tool("a")), f.create(tool("a"))
		waiting, talking := f.turn(waits, "wait"), f.turn(talks, "talk")
		call := f.pending(waits, 1)[0].ID
		old := f.Service
		old.Drain()
		_, err := old.StartTurn(f.ctx, tenant, waits, input("go"), "")
		f.refused(err, sessions.CodeShuttingDown)
		began := time.Now()
		f.Service = f.replica().Service
		r := f.open(waits, sessions.StreamQuery{})
		r.until(api.TypeToolCall)
		r.until(api.TypeToolCall)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the waiting turn was taken over after %s", took)
		}
		if _, err := old.SubmitResult(f.ctx, tenant, waits, call, &api.ResultSubmit{Output: json.RawMessage("1")}); err != nil {
			t.Error(err)
		}
		f.ended(waits, waiting)
		f.ended(talks, talking)
		for _, item := range f.pages(talks) {
			if api.EventType(item.Event) == api.TypeAttemptVoided {
				t.Error("the answer that was under way was not let to its end")
			}
		}
	})
}

// A turn that takes every owner down ends; one that waits for its page does not, however often its owners go.
func TestTakeover_crashLoop(t *testing.T) {
	bubble(t, "rules:\n- match: crash\n  answers: [[{block: true}]]\n- answers: [[{call: {tool: a}}], [{text: Done.}]]\n", func(f *fixture) {
		f.replicas[0].stop()
		crash, wait := f.create(tool("a")), f.create(tool("a"))
		crashing, waiting := f.turn(crash, "crash"), f.turn(wait, "wait")
		for range 8 {
			r := f.replica()
			f.pending(wait, 1)
			<-time.After(time.Second)
			r.stop()
		}
		f.Service = f.replica().Service
		result := f.ended(crash, crashing)
		if result.Failure == nil || result.Failure.Class != "crash_loop" {
			t.Errorf("turn: %+v %+v", result, result.Failure)
		}
		f.submit(wait, f.pending(wait, 1)[0].ID, "1")
		if result := f.ended(wait, waiting); *result.Outcome != api.OutcomeCompleted {
			t.Errorf("turn: %+v", result)
		}
	})
}

// The nonce: whatever is killed, repeated or canceled, the model is told each accepted value exactly once, byte for byte.
func TestTakeover_nonce(t *testing.T) {
	bubble(t, "rules:\n- answers:\n  - - call: {tool: a}\n    - call: {tool: a}\n  - - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		for round := range 30 {
			turn := f.turn(id, "go")
			calls := f.pending(id, 2)
			values := []string{`{"nonce":"` + uuid.NewString() + `"}`, `9007199254740993.` + strings.Repeat("1", round+1)}
			f.submit(id, calls[round%2].ID, values[round%2])
			stopped := f.replicas[len(f.replicas)-1]
			if round%3 == 0 {
				stopped.stop()
			}
			f.submit(id, calls[1-round%2].ID, values[1-round%2])
			f.submit(id, calls[1-round%2].ID, values[1-round%2])
			if round%3 == 1 {
				stopped.stop()
			}
			f.Service = f.replica().Service
			r, err := f.Turn(f.ctx, tenant, id, turn, time.Hour)
			if err != nil || *r.Outcome != api.OutcomeCompleted {
				t.Fatalf("round %d: %+v, %v", round, r, err)
			}
			prompts := f.model.Prompts()
			told, err := json.Marshal(prompts[len(prompts)-1].Messages)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range values {
				if n := strings.Count(string(told), v); n != 1 {
					t.Fatalf("round %d: %s was told %d times", round, v, n)
				}
			}
		}
		f.invariants(id)
	})
}
