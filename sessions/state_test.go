package sessions

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

var update = flag.Bool("update", false, "write the golden logs anew; only for a new RecordVersion")

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// chain appends drafts as a log would, in memory.
type chain struct {
	testing.TB
	state   *State
	entries []Entry
	// unchecked skips comparing the writer's state with the reader's.
	unchecked bool
}

func newChain(tb testing.TB) *chain {
	return &chain{TB: tb, state: &State{Session: uuid.MustParse("019b7d3c-2c08-7000-8000-000000000001"), Skills: &api.Skills{}}}
}

func (c *chain) add(d *draft) {
	c.Helper()
	rec, err := d.record()
	if err != nil {
		c.Fatal(err)
	}
	e := Entry{Seq: c.state.Seq + 3, Record: rec}
	typed, err := d.base.apply(e, d.events)
	if err != nil {
		c.Fatal(err)
	}
	folded, err := c.state.Apply(e)
	if err != nil {
		c.Fatal(err)
	}
	if !c.unchecked {
		if a, b := mustJSON(c, typed), mustJSON(c, folded); !bytes.Equal(a, b) {
			c.Fatalf("the writer's state is not the reader's:\n%s\n%s", a, b)
		}
	}
	c.state, c.entries = folded, append(c.entries, e)
}

func mustJSON(tb testing.TB, v any) []byte {
	tb.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// story is a chain in which every kind of fact occurs.
func story(tb testing.TB) *chain {
	limits := Limits{}.withDefaults()
	c := newChain(tb)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	skills := api.Skills{Guidance: "Be brief.", Tools: []api.Tool{{Name: "a", Description: "A.", TimeoutMS: 5000, MaxTimeoutMS: 60_000}}}
	c.add(createSession(c.state.Session, at(0), &api.SessionCreate{Model: "demo", Subject: "u", Metadata: map[string]string{"k": "v"}, Skills: skills}, &Idempotency{Key: "k0", Body: "b0"}))
	model := "other"
	d, err := c.state.update(at(1), &api.SessionPatch{Model: &model})
	must(tb, err)
	c.add(d)
	d, err = c.state.replaceTools(at(1), c.state.registryTag(), &api.Skills{Tools: skills.Tools})
	must(tb, err)
	c.add(d)
	d, _, err = c.state.startTurn(at(2), &api.TurnCreate{Input: api.Input{{Type: "text", Text: "go"}}, Model: "demo", MaxSteps: 9}, &Idempotency{Key: "k1", Body: "b1"})
	must(tb, err)
	c.add(d)
	c.add(c.state.own(at(2)))
	c.add(c.state.own(at(3))) // a takeover in mid-step
	calls := []AnswerCall{{WireID: "w0", Tool: "a"}, {Tool: "a"}, {Tool: "nope"}}
	empty := json.RawMessage("{}")
	n := int64(7)
	c.add(c.state.answer(at(4), &Answer{Text: "T", Reasoning: "R", Calls: calls, Usage: &api.Usage{InputTokens: &n}, Opaque: json.RawMessage(`{"o":1}`), Origin: "demo"},
		[]json.RawMessage{empty, empty, empty}, []*api.ToolError{nil, nil, {Code: "TOOL_NOT_FOUND", Message: "no"}}, &limits))
	first, second := c.state.Turn.Calls[0].ID, c.state.Turn.Calls[1].ID
	d, _, err = c.state.claim(at(5), first, &api.ClaimRequest{ClientID: "tab", LeaseMS: 1000})
	must(tb, err)
	c.add(d)
	d, err = c.state.progress(at(5), first, &api.ProgressRequest{Message: "half", ClaimID: c.state.call(first).Claim.ID}, &limits)
	must(tb, err)
	c.add(d)
	act := c.state.nextAction(at(7), c.state.Turn.Seq, c.state.Turn.Term, 1, &limits) // the lease ran out
	c.add(act.draft)
	d, err = c.state.submitResult(at(8), first, uuid.Nil, api.ToolResult{OK: true, Output: json.RawMessage(`{"n":9007199254740993,"d":1.10}`)})
	must(tb, err)
	c.add(d)
	act = c.state.nextAction(at(10), c.state.Turn.Seq, c.state.Turn.Term, 0, &limits) // the second timed out
	c.add(act.draft)
	if c.state.call(second).Status != api.ToolCallSettled {
		tb.Fatalf("the late call is %s", c.state.call(second).Status)
	}
	act = c.state.nextAction(at(11), c.state.Turn.Seq, c.state.Turn.Term, 0, &limits)
	c.add(act.draft)
	c.add(c.state.answer(at(12), &Answer{Text: "Done.", StopReason: "end"}, nil, nil, &limits))
	d, _, err = c.state.startTurn(at(13), &api.TurnCreate{Input: api.Input{{Type: "text", Text: "fail"}}, Model: "demo", MaxSteps: 9}, nil)
	must(tb, err)
	c.add(d)
	c.add(c.state.own(at(13)))
	d = c.state.draft(at(14))
	d.failTurn(api.Failure{Class: "overloaded", Message: "Busy."}, true)
	c.add(d)
	d, _, err = c.state.startTurn(at(15), &api.TurnCreate{Input: api.Input{{Type: "text", Text: "end"}}, Model: "demo", MaxSteps: 9}, nil)
	must(tb, err)
	c.add(d)
	c.add(c.state.own(at(15)))
	d, err = c.state.end(at(16), "Half a")
	must(tb, err)
	c.add(d)
	c.add(c.state.delete(at(17)))
	return c
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestState_fold(t *testing.T) {
	c := story(t)
	if !c.state.Deleted || c.state.Turns != 3 || c.state.Messages != 9 {
		t.Errorf("state: %s", mustJSON(t, c.state))
	}
	// The tombstone is all that a purge leaves, and folds alone.
	st, err := (&State{Skills: &api.Skills{}}).Apply(c.entries[len(c.entries)-1])
	if err != nil || !st.Deleted {
		t.Errorf("tombstone: %+v, %v", st, err)
	}
}

// A log of any version that was ever released folds to the state that it folded to then.
func TestState_goldenLogs(t *testing.T) {
	if *update {
		c := story(t)
		var lines bytes.Buffer
		for _, e := range c.entries {
			lines.Write(append(mustJSON(t, struct {
				Seq    Seq     `json:"seq"`
				Record *Record `json:"record"`
			}{e.Seq, e.Record}), '\n'))
		}
		must(t, os.MkdirAll("testdata/logs", 0o755))
		must(t, os.WriteFile("testdata/logs/v1.jsonl", lines.Bytes(), 0o644))
		must(t, os.WriteFile("testdata/logs/v1.state.json", mustJSON(t, c.state), 0o644))
	}
	logs, err := filepath.Glob("testdata/logs/*.jsonl")
	if err != nil || len(logs) == 0 {
		t.Fatal("no golden logs", err)
	}
	for _, name := range logs {
		f, err := os.Open(name)
		must(t, err)
		st := &State{Skills: &api.Skills{}}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var line struct {
				Seq    Seq     `json:"seq"`
				Record *Record `json:"record"`
			}
			must(t, json.Unmarshal(lines.Bytes(), &line))
			if st, err = st.Apply(Entry{Seq: line.Seq, Record: line.Record}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		must(t, lines.Err())
		must(t, f.Close())
		want, err := os.ReadFile(name[:len(name)-len("jsonl")] + "state.json")
		must(t, err)
		var golden State
		must(t, json.Unmarshal(want, &golden))
		if got := mustJSON(t, st); !bytes.Equal(got, mustJSON(t, &golden)) {
			t.Errorf("%s folds to\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestState_refusesWhatItDoesNotUnderstand(t *testing.T) {
	c := story(t)
	last := *c.entries[2].Record
	base, err := (&State{Skills: &api.Skills{}}).Apply(c.entries[0])
	must(t, err)
	if _, err := base.Apply(Entry{Seq: 9, Record: &last}); err == nil {
		t.Error("a hole went unnoticed")
	}
	for name, change := range map[string]func(*Record){
		"version": func(r *Record) { r.V = RecordVersion + 1 },
		"event":   func(r *Record) { r.Events = []json.RawMessage{json.RawMessage(`{"type":"from_the_future"}`)} },
	} {
		newer := *c.entries[1].Record
		change(&newer)
		_, err := base.Apply(Entry{Seq: 6, Record: &newer})
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeSessionUnsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestState_timeNeverGoesBack(t *testing.T) {
	c := newChain(t)
	c.add(createSession(c.state.Session, t0, &api.SessionCreate{}, nil))
	d, id, err := c.state.startTurn(t0.Add(-time.Hour), &api.TurnCreate{Input: api.Input{{Type: "text", Text: "x"}}}, nil)
	must(t, err)
	c.add(d)
	if !c.state.Turn.Started.Equal(t0) || unixMilli(id) != t0.UnixMilli() {
		t.Errorf("the turn began at %s, its id says %d", c.state.Turn.Started, unixMilli(id))
	}
}

// Marks stay bounded and still lead to every turn.
func TestState_marks(t *testing.T) {
	c := newChain(t)
	c.add(createSession(c.state.Session, t0, &api.SessionCreate{}, nil))
	c.unchecked = true
	const turns = 3 * maxMarks
	ids := make([]uuid.UUID, turns)
	starts := make([]Seq, turns)
	for i := range turns {
		now := t0.Add(time.Duration(i) * time.Second)
		d, id, err := c.state.startTurn(now, &api.TurnCreate{Input: api.Input{{Type: "text", Text: "x"}}}, &Idempotency{Key: id(i)})
		must(t, err)
		c.add(d)
		ids[i], starts[i] = id, c.state.Seq
		c.add(c.state.cancel(now, id, ""))
	}
	if len(c.state.Marks) > maxMarks || len(c.state.Keys) != maxTurnKeys {
		t.Errorf("%d marks, %d keys", len(c.state.Marks), len(c.state.Keys))
	}
	for i, id := range ids {
		m := c.state.markBefore(id)
		if m.Seq > starts[i] || m.Turns > int64(i) || int64(i)-m.Turns > c.state.MarkEvery {
			t.Fatalf("the mark of turn %d is %+v", i, m)
		}
		if m := c.state.markOfMessage(int64(i) + 1); m.Messages > int64(i) {
			t.Fatalf("the mark of message %d is %+v", i+1, m)
		}
	}
}

func id(i int) string { return string(rune('a'+i%26)) + uuid.NewString() }

func TestCursor(t *testing.T) {
	e := Entry{Seq: 57, Record: &Record{Events: make([]json.RawMessage, 3)}}
	if a, b := positionOf(e, 0), positionOf(e, 2); a != 56_998 || b != 57_000 || b != positionAfter(57) {
		t.Errorf("positions %d, %d", a, b)
	}
	tag := cursorTag("epoch", uuid.Nil)
	if p, ok := parseCursor(tag, formatCursor(tag, 56_998)); !ok || p != 56_998 {
		t.Errorf("parsed %d, %t", p, ok)
	}
	if a, b := Position(56_998).floor(), Position(57_000).floor(); a != 56 || b != 57 {
		t.Errorf("floors %d, %d", a, b)
	}
}

func TestNewID(t *testing.T) {
	seen := map[uuid.UUID]bool{}
	for range 10_000 {
		id := newID(t0)
		if id.Version() != 7 || id.Variant() != uuid.RFC4122 || unixMilli(id) != t0.UnixMilli() || seen[id] {
			t.Fatalf("id %s", id)
		}
		seen[id] = true
	}
}

func BenchmarkState_Apply(b *testing.B) {
	c := story(b)
	b.ReportAllocs()
	for b.Loop() {
		st := &State{Skills: &api.Skills{}}
		for _, e := range c.entries {
			var err error
			if st, err = st.Apply(e); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(c.entries)), "ns/fact")
}

// The cache counts what registries take, however they come in, and stays within its bound.
func TestStateCache_bounded(t *testing.T) {
	c := newStateCache()
	big := make([]byte, 1<<20)
	for i := range 300 {
		key := sessionKey{"acme", uuid.New()}
		c.advance(c.entry(key), &State{Seq: Seq(i + 1), Skills: &api.Skills{Tools: []api.Tool{{ArgsSchema: big}}}})
	}
	if c.bytes > maxCachedBytes || c.recent.Len() != len(c.entries) || c.recent.Len() < 100 {
		t.Errorf("%d bytes in %d entries", c.bytes, c.recent.Len())
	}
}
