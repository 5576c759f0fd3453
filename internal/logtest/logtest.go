// Package logtest is the conformance suite of [sessions.Engine]: one check for each sentence of its contracts.
package logtest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

// Fixture is one history and the ways to open it.
type Fixture struct {
	// Open returns an engine on the history. Every further call first closes what the former returned: a restart.
	Open func() sessions.Engine
	// Peer returns another replica's engine on the same history; nil: there is only one replica.
	Peer func() sessions.Engine
	// DeltaTTL is how long deltas are kept, a few seconds at most.
	DeltaTTL time.Duration
}

func (f Fixture) peer(e sessions.Engine) sessions.Engine {
	if f.Peer == nil {
		return e
	}
	return f.Peer()
}

// Full reports whether the full counts were asked for, with TREADLE_TEST_FULL=1; the default is a fraction of them.
func Full() bool { return os.Getenv("TREADLE_TEST_FULL") != "" }

// Run checks that the engines of the histories that start makes keep the contracts of package sessions.
// Each check has a history of its own, which start releases with the test's Cleanup.
func Run(t *testing.T, start func(t testing.TB) Fixture) {
	checks := []struct {
		name  string
		check func(*testing.T, Fixture)
	}{
		{"AppendOneWinner", appendOneWinner},
		{"AppendBase", appendBase},
		{"AppendAgain", appendAgain},
		{"AppendKeepsRecord", appendKeepsRecord},
		{"AppendTooLarge", appendTooLarge},
		{"AppendCanceled", appendCanceled},
		{"DeltasKeepOrder", deltasKeepOrder},
		{"DeltasLeaveBase", deltasLeaveBase},
		{"Tenants", tenants},
		{"ReadLimits", readLimits},
		{"ReadBarrier", readBarrier},
		{"ReadLarge", readLarge},
		{"ReadExpiredDeltas", readExpiredDeltas},
		{"FollowWaits", followWaits},
		{"FollowClose", followClose},
		{"FollowStress", followStress},
		{"FollowSlow", followSlow},
		{"FollowCursorAhead", followCursorAhead},
		{"PurgeTombstone", purgeTombstone},
		{"PurgeAll", purgeAll},
		{"PurgeWhileFollowing", purgeWhileFollowing},
		{"JobOnce", jobOnce},
		{"JobRedelivered", jobRedelivered},
		{"JobKept", jobKept},
		{"JobReleased", jobReleased},
		{"JobStaleKeeper", jobStaleKeeper},
		{"JobSurvivesReopen", jobSurvivesReopen},
		{"JobPurged", jobPurged},
		{"IndexPages", indexPages},
		{"IndexStatus", indexStatus},
		{"IndexReadsOwnWrites", indexReadsOwnWrites},
		{"IndexRebuilt", indexRebuilt},
		{"StoreValues", storeValues},
		{"StoreOneCreator", storeOneCreator},
		{"StoreTTL", storeTTL},
		{"Reopen", reopen},
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.check(t, start(t))
		})
	}
}

// deadline bounds every wait of a check; no check depends on how long something takes.
const deadline = 30 * time.Second

// writer appends to one session as its only writer.
type writer struct {
	t      testing.TB
	engine sessions.Engine
	tenant string
	id     uuid.UUID
	base   sessions.Seq
	n      int64
}

func newWriter(t testing.TB, e sessions.Engine) *writer {
	return &writer{t: t, engine: e, tenant: "acme", id: newID(t)}
}

func newID(t testing.TB) uuid.UUID {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (w *writer) append(rec *sessions.Record) sessions.Seq {
	w.t.Helper()
	w.n++
	rec.N = w.n
	seq, err := w.engine.Append(w.t.Context(), w.tenant, w.id, w.base, rec)
	if err != nil {
		w.t.Fatalf("append of fact %d after %d: %v", w.n, w.base, err)
	}
	if seq <= w.base {
		w.t.Fatalf("append after %d returned %d", w.base, seq)
	}
	w.base = seq
	return seq
}

func (w *writer) fact(text string) sessions.Seq { w.t.Helper(); return w.append(fact(text)) }
func (w *writer) turn() sessions.Seq            { w.t.Helper(); return w.append(turn()) }

func (w *writer) end(status api.SessionStatus) sessions.Seq {
	w.t.Helper()
	return w.append(end(w.id, status))
}

func (w *writer) delta(text string) {
	w.t.Helper()
	if err := w.engine.AppendDelta(w.t.Context(), w.tenant, w.id, delta(text)); err != nil {
		w.t.Fatalf("append of a delta: %v", err)
	}
}

func (w *writer) read(after sessions.Seq, deltas bool) []sessions.Entry {
	w.t.Helper()
	var all []sessions.Entry
	for {
		entries, err := w.engine.Read(w.t.Context(), w.tenant, w.id, after, 0, deltas)
		if err != nil {
			w.t.Fatalf("read after %d: %v", after, err)
		}
		if len(entries) == 0 {
			return all
		}
		all = append(all, entries...)
		after = all[len(all)-1].Seq
	}
}

func record(event api.Event) *sessions.Record {
	raw, err := api.Marshal(event)
	if err != nil {
		panic(err)
	}
	return &sessions.Record{V: sessions.RecordVersion, CommandID: uuid.New(), N: 1, Events: []json.RawMessage{raw}}
}

func fact(text string) *sessions.Record {
	return record(&api.MessageEvent{EventHeader: api.EventHeader{Type: api.TypeMessage}, Text: text})
}

func turn() *sessions.Record {
	return record(&api.TurnStarted{EventHeader: api.EventHeader{Type: api.TypeTurnStarted}})
}

func delta(text string) *sessions.Record {
	rec := record(&api.TextDelta{EventHeader: api.EventHeader{Type: api.TypeTextDelta}, Text: text})
	rec.N = 0
	return rec
}

func end(id uuid.UUID, status api.SessionStatus) *sessions.Record {
	rec := record(&api.SessionUpdated{EventHeader: api.EventHeader{Type: api.TypeSessionUpdated}})
	rec.Summary = &sessions.Summary{SessionSummary: api.SessionSummary{ID: id, Status: status, Model: "scripted"}}
	return rec
}

// text returns what fact or delta was made with.
func text(t testing.TB, e sessions.Entry) string {
	t.Helper()
	var body struct{ Text string }
	if err := json.Unmarshal(e.Events[0], &body); err != nil {
		t.Fatal(err)
	}
	return body.Text
}

// seqs checks that the entries rise, and returns their positions.
func seqs(t testing.TB, entries []sessions.Entry) []sessions.Seq {
	t.Helper()
	out := make([]sessions.Seq, len(entries))
	for i, e := range entries {
		out[i] = e.Seq
		if i > 0 && e.Seq <= out[i-1] {
			t.Fatalf("entry %d has position %d after %d", i, e.Seq, out[i-1])
		}
	}
	return out
}

// eventually polls until ok, or fails the test.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", deadline, what)
		}
	}
}

// gather reads from the follower up to the position.
func gather(t testing.TB, f sessions.Follower, until sessions.Seq) []sessions.Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var all []sessions.Entry
	for len(all) == 0 || all[len(all)-1].Seq < until {
		entries, err := f.Next(ctx, deadline)
		if err != nil {
			t.Fatalf("next, with %d entries, on the way to %d: %v", len(all), until, err)
		}
		all = append(all, entries...)
	}
	return all
}

func follow(t testing.TB, e sessions.Engine, w *writer, after sessions.Seq) sessions.Follower {
	t.Helper()
	f, err := e.Follow(t.Context(), w.tenant, w.id, after)
	if err != nil {
		t.Fatalf("follow after %d: %v", after, err)
	}
	t.Cleanup(f.Close)
	return f
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func long(bytes int) string { return strings.Repeat("x", bytes) }
