package memlog

import (
	"context"
	"errors"
	"slices"
	"time"

	"treadle/sessions"
)

type job struct {
	key  key
	turn sessions.Seq
	// deliveries counts the receivers; the last one holds the job while expiry is set.
	deliveries int
	expiry     *time.Timer
}

var errNotHeld = errors.New("the job is not held by this receiver")

// KeepInterval implements [sessions.Jobs].
func (l *Log) KeepInterval() time.Duration { return l.AckWait / 3 }

// Receive implements [sessions.Jobs].
func (l *Log) Receive(ctx context.Context) (*sessions.Job, error) {
	for {
		l.mu.Lock()
		if err := ctx.Err(); err != nil {
			l.mu.Unlock()
			return nil, err
		}
		for _, j := range l.jobs {
			if j.expiry == nil {
				out := l.hand(j)
				l.mu.Unlock()
				return out, nil
			}
		}
		queued := l.queued
		l.mu.Unlock()
		select {
		case <-queued:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *Log) queue(k key, turn sessions.Seq) {
	l.jobs = append(l.jobs, &job{key: k, turn: turn})
	l.announceJob()
}

func (l *Log) announceJob() {
	close(l.queued)
	l.queued = make(chan struct{})
}

// hand gives a free job to a receiver.
func (l *Log) hand(j *job) *sessions.Job {
	j.deliveries++
	delivery := j.deliveries
	j.expiry = time.AfterFunc(l.AckWait, func() { _ = l.free(j, delivery) })
	return &sessions.Job{
		Tenant: j.key.tenant, Session: j.key.id, Turn: j.turn,
		Redelivered: delivery > 1,
		Keep:        func() error { return l.keep(j, delivery) },
		Done:        func(context.Context) error { return l.done(j) },
		Release:     func() error { return l.free(j, delivery) },
	}
}

func (l *Log) keep(j *job, delivery int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A timer that cannot be stopped has fired: its function only waits for the lock.
	if j.expiry == nil || j.deliveries != delivery || !j.expiry.Stop() {
		return errNotHeld
	}
	j.expiry.Reset(l.AckWait)
	return nil
}

// free makes the job available again if that delivery still holds it.
func (l *Log) free(j *job, delivery int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if j.expiry == nil || j.deliveries != delivery {
		return errNotHeld
	}
	j.expiry.Stop()
	j.expiry = nil
	l.announceJob()
	return nil
}

// done removes the job whoever holds it: a turn that has ended needs nobody.
func (l *Log) done(j *job) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(func(other *job) bool { return other == j })
	return nil
}

func (l *Log) dropJobs(k key) {
	l.remove(func(j *job) bool { return j.key == k })
}

func (l *Log) remove(gone func(*job) bool) {
	l.jobs = slices.DeleteFunc(l.jobs, func(j *job) bool {
		if !gone(j) {
			return false
		}
		if j.expiry != nil {
			j.expiry.Stop()
			j.expiry = nil
		}
		return true
	})
}
