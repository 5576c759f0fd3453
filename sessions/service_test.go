package sessions_test

import (
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

// C43: of many turns at once one starts; after its end the next one starts at once.
func TestStartTurn_busy(t *testing.T) {
	bubble(t, "repeat: last\nanswers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		second := f.replica()
		id := f.create(tool("a"))
		var wg sync.WaitGroup
		var mu sync.Mutex
		var started []uuid.UUID
		var refusals []error
		for i := range 50 {
			wg.Go(func() {
				svc := f.Service
				if i%2 == 1 {
					svc = second.Service
				}
				turn, err := svc.StartTurn(f.ctx, tenant, id, input("go"), "")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					refusals = append(refusals, err)
				} else {
					started = append(started, turn.ID)
				}
			})
		}
		wg.Wait()
		if len(started) != 1 {
			t.Fatalf("%d turns started", len(started))
		}
		for _, err := range refusals {
			if got := f.refused(err, sessions.CodeSessionBusy).Facts["turn_id"]; got != started[0] {
				t.Errorf("refusal names %v", got)
			}
		}
		f.submit(id, f.pending(id, 1)[0].ID, "1")
		r := f.open(id, sessions.StreamQuery{Turn: started[0]})
		r.until(api.TypeTurnCompleted)
		for range 500 {
			turn := f.turn(id, "go")
			r := f.open(id, sessions.StreamQuery{Turn: turn})
			r.until(api.TypeTurnCompleted)
			r.Close()
		}
	})
}

// C57: a retried request runs once.
func TestIdempotency(t *testing.T) {
	bubble(t, "repeat: last\nanswers:\n- - text: Done.\n", func(f *fixture) {
		req := func(text string) *api.SessionCreate {
			return &api.SessionCreate{Metadata: map[string]string{"k": text}}
		}
		first, err := f.CreateSession(f.ctx, tenant, req("a"), "key")
		if err != nil {
			t.Fatal(err)
		}
		second := f.replica()
		again, err := second.CreateSession(f.ctx, tenant, req("a"), "key")
		if err != nil || again.ID != first.ID {
			t.Errorf("again: %v, %v", again, err)
		}
		_, err = f.CreateSession(f.ctx, tenant, req("b"), "key")
		f.refused(err, sessions.CodeIdempotencyKeyReused)
		other, err := f.CreateSession(f.ctx, "other", req("a"), "key")
		if err != nil || other.ID == first.ID {
			t.Errorf("another tenant: %v, %v", other, err)
		}
		turn, err := f.StartTurn(f.ctx, tenant, first.ID, input("go"), "key")
		if err != nil {
			t.Fatal(err)
		}
		for _, svc := range []*sessions.Service{f.Service, second.Service, f.replica().Service} {
			again, err := svc.StartTurn(f.ctx, tenant, first.ID, input("go"), "key")
			if err != nil || again.ID != turn.ID {
				t.Errorf("again: %v, %v", again, err)
			}
			_, err = svc.StartTurn(f.ctx, tenant, first.ID, input("stop"), "key")
			f.refused(err, sessions.CodeIdempotencyKeyReused)
			f.ended(first.ID, turn.ID)
		}
		if n := len(f.model.Prompts()); n != 1 {
			t.Errorf("the model was called %d times", n)
		}
	})
}

func TestSession_endAndDelete(t *testing.T) {
	bubble(t, "repeat: last\nanswers:\n- - call: {tool: a}\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		f.pending(id, 1)
		r := f.open(id, sessions.StreamQuery{})
		for range 2 {
			if s, err := f.EndSession(f.ctx, tenant, id); err != nil || s.Status != api.StatusEnded {
				t.Fatalf("end: %+v, %v", s, err)
			}
		}
		if got := r.rest(); !slices.Equal(got[len(got)-4:], []string{"turn_canceled", "status_changed", "session_ended", "stream_end"}) {
			t.Errorf("events: %v", got)
		}
		if _, err := r.Next(f.ctx, time.Second); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
		f.ended(id, turn)
		_, err := f.StartTurn(f.ctx, tenant, id, input("go"), "")
		f.refused(err, sessions.CodeSessionEnded)
		s, _ := f.Session(f.ctx, tenant, id)
		for _, q := range []sessions.StreamQuery{{LastEventID: s.Cursor}, {After: "latest"}} {
			if _, err := f.OpenStream(f.ctx, tenant, id, q); err != sessions.ErrStreamOver {
				t.Errorf("a stream from the end, %+v: %v", q, err)
			}
		}
		if page, err := f.EventPage(f.ctx, tenant, id, s.Cursor, 10, time.Hour); err != nil || len(page.Events) != 0 {
			t.Errorf("a page from the end: %+v, %v", page, err)
		}

		created, err := f.CreateSession(f.ctx, tenant, &api.SessionCreate{Subject: "personal", Metadata: map[string]string{"a": "personal"}, Skills: api.Skills{Tools: []api.Tool{tool("a")}}}, "")
		if err != nil {
			t.Fatal(err)
		}
		second := created.ID
		f.turn(second, "go")
		f.pending(second, 1)
		r = f.open(second, sessions.StreamQuery{})
		r.until(api.TypeToolCall)
		if err := f.DeleteSession(f.ctx, tenant, second); err != nil {
			t.Fatal(err)
		}
		r.until(api.TypeStreamEnd)
		if rest := r.rest(); len(rest) != 0 {
			t.Errorf("after the end of the stream: %v", rest)
		}
		entries, err := f.engine.Read(f.ctx, tenant, second, 0, 0, true)
		if err != nil || len(entries) != 1 || strings.Contains(string(entries[0].Events[0]), "personal") || entries[0].Summary.Subject != "" || entries[0].Summary.Metadata != nil {
			t.Errorf("what is left: %+v, %v", entries, err)
		}
		for _, err := range []error{
			f.DeleteSession(f.ctx, tenant, second),
			func() error { _, err := f.Session(f.ctx, tenant, second); return err }(),
			func() error { _, err := f.replica().Session(f.ctx, tenant, second); return err }(),
			func() error { _, err := f.StartTurn(f.ctx, tenant, second, input("go"), ""); return err }(),
		} {
			f.refused(err, sessions.CodeSessionNotFound)
		}
		list, err := f.Sessions(f.ctx, tenant, sessions.SessionQuery{})
		if err != nil || len(list.Sessions) != 1 || list.Sessions[0].ID != id {
			t.Errorf("list: %+v, %v", list, err)
		}
	})
}

func TestReplaceTools(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - call: {tool: b}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0].ID
		_, etag, err := f.Tools(f.ctx, tenant, id)
		if err != nil {
			t.Fatal(err)
		}
		skills, next, err := f.ReplaceTools(f.ctx, tenant, id, etag, &api.ToolsReplace{Tools: []api.Tool{tool("b")}})
		if err != nil || skills.Guidance != "Be brief." || next == etag {
			t.Fatalf("%+v, %s, %v", skills, next, err)
		}
		_, _, err = f.ReplaceTools(f.ctx, tenant, id, etag, &api.ToolsReplace{Tools: []api.Tool{}})
		f.refused(err, sessions.CodePreconditionFailed)
		f.submit(id, call, "1") // what is pending stays so
		f.submit(id, f.pending(id, 1)[0].ID, "2")
		f.ended(id, turn)
		if tools := f.model.Prompts()[1].Tools; len(tools) != 1 || tools[0].Name != "b" {
			t.Errorf("the model was told of %+v", tools)
		}
		_, err = f.Tool(f.ctx, tenant, id, "a")
		f.refused(err, sessions.CodeToolNotFound)
	})
}
