package sessions

import (
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// The decisions about one call of the running turn. They return errNotOpen for a call that State does not hold as open: it may be
// settled, which the log tells, or unknown.

var errNotOpen = refuse(CodeToolCallNotFound, "the session has no such tool call")

// openCall returns a call that a page may answer now, on behalf of the holder of claim.
func (s *State) openCall(now time.Time, id, claim uuid.UUID) (*CallState, error) {
	c := s.call(id)
	switch {
	case c == nil || c.Status == api.ToolCallSettled:
		return nil, errNotOpen
	case c.Status == api.ToolCallQueued:
		return nil, refuse(CodeToolCallNotOffered, "the call is queued behind others; wait for its tool_call event").with("tool_call_id", id)
	case c.Source != api.SourcePage:
		return nil, refuse(CodeToolNotClientSide, "the server runs %s itself; only calls of source page take a result", c.Tool).with("tool_call_id", id)
	case c.claimed(now) && c.Claim.ID != claim:
		return nil, refuse(CodeToolCallClaimed, "client %q holds this call until %s; answer with its claim_id or wait", c.Claim.ClientID, c.Claim.Expires.Format(time.RFC3339Nano)).
			with("tool_call_id", id).with("claim", api.ClaimInfo{ClientID: c.Claim.ClientID, Expires: c.Claim.Expires})
	}
	return c, nil
}

func (c *CallState) claimed(now time.Time) bool { return c.Claim != nil && c.Claim.Expires.After(now) }

// submitResult settles a call with what a page answered.
func (s *State) submitResult(now time.Time, id, claim uuid.UUID, result api.ToolResult) (*draft, error) {
	c, err := s.openCall(now, id, claim)
	if err != nil {
		return nil, err
	}
	d := s.draft(now)
	d.settle(c, result, api.SettledByPage)
	return d, nil
}

// claim gives a call to a client. The holder's own claim is renewed under the same id, and readers need not hear of that.
func (s *State) claim(now time.Time, id uuid.UUID, req *api.ClaimRequest) (*draft, *api.Claim, error) {
	held := uuid.Nil
	if c := s.call(id); c != nil && c.Claim != nil && c.Claim.ClientID == req.ClientID {
		held = c.Claim.ID
	}
	c, err := s.openCall(now, id, held)
	if err != nil {
		return nil, nil, err
	}
	d := s.draft(now)
	renewed := held != uuid.Nil && c.claimed(d.now)
	if held == uuid.Nil {
		held = newID(d.now)
	}
	d.private = &Private{ClaimID: held}
	expires := d.now.Add(time.Duration(req.LeaseMS) * time.Millisecond)
	claim := &api.Claim{
		ClaimID: held, ToolCallID: c.ID, ClientID: req.ClientID, Expires: expires,
		Attempt: c.Attempt, MayHaveRun: c.MayHaveRun || c.Claim != nil,
	}
	if renewed {
		d.add(&api.ClaimRenewed{ToolCallID: c.ID, ClientID: req.ClientID, Expires: expires})
	} else {
		d.add(&api.ToolClaimed{ToolCallID: c.ID, ClientID: req.ClientID, Expires: expires})
	}
	return d, claim, nil
}

// progress shows how far a call is, renews its claim, and moves its deadline as far as the tool allows.
func (s *State) progress(now time.Time, id uuid.UUID, req *api.ProgressRequest, limits *Limits) (*draft, error) {
	c, err := s.openCall(now, id, req.ClaimID)
	if err != nil {
		return nil, err
	}
	if c.Progress >= maxProgress {
		return nil, refuse(CodeProgressLimit, "a call takes at most %d progress reports; report less often", maxProgress).with("limit", maxProgress)
	}
	d := s.draft(now)
	deadline := c.Deadline
	if tool := s.tool(c.Tool); tool != nil && tool.MaxTimeoutMS > 0 {
		extended := d.now.Add(toolTimeout(tool, limits))
		if last := c.Offered.Add(time.Duration(tool.MaxTimeoutMS) * time.Millisecond); extended.After(last) {
			extended = last
		}
		if extended.After(deadline) {
			deadline = extended
		}
	}
	d.add(&api.ToolProgress{ToolCallID: c.ID, Message: req.Message, Fraction: req.Fraction, Deadline: deadline})
	return d, nil
}

func toolTimeout(tool *api.Tool, limits *Limits) time.Duration {
	if tool != nil && tool.TimeoutMS > 0 {
		return time.Duration(tool.TimeoutMS) * time.Millisecond
	}
	return limits.ToolTimeout
}

// view shows an open call as the API does.
func (s *State) view(c *CallState, now time.Time) api.ToolCall {
	v := api.ToolCall{
		ID: c.ID, SessionID: s.Session, TurnID: s.Turn.ID, Tool: c.Tool, Source: c.Source, Args: c.Args, Step: s.Turn.Step,
		Status: c.Status, Attempt: c.Attempt, MayHaveRun: c.MayHaveRun, Deadline: c.Deadline, Time: c.Made,
	}
	if v.Source == "" {
		v.Source = api.SourcePage
	}
	if c.claimed(now) {
		v.Claim = &api.ClaimInfo{ClientID: c.Claim.ClientID, Expires: c.Claim.Expires}
	}
	return v
}
