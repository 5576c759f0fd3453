package logtest

import (
	"testing"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

// ended writes a session's history up to its session_ended fact.
func ended(t *testing.T, e sessions.Engine) *writer {
	w := newWriter(t, e)
	w.end(api.StatusIdle)
	for range 20 {
		w.delta("d")
		w.fact("f")
	}
	return w
}

func (w *writer) deleted() sessions.Seq {
	rec := end(w.id, api.StatusEnded)
	rec.Summary.Deleted = true
	return w.append(rec)
}

func purgeTombstone(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := ended(t, e)
	middle := w.base
	last := w.deleted()
	for range 2 {
		if err := e.Purge(t.Context(), w.tenant, w.id, last); err != nil {
			t.Fatalf("purge: %v", err)
		}
	}
	w.engine = fix.peer(e)
	if got := w.read(0, true); len(got) != 1 || got[0].Seq != last || !got[0].Summary.Deleted {
		t.Fatalf("after the purge %v is left", got)
	}
	if got := gather(t, follow(t, w.engine, w, middle), last); len(got) != 1 {
		t.Fatalf("a follower with an old cursor gets %v", got)
	}
	for _, base := range []sessions.Seq{0, middle} {
		_, err := w.engine.Append(t.Context(), w.tenant, w.id, base, fact("too late"))
		wantErr(t, "append to a deleted session", err, sessions.ErrConflict)
	}
	eventually(t, "the session is not listed", func() bool {
		listed, err := w.engine.Sessions(t.Context(), w.tenant, uuid.Nil, 10, nil)
		return err == nil && len(listed) == 0
	})
	e = fix.Open()
	_, err := e.Append(t.Context(), w.tenant, w.id, 0, fact("too late"))
	wantErr(t, "append to a deleted session after a restart", err, sessions.ErrConflict)
	if listed, err := e.Sessions(t.Context(), w.tenant, uuid.Nil, 10, nil); err != nil || len(listed) != 0 {
		t.Fatalf("after a restart the deleted session is listed: %v, %v", listed, err)
	}
}

// purgeAll removes the end as well, as an operator may do much later.
func purgeAll(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := ended(t, e)
	if err := e.Purge(t.Context(), w.tenant, w.id, w.base+1); err != nil {
		t.Fatalf("purge: %v", err)
	}
	peer := fix.peer(e)
	_, err := peer.Read(t.Context(), w.tenant, w.id, w.base, 0, true)
	wantErr(t, "read of a session that is gone", err, sessions.ErrPurged)
	f, err := peer.Follow(t.Context(), w.tenant, w.id, w.base)
	if err == nil {
		defer f.Close()
		_, err = f.Next(t.Context(), deadline)
	}
	wantErr(t, "follow of a session that is gone", err, sessions.ErrPurged)
	if got, err := peer.Read(t.Context(), w.tenant, w.id, 0, 0, true); err != nil || len(got) != 0 {
		t.Fatalf("read of a session that is gone from the start: %v, %v", got, err)
	}
}

func purgeWhileFollowing(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := ended(t, e)
	peer := fix.peer(e)
	live, lagging := follow(t, peer, w, 0), follow(t, peer, w, 0)
	gather(t, live, w.base)
	last := w.deleted()
	if err := e.Purge(t.Context(), w.tenant, w.id, last); err != nil {
		t.Fatalf("purge: %v", err)
	}
	if got := gather(t, live, last); len(got) != 1 || !got[0].Summary.Deleted {
		t.Fatalf("the live follower gets %v", got)
	}
	if got := gather(t, lagging, last); got[len(got)-1].Seq != last {
		t.Fatalf("the follower that lags gets %v", got)
	}
}
