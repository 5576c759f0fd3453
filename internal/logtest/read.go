package logtest

import (
	"fmt"
	"slices"
	"testing"

	"treadle/api"
	"treadle/sessions"
)

func readLimits(t *testing.T, fix Fixture) {
	w := newWriter(t, fix.Open())
	if got := w.read(0, true); len(got) != 0 {
		t.Fatalf("a session without entries gives %v", got)
	}
	var facts, all []sessions.Seq
	for i := range 30 {
		w.delta("d")
		switch i % 3 {
		case 0:
			facts = append(facts, w.turn())
		case 1:
			facts = append(facts, w.fact("f"))
		case 2:
			facts = append(facts, w.end(api.StatusIdle))
		}
	}
	all = seqs(t, w.read(0, true))
	if len(all) != 60 || !slices.Equal(seqs(t, w.read(0, false)), facts) {
		t.Fatalf("%d entries and %v facts, want 60 and %v", len(all), seqs(t, w.read(0, false)), facts)
	}
	for _, limit := range []int{1, 2, 7, 59, 60, 61} {
		for _, deltas := range []bool{true, false} {
			want := facts
			if deltas {
				want = all
			}
			var got []sessions.Seq
			after := sessions.Seq(0)
			for {
				page, err := w.engine.Read(t.Context(), w.tenant, w.id, after, limit, deltas)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, seqs(t, page)...)
				if len(page) < limit {
					break
				}
				after = got[len(got)-1]
			}
			if !slices.Equal(got, want) {
				t.Fatalf("pages of %d, deltas %t: got %v, want %v", limit, deltas, got, want)
			}
		}
	}
	if got := w.read(w.base, true); len(got) != 0 {
		t.Fatalf("after the last entry come %v", got)
	}
}

func readBarrier(t *testing.T, fix Fixture) {
	e := fix.Open()
	reader := fix.peer(e)
	w := newWriter(t, e)
	for range 200 {
		before := w.base
		seq := w.fact("acknowledged")
		got, err := reader.Read(t.Context(), w.tenant, w.id, before, 0, true)
		if err != nil || len(got) != 1 || got[0].Seq != seq {
			t.Fatalf("%d was acknowledged, and a read after %d gives %v, %v", seq, before, got, err)
		}
	}
}

func readLarge(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	count := 60
	if Full() {
		count = 400
	}
	size := min(200<<10, e.MaxRecord()/2)
	var want []sessions.Seq
	for i := range count {
		want = append(want, w.fact(fmt.Sprintf("%06d%s", i, long(size))))
	}
	for _, deltas := range []bool{false, true} {
		if got := seqs(t, w.read(0, deltas)); !slices.Equal(got, want) {
			t.Fatalf("deltas %t: read %d of %d large records", deltas, len(got), count)
		}
	}
	if got := seqs(t, gather(t, follow(t, fix.peer(e), w, 0), w.base)); !slices.Equal(got, want) {
		t.Fatalf("followed %d of %d large records", len(got), count)
	}
}

func readExpiredDeltas(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	w.fact("first")
	for range 10 {
		w.delta("passing")
	}
	// Nobody acknowledges a delta: it is there soon.
	var all []sessions.Entry
	eventually(t, "deltas are stored", func() bool { all = w.read(0, true); return len(all) == 11 })
	cursor := all[5].Seq
	eventually(t, "deltas vanish", func() bool { return len(w.read(0, true)) == 1 })
	w.fact("second")
	// A replica may keep a delta a little longer than another.
	if got := facts(t, w.read(cursor, true)); len(got) != 1 || got[0] != w.base {
		t.Fatalf("after a cursor that points at a delta that is gone come the facts %v", got)
	}
	if got := facts(t, gather(t, follow(t, fix.peer(e), w, cursor), w.base)); len(got) != 1 {
		t.Fatalf("a follower of that cursor gets the facts %v", got)
	}
	// A follower whose target was a delta that vanishes must not wait for it.
	w.delta("passing")
	eventually(t, "the delta is stored", func() bool { all = w.read(w.base, true); return len(all) == 1 })
	last := all[0].Seq
	eventually(t, "the last delta vanishes", func() bool { return len(w.read(w.base, true)) == 0 })
	f := follow(t, fix.peer(e), w, last)
	w.fact("third")
	if got := facts(t, gather(t, f, w.base)); len(got) != 1 {
		t.Fatalf("a follower of the last position gets the facts %v", got)
	}
}
