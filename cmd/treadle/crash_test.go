package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// script answers the input "next" with a text, and any other with the steps.
func script(steps ...string) string {
	return "rules:\n  - {match: next, answers: [[{text: Next.}]]}\n  - answers:\n    - [" + strings.Join(steps, "]\n    - [") + "]\n"
}

// The steps of a script.
const (
	stepBlock = `{block: true}`
	stepDone  = `{text: Done.}`
	stepAsk   = `{call: {tool: ask, args: {n: 1}}}`
	stepAsk3  = `{call: {tool: ask, args: {n: 1}}}, {call: {tool: ask, args: {n: 2}}}, {call: {tool: ask, args: {n: 3}}}`
)

// args are those of the n-th call of these steps.
func args(n int) string { return fmt.Sprintf(`{"n":%d}`, n) }

// crash is a moment at which a server is killed.
type crash struct {
	name string
	// before and after are what the model of the first and the second process plays.
	before, after string
	// reach brings a session, whose turn runs, to the moment.
	reach func(p *page, turn uuid.UUID)
	// then is what must be true after the restart. It brings the turn to its end, of this type.
	then func(p *page, turn uuid.UUID)
	end  string
}

var crashes = []crash{
	{
		name: "turn accepted", before: script(stepDone), after: script(stepDone), end: api.TypeTurnCompleted,
	},
	{
		name: "before the first part", before: script(stepBlock), after: script(stepDone), end: api.TypeTurnCompleted,
		reach: func(p *page, _ uuid.UUID) { p.events.awaitType(api.TypeStepStarted) },
		then:  voided,
	},
	{
		name: "in mid text", before: script(`{text: Half a sen}, {block: true}`), after: script(stepDone), end: api.TypeTurnCompleted,
		reach: func(p *page, _ uuid.UUID) { p.events.awaitType(api.TypeTextDelta) },
		then:  voided,
	},
	{
		name: "after the last token", before: script(`{text: Done.}, {block: true}`), after: script(stepDone), end: api.TypeTurnCompleted,
		reach: func(p *page, _ uuid.UUID) { p.events.awaitType(api.TypeTextDelta) },
		then:  voided,
	},
	{
		name: "committed", before: script(stepDone), after: script(stepBlock), end: api.TypeTurnCompleted,
		reach: func(p *page, turn uuid.UUID) { p.ended(turn, api.TypeTurnCompleted) },
	},
	{
		name: "call pending", before: script(stepAsk, stepDone), after: script(stepAsk, stepDone), end: api.TypeTurnCompleted,
		reach: func(p *page, _ uuid.UUID) { p.offered(args(1), 1) },
		then: func(p *page, _ uuid.UUID) {
			call := reoffered(p, 1)
			p.result(call.ToolCallID, `"late"`)
		},
	},
	{
		name: "result accepted", before: script(stepAsk, stepBlock), after: script(stepAsk, stepDone), end: api.TypeTurnCompleted,
		reach: func(p *page, _ uuid.UUID) {
			p.result(p.offered(args(1), 1).ToolCallID, `{"id":9007199254740993,"e":1.50}`)
		},
		then: func(p *page, _ uuid.UUID) { p.settledOnce(args(1), `{"id":9007199254740993,"e":1.50}`) },
	},
	{
		name: "between steps", before: script(stepAsk, stepBlock), after: script(stepAsk, stepDone), end: api.TypeTurnCompleted,
		reach: func(p *page, _ uuid.UUID) {
			p.result(p.offered(args(1), 1).ToolCallID, `null`)
			p.events.await("the second step", func(r received) bool { ev, ok := r.event.(*api.StepStarted); return ok && ev.Step == 2 })
		},
		then: func(p *page, turn uuid.UUID) {
			voided(p, turn)
			p.settledOnce(args(1), `null`)
		},
	},
	{
		name: "some of several calls answered", before: script(stepAsk3, stepDone), after: script(stepAsk3, stepDone), end: api.TypeTurnCompleted,
		reach: func(p *page, _ uuid.UUID) { p.result(p.offered(args(2), 1).ToolCallID, `"two"`) },
		then: func(p *page, _ uuid.UUID) {
			third, first := reoffered(p, 3), reoffered(p, 1)
			p.result(third.ToolCallID, `"three"`)
			p.result(first.ToolCallID, `"one"`)
			p.settledOnce(args(2), `"two"`)
		},
	},
	{
		name: "cancel answered", before: script(`{text: Half a sen}, {block: true}`), after: script(stepDone), end: api.TypeTurnCanceled,
		reach: func(p *page, turn uuid.UUID) {
			p.events.awaitType(api.TypeTextDelta)
			p.cancel(turn)
		},
		then: func(p *page, turn uuid.UUID) {
			if text := p.cancel(turn).Text; text != "Half a sen" {
				p.tb.Errorf("the canceled turn says %q", text)
			}
		},
	},
	{
		name: "cancel not answered", before: script(stepAsk3, stepDone), after: script(stepAsk3, stepDone), end: api.TypeTurnCanceled,
		reach: func(p *page, turn uuid.UUID) {
			p.offered(args(3), 1)
			go p.do(http.MethodPost, p.turnPath(turn)+"/cancel", "") // whether that comes to anything is not known
		},
		then: func(p *page, turn uuid.UUID) { p.cancel(turn) },
	},
	{
		name: "cancel with a call pending", before: script(stepAsk, stepDone), after: script(stepAsk, stepDone), end: api.TypeTurnCanceled,
		reach: func(p *page, turn uuid.UUID) {
			p.offered(args(1), 1)
			p.cancel(turn)
		},
		then: func(p *page, _ uuid.UUID) {
			a, err := p.do(http.MethodPost, p.callPath(p.offered(args(1), 1).ToolCallID)+"/result", `{"output":1}`)
			if err != nil || a.status != http.StatusConflict || a.code() != "TOOL_CALL_SETTLED" {
				p.tb.Errorf("a result after the cancel: %d %s %v", a.status, a.body, err)
			}
		},
	},
	{
		name: "during a claim", before: script(stepAsk, stepDone), after: script(stepAsk, stepDone), end: api.TypeTurnCompleted,
		reach: func(p *page, _ uuid.UUID) { p.claim(p.offered(args(1), 1).ToolCallID, 30_000) },
		then: func(p *page, _ uuid.UUID) {
			call := p.offered(args(1), 1).ToolCallID
			a, err := p.do(http.MethodPost, p.callPath(call)+"/result", `{"output":"a thief's"}`)
			if err != nil || a.code() != "TOOL_CALL_CLAIMED" {
				p.tb.Errorf("a result without the claim: %d %s %v", a.status, a.body, err)
			}
			p.must(http.StatusOK, http.MethodPost, p.callPath(call)+"/result", fmt.Sprintf(`{"output":1,"claim_id":%q}`, p.claim(call, 30_000).ClaimID), nil)
			p.settledOnce(args(1), `1`)
		},
	},
	{
		name: "a claim runs out meanwhile", before: script(stepAsk, stepDone), after: script(stepAsk, stepDone), end: api.TypeTurnCompleted,
		reach: func(p *page, _ uuid.UUID) { p.claim(p.offered(args(1), 1).ToolCallID, 1000) },
		then:  func(p *page, _ uuid.UUID) { p.result(reoffered(p, 1).ToolCallID, `1`) },
	},
	{
		name: "tools replaced", before: script(stepBlock), after: script(`{call: {tool: other, args: {n: 1}}}`, stepDone), end: api.TypeTurnCompleted,
		reach: func(p *page, _ uuid.UUID) {
			p.must(http.StatusOK, http.MethodPut, p.path+"/tools", `{"tools":[{"name":"other","description":"Another","args_schema":{"type":"object"}}]}`, nil)
		},
		then: func(p *page, _ uuid.UUID) { p.result(p.offered(args(1), 1).ToolCallID, `1`) },
	},
}

// TestCrash kills a server at each moment and starts it again: turns go on or are ended, and whatever was acknowledged is there.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, c := range crashes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, c.before)
			p := h.client().newPage(asking)
			turn := p.start("go")
			if c.reach != nil {
				c.reach(p, turn)
			}
			h.kill()
			h.play(c.after)
			h.start()

			p.conns.CloseIdleConnections()
			within(t, h.started, 5*time.Second, "the turn is taken up or over", func() bool {
				return p.state().Status == api.StatusIdle || metric(t, p.url, "treadle_turns_running") == 1
			})
			if c.then != nil {
				c.then(p, turn)
			}
			p.ended(turn, c.end)
			if got := p.turn(turn); got.Outcome == nil || "turn_"+string(*got.Outcome) != c.end {
				t.Errorf("the turn's outcome is %v, its end was %s", got.Outcome, c.end)
			}
			p.ended(p.start("next"), api.TypeTurnCompleted)
			p.check()
		})
	}
}

// voided: the answer that the kill cut off is void, and the next one counts.
func voided(p *page, _ uuid.UUID) {
	p.tb.Helper()
	p.events.awaitType(api.TypeAttemptVoided)
	if text := p.events.awaitType(api.TypeTurnCompleted).event.(*api.TurnCompleted).Text; text != "Done." {
		p.tb.Errorf("the answer is %q", text)
	}
	var said strings.Builder
	for _, r := range p.events.all() {
		switch ev := r.event.(type) {
		case *api.AttemptVoided:
			said.Reset()
		case *api.TextDelta:
			said.WriteString(ev.Text)
		case *api.TurnCompleted:
			if said.String() != "Done." {
				p.tb.Errorf("readers saw %q", said.String())
			}
			return
		}
	}
}

// reoffered waits for the second offer of the n-th call, and compares it with the first.
func reoffered(p *page, n int) *api.ToolCallEvent {
	p.tb.Helper()
	first, second := p.offered(args(n), 1), p.offered(args(n), 2)
	if second.ToolCallID != first.ToolCallID || !second.MayHaveRun || second.Deadline.Sub(second.Time) < 15*time.Second {
		p.tb.Errorf("offered as %+v and again as %+v", first, second)
	}
	return second
}

// cancel cancels a turn, which may have been canceled before.
func (p *page) cancel(turn uuid.UUID) *api.Turn {
	p.tb.Helper()
	var canceled api.Turn
	p.must(http.StatusOK, http.MethodPost, p.turnPath(turn)+"/cancel", "", &canceled)
	if canceled.Outcome == nil || *canceled.Outcome != api.OutcomeCanceled {
		p.tb.Errorf("the outcome of a canceled turn is %v", canceled.Outcome)
	}
	return &canceled
}

// claim claims a call, or renews the claim.
func (p *page) claim(call uuid.UUID, leaseMS int) *api.Claim {
	p.tb.Helper()
	claim := new(api.Claim)
	p.must(http.StatusOK, http.MethodPost, p.callPath(call)+"/claim", fmt.Sprintf(`{"client_id":"tab 1","lease_ms":%d}`, leaseMS), claim)
	return claim
}

// settledOnce asserts that a call was offered once only, and has this output.
func (p *page) settledOnce(args, output string) {
	p.tb.Helper()
	id := p.offered(args, 1).ToolCallID
	var call api.ToolCall
	p.must(http.StatusOK, http.MethodGet, p.callPath(id), "", &call)
	if call.Attempt != 1 || call.Result == nil || string(call.Result.Output) != output {
		p.tb.Errorf("call %s is %+v, want output %s", args, call, output)
	}
}

// TestCrash_created: a session that was acknowledged is there, listed, and works.
func TestCrash_created(t *testing.T) {
	t.Parallel()
	h := newHost(t, script(stepDone))
	c := h.client()
	var created api.Session
	c.must(http.StatusCreated, http.MethodPost, "/v1/sessions", asking, &created)
	h.kill()
	h.start()
	c.conns.CloseIdleConnections()
	p := c.openPage(created.ID)
	if got := p.state(); len(got.Skills.Tools) != 1 || !got.CreatedAt.Equal(created.CreatedAt) {
		t.Errorf("created as %+v, found as %+v", created, got)
	}
	var list api.SessionList
	c.must(http.StatusOK, http.MethodGet, "/v1/sessions", "", &list)
	if len(list.Sessions) != 1 || list.Sessions[0].ID != created.ID {
		t.Errorf("the list has %+v", list.Sessions)
	}
	p.ended(p.start("go"), api.TypeTurnCompleted)
	p.check()
}

// TestCrash_ended: what was ended or deleted stays so.
func TestCrash_ended(t *testing.T) {
	t.Parallel()
	h := newHost(t, script(stepBlock))
	c := h.client()
	ended, deleted := c.newPage(asking), c.newPage(asking)
	turn := ended.start("go")
	deleted.start("go")
	ended.must(http.StatusOK, http.MethodPost, ended.path+"/end", "", nil)
	deleted.must(http.StatusNoContent, http.MethodDelete, deleted.path, "", nil)
	h.kill()
	h.start()
	c.conns.CloseIdleConnections()
	if status := ended.state().Status; status != api.StatusEnded {
		t.Errorf("the ended session is %s", status)
	}
	ended.ended(turn, api.TypeTurnCanceled)
	ended.check()
	if a, err := ended.do(http.MethodPost, ended.path+"/turns", turnBody("next")); err != nil || a.code() != "SESSION_ENDED" {
		t.Errorf("a turn of the ended session: %d %s %v", a.status, a.body, err)
	}
	if a, err := deleted.do(http.MethodGet, deleted.path, ""); err != nil || a.code() != "SESSION_NOT_FOUND" {
		t.Errorf("the deleted session: %d %s %v", a.status, a.body, err)
	}
	within(t, h.started, 5*time.Second, "nothing runs", func() bool { return metric(t, c.url, "treadle_turns_running") == 0 })
}

// TestCrash_again kills a server again and again while one call is pending. Each time the call is offered again, within two
// seconds of the start (a busy machine is forgiven one miss), and it can still be answered.
func TestCrash_again(t *testing.T) {
	const kills = 8
	h := newHost(t, script(stepAsk, stepDone))
	p := h.client().newPage(asking)
	turn := p.start("go")
	first := p.offered(args(1), 1)
	var took []time.Duration
	for kill := 1; kill <= kills; kill++ {
		h.kill()
		h.start()
		offer := p.offer(args(1), 1+kill)
		if id := offer.event.(*api.ToolCallEvent).ToolCallID; id != first.ToolCallID {
			t.Errorf("call %s became %s", first.ToolCallID, id)
		}
		took = append(took, offer.at.Sub(h.started).Round(time.Millisecond))
	}
	t.Logf("from the start of the process to the offer: %v", took)
	slices.Sort(took)
	if took[kills-2] > 2*time.Second || took[kills-1] > 5*time.Second {
		t.Errorf("calls were offered again only %v after the start, want 2s", took)
	}
	p.conns.CloseIdleConnections()
	p.result(first.ToolCallID, `"at last"`)
	p.ended(turn, api.TypeTurnCompleted)
	p.ended(p.start("next"), api.TypeTurnCompleted)
	p.check()
}

// TestCrash_loop: a turn during whose model call the server dies every time is given up, and the session goes on.
func TestCrash_loop(t *testing.T) {
	t.Parallel()
	h := newHost(t, script(stepBlock))
	p := h.client().newPage(asking)
	turn := p.start("go")
	p.events.awaitType(api.TypeStepStarted)
	for kill := 1; kill <= 5; kill++ {
		h.kill()
		h.start()
		p.events.await(fmt.Sprintf("attempt %d is void", kill), func(r received) bool {
			ev, ok := r.event.(*api.AttemptVoided)
			return ok && ev.Attempt == kill
		})
	}
	p.conns.CloseIdleConnections()
	if failure := p.ended(turn, api.TypeTurnFailed).(*api.TurnFailed).Failure; failure.Class != "crash_loop" {
		t.Errorf("the turn failed with %+v", failure)
	}
	p.ended(p.start("next"), api.TypeTurnCompleted)
	p.check()
}

// TestCrash_idempotency: a request that is repeated after a crash, whether or not its answer came, is done once.
func TestCrash_idempotency(t *testing.T) {
	t.Parallel()
	h := newHost(t, script(stepDone))
	c := h.client()
	var session api.Session
	c.must(http.StatusCreated, http.MethodPost, "/v1/sessions", asking, &session, "Idempotency-Key", "create")
	p := c.openPage(session.ID)
	var turn api.Turn
	p.must(http.StatusAccepted, http.MethodPost, p.path+"/turns", turnBody("go"), &turn, "Idempotency-Key", "turn")
	p.ended(turn.ID, api.TypeTurnCompleted)

	requests := []struct {
		path, body, other, key string
		status                 int
		// id is that of the answer before the crash, if one came.
		id uuid.UUID
	}{
		{"/v1/sessions", asking, `{}`, "create", http.StatusCreated, session.ID},
		{"/v1/sessions", asking, `{}`, "create-not-answered", http.StatusCreated, uuid.Nil},
		{p.path + "/turns", turnBody("go"), turnBody("stop"), "turn", http.StatusAccepted, turn.ID},
		{p.path + "/turns", turnBody("next"), turnBody("stop"), "turn-not-answered", http.StatusAccepted, uuid.Nil},
	}
	var unanswered sync.WaitGroup
	for _, r := range requests {
		if r.id == uuid.Nil {
			unanswered.Go(func() { _, _ = c.do(http.MethodPost, r.path, r.body, "Idempotency-Key", r.key) })
		}
	}
	h.kill()
	unanswered.Wait()
	h.start()
	c.conns.CloseIdleConnections()

	for _, r := range requests {
		for range 2 {
			var again struct{ ID uuid.UUID }
			c.must(r.status, http.MethodPost, r.path, r.body, &again, "Idempotency-Key", r.key)
			if r.id != uuid.Nil && again.ID != r.id {
				t.Errorf("%s: repeated, it made %s beside %s", r.key, again.ID, r.id)
			}
			r.id = again.ID
		}
		if a, err := c.do(http.MethodPost, r.path, r.other, "Idempotency-Key", r.key); err != nil || a.code() != "IDEMPOTENCY_KEY_REUSED" {
			t.Errorf("%s: with another body: %d %s %v", r.key, a.status, a.body, err)
		}
		if strings.HasPrefix(r.key, "turn") {
			p.ended(r.id, api.TypeTurnCompleted)
		}
	}
	var list api.SessionList
	if c.must(http.StatusOK, http.MethodGet, "/v1/sessions", "", &list); len(list.Sessions) != 2 {
		t.Errorf("there are %d sessions, want 2", len(list.Sessions))
	}
	if n := p.state().Turns; n != 2 {
		t.Errorf("there are %d turns, want 2", n)
	}
	p.check()
}
