package sessions_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/memlog"
	"treadle/internal/scripted"
	"treadle/sessions"
)

const tenant = "acme"

// fixture is a log, a scripted model and the replicas that share them, in a synctest bubble.
type fixture struct {
	testing.TB
	ctx    context.Context
	engine *memlog.Log
	model  *scripted.Model
	limits sessions.Limits
	*sessions.Service
	replicas []*replica
}

// replica is one running service.
type replica struct {
	*sessions.Service
	stop func()
}

// bubble runs a test with a fixture whose model plays the script.
func bubble(t *testing.T, script string, test func(f *fixture)) {
	t.Helper()
	bubbleWith(t, script, sessions.Limits{}, test)
}

func bubbleWith(t *testing.T, script string, limits sessions.Limits, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		model, err := scripted.Parse(strings.NewReader(script))
		if err != nil {
			t.Fatal(err)
		}
		f := &fixture{TB: t, ctx: t.Context(), engine: memlog.New(), model: model, limits: limits}
		f.Service = f.replica().Service
		test(f)
		for _, r := range f.replicas {
			r.stop()
		}
		for _, p := range model.Prompts() {
			if err := scripted.CheckHistory(p); err != nil {
				t.Errorf("a prompt is not well formed: %v", err)
			}
		}
	})
}

// replica starts one more service on the same log.
func (f *fixture) replica() *replica {
	f.Helper()
	return f.replicaOn(f.engine)
}

func (f *fixture) replicaOn(engine sessions.Engine) *replica {
	f.Helper()
	svc, err := sessions.New(sessions.Config{
		Engine: engine, DefaultModel: "scripted", Limits: f.limits,
		Models: []sessions.ModelEntry{{Name: "scripted", Provider: "scripted", Model: f.model}, {Name: "gone", Unavailable: "it has no key"}},
	})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := svc.Run(ctx); err != nil {
			f.Errorf("Run: %v", err)
		}
	})
	r := &replica{svc, func() { cancel(); running.Wait() }}
	f.replicas = append(f.replicas, r)
	return r
}

func tool(name string) api.Tool {
	return api.Tool{Name: name, Description: "The tool " + name + ".", ArgsSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false}`)}
}

func (f *fixture) create(tools ...api.Tool) uuid.UUID {
	f.Helper()
	s, err := f.CreateSession(f.ctx, tenant, &api.SessionCreate{Skills: api.Skills{Guidance: "Be brief.", Tools: tools}}, "")
	if err != nil {
		f.Fatal(err)
	}
	return s.ID
}

func input(text string) *api.TurnCreate {
	return &api.TurnCreate{Input: api.Input{{Type: "text", Text: text}}}
}

func (f *fixture) turn(session uuid.UUID, text string) uuid.UUID {
	f.Helper()
	t, err := f.StartTurn(f.ctx, tenant, session, input(text), "")
	if err != nil {
		f.Fatal(err)
	}
	return t.ID
}

// ended waits for the end of a turn.
func (f *fixture) ended(session, turn uuid.UUID) *api.Turn {
	f.Helper()
	t, err := f.Turn(f.ctx, tenant, session, turn, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	if t.Outcome == nil {
		f.Fatal("the turn did not end within an hour")
	}
	f.invariants(session)
	return t
}

// pending waits until n page calls are pending and returns them.
func (f *fixture) pending(session uuid.UUID, n int) []api.ToolCall {
	f.Helper()
	for range 1000 {
		synctest.Wait()
		list, err := f.ToolCalls(f.ctx, tenant, session, api.ToolCallPending, 0)
		if err != nil {
			f.Fatal(err)
		}
		if len(list.ToolCalls) == n {
			return list.ToolCalls
		}
		<-time.After(10 * time.Millisecond)
	}
	f.Fatalf("there never were %d pending calls", n)
	return nil
}

func (f *fixture) submit(session, call uuid.UUID, output string) *api.ToolCall {
	f.Helper()
	c, err := f.SubmitResult(f.ctx, tenant, session, call, &api.ResultSubmit{Output: json.RawMessage(output)})
	if err != nil {
		f.Fatal(err)
	}
	return c
}

// refused checks that err is a refusal with that code and returns it.
func (f *fixture) refused(err error, code sessions.Code) *sessions.Error {
	f.Helper()
	var refusal *sessions.Error
	if !errors.As(err, &refusal) || refusal.Code != code {
		f.Fatalf("got error %v, want %s", err, code)
	}
	return refusal
}

// reader is an open stream with what it has given.
type reader struct {
	f *fixture
	*sessions.Stream
	frames []sessions.Frame
}

func (f *fixture) open(session uuid.UUID, q sessions.StreamQuery) *reader {
	f.Helper()
	st, err := f.OpenStream(f.ctx, tenant, session, q)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(st.Close)
	return &reader{f: f, Stream: st}
}

// until reads on until a frame of that type comes, and returns it.
func (r *reader) until(typ string) sessions.Frame {
	r.f.Helper()
	for seen := 0; ; {
		for ; seen < len(r.frames); seen++ {
			if r.frames[seen].Type == typ {
				frame := r.frames[seen]
				r.frames = r.frames[seen+1:]
				return frame
			}
		}
		frames, err := r.Next(r.f.ctx, time.Hour)
		if err != nil || len(frames) == 0 {
			r.f.Fatalf("waiting for %s: %d frames, %v; before it: %v", typ, len(frames), err, types(r.frames))
		}
		r.frames = append(r.frames, frames...)
	}
}

// rest reads what is there and returns the types of it all.
func (r *reader) rest() []string {
	for {
		frames, err := r.Next(r.f.ctx, time.Millisecond)
		r.frames = append(r.frames, frames...)
		if len(frames) == 0 || errors.Is(err, io.EOF) {
			return types(r.frames)
		}
	}
}

func types(frames []sessions.Frame) []string {
	var list []string
	for _, f := range frames {
		list = append(list, f.Type)
	}
	return list
}

// pages reads all events of a session as JSON pages.
func (f *fixture) pages(session uuid.UUID) []api.EventItem {
	f.Helper()
	var items []api.EventItem
	for cursor := ""; ; {
		page, err := f.EventPage(f.ctx, tenant, session, cursor, 7, 0)
		if err != nil {
			f.Fatal(err)
		}
		items, cursor = append(items, page.Events...), page.Cursor
		if !page.More {
			return items
		}
	}
}

// facts reads all facts of a session from the log.
func (f *fixture) facts(session uuid.UUID) []sessions.Entry {
	f.Helper()
	var facts []sessions.Entry
	for after := sessions.Seq(0); ; after = facts[len(facts)-1].Seq {
		entries, err := f.engine.Read(f.ctx, tenant, session, after, 0, false)
		if err != nil {
			f.Fatal(err)
		}
		if len(entries) == 0 {
			return facts
		}
		facts = append(facts, entries...)
	}
}

// invariants checks what holds for every session at every moment: pages and stream agree, ids rise, each turn has at most one
// terminal event and nothing after it, each offered call of an ended turn has exactly one result, no status is told twice in a
// row, and no call is offered too late.
func (f *fixture) invariants(session uuid.UUID) {
	f.Helper()
	items := f.pages(session)
	over, open := map[uuid.UUID]bool{}, map[uuid.UUID]int{}
	last, status := "", api.SessionStatus("")
	for _, item := range items {
		if len(item.ID) < len(last) || len(item.ID) == len(last) && item.ID <= last {
			f.Errorf("id %s follows %s", item.ID, last)
		}
		last = item.ID
		event, err := api.DecodeEvent(item.Event)
		if err != nil {
			f.Fatal(err)
		}
		h := event.Header()
		if over[h.TurnID] {
			f.Errorf("%s after the end of turn %s", h.Type, h.TurnID)
		}
		switch ev := event.(type) {
		case *api.StatusChanged:
			if ev.Status == status {
				f.Errorf("status %s is told twice in a row", status)
			}
			status = ev.Status
		case *api.ToolCallEvent:
			if !ev.Deadline.After(ev.Time) {
				f.Errorf("call %s is offered at %s until %s", ev.ToolCallID, ev.Time, ev.Deadline)
			}
		case *api.MessageEvent:
			for _, c := range ev.ToolCalls {
				open[c.ToolCallID] = 1
			}
		case *api.ToolResultEvent:
			if open[ev.ToolCallID]--; open[ev.ToolCallID] != 0 {
				f.Errorf("call %s has %d results", ev.ToolCallID, 1-open[ev.ToolCallID])
			}
		case *api.TurnCompleted, *api.TurnFailed, *api.TurnCanceled:
			over[h.TurnID] = true
			for id, n := range open {
				if n != 0 {
					f.Errorf("call %s is open after its turn", id)
				}
			}
		}
	}
	f.folds(session)
	r := f.open(session, sessions.StreamQuery{})
	r.rest()
	r.Close()
	var streamed []sessions.Frame
	for _, frame := range r.frames {
		if !control[frame.Type] {
			streamed = append(streamed, frame)
		}
	}
	if len(streamed) != len(items) {
		f.Errorf("the stream has %d events, the pages %d", len(streamed), len(items))
		return
	}
	for i, item := range items {
		if streamed[i].ID != item.ID || string(streamed[i].Data) != string(item.Event) {
			f.Errorf("event %d differs between stream and pages: %s, %s", i, streamed[i].ID, item.ID)
		}
	}
}

// control holds the frames that are no events.
var control = map[string]bool{api.TypeReady: true, api.TypeReset: true, api.TypeStreamEnd: true}

// folds checks that the stored records are within bounds and fold to the state that the service shows, through a checkpoint after
// each of them.
func (f *fixture) folds(session uuid.UUID) {
	f.Helper()
	st := &sessions.State{Session: session, Skills: &api.Skills{}}
	for _, e := range f.facts(session) {
		if len(e.Events) > sessions.MaxRecordEvents {
			f.Errorf("the record at %d has %d events", e.Seq, len(e.Events))
		}
		var err error
		if st, err = st.Apply(e); err != nil {
			f.Fatal(err)
		}
		raw, err := json.Marshal(st)
		if err != nil {
			f.Fatal(err)
		}
		restored := new(sessions.State)
		if err := json.Unmarshal(raw, restored); err != nil {
			f.Fatal(err)
		}
		if again, err := json.Marshal(restored); err != nil || string(again) != string(raw) {
			f.Fatalf("a checkpoint changed the state:\n%s\n%s", raw, again)
		}
		st = restored
	}
	shown, err := f.Session(f.ctx, tenant, session)
	if err != nil {
		f.Fatal(err)
	}
	if st.Status() != shown.Status || st.Turns != shown.Turns || !st.Updated.Equal(shown.UpdatedAt) {
		f.Errorf("the records fold to %s after %d turns, the service says %s after %d", st.Status(), st.Turns, shown.Status, shown.Turns)
	}
}
