package sessions

import (
	"fmt"
	"time"

	"treadle/api"
)

// action is what the owner of a turn does next. Exactly one of its fields is set.
type action struct {
	over  bool          // the turn ended, or is not this one any more
	lost  bool          // another replica owns the turn
	draft *draft        // append this
	model bool          // the current step needs its model call
	wait  time.Duration // nothing to do before this, unless another fact comes
}

// nextAction decides what the owner with that term does now. readers is the number of clients that are connected.
func (s *State) nextAction(now time.Time, turn Seq, term Seq, readers int, limits *Limits) action {
	t := s.Turn
	switch {
	case t == nil || t.Seq != turn || !s.Ended.IsZero():
		return action{over: true}
	case t.Term != term:
		return action{lost: true}
	case !t.Answered:
		return action{model: true}
	}
	open := t.open()
	if len(open) == 0 {
		d := s.draft(now)
		if t.Step >= t.MaxSteps {
			d.failTurn(api.Failure{Class: "max_steps", Message: fmt.Sprintf("The turn reached its limit of %d model calls. Start another turn to go on.", t.MaxSteps)}, false)
		} else {
			d.add(&api.StepStarted{Step: t.Step + 1})
		}
		return action{draft: d}
	}
	d := s.draft(now)
	wake := d.settleLate(open, readers)
	d.offer(limits)
	if len(d.events) > 0 {
		return action{draft: d}
	}
	return action{wait: max(wake.Sub(now), time.Millisecond)}
}

// settleLate closes the calls whose time is up, offers those again whose claim ran out, and returns when the next one is due.
func (d *draft) settleLate(open []CallState, readers int) time.Time {
	wake := d.now.Add(time.Hour)
	for _, c := range open {
		if c.Status != api.ToolCallPending {
			continue
		}
		due := c.Deadline
		switch {
		case !c.Deadline.After(d.now):
			d.settle(&c, api.ToolResult{Error: timeoutError(&c, readers)}, api.SettledByTimeout)
			continue
		case c.Claim != nil && !c.Claim.Expires.After(d.now):
			d.reoffer(&c, 0)
			continue
		case c.Claim != nil && c.Claim.Expires.Before(due):
			due = c.Claim.Expires
		}
		if due.Before(wake) {
			wake = due
		}
	}
	return wake
}

func timeoutError(c *CallState, readers int) *api.ToolError {
	msg := fmt.Sprintf("The page did not answer within %s.", c.Deadline.Sub(c.Offered).Round(time.Millisecond))
	if readers == 0 {
		msg += " No client was connected to the session."
	} else {
		msg += " A client was connected; whether the tool ran is not known."
	}
	return &api.ToolError{Code: "TOOL_TIMEOUT", Message: msg, Details: fmt.Appendf(nil, `{"connected":%t}`, readers > 0)}
}
