package natslog_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/natslog"
	"treadle/sessions"
)

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

func end(id uuid.UUID) *sessions.Record {
	rec := record(&api.SessionUpdated{EventHeader: api.EventHeader{Type: api.TypeSessionUpdated}})
	rec.Summary = &sessions.Summary{SessionSummary: api.SessionSummary{ID: id, Status: api.StatusIdle}}
	return rec
}

// eventually polls until ok, or fails the test.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		}
	}
}

// readAll reads a session from its beginning.
func readAll(ctx context.Context, l *natslog.Log, id uuid.UUID, deltas bool) ([]sessions.Entry, error) {
	var all []sessions.Entry
	for after := sessions.Seq(0); ; after = all[len(all)-1].Seq {
		entries, err := l.Read(ctx, "acme", id, after, 0, deltas)
		if err != nil || len(entries) == 0 {
			return all, err
		}
		all = append(all, entries...)
	}
}
