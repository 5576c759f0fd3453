package logtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

func appendOneWinner(t *testing.T, fix Fixture) {
	e := fix.Open()
	engines := []sessions.Engine{e, fix.peer(e)}
	w := newWriter(t, e)
	rounds := 25
	if Full() {
		rounds = 500
	}
	base := sessions.Seq(0)
	for round := range rounds {
		var group sync.WaitGroup
		won := make(chan sessions.Seq, 8)
		for racer := range 8 {
			group.Go(func() {
				rec := fact("racer")
				rec.N = int64(round + 1)
				seq, err := engines[racer%2].Append(t.Context(), w.tenant, w.id, base, rec)
				switch {
				case err == nil:
					won <- seq
				case !errors.Is(err, sessions.ErrConflict):
					t.Errorf("racer: %v", err)
				}
			})
		}
		group.Wait()
		close(won)
		if len(won) != 1 {
			t.Fatalf("round %d after %d has %d winners", round, base, len(won))
		}
		base = <-won
	}
	if got := w.read(0, false); len(got) != rounds || seqs(t, got)[rounds-1] != base {
		t.Fatalf("%d facts are stored after %d rounds", len(got), rounds)
	}
}

func appendBase(t *testing.T, fix Fixture) {
	w := newWriter(t, fix.Open())
	stale := func(base sessions.Seq) {
		t.Helper()
		_, err := w.engine.Append(t.Context(), w.tenant, w.id, base, fact("stale"))
		wantErr(t, fmt.Sprintf("append with base %d instead of %d", base, w.base), err, sessions.ErrConflict)
	}
	stale(17)
	first := w.fact("first")
	stale(0)
	stale(first + 1)
	w.turn()
	stale(first)
	w.end(api.StatusIdle)
	stale(first)
	stale(0)
	if got := len(w.read(0, true)); got != 3 {
		t.Fatalf("%d entries are stored, want 3", got)
	}
}

// appendAgain: a writer that heard no answer tries again with the same record and learns where it was stored.
func appendAgain(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	w.fact("first")
	base := w.base
	rec := fact("twice")
	seq := w.append(rec)
	w.fact("later")
	for _, engine := range []sessions.Engine{e, fix.peer(e)} {
		if again, err := engine.Append(t.Context(), w.tenant, w.id, base, rec); err != nil || again != seq {
			t.Fatalf("the record is at %d, and appending it again gives %d, %v", seq, again, err)
		}
	}
	if got := w.read(0, true); len(got) != 3 {
		t.Fatalf("%d entries are stored, want 3", len(got))
	}
}

func appendKeepsRecord(t *testing.T, fix Fixture) {
	w := newWriter(t, fix.Open())
	rec := fact("<a> & \"b\" \u2028 ü")
	rec.Term = 1<<53 + 1
	rec.Events = append(rec.Events, json.RawMessage(`{"type":"tool_call","args":{"n":1.0e+3,"big":12345678901234567890}}`))
	rec.Private = &sessions.Private{ClaimID: uuid.New(), Opaque: json.RawMessage(`{"z":1,"a":[ ]}`), Origin: "x", WireIDs: []string{"", "a"}}
	seq := w.append(rec)
	got := w.read(0, true)
	if len(got) != 1 || got[0].Seq != seq {
		t.Fatalf("read %v", got)
	}
	want, err := api.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	back, err := api.Marshal(got[0].Record)
	if err != nil {
		t.Fatal(err)
	}
	if string(back) != string(want) || !reflect.DeepEqual(got[0].Events, rec.Events) {
		t.Fatalf("stored\n%s\nread\n%s", want, back)
	}
}

func appendTooLarge(t *testing.T, fix Fixture) {
	w := newWriter(t, fix.Open())
	most := w.engine.MaxRecord()
	_, err := w.engine.Append(t.Context(), w.tenant, w.id, 0, fact(long(most+1)))
	wantErr(t, "a record over the limit", err, sessions.ErrTooLarge)
	wantErr(t, "a delta over the limit", w.engine.AppendDelta(t.Context(), w.tenant, w.id, delta(long(most+1))), sessions.ErrTooLarge)
	rec := fact("")
	empty, err := api.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	full := fact(long(most - len(empty)))
	w.append(full)
	if got := w.read(0, false); len(got) != 1 || len(text(t, got[0])) != most-len(empty) {
		t.Fatal("the largest record did not come back whole")
	}
}

func appendCanceled(t *testing.T, fix Fixture) {
	w := newWriter(t, fix.Open())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := w.engine.Append(ctx, w.tenant, w.id, 0, fact("late"))
	wantErr(t, "append with a canceled context", err, context.Canceled)
	if got := w.read(0, true); len(got) != 0 {
		t.Fatalf("a record was stored for a caller that had gone: %v", got)
	}
}

func deltasKeepOrder(t *testing.T, fix Fixture) {
	w := newWriter(t, fix.Open())
	var want []string
	for round := range 20 {
		for i := range 20 {
			want = append(want, fmt.Sprintf("delta %d.%d", round, i))
			w.delta(want[len(want)-1])
		}
		want = append(want, fmt.Sprintf("fact %d", round))
		w.fact(want[len(want)-1])
	}
	var got []string
	for _, e := range w.read(0, true) {
		got = append(got, text(t, e))
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("read %d entries, wrote %d, or in another order: %q", len(got), len(want), got)
	}
	if facts := w.read(0, false); len(facts) != 20 {
		t.Fatalf("%d facts, want 20", len(facts))
	}
}

func deltasLeaveBase(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	var flood sync.WaitGroup
	flood.Go(func() {
		for range 5000 {
			if err := e.AppendDelta(t.Context(), w.tenant, w.id, delta("flood")); err != nil {
				t.Errorf("append of a delta: %v", err)
				return
			}
		}
	})
	for range 100 {
		w.fact("beside deltas")
	}
	flood.Wait()
	if got := w.read(0, false); len(got) != 100 {
		t.Fatalf("%d facts, want 100", len(got))
	}
}

func tenants(t *testing.T, fix Fixture) {
	e := fix.Open()
	id := newID(t)
	names := []string{"a", "0", "a-b", "a_b", "a--", "e", "d", strings.Repeat("z", 63)}
	for _, name := range names {
		w := &writer{t: t, engine: e, tenant: name, id: id}
		w.fact("of " + name)
		w.end(api.StatusIdle)
	}
	for _, name := range names {
		w := &writer{t: t, engine: e, tenant: name, id: id}
		if got := w.read(0, true); len(got) != 2 || text(t, got[0]) != "of "+name {
			t.Fatalf("tenant %q reads %d entries", name, len(got))
		}
		listed, err := e.Sessions(t.Context(), name, uuid.Nil, 10, nil)
		if err != nil || len(listed) != 1 {
			t.Fatalf("tenant %q lists %v, %v", name, listed, err)
		}
	}
}
