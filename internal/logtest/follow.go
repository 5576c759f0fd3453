package logtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"treadle/api"
	"treadle/sessions"
)

func followWaits(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	f := follow(t, fix.peer(e), w, 0)
	if entries, err := f.Next(t.Context(), 10*time.Millisecond); len(entries) != 0 || err != nil {
		t.Fatalf("nothing was written, and next returns %v, %v", entries, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Next(ctx, deadline); !errors.Is(err, context.Canceled) {
		t.Fatalf("next with a canceled context: %v", err)
	}
	// The first entry wakes a follower that came before the session did.
	seq := w.fact("first")
	if got := gather(t, f, seq); len(got) != 1 || text(t, got[0]) != "first" {
		t.Fatalf("followed %v", got)
	}
	w.delta("a delta")
	seq = w.fact("second")
	if got := gather(t, f, seq); len(got) != 2 || text(t, got[0]) != "a delta" {
		t.Fatalf("followed %v", got)
	}
}

func followClose(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	w.fact("first")
	f := follow(t, e, w, w.base)
	done := make(chan error, 1)
	go func() {
		_, err := f.Next(t.Context(), deadline)
		done <- err
	}()
	f.Close()
	f.Close()
	if err := <-done; err == nil {
		t.Fatal("next of a closed follower returns no error")
	}
}

// followStress: readers that disconnect at random and resume at their cursor see what Read gives at the end, once and in order.
func followStress(t *testing.T, fix Fixture) {
	e := fix.Open()
	peer := fix.peer(e)
	count, readers := 150, 3
	if Full() {
		count, readers = 1000, 20
	}
	var reading, writing sync.WaitGroup
	for s := range 4 {
		w := newWriter(t, e)
		last := make(chan struct{})
		var until sessions.Seq
		for r := range readers {
			reading.Go(func() { resume(t, peer, w, uint64(s*100+r), last, &until) })
		}
		writing.Go(func() {
			race(t, []sessions.Engine{e, peer}, w, count)
			until = appendAtEnd(t, e, w, 0, "last")
			close(last)
		})
	}
	writing.Wait()
	reading.Wait()
}

// race appends facts from two writers that conflict, and deltas from a third.
func race(t *testing.T, engines []sessions.Engine, w *writer, count int) {
	var group sync.WaitGroup
	for _, e := range engines {
		group.Go(func() {
			base := sessions.Seq(0)
			for i := range count {
				base = appendAtEnd(t, e, w, base, fmt.Sprint(i))
			}
		})
	}
	group.Go(func() {
		for range count {
			if err := engines[0].AppendDelta(t.Context(), w.tenant, w.id, delta("delta")); err != nil {
				t.Errorf("append of a delta: %v", err)
			}
		}
	})
	group.Wait()
}

// appendAtEnd decides again after each conflict, like every command. It has read the facts up to base.
func appendAtEnd(t *testing.T, e sessions.Engine, w *writer, base sessions.Seq, text string) sessions.Seq {
	for t.Context().Err() == nil {
		facts, err := e.Read(t.Context(), w.tenant, w.id, base, 0, false)
		if err != nil {
			t.Errorf("read after %d: %v", base, err)
			return 0
		}
		if len(facts) > 0 {
			base = facts[len(facts)-1].Seq
		}
		seq, err := e.Append(t.Context(), w.tenant, w.id, base, fact(text))
		if err == nil {
			return seq
		}
		if !errors.Is(err, sessions.ErrConflict) {
			t.Errorf("append after %d: %v", base, err)
			return 0
		}
	}
	return 0
}

func resume(t *testing.T, e sessions.Engine, w *writer, seed uint64, last <-chan struct{}, until *sessions.Seq) {
	random := rand.New(rand.NewPCG(seed, 1))
	var got []sessions.Entry
	cursor := sessions.Seq(0)
	ended := func() bool {
		select {
		case <-last:
			return cursor >= *until
		default:
			return false
		}
	}
	giveUp := time.Now().Add(deadline)
	for !ended() {
		f, err := e.Follow(t.Context(), w.tenant, w.id, cursor)
		if err != nil {
			t.Errorf("follow after %d: %v", cursor, err)
			return
		}
		for stop := len(got) + 20 + random.IntN(200); len(got) < stop && !ended(); {
			entries, err := f.Next(t.Context(), 50*time.Millisecond)
			if err != nil || time.Now().After(giveUp) {
				t.Errorf("nothing came after %d: %v", cursor, err)
				f.Close()
				return
			}
			if len(entries) > 0 {
				giveUp = time.Now().Add(deadline)
			}
			// A reader may go away in the middle of what it was given.
			if len(entries) > 1 && random.IntN(4) == 0 {
				entries = entries[:random.IntN(len(entries))]
				stop = 0
			}
			got = append(got, entries...)
			if len(got) > 0 {
				cursor = got[len(got)-1].Seq
			}
		}
		f.Close()
	}
	all, err := e.Read(t.Context(), w.tenant, w.id, 0, 0, true)
	if err != nil {
		t.Errorf("read: %v", err)
		return
	}
	if followed, stored := facts(t, got), facts(t, all); !slices.Equal(followed, stored) {
		t.Errorf("followed %d facts, %d are stored", len(followed), len(stored))
	}
	sent := seqs(t, got)
	for _, seq := range seqs(t, all) {
		if _, found := slices.BinarySearch(sent, seq); !found {
			t.Errorf("entry %d is stored and was not followed", seq)
		}
	}
}

func facts(t *testing.T, entries []sessions.Entry) []sessions.Seq {
	return seqs(t, slices.DeleteFunc(slices.Clone(entries), func(e sessions.Entry) bool { return e.Kind() == sessions.KindDelta }))
}

// followSlow: a follower that was not asked while much was written misses nothing.
func followSlow(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	w.fact("first")
	slow, idle := follow(t, fix.peer(e), w, 0), follow(t, fix.peer(e), w, w.base)
	gather(t, slow, w.base)
	count := 3000
	if Full() {
		count = 30000
	}
	for range count {
		w.fact("more")
	}
	want := seqs(t, w.read(0, false))[1:]
	for name, f := range map[string]sessions.Follower{"slow": slow, "idle": idle} {
		if got := seqs(t, gather(t, f, w.base)); !slices.Equal(got, want) {
			t.Fatalf("the %s follower got %d of %d entries", name, len(got), len(want))
		}
	}
	seq := w.fact("live again")
	if got := gather(t, slow, seq); len(got) != 1 {
		t.Fatalf("after that the slow follower got %v", got)
	}
}

func followCursorAhead(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	_, err := e.Follow(t.Context(), w.tenant, w.id, 1)
	wantErr(t, "follow of an empty log after 1", err, sessions.ErrCursorAhead)
	w.end(api.StatusIdle)
	_, err = fix.peer(e).Follow(t.Context(), w.tenant, w.id, w.base+1_000_000)
	wantErr(t, "follow after a position of the future", err, sessions.ErrCursorAhead)
}
