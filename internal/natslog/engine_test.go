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
