package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/logtest"
)

// TestNonce: the page's handlers return fresh values, while the server is killed, tabs repeat and contradict each other,
// connections break and turns are canceled. Each value that was accepted is in the transcript once, byte for byte, and so is
// what the model was told; no other value is. The number of schedules is 20, or 200 with TREADLE_TEST_FULL=1.
func TestNonce(t *testing.T) {
	t.Parallel()
	schedules := 20
	if logtest.Full() {
		schedules = 200
	}
	for seed := range schedules {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			newSchedule(t, uint64(seed)).play()
		})
	}
}

// schedule is a seeded sequence of misfortunes, and the tabs that answer calls meanwhile.
type schedule struct {
	*host
	t      *testing.T
	page   *page
	random *rand.Rand
	// ctx ends the tabs.
	ctx  context.Context
	tabs sync.WaitGroup

	mu sync.Mutex
	// sent are the results that tabs submitted for a call, accepted is the one that was acknowledged.
	sent     map[uuid.UUID][]string
	accepted map[uuid.UUID]string
	nonces   int
}

func newSchedule(t *testing.T, seed uint64) *schedule {
	h := newHost(t, script(`{text: Hm.}, `+stepAsk3, stepAsk, stepDone))
	s := &schedule{
		host: h, t: t, page: h.client().newPage(asking), random: rand.New(rand.NewPCG(seed, 49)),
		sent: map[uuid.UUID][]string{}, accepted: map[uuid.UUID]string{},
	}
	var stop context.CancelFunc
	s.ctx, stop = context.WithTimeout(t.Context(), 4*patience)
	t.Cleanup(stop)
	return s
}

func (s *schedule) play() {
	answering, stop := context.WithCancel(s.ctx)
	defer stop()
	s.tabs.Go(func() { s.answer(answering) })
	for turn := range 3 {
		s.turn(turn)
	}
	stop()
	s.tabs.Wait()
	s.page.conns.CloseIdleConnections()
	s.page.check()
	s.verify()
	s.t.Logf("%d calls, %d of them with an accepted result", len(s.sent), len(s.accepted))
}

// turn starts a turn, lets things go wrong, and sees it to its end.
func (s *schedule) turn(ordinal int) {
	body := `{"input":"go"}`
	if s.random.IntN(2) == 0 {
		calls := ""
		for n := range 1 + s.random.IntN(4) {
			calls += fmt.Sprintf(`call ask {\"demo\":%d}\n`, n)
		}
		body = `{"model":"demo","input":"` + calls + `"}`
	}
	var turn api.Turn
	a := s.insist(http.MethodPost, s.page.path+"/turns", body, "Idempotency-Key", fmt.Sprintf("turn-%d", ordinal))
	if err := json.Unmarshal(a.body, &turn); err != nil || a.status != http.StatusAccepted {
		s.t.Fatalf("turn %d: %d %s", ordinal, a.status, a.body)
	}
	for range 1 + s.random.IntN(3) {
		s.someEvents()
		switch s.random.IntN(6) {
		case 0, 1, 2:
			s.kill()
			s.start()
		case 3, 4:
			s.page.events.drop()
		case 5:
			s.tabs.Go(func() { s.insist(http.MethodPost, s.page.turnPath(turn.ID)+"/cancel", "") })
		}
	}
	s.page.events.await("the end of the turn", func(r received) bool { return r.ends(turn.ID) })
}

// someEvents waits for a few events and a moment more, but not for long: the turn may be over.
func (s *schedule) someEvents() {
	ctx, cancel := context.WithTimeout(s.ctx, 100*time.Millisecond)
	defer cancel()
	s.page.events.wait(ctx, len(s.page.events.all())+s.random.IntN(4))
	moment := time.NewTimer(time.Duration(s.random.IntN(5000)) * time.Microsecond)
	defer moment.Stop()
	select {
	case <-moment.C:
	case <-ctx.Done():
	}
}

// insist repeats a request until an answer comes.
func (s *schedule) insist(method, path, body string, headers ...string) answer {
	tick := time.NewTicker(reconnect)
	defer tick.Stop()
	for {
		a, err := s.page.do(method, path, body, headers...)
		if err == nil && a.status != http.StatusServiceUnavailable {
			return a
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			s.t.Errorf("%s %s was never answered: %v", method, path, err)
			return a
		}
	}
}

// answer runs a handler for each offer until ctx ends.
func (s *schedule) answer(ctx context.Context) {
	for n := 0; ; {
		events := s.page.events.wait(ctx, n)
		if events == nil {
			return
		}
		for _, r := range events[n:] {
			if offer, ok := r.event.(*api.ToolCallEvent); ok {
				how := s.nonce() % 5
				s.tabs.Go(func() { s.handle(offer.ToolCallID, how) })
			}
		}
		n = len(events)
	}
}

// handle is what a page does about an offer. It always ends in an answer, since an offer may be the last one.
func (s *schedule) handle(call uuid.UUID, how int) {
	path, first := s.page.callPath(call), s.fresh(call)
	switch how {
	case 0: // two tabs that ran it both
		second := s.fresh(call)
		s.tabs.Go(func() { s.submit(call, second, uuid.Nil) })
	case 1: // one tab that sends it twice
		s.tabs.Go(func() { s.submit(call, first, uuid.Nil) })
	case 2: // a page that is closed with the request on its way, and opened again
		ctx, cancel := context.WithTimeout(s.ctx, time.Millisecond)
		defer cancel()
		s.abandon(ctx, path+"/result", bodyOf(first))
		first = s.fresh(call)
	case 3: // a tab that claims it
		a := s.insist(http.MethodPost, path+"/claim", `{"client_id":"tab","lease_ms":1000}`)
		var claim api.Claim
		if a.status == http.StatusOK && json.Unmarshal(a.body, &claim) == nil {
			s.submit(call, first, claim.ClaimID)
			return
		}
	}
	s.submit(call, first, uuid.Nil)
}

// abandon sends a request without waiting longer for its answer than ctx.
func (s *schedule) abandon(ctx context.Context, path, body string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.page.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if res, err := s.page.conns.RoundTrip(req); err == nil {
		_ = res.Body.Close()
	}
}

// submit sends a result until it is decided, and notes what was acknowledged.
func (s *schedule) submit(call uuid.UUID, result string, claim uuid.UUID) {
	body := bodyOf(result)
	if claim != uuid.Nil {
		body = fmt.Sprintf(`%s,"claim_id":%q}`, strings.TrimSuffix(body, "}"), claim)
	}
	for {
		a := s.insist(http.MethodPost, s.page.callPath(call)+"/result", body)
		switch code := a.code(); {
		case a.status == http.StatusOK:
			s.accept(call, result)
			return
		case code == "TOOL_CALL_SETTLED":
			s.lose(call, a)
			return
		case code == "TOOL_CALL_CLAIMED" && s.ctx.Err() == nil:
			s.someTime()
		default:
			s.t.Errorf("a result for call %s: %d %s", call, a.status, a.body)
			return
		}
	}
}

// someTime waits for another tab's claim to run out.
func (s *schedule) someTime() {
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
}

func (s *schedule) accept(call uuid.UUID, result string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if won, ok := s.accepted[call]; ok && won != result {
		s.t.Errorf("call %s: both %s and %s were accepted", call, won, result)
	}
	s.accepted[call] = result
}

// lose checks that the winner that a refusal names is one.
func (s *schedule) lose(call uuid.UUID, a answer) {
	var refusal struct {
		ToolCall api.ToolCall `json:"tool_call"`
	}
	if err := json.Unmarshal(a.body, &refusal); err != nil {
		s.t.Errorf("a refused result: %s: %v", a.body, err)
		return
	}
	if refusal.ToolCall.SettledBy == api.SettledByCancel {
		return
	}
	won := encode(refusal.ToolCall.Result)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.sent[call], won) {
		s.t.Errorf("call %s was settled by %s with %s, which nobody sent", call, refusal.ToolCall.SettledBy, won)
	}
}

func (s *schedule) nonce() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nonces++
	return s.nonces
}

// fresh makes a result that was never there before, and notes that it is sent for the call.
func (s *schedule) fresh(call uuid.UUID) string {
	n, random := s.nonce(), rand.Uint64()
	var result string
	switch n % 7 {
	case 0:
		result = fmt.Sprintf(`{"ok":true,"output":"<%x> & 北京👍🏽 %d"}`, random, n)
	case 1:
		result = fmt.Sprintf(`{"ok":true,"output":9007199254740993%d%d}`, random, n)
	case 2:
		result = fmt.Sprintf(`{"ok":true,"output":{"z":1.50,"a":[%d,null,%d],"e":1E+2}}`, random, n)
	case 3:
		result = fmt.Sprintf(`{"ok":true,"output":["\u0000\r\ndata: x\r\n\r\n",%d,%d]}`, random, n)
	case 4:
		result = fmt.Sprintf(`{"ok":false,"error":{"code":"NONCE_%d","message":"No: %x"}}`, n, random)
	default:
		result = fmt.Sprintf(`{"ok":true,"output":{"nonce":"%x-%d"}}`, random, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[call] = append(s.sent[call], result)
	return result
}

// bodyOf is what a page submits for a result.
func bodyOf(result string) string {
	_, member, _ := strings.Cut(result, ",")
	return "{" + member
}

func encode(result *api.ToolResult) string {
	text, err := api.Marshal(result)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// verify holds the transcript, and what the demo model says that it was told, against what was acknowledged.
func (s *schedule) verify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := map[uuid.UUID]string{} // call → result in the transcript
	var calls []api.MessageToolCall
	for _, m := range s.page.messages() {
		switch m.Role {
		case "tool":
			if _, twice := told[m.ToolCallID]; twice {
				s.t.Errorf("call %s has two results", m.ToolCallID)
			}
			told[m.ToolCallID] = encode(m.Result)
			if m.SettledBy == api.SettledByPage && !slices.Contains(s.sent[m.ToolCallID], told[m.ToolCallID]) {
				s.t.Errorf("call %s got %s, which nobody sent", m.ToolCallID, told[m.ToolCallID])
			}
			if m.SettledBy != api.SettledByPage && m.SettledBy != api.SettledByCancel {
				s.t.Errorf("call %s was settled by %s: %s", m.ToolCallID, m.SettledBy, told[m.ToolCallID])
			}
		case "assistant":
			if strings.HasPrefix(m.Text, "ask ") {
				s.verifyReport(m.Text, calls, told)
			}
			calls = m.ToolCalls
		}
	}
	for call, result := range s.accepted {
		if told[call] != result {
			s.t.Errorf("call %s: accepted %s, the transcript has %q", call, result, told[call])
		}
	}
}

// verifyReport checks the demo model's final text: a line for each call of its message before.
func (s *schedule) verifyReport(text string, calls []api.MessageToolCall, told map[uuid.UUID]string) {
	var want []string
	for _, c := range calls {
		var result api.ToolResult
		if err := json.Unmarshal([]byte(told[c.ToolCallID]), &result); err != nil {
			s.t.Errorf("call %s: %v", c.ToolCallID, err)
		}
		if result.OK {
			want = append(want, fmt.Sprintf("ask returned %s.", result.Output))
		} else {
			want = append(want, fmt.Sprintf("ask failed with %s: %s", result.Error.Code, result.Error.Message))
		}
	}
	// A cancel may have cut the report short.
	if report := strings.Join(want, "\n"); text != report && !strings.HasPrefix(report, text) {
		s.t.Errorf("the model was told\n%s\nwant\n%s", text, report)
	}
}
