package sessions

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// keyedTurn returns the turn that an earlier request with the key started; none if there was none, or without a key.
func (s *State) keyedTurn(key *Idempotency) (uuid.UUID, error) {
	if key == nil {
		return uuid.Nil, nil
	}
	for _, k := range s.Keys {
		if k.Key != key.Key {
			continue
		}
		if k.Body != key.Body {
			return uuid.Nil, refuse(CodeIdempotencyKeyReused, "this Idempotency-Key came with another body before; use a new key for a new request").with("turn_id", k.Turn)
		}
		return k.Turn, nil
	}
	return uuid.Nil, nil
}

// startTurn decides on a user's input.
func (s *State) startTurn(now time.Time, req *api.TurnCreate, key *Idempotency) (d *draft, id uuid.UUID, err error) {
	if err := s.refuseEnded(); err != nil {
		return nil, uuid.Nil, err
	}
	if s.Turn != nil {
		return nil, uuid.Nil, refuse(CodeSessionBusy, "turn %s is still running; wait for its end or cancel it", s.Turn.ID).with("turn_id", s.Turn.ID)
	}
	d = s.draft(now)
	d.turn = newID(d.now)
	if key != nil {
		d.private = &Private{Idempotency: key}
	}
	d.add(&api.TurnStarted{Input: req.Input, Model: req.Model, MaxSteps: req.MaxSteps})
	return d, d.turn, nil
}

// cancel ends the running turn if it is the named one; a turn that has ended is left alone.
func (s *State) cancel(now time.Time, turn uuid.UUID, partial string) *draft {
	if s.Turn == nil || s.Turn.ID != turn {
		return nil
	}
	d := s.draft(now)
	d.cancelTurn("cancel", partial)
	return d
}

// cancelTurn closes what is open and ends the turn as canceled. What the model had said stays in the transcript.
func (d *draft) cancelTurn(reason, partial string) {
	t := d.base.Turn
	if partial != "" && t.Step > 0 && !t.Answered {
		d.add(&api.MessageEvent{Step: t.Step, Text: partial, ToolCalls: []api.MessageToolCall{}, StopReason: "canceled"})
	}
	d.settleOpen(api.SettledByCancel, func(*CallState) api.ToolError {
		return api.ToolError{Code: "TOOL_CANCELED", Message: "The turn was canceled before the tool answered. Whether it had run is not known."}
	})
	d.add(&api.TurnCanceled{Reason: reason, Steps: t.Step, Usage: t.Usage})
}

// failTurn closes what is open and ends the turn as failed. shown is true when deltas of the current step went out.
func (d *draft) failTurn(failure api.Failure, shown bool) {
	t := d.base.Turn
	if shown {
		d.add(&api.AttemptVoided{Step: t.Step, Attempt: t.Attempt, Reason: failure.Class})
	}
	d.settleOpen(api.SettledByInterrupted, func(*CallState) api.ToolError {
		return api.ToolError{Code: "TOOL_INTERRUPTED", Message: "The turn failed before the tool answered. Whether it had run is not known."}
	})
	d.add(&api.TurnFailed{Failure: failure, Steps: t.Step, Usage: t.Usage})
}

// settleOpen gives every open call the same kind of error result.
func (d *draft) settleOpen(by api.SettledBy, fault func(*CallState) api.ToolError) {
	if d.next.Turn == nil {
		return
	}
	for _, c := range d.next.Turn.open() {
		e := fault(&c)
		d.settle(&c, api.ToolResult{Error: &e}, by)
	}
}

// settle closes one call.
func (d *draft) settle(c *CallState, result api.ToolResult, by api.SettledBy) {
	var took int64
	if !c.Offered.IsZero() {
		took = max(0, d.now.Sub(c.Offered).Milliseconds())
	}
	d.add(&api.ToolResultEvent{
		ToolCallID: c.ID, Tool: c.Tool, Source: c.Source, Result: result, SettledBy: by, Step: d.base.Turn.Step, DurationMS: took,
	})
}

// own makes the caller the owner of the turn. What an earlier owner left half done is voided or offered again.
func (s *State) own(now time.Time) *draft {
	d := s.draft(now)
	t := s.Turn
	d.add(&api.TurnOwned{Takeover: t.Owners})
	switch {
	case t.Stalled >= maxTakeovers:
		d.failTurn(api.Failure{Class: "crash_loop", Message: "The turn was given up: the server stopped several times in a row while it ran."}, t.Step > 0 && !t.Answered)
	case t.Step == 0:
		d.add(&api.StepStarted{Step: 1})
	case !t.Answered:
		d.add(&api.AttemptVoided{Step: t.Step, Attempt: t.Attempt, Reason: "interrupted"})
	default:
		for _, c := range t.open() {
			if c.Status == api.ToolCallPending && (c.Claim == nil || !c.Claim.Expires.After(d.now)) {
				d.reoffer(&c, reofferGrace)
			}
		}
	}
	return d
}

// reoffer offers a pending call once more and leaves it at least grace.
func (d *draft) reoffer(c *CallState, grace time.Duration) {
	deadline := c.Deadline
	if least := d.now.Add(grace); deadline.Before(least) {
		deadline = least
	}
	d.add(&api.ToolCallEvent{
		ToolCallID: c.ID, Tool: c.Tool, Source: c.Source, Args: c.Args, Step: d.base.Turn.Step,
		Attempt: c.Attempt + 1, MayHaveRun: true, Deadline: deadline,
	})
}

// answer takes a model's whole answer: its message, the refusals of calls that cannot run, the first offers, and, without calls,
// the end of the turn. args[i] and faults[i] are what the check of call i gave.
func (s *State) answer(now time.Time, a *Answer, args []json.RawMessage, faults []*api.ToolError, limits *Limits) *draft {
	d := s.draft(now)
	msg := &api.MessageEvent{
		Step: s.Turn.Step, Text: a.Text, Reasoning: a.Reasoning, ToolCalls: make([]api.MessageToolCall, len(a.Calls)),
		StopReason: stopReason(a), Usage: a.Usage,
	}
	wireIDs := make([]string, len(a.Calls))
	for i, c := range a.Calls {
		msg.ToolCalls[i] = api.MessageToolCall{ToolCallID: newID(d.now), Tool: c.Tool, Args: args[i]}
		wireIDs[i] = c.WireID
	}
	if a.Opaque != nil || len(wireIDs) > 0 {
		d.private = &Private{Opaque: a.Opaque, Origin: a.Origin, WireIDs: wireIDs}
	}
	d.add(msg)
	if len(a.Calls) == 0 {
		d.add(&api.TurnCompleted{Text: a.Text, Steps: s.Turn.Step, Usage: d.next.Turn.Usage})
		return d
	}
	for i, fault := range faults {
		if fault != nil {
			c := d.next.Turn.Calls[i]
			d.settle(&c, api.ToolResult{Error: fault}, api.SettledByValidation)
		}
	}
	if n := d.next.Turn.Failures; n >= limits.MaxToolFailures && len(d.next.Turn.open()) == 0 {
		d.failTurn(toolFailures(n), false)
		return d
	}
	d.offer(limits)
	return d
}

func toolFailures(n int) api.Failure {
	return api.Failure{Class: "tool_failures", Message: fmt.Sprintf("The model made %d calls in a row that named no tool or had invalid arguments. Check the tools' descriptions and schemas.", n)}
}

// stopReason follows the calls, not the word: providers say "stop" with calls and "tool_calls" without.
func stopReason(a *Answer) string {
	switch {
	case a.StopReason == "max_tokens" || a.StopReason == "content_filter":
		return a.StopReason
	case len(a.Calls) > 0:
		return "tool_calls"
	default:
		return "end"
	}
}

// offer offers queued calls in call order, as many as may be open at once.
func (d *draft) offer(limits *Limits) {
	pending := 0
	for _, c := range d.next.Turn.Calls {
		if c.Status == api.ToolCallPending {
			pending++
		}
	}
	for _, c := range d.next.Turn.Calls {
		if c.Status != api.ToolCallQueued {
			continue
		}
		if pending >= limits.MaxParallelCalls {
			return
		}
		pending++
		timeout := toolTimeout(d.base.tool(c.Tool), limits)
		d.add(&api.ToolCallEvent{
			ToolCallID: c.ID, Tool: c.Tool, Source: api.SourcePage, Args: c.Args, Step: d.base.Turn.Step, Attempt: 1, Deadline: d.now.Add(timeout),
		})
	}
}
