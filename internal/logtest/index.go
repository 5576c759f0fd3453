package logtest

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

func listed(t *testing.T, e sessions.Engine, before uuid.UUID, limit int, match func(*sessions.Summary) bool) []uuid.UUID {
	t.Helper()
	found, err := e.Sessions(t.Context(), "acme", before, limit, match)
	if err != nil {
		t.Fatalf("sessions: %v", err)
	}
	ids := make([]uuid.UUID, len(found))
	for i, s := range found {
		ids[i] = s.ID
	}
	return ids
}

func indexPages(t *testing.T, fix Fixture) {
	e := fix.Open()
	var want []uuid.UUID
	for i := range 25 {
		w := newWriter(t, e)
		rec := end(w.id, api.StatusIdle)
		rec.Summary.Subject = []string{"ann", "bob"}[i%2]
		w.append(rec)
		w.fact("not listed")
		want = append(want, w.id)
	}
	other := &writer{t: t, engine: e, tenant: "other", id: newID(t)}
	other.end(api.StatusIdle)
	slices.Reverse(want)
	var got []uuid.UUID
	for before := uuid.Nil; ; before = got[len(got)-1] {
		page := listed(t, e, before, 7, nil)
		got = append(got, page...)
		if len(page) < 7 {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("pages give %v, want %v", got, want)
	}
	ann := func(s *sessions.Summary) bool { return s.Subject == "ann" }
	if got := listed(t, e, uuid.Nil, 100, ann); len(got) != 13 || got[0] != want[0] {
		t.Fatalf("the filter gives %v", got)
	}
	if got := listed(t, e, want[0], 2, ann); !slices.Equal(got, []uuid.UUID{want[2], want[4]}) {
		t.Fatalf("the filter gives after the first %v", got)
	}
}

func status(t *testing.T, e sessions.Engine, id uuid.UUID) sessions.Summary {
	t.Helper()
	found, err := e.Sessions(t.Context(), "acme", uuid.Nil, 1, func(s *sessions.Summary) bool { return s.ID == id })
	if err != nil || len(found) != 1 {
		t.Fatalf("session %s is listed as %v, %v", id, found, err)
	}
	return found[0]
}

func indexStatus(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	want := func(s api.SessionStatus, turns int64) {
		t.Helper()
		if got := status(t, e, w.id); got.Status != s || got.Turns != turns {
			t.Fatalf("listed as %s with %d turns, want %s with %d", got.Status, got.Turns, s, turns)
		}
	}
	updated := func(s api.SessionStatus, turns int64) {
		t.Helper()
		rec := end(w.id, s)
		rec.Summary.Turns = turns
		w.append(rec)
	}
	updated(api.StatusIdle, 0)
	want(api.StatusIdle, 0)
	w.turn()
	want(api.StatusRunning, 1)
	w.fact("step")
	want(api.StatusRunning, 1)
	updated(api.StatusWaitingToolResult, 1)
	want(api.StatusRunning, 1)
	updated(api.StatusIdle, 1)
	want(api.StatusIdle, 1)
	w.turn()
	want(api.StatusRunning, 2)
	e = fix.Open()
	w.engine = e
	want(api.StatusRunning, 2)
	updated(api.StatusEnded, 2)
	want(api.StatusEnded, 2)
	e = fix.Open()
	want(api.StatusEnded, 2)
}

func indexReadsOwnWrites(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	for range 100 {
		w.turn()
		if got := status2(t, e, w); got != api.StatusRunning && got != "" {
			t.Fatalf("listed as %q after a turn started", got)
		}
		w.end(api.StatusIdle)
		if got := status2(t, e, w); got != api.StatusIdle {
			t.Fatalf("listed as %q after the turn ended", got)
		}
	}
	peer := fix.peer(e)
	eventually(t, "another replica lists it", func() bool { return slices.Contains(listed(t, peer, uuid.Nil, 10, nil), w.id) })
}

// status2 is empty for a session that is not listed yet.
func status2(t *testing.T, e sessions.Engine, w *writer) api.SessionStatus {
	t.Helper()
	found, err := e.Sessions(t.Context(), w.tenant, uuid.Nil, 1, nil)
	if err != nil {
		t.Fatalf("sessions: %v", err)
	}
	if len(found) == 0 {
		return ""
	}
	return found[0].Status
}

func indexRebuilt(t *testing.T, fix Fixture) {
	e := fix.Open()
	var want []uuid.UUID
	for range 300 {
		w := newWriter(t, e)
		w.end(api.StatusRunning)
		w.fact("f")
		w.end(api.StatusIdle)
		want = append(want, w.id)
	}
	slices.Reverse(want)
	e = fix.Open()
	if got := listed(t, e, uuid.Nil, 1000, func(s *sessions.Summary) bool { return s.Status == api.StatusIdle }); !slices.Equal(got, want) {
		t.Fatalf("after a restart %d of %d sessions are listed", len(got), len(want))
	}
}
