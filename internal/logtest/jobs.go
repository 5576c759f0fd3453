package logtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

func receive(t *testing.T, e sessions.Engine) *sessions.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	job, err := e.Receive(ctx)
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	return job
}

// noJob fails if a job comes within the time.
func noJob(t *testing.T, e sessions.Engine, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if job, err := e.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("want no job, got %+v, %v", job, err)
	}
}

func done(t *testing.T, job *sessions.Job) {
	t.Helper()
	if err := job.Done(t.Context()); err != nil {
		t.Fatalf("done: %v", err)
	}
}

func wantJob(t *testing.T, job *sessions.Job, w *writer, turn sessions.Seq, again bool) {
	t.Helper()
	if job.Tenant != w.tenant || job.Session != w.id || job.Turn != turn || job.Redelivered != again {
		t.Fatalf("got job %+v, want turn %d of %s, redelivered %t", job, turn, w.id, again)
	}
}

func jobOnce(t *testing.T, fix Fixture) {
	e := fix.Open()
	peer := fix.peer(e)
	want := map[uuid.UUID]sessions.Seq{}
	for range 20 {
		w := newWriter(t, e)
		w.end(api.StatusIdle)
		w.fact("not a job")
		want[w.id] = w.turn()
		w.delta("not a job")
	}
	var jobs []*sessions.Job
	for i := range 20 {
		job := receive(t, []sessions.Engine{e, peer}[i%2])
		if turn, ok := want[job.Session]; !ok || job.Redelivered || job.Turn != turn {
			t.Fatalf("got job %+v, want turn %d", job, turn)
		}
		delete(want, job.Session)
		jobs = append(jobs, job)
	}
	for _, job := range jobs {
		done(t, job)
	}
	noJob(t, peer, 4*e.KeepInterval())
}

func jobRedelivered(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	turn := w.turn()
	wantJob(t, receive(t, e), w, turn, false)
	job := receive(t, fix.peer(e))
	wantJob(t, job, w, turn, true)
	done(t, job)
	noJob(t, e, 4*e.KeepInterval())
}

func jobKept(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	turn := w.turn()
	job := receive(t, e)
	for range 8 {
		if err := job.Keep(); err != nil {
			t.Fatalf("keep: %v", err)
		}
		noJob(t, fix.peer(e), e.KeepInterval())
	}
	// Kept no longer, it goes to somebody else.
	wantJob(t, receive(t, fix.peer(e)), w, turn, true)
}

func jobReleased(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	turn := w.turn()
	for i := range 3 {
		job := receive(t, e)
		wantJob(t, job, w, turn, i > 0)
		if err := job.Release(); err != nil {
			t.Fatalf("release: %v", err)
		}
	}
	job := receive(t, fix.peer(e))
	wantJob(t, job, w, turn, true)
	done(t, job)
}

// jobStaleKeeper: what a replica does that lost its job harms nobody for longer than a job is held anyway.
func jobStaleKeeper(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	turn := w.turn()
	stale := receive(t, e)
	current := receive(t, fix.peer(e))
	wantJob(t, current, w, turn, true)
	_ = stale.Keep()
	if err := current.Keep(); err != nil {
		t.Fatalf("keep of the present holder: %v", err)
	}
	_ = stale.Keep()
	job := receive(t, e)
	wantJob(t, job, w, turn, true)
	done(t, job)
	_ = stale.Keep()
	_ = stale.Release()
	noJob(t, e, 4*e.KeepInterval())
}

func jobSurvivesReopen(t *testing.T, fix Fixture) {
	e := fix.Open()
	held, waiting, finished := newWriter(t, e), newWriter(t, e), newWriter(t, e)
	open := map[uuid.UUID]*writer{}
	finished.turn()
	done(t, receive(t, e))
	open[held.id] = held
	held.turn()
	wantJob(t, receive(t, e), held, held.base, false)
	waiting.turn()
	open[waiting.id] = waiting
	e = fix.Open()
	for len(open) > 0 {
		job := receive(t, e)
		w := open[job.Session]
		if w == nil {
			t.Fatalf("after a restart came job %+v", job)
		}
		// What waited may have been on its way to the former replica already.
		wantJob(t, job, w, w.base, w == held || job.Redelivered)
		delete(open, job.Session)
		done(t, job)
	}
	noJob(t, e, 4*e.KeepInterval())
}

// jobPurged: a purge removes the jobs that wait.
func jobPurged(t *testing.T, fix Fixture) {
	e := fix.Open()
	w := newWriter(t, e)
	w.turn()
	if err := e.Purge(t.Context(), w.tenant, w.id, w.deleted()); err != nil {
		t.Fatalf("purge: %v", err)
	}
	other := newWriter(t, e)
	turn := other.turn()
	job := receive(t, e)
	wantJob(t, job, other, turn, false)
	done(t, job)
}
