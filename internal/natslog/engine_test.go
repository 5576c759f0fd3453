package natslog_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"treadle/internal/logtest"
	"treadle/internal/natslog"
	"treadle/sessions"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	logtest.Run(t, func(t testing.TB) logtest.Fixture {
		cfg := natslog.Config{Dir: t.TempDir(), DeltaTTL: 2 * time.Second, AckWait: 600 * time.Millisecond, KeepInterval: 200 * time.Millisecond}
		var l *natslog.Log
		t.Cleanup(func() { l.Close() })
		return logtest.Fixture{
			DeltaTTL: cfg.DeltaTTL,
			Open: func() sessions.Engine {
				if l != nil {
					l.Close()
				}
				l = open(t, cfg)
				return l
			},
		}
	})
}

func open(t testing.TB, cfg natslog.Config) *natslog.Log {
	t.Helper()
	l, err := natslog.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A restored store begins a new epoch once, and keeps it.
func TestResetCursors(t *testing.T) {
	dir := t.TempDir()
	epochs := map[string]bool{}
	for _, reset := range []bool{false, false, true, false} {
		l := open(t, natslog.Config{Dir: dir, ResetCursors: reset})
		epochs[l.Epoch()] = true
		l.Close()
	}
	if len(epochs) != 2 {
		t.Errorf("there were %d epochs, want 2", len(epochs))
	}
	fresh := open(t, natslog.Config{Dir: t.TempDir(), ResetCursors: true})
	defer fresh.Close()
	if fresh.Epoch() == "" {
		t.Error("a new store has no epoch")
	}
}
