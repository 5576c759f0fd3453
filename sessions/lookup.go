package sessions

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"treadle/api"
)

// What is not in State is read from the log: turns, settled calls and messages. Marks keep such reads short.

// readChunk is how many facts are read at first, most looks end there; each further read takes twice as many, up to maxReadChunk.
const (
	readChunk    = 64
	maxReadChunk = 1024
)

// scan reads the facts after a position and calls visit for each event, of the given types if there are any, until it returns false.
func (s *Service) scan(ctx context.Context, key sessionKey, after Seq, visit func(Entry, api.Event) bool, types ...string) error {
	for chunk := readChunk; ; chunk = min(2*chunk, maxReadChunk) {
		entries, err := s.engine.Read(ctx, key.tenant, key.id, after, chunk, false)
		if err != nil {
			return unavailable(err)
		}
		if len(entries) == 0 {
			return nil
		}
		for _, e := range entries {
			for _, raw := range e.Events {
				if len(types) > 0 && !slices.Contains(types, api.EventType(raw)) {
					continue
				}
				event, err := decodeEvent(raw)
				if err != nil {
					return err
				}
				if !visit(e, event) {
					return nil
				}
			}
			after = e.Seq
		}
	}
}

// start is the position to read from so that the marked turn is included.
func (m Mark) start() Seq { return max(m.Seq, 1) - 1 }

func newTurn(ev *api.TurnStarted) *api.Turn {
	return &api.Turn{
		TurnSummary: api.TurnSummary{ID: ev.TurnID, SessionID: ev.SessionID, Input: ev.Input, Model: ev.Model, StartedAt: ev.Time},
		ToolResults: []api.TurnToolResult{},
	}
}

// foldTurn takes an event of the turn into t, and tells whether it was the last one.
func foldTurn(t *api.Turn, event api.Event) (ended bool) {
	end := func(outcome api.Outcome, steps int, usage *api.Usage) bool {
		t.Outcome, t.Steps, t.Usage, t.EndedAt = &outcome, steps, usage, event.Header().Time
		return true
	}
	switch ev := event.(type) {
	case *api.StepStarted:
		t.Steps = ev.Step
	case *api.MessageEvent:
		t.Text = ev.Text
		t.Usage = addUsage(t.Usage, ev.Usage)
	case *api.TurnCompleted:
		return end(api.OutcomeCompleted, ev.Steps, ev.Usage)
	case *api.TurnFailed:
		t.Failure = &ev.Failure
		return end(api.OutcomeFailed, ev.Steps, ev.Usage)
	case *api.TurnCanceled:
		return end(api.OutcomeCanceled, ev.Steps, ev.Usage)
	}
	return false
}

// readTurn reads one turn with its tool results.
func (s *Service) readTurn(ctx context.Context, key sessionKey, st *State, id uuid.UUID) (*api.Turn, error) {
	var turn *api.Turn
	calls := map[uuid.UUID]int{} // index in results
	var results []api.TurnToolResult
	settled := map[uuid.UUID]bool{}
	err := s.scan(ctx, key, st.markBefore(id).start(), func(_ Entry, event api.Event) bool {
		h := event.Header()
		if h.TurnID != id {
			return turn != nil || h.Time.UnixMilli() <= unixMilli(id)
		}
		switch ev := event.(type) {
		case *api.TurnStarted:
			turn = newTurn(ev)
		case *api.MessageEvent:
			for _, c := range ev.ToolCalls {
				calls[c.ToolCallID] = len(results)
				results = append(results, api.TurnToolResult{ToolCallID: c.ToolCallID, Tool: c.Tool, Args: c.Args, Step: ev.Step})
			}
		case *api.ToolResultEvent:
			if i, ok := calls[ev.ToolCallID]; ok {
				r := &results[i]
				r.Source, r.Result, r.SettledBy, r.DurationMS, r.Time = ev.Source, ev.Result, ev.SettledBy, ev.DurationMS, ev.Time
				settled[ev.ToolCallID] = true
			}
		}
		return turn == nil || !foldTurn(turn, event)
	})
	if err != nil {
		return nil, err
	}
	if turn == nil {
		return nil, refuse(CodeTurnNotFound, "the session has no such turn")
	}
	for _, r := range results {
		if settled[r.ToolCallID] {
			turn.ToolResults = append(turn.ToolResults, r)
		}
	}
	return turn, nil
}

// findCall reads one call with its result.
func (s *Service) findCall(ctx context.Context, key sessionKey, st *State, id uuid.UUID) (*api.ToolCall, error) {
	f := callFinder{id: nil}
	err := s.scan(ctx, key, st.markBefore(id).start(), func(_ Entry, event api.Event) bool {
		f.visit(event)
		return f[id] == nil && event.Header().Time.UnixMilli() <= unixMilli(id) || f[id] != nil && f[id].Result == nil
	})
	if err != nil {
		return nil, err
	}
	if f[id] == nil {
		return nil, errNotOpen
	}
	return f[id], nil
}

// callFinder collects the calls whose ids are its keys.
type callFinder map[uuid.UUID]*api.ToolCall

func (f callFinder) visit(event api.Event) {
	switch ev := event.(type) {
	case *api.MessageEvent:
		for _, c := range ev.ToolCalls {
			if _, wanted := f[c.ToolCallID]; wanted {
				f[c.ToolCallID] = &api.ToolCall{
					ID: c.ToolCallID, SessionID: ev.SessionID, TurnID: ev.TurnID, Tool: c.Tool, Source: api.SourcePage, Args: c.Args,
					Step: ev.Step, Status: api.ToolCallQueued, Time: ev.Time,
				}
			}
		}
	case *api.ToolCallEvent:
		if c := f[ev.ToolCallID]; c != nil {
			c.Source, c.Status, c.Attempt, c.MayHaveRun, c.Deadline = ev.Source, api.ToolCallPending, ev.Attempt, ev.MayHaveRun, ev.Deadline
		}
	case *api.ToolProgress:
		if c := f[ev.ToolCallID]; c != nil {
			c.Deadline = ev.Deadline
		}
	case *api.ToolResultEvent:
		if c := f[ev.ToolCallID]; c != nil {
			c.Status, c.Result, c.SettledBy = api.ToolCallSettled, &ev.Result, ev.SettledBy
		}
	}
}

// Turns lists a session's turns, newest first: those that started before the named one.
func (s *Service) Turns(ctx context.Context, tenant string, id, before uuid.UUID, limit int) (*api.TurnList, error) {
	key := sessionKey{tenant, id}
	st, err := s.state(ctx, key)
	if err != nil {
		return nil, err
	}
	limit = pageSize(limit)
	last := st.Turns // the ordinal after the newest turn of the page
	if before != uuid.Nil {
		if last, err = s.turnOrdinal(ctx, key, st, before); err != nil {
			return nil, err
		}
	}
	first := max(0, last-int64(limit))
	mark := st.markOfTurn(first)
	list := &api.TurnList{Turns: []api.TurnSummary{}}
	var turns []*api.Turn
	next := mark.Turns
	err = s.scan(ctx, key, mark.start(), func(_ Entry, event api.Event) bool {
		if ev, ok := event.(*api.TurnStarted); ok {
			if next >= last {
				return false
			}
			turns = append(turns, newTurn(ev))
			next++
		} else if len(turns) > 0 && event.Header().TurnID == turns[len(turns)-1].ID {
			foldTurn(turns[len(turns)-1], event)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for i := int64(len(turns)) - 1; i >= first-mark.Turns && i >= 0; i-- {
		list.Turns = append(list.Turns, turns[i].TurnSummary)
	}
	if first > 0 && len(list.Turns) > 0 {
		list.Next = list.Turns[len(list.Turns)-1].ID.String()
	}
	return list, nil
}

// turnOrdinal returns how many turns were started before the named one.
func (s *Service) turnOrdinal(ctx context.Context, key sessionKey, st *State, id uuid.UUID) (int64, error) {
	mark := st.markBefore(id)
	n, found := mark.Turns, false
	err := s.scan(ctx, key, mark.start(), func(_ Entry, event api.Event) bool {
		if _, ok := event.(*api.TurnStarted); ok {
			if event.Header().TurnID == id {
				found = true
				return false
			}
			n++
		}
		return event.Header().Time.UnixMilli() <= unixMilli(id)
	})
	if err != nil {
		return 0, err
	}
	if !found {
		return 0, refuse(CodeCursorInvalid, "before names no turn of this session; take it from \"next\"").with("pointer", "before")
	}
	return n, nil
}

// markOfTurn returns the latest mark at or before the turn with that ordinal, from 0.
func (s *State) markOfTurn(ordinal int64) Mark {
	return s.latestMark(func(m Mark) bool { return m.Turns <= ordinal })
}

// markOfMessage returns the latest mark at or before the message with that position, from 1.
func (s *State) markOfMessage(position int64) Mark {
	return s.latestMark(func(m Mark) bool { return m.Messages < position })
}

// maxPageBytes bounds a page of messages or events; one is always given.
const maxPageBytes = 8 << 20

// Messages returns a page of the transcript, in order: the latest limit messages before the position (0: the end).
func (s *Service) Messages(ctx context.Context, tenant string, id uuid.UUID, before int64, limit int) (*api.MessageList, error) {
	key := sessionKey{tenant, id}
	st, err := s.state(ctx, key)
	if err != nil {
		return nil, err
	}
	if before <= 0 || before > st.Messages+1 {
		before = st.Messages + 1
	}
	first := max(1, before-int64(pageSize(limit)))
	mark := st.markOfMessage(first)
	position := mark.Messages
	page := &api.MessageList{Messages: []api.Message{}}
	var sizes []int
	total := 0
	err = s.scan(ctx, key, mark.start(), func(_ Entry, event api.Event) bool {
		m, size := messageOf(event)
		if m == nil {
			return true
		}
		position++
		if position >= before {
			return false
		}
		if position >= first {
			m.Position = position
			page.Messages = append(page.Messages, *m)
			sizes = append(sizes, size)
			total += size
			for total > maxPageBytes && len(sizes) > 1 {
				total -= sizes[0]
				sizes, page.Messages = sizes[1:], page.Messages[1:]
			}
		}
		return true
	}, api.TypeTurnStarted, api.TypeMessage, api.TypeToolResult)
	if err != nil {
		return nil, err
	}
	if len(page.Messages) > 0 && page.Messages[0].Position > 1 {
		page.Before = page.Messages[0].Position
	}
	return page, nil
}

// messageOf returns the transcript's entry for an event, or nil, and its size in bytes.
func messageOf(event api.Event) (*api.Message, int) {
	h := event.Header()
	m := &api.Message{TurnID: h.TurnID, Time: h.Time}
	switch ev := event.(type) {
	case *api.TurnStarted:
		m.Role, m.Text = string(RoleUser), ev.Input.Text()
		return m, len(m.Text)
	case *api.MessageEvent:
		m.Role, m.Step, m.Text, m.Reasoning, m.ToolCalls = string(RoleAssistant), ev.Step, ev.Text, ev.Reasoning, ev.ToolCalls
		size := len(m.Text) + len(m.Reasoning)
		for _, c := range m.ToolCalls {
			size += len(c.Args)
		}
		return m, size
	case *api.ToolResultEvent:
		m.Role, m.Step, m.ToolCallID, m.Tool, m.Result, m.SettledBy = string(RoleTool), ev.Step, ev.ToolCallID, ev.Tool, &ev.Result, ev.SettledBy
		return m, len(ev.Result.Output)
	}
	return nil, 0
}

// readHistory builds the history that a model is told, from all facts up to and including the position. It begins with what an
// earlier turn left.
func (s *Service) readHistory(ctx context.Context, key sessionKey, upTo Seq) (*history, error) {
	h, after := s.histories.take(key)
	if after > upTo {
		h, after = new(history), 0
	}
	err := s.scan(ctx, key, after, func(e Entry, event api.Event) bool {
		if e.Seq > upTo {
			return false
		}
		h.add(e, event)
		return true
	}, api.TypeTurnStarted, api.TypeMessage, api.TypeToolResult)
	return h, err
}
