package memlog_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"treadle/api"
	"treadle/internal/logtest"
	"treadle/internal/memlog"
	"treadle/sessions"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	logtest.Run(t, func(testing.TB) logtest.Fixture {
		l := memlog.New()
		l.AckWait = 300 * time.Millisecond
		l.DeltaTTL = time.Second
		return logtest.Fixture{Open: func() sessions.Engine { return l }, DeltaTTL: l.DeltaTTL}
	})
}

func turnStarted(t *testing.T) *sessions.Record {
	t.Helper()
	raw, err := api.Marshal(&api.TurnStarted{EventHeader: api.EventHeader{Type: api.TypeTurnStarted}})
	if err != nil {
		t.Fatal(err)
	}
	return &sessions.Record{V: 1, CommandID: uuid.New(), N: 1, Events: []json.RawMessage{raw}}
}

func TestJobReturnsAfterAckWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memlog.New()
		if _, err := l.Append(t.Context(), "acme", uuid.New(), 0, turnStarted(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		job, err := l.Receive(t.Context())
		if err != nil || !job.Redelivered || time.Since(start) != l.AckWait {
			t.Fatalf("got %+v, %v after %s", job, err, time.Since(start))
		}
		if err := job.Done(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := l.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a job that is done came again: %v", err)
		}
	})
}

func TestFollowerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memlog.New()
		f, err := l.Follow(t.Context(), "acme", uuid.New(), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		start := time.Now()
		if entries, err := f.Next(t.Context(), time.Minute); entries != nil || err != nil || time.Since(start) != time.Minute {
			t.Fatalf("got %v, %v after %s", entries, err, time.Since(start))
		}
	})
}

func TestFaults(t *testing.T) {
	l := memlog.New()
	id := uuid.New()
	broken := errors.New("broken")
	l.FailAppends(broken)
	if _, err := l.Append(t.Context(), "acme", id, 0, turnStarted(t)); !errors.Is(err, broken) {
		t.Fatalf("append: %v", err)
	}
	if err := l.Healthy(); !errors.Is(err, sessions.ErrUnavailable) {
		t.Fatalf("healthy: %v", err)
	}
	l.FailAppends(nil)
	l.LoseAnswers(1)
	if _, err := l.Append(t.Context(), "acme", id, 0, turnStarted(t)); !errors.Is(err, sessions.ErrUnavailable) {
		t.Fatalf("append whose answer is lost: %v", err)
	}
	entries, err := l.Read(t.Context(), "acme", id, 0, 0, true)
	if err != nil || len(entries) != 1 {
		t.Fatalf("the record whose answer was lost: %v, %v", entries, err)
	}
}
