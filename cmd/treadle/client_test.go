package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/contract"
	"treadle/internal/scripted"
	"treadle/sessions"
)

// client is a page's side of the API. Whatever it receives is held against the contract.
type client struct {
	tb    testing.TB
	url   string
	http  *http.Client
	conns *http.Transport
}

func newClient(tb testing.TB, url string) *client {
	tb.Helper()
	conns := http.DefaultTransport.(*http.Transport).Clone()
	tb.Cleanup(conns.CloseIdleConnections)
	checked := contract.Load(tb).Transport(tb, wholeAnswers{conns})
	return &client{tb: tb, url: url, conns: conns, http: &http.Client{Transport: checked}}
}

// wholeAnswers makes an error of an answer that a kill cut off, before the contract sees it.
type wholeAnswers struct{ next http.RoundTripper }

func (t wholeAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(r)
	if err != nil || res.Header.Get("Content-Type") == "text/event-stream" {
		return res, err
	}
	body, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	return res, nil
}

// answer is a whole answer.
type answer struct {
	status int
	body   []byte
}

// code is that of a problem.
func (a answer) code() string {
	var p api.Problem
	if json.Unmarshal(a.body, &p) != nil {
		return ""
	}
	return p.Code
}

// do makes a request. An error means that the server died: whether it did what it was asked is unknown. headers are pairs of
// a name and a value.
func (c *client) do(method, path, body string, headers ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(c.tb.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, text}, err
}

// must makes a request whose answer has to have the status, and decodes it into out, unless that is nil.
func (c *client) must(status int, method, path, body string, out any, headers ...string) {
	c.tb.Helper()
	a, err := c.do(method, path, body, headers...)
	if err != nil {
		c.tb.Fatalf("%s %s: %v", method, path, err)
	}
	if a.status != status {
		c.tb.Fatalf("%s %s: %d, want %d: %s", method, path, a.status, status, a.body)
	}
	if out == nil {
		return
	}
	if err := json.Unmarshal(a.body, out); err != nil {
		c.tb.Fatalf("%s %s: %s: %v", method, path, a.body, err)
	}
}

// page is a client of one session that follows it from the beginning.
type page struct {
	*client
	id     uuid.UUID
	path   string
	events *reader
}

// asking declares a tool that takes and gives anything.
const asking = `{"skills":{"tools":[{"name":"ask","description":"Ask the user","args_schema":{"type":"object"}}]}}`

// newPage creates a session.
func (c *client) newPage(create string) *page {
	c.tb.Helper()
	var created api.Session
	c.must(http.StatusCreated, http.MethodPost, "/v1/sessions", create, &created)
	return c.openPage(created.ID)
}

// openPage follows a session that exists.
func (c *client) openPage(id uuid.UUID) *page {
	c.tb.Helper()
	p := &page{client: c, id: id, path: "/v1/sessions/" + id.String()}
	p.events = c.follow(p.path + "/events")
	return p
}

// start starts a turn.
func (p *page) start(input string) uuid.UUID {
	p.tb.Helper()
	var turn api.Turn
	p.must(http.StatusAccepted, http.MethodPost, p.path+"/turns", turnBody(input), &turn)
	return turn.ID
}

func turnBody(input string) string {
	text, err := api.Marshal(map[string]string{"input": input})
	if err != nil {
		panic(err) // strings can be encoded
	}
	return string(text)
}

func (p *page) state() *api.Session {
	p.tb.Helper()
	s := new(api.Session)
	p.must(http.StatusOK, http.MethodGet, p.path, "", s)
	return s
}

func (p *page) turn(id uuid.UUID) *api.Turn {
	p.tb.Helper()
	t := new(api.Turn)
	p.must(http.StatusOK, http.MethodGet, p.turnPath(id)+"?wait=25", "", t)
	return t
}

func (p *page) turnPath(id uuid.UUID) string { return p.path + "/turns/" + id.String() }

func (p *page) callPath(id uuid.UUID) string { return p.path + "/tool_calls/" + id.String() }

// result submits an output, which has to be accepted.
func (p *page) result(call uuid.UUID, output string) {
	p.tb.Helper()
	var settled api.ToolCall
	p.must(http.StatusOK, http.MethodPost, p.callPath(call)+"/result", `{"output":`+output+`}`, &settled)
	if got := string(settled.Result.Output); got != output {
		p.tb.Fatalf("output %s came back as %s", output, got)
	}
}

// offered waits for an offer of a call with these arguments, the attempt-th one.
func (p *page) offered(args string, attempt int) *api.ToolCallEvent {
	p.tb.Helper()
	return p.offer(args, attempt).event.(*api.ToolCallEvent)
}

func (p *page) offer(args string, attempt int) received {
	p.tb.Helper()
	return p.events.await(fmt.Sprintf("offer %d of %s", attempt, args), func(r received) bool {
		call, ok := r.event.(*api.ToolCallEvent)
		return ok && string(call.Args) == args && call.Attempt == attempt
	})
}

// ended waits for the end of a turn, which must be this one.
func (p *page) ended(turn uuid.UUID, typ string) api.Event {
	p.tb.Helper()
	end := p.events.await("the end of turn "+turn.String(), func(r received) bool { return r.ends(turn) })
	if end.typ != typ {
		p.tb.Fatalf("turn %s ended with %s %s, want %s", turn, end.typ, end.data, typ)
	}
	return end.event
}

// messages reads the whole transcript, in small pages.
func (p *page) messages() []api.Message {
	p.tb.Helper()
	var all []api.Message
	for query := "?limit=7"; ; {
		var list api.MessageList
		p.must(http.StatusOK, http.MethodGet, p.path+"/messages"+query, "", &list)
		all = append(list.Messages, all...)
		if list.Before == 0 {
			return all
		}
		query = fmt.Sprintf("?limit=7&before=%d", list.Before)
	}
}

// check asserts what holds after everything: one end for each turn and nothing of it later, a stream that equals the pages, and a
// transcript that every provider takes. No turn may be running.
func (p *page) check() {
	p.tb.Helper()
	if status := p.state().Status; status == api.StatusRunning || status == api.StatusWaitingToolResult {
		p.tb.Errorf("session %s is %s at the end", p.id, status)
	}
	stored := p.stored()
	if len(stored) == 0 {
		p.tb.Fatalf("session %s has no events", p.id)
	}
	last := stored[len(stored)-1].ID
	p.events.await("the last stored event", func(r received) bool { return r.id == last })
	seen := p.events.all()
	if len(seen) != len(stored) {
		p.tb.Errorf("the stream had %d events, the pages have %d", len(seen), len(stored))
	}
	for i := range min(len(seen), len(stored)) {
		if seen[i].id != stored[i].ID || !bytes.Equal(seen[i].data, stored[i].Event) {
			p.tb.Fatalf("event %d differs\nstream %s %s\npages  %s %s", i, seen[i].id, seen[i].data, stored[i].ID, stored[i].Event)
		}
	}
	checkEvents(p.tb, seen)
	p.checkHistory()
}

// stored reads all events as JSON, in small pages.
func (p *page) stored() []api.EventItem {
	p.tb.Helper()
	var all []api.EventItem
	for after := ""; ; {
		var list api.EventPage
		p.must(http.StatusOK, http.MethodGet, p.path+"/events?limit=9"+after, "", &list, "Accept", "application/json")
		all = append(all, list.Events...)
		if !list.More {
			return all
		}
		after = "&after=" + list.Cursor
	}
}

// checkEvents asserts the order of the events of a session whose turns are over.
func checkEvents(tb testing.TB, events []received) {
	tb.Helper()
	open, over := map[uuid.UUID]bool{}, map[uuid.UUID]bool{} // turns
	calls := map[uuid.UUID]int{}
	var last uint64
	for _, r := range events {
		if position := r.position(tb); position <= last {
			tb.Errorf("id %s does not rise", r.id)
		} else {
			last = position
		}
		turn := r.event.Header().TurnID
		if over[turn] {
			tb.Errorf("turn %s goes on after its end: %s", turn, r.data)
		}
		switch ev := r.event.(type) {
		case *api.TurnStarted:
			open[turn] = true
		case *api.MessageEvent:
			for _, c := range ev.ToolCalls {
				calls[c.ToolCallID] = 0
			}
		case *api.ToolResultEvent:
			calls[ev.ToolCallID]++
		}
		if r.ends(turn) {
			over[turn] = true
			delete(open, turn)
		}
	}
	for turn := range open {
		tb.Errorf("turn %s has no end", turn)
	}
	for id, results := range calls {
		if results != 1 {
			tb.Errorf("call %s has %d results", id, results)
		}
	}
}

// checkHistory holds the transcript against what providers demand of one.
func (p *page) checkHistory() {
	p.tb.Helper()
	var history []sessions.Message
	all := p.messages()
	for i, m := range all {
		if m.Position != int64(i+1) {
			p.tb.Errorf("message %d has position %d", i+1, m.Position)
		}
		msg := sessions.Message{Role: sessions.Role(m.Role), Text: m.Text, Reasoning: m.Reasoning, CallID: m.ToolCallID, Tool: m.Tool, Result: m.Result}
		for _, c := range m.ToolCalls {
			msg.Calls = append(msg.Calls, sessions.Call{ID: c.ToolCallID, Tool: c.Tool, Args: c.Args})
		}
		history = append(history, msg)
	}
	// The transcript has results as they came, a prompt has them as they were asked for.
	for i, m := range history {
		if len(m.Calls) == 0 {
			continue
		}
		place := func(r sessions.Message) int {
			return slices.IndexFunc(m.Calls, func(c sessions.Call) bool { return c.ID == r.CallID })
		}
		results := history[i+1 : min(i+1+len(m.Calls), len(history))]
		slices.SortFunc(results, func(a, b sessions.Message) int { return place(a) - place(b) })
	}
	history = append(history, sessions.Message{Role: sessions.RoleUser, Text: "And now?"})
	if err := scripted.CheckHistory(&sessions.Prompt{Messages: history}); err != nil {
		p.tb.Errorf("the transcript of session %s: %v", p.id, err)
	}
}

// metric reads a metric without labels, or with exactly those of the name.
func metric(tb testing.TB, url, name string) (value float64) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		tb.Fatal(err)
	}
	res, err := new(http.Client).Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if _, err := fmt.Sscan(rest, &value); err != nil {
				tb.Fatalf("metric %q: %v", line, err)
			}
			return value
		}
	}
	tb.Fatalf("there is no metric %s", name)
	return 0
}

// within polls until ok returns true, and fails the test if that takes longer than limit.
func within(tb testing.TB, since time.Time, limit time.Duration, what string, ok func() bool) {
	tb.Helper()
	eventually(tb, what, ok)
	if took := time.Since(since); took > limit {
		tb.Errorf("%s: only after %s, want %s", what, took.Round(time.Millisecond), limit)
	}
}
