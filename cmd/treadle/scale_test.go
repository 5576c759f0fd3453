package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/logtest"
	"treadle/internal/natslog"
	"treadle/sessions"
	"treadle/sse"
)

// TestScale: a session with a long past and a tenant with many sessions are opened as if they were new: what is answered is
// right and of bounded size. The times are reported. There are 5,000 messages and 3,000 sessions, or 20,000 and 50,000 with
// TREADLE_TEST_FULL=1.
func TestScale(t *testing.T) {
	t.Parallel()
	turns, others := 2500, 3000
	if logtest.Full() {
		turns, others = 10_000, 50_000
	}
	data := filepath.Join(t.TempDir(), "data")
	old := buildHistory(t, data, turns, others)
	h := newHostOn(t, data, script(stepDone))
	t.Logf("%d messages and %d sessions; started in %s", 2*turns, others+1, time.Since(h.started).Round(time.Millisecond))
	c := h.client()
	path := "/v1/sessions/" + old.String()
	var cursor string
	measure(c, "state", path, func(s *api.Session) {
		cursor = s.Cursor
		if s.Turns != int64(turns) || s.Status != api.StatusIdle {
			t.Errorf("the old session is %+v", s.SessionSummary)
		}
	})
	measure(c, "latest messages", path+"/messages", func(page *api.MessageList) { checkPage(t, page, 2*turns-49) })
	measure(c, "messages in the middle", fmt.Sprintf("%s/messages?before=%d", path, turns+1), func(page *api.MessageList) { checkPage(t, page, turns-49) })
	measure(c, "latest turns", path+"/turns", func(list *api.TurnList) {
		if len(list.Turns) != 50 || list.Turns[0].Input.Text() != said(turns-1) {
			t.Errorf("%d turns, the first is %+v", len(list.Turns), list.Turns[0])
		}
	})
	measure(c, "no further events", path+"/events?after="+cursor, func(page *api.EventPage) {
		if len(page.Events) != 0 || page.Cursor != cursor {
			t.Errorf("after the end there are %d events", len(page.Events))
		}
	})
	measure(c, "latest sessions", "/v1/sessions", func(list *api.SessionList) {
		newestFirst := func(a, b api.SessionSummary) int { return strings.Compare(b.ID.String(), a.ID.String()) }
		if len(list.Sessions) != 50 || !slices.IsSortedFunc(list.Sessions, newestFirst) {
			t.Errorf("the list has %d sessions, or a wrong order", len(list.Sessions))
		}
	})
	measure(c, "sessions of a subject", "/v1/sessions?subject=nobody", func(list *api.SessionList) {
		if len(list.Sessions) != 0 {
			t.Errorf("nobody has %d sessions", len(list.Sessions))
		}
	})
	c.countSessions(others + 1)
	c.measureTail(path)
	c.measureTurn(path)
	t.Logf("resident memory: %.0f MB", metric(t, c.url, "process_resident_memory_bytes")/1e6)
}

// said is what the user says in a turn, from 0.
func said(turn int) string {
	return fmt.Sprintf("Input %d. %s", turn, strings.Repeat("Lorem ipsum dolor sit amet. ", 10))
}

// parrot always says the same.
type parrot struct{}

// Stream implements [sessions.Model].
func (parrot) Stream(context.Context, *sessions.Prompt) iter.Seq2[sessions.Part, error] {
	return func(yield func(sessions.Part, error) bool) {
		yield(sessions.Part{Answer: &sessions.Answer{Text: "Sed ut perspiciatis unde omnis iste natus error sit voluptatem.", StopReason: "end"}}, nil)
	}
}

// buildHistory writes a data directory with one session of so many turns and so many others.
func buildHistory(tb testing.TB, data string, turns, others int) (old uuid.UUID) {
	tb.Helper()
	log, err := natslog.Open(tb.Context(), natslog.Config{Dir: data})
	if err != nil {
		tb.Fatal(err)
	}
	defer log.Close()
	service, err := sessions.New(sessions.Config{
		Engine: log, Models: []sessions.ModelEntry{{Name: "play", Provider: "parrot", Model: parrot{}}}, DefaultModel: "play",
	})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(tb.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() {
		if err := service.Run(ctx); err != nil {
			tb.Error(err)
		}
	})

	created, err := service.CreateSession(ctx, "default", &api.SessionCreate{}, "")
	if err != nil {
		tb.Fatal(err)
	}
	var creating sync.WaitGroup
	creating.Go(func() {
		for n := range others {
			if _, err := service.CreateSession(ctx, "default", &api.SessionCreate{Metadata: map[string]string{"n": fmt.Sprint(n)}}, ""); err != nil {
				tb.Error(err)
				return
			}
		}
	})
	defer creating.Wait()
	for n := range turns {
		turn, err := service.StartTurn(ctx, "default", created.ID, &api.TurnCreate{Input: api.Input{{Type: "text", Text: said(n)}}}, "")
		if err == nil {
			turn, err = service.Turn(ctx, "default", created.ID, turn.ID, patience)
		}
		if err != nil || turn.Outcome == nil || *turn.Outcome != api.OutcomeCompleted {
			tb.Fatalf("turn %d: %+v, %v", n, turn, err)
		}
	}
	return created.ID
}

// checkPage asserts that a page has fifty messages, from that position on, and that they are the right ones.
func checkPage(tb testing.TB, page *api.MessageList, first int) {
	tb.Helper()
	if len(page.Messages) != 50 || page.Before != int64(first) {
		tb.Errorf("the page has %d messages, and goes on before %d; want 50 from %d on", len(page.Messages), page.Before, first)
		return
	}
	for i, m := range page.Messages {
		user := m.Role == "user"
		if m.Position != int64(first+i) || user != (m.Position%2 == 1) || user && m.Text != said(int(m.Position)/2) {
			tb.Errorf("message %d of the page is %+v", i, m)
			return
		}
	}
}

// measure makes a request a few times, checks the answers, and reports how long they took.
func measure[T any](c *client, what, path string, check func(*T)) {
	c.tb.Helper()
	var took []time.Duration
	size := 0
	for range 20 {
		start := time.Now()
		a, err := c.do(http.MethodGet, path, "", "Accept", "application/json")
		took = append(took, time.Since(start))
		var out T
		if err != nil || a.status != http.StatusOK || json.Unmarshal(a.body, &out) != nil {
			c.tb.Fatalf("%s: %d %s %v", what, a.status, a.body, err)
		}
		check(&out)
		size = len(a.body)
	}
	if size > 1<<20 {
		c.tb.Errorf("%s: the answer has %d bytes", what, size)
	}
	c.report(what, took, size)
}

func (c *client) report(what string, took []time.Duration, size int) {
	c.tb.Helper()
	first := took[0]
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	c.tb.Logf("%-24s first %6.1f ms, p50 %6.1f ms, max %6.1f ms, %d bytes", what, ms(first), ms(took[len(took)/2]), ms(took[len(took)-1]), size)
}

// countSessions walks through the whole list.
func (c *client) countSessions(want int) {
	c.tb.Helper()
	start := time.Now()
	seen := map[uuid.UUID]bool{}
	for query := "?limit=200"; ; {
		var list api.SessionList
		c.must(http.StatusOK, http.MethodGet, "/v1/sessions"+query, "", &list)
		for _, s := range list.Sessions {
			seen[s.ID] = true
		}
		if list.Next == "" {
			break
		}
		query = "?limit=200&before=" + list.Next
	}
	if len(seen) != want {
		c.tb.Errorf("%d sessions are listed, want %d", len(seen), want)
	}
	c.tb.Logf("all sessions in pages of 200: %s", time.Since(start).Round(time.Millisecond))
}

// measureTail opens streams that begin at the end.
func (c *client) measureTail(path string) {
	c.tb.Helper()
	var took []time.Duration
	for range 20 {
		ctx, cancel := context.WithTimeout(c.tb.Context(), patience)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path+"/events?after=latest", nil)
		if err != nil {
			c.tb.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		start := time.Now()
		res, err := c.http.Do(req)
		if err != nil {
			c.tb.Fatal(err)
		}
		frame, err := sse.NewReader(res.Body, sse.ReaderOptions{}).Next()
		took = append(took, time.Since(start))
		if err != nil || frame.Type != api.TypeReady {
			c.tb.Errorf("the first frame is %+v, %v", frame, err)
		}
		cancel()
		_ = res.Body.Close()
	}
	c.report("stream from the end", took, 0)
}

// measureTurn starts turns, whose model is told the whole history.
func (c *client) measureTurn(path string) {
	c.tb.Helper()
	var took []time.Duration
	for range 5 {
		var started, ended api.Turn
		start := time.Now()
		c.must(http.StatusAccepted, http.MethodPost, path+"/turns", turnBody("next"), &started)
		c.must(http.StatusOK, http.MethodGet, path+"/turns/"+started.ID.String()+"?wait=25", "", &ended)
		took = append(took, time.Since(start))
		if ended.Outcome == nil || *ended.Outcome != api.OutcomeCompleted || ended.Text != "Next." {
			c.tb.Errorf("turn %+v", ended)
		}
	}
	c.report("a whole turn", took, 0)
}
