package sessions

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// StartTurn starts a turn, or returns the one that an earlier request with the same idempotencyKey started. The turn runs on some
// replica as soon as this returns.
func (s *Service) StartTurn(ctx context.Context, tenant string, id uuid.UUID, req *api.TurnCreate, idempotencyKey string) (*api.Turn, error) {
	if err := s.refuseDraining(); err != nil {
		return nil, err
	}
	if err := s.checkTurn(req); err != nil {
		return nil, err
	}
	idem := idempotency(idempotencyKey, req)
	key := sessionKey{tenant, id}
	var turn uuid.UUID
	var started *draft
	st, err := s.commit(ctx, key, func(st *State) (*draft, error) {
		var err error
		if turn, err = st.keyedTurn(idem); err != nil || turn != uuid.Nil {
			started = nil
			return nil, err
		}
		resolved := *req
		if resolved.Model, err = s.chooseModel(req.Model, st.Model); err != nil {
			return nil, err
		}
		if resolved.MaxSteps == 0 || resolved.MaxSteps > s.limits.MaxSteps {
			resolved.MaxSteps = s.limits.MaxSteps
		}
		started, turn, err = st.startTurn(time.Now(), &resolved, idem)
		return started, err
	})
	if err != nil {
		return nil, err
	}
	if started == nil {
		return s.readTurn(ctx, key, st, turn)
	}
	return newTurn(started.events[0].(*api.TurnStarted)), nil
}

func (s *Service) checkTurn(req *api.TurnCreate) error {
	if req.MaxSteps < 0 {
		return refuse(CodeInvalidInput, "max_steps is %d, it must be at least 1", req.MaxSteps).with("pointer", "/max_steps")
	}
	size := 0
	for _, part := range req.Input {
		if part.Type != "text" {
			return refuse(CodeInvalidInput, "an input part has type %s; this server takes text", quoteShort(part.Type)).with("pointer", "/input")
		}
		size += len(part.Text)
	}
	switch {
	case strings.TrimSpace(req.Input.Text()) == "":
		return refuse(CodeInvalidInput, "the input is empty; send {\"input\": \"what the user says\"}").with("pointer", "/input")
	case size > s.limits.MaxInputBytes:
		return refuse(CodeInvalidInput, "the input has %d bytes, at most %d are taken", size, s.limits.MaxInputBytes).with("pointer", "/input").with("limit", s.limits.MaxInputBytes)
	}
	return nil
}

// Turn returns a turn; while it runs, the call waits for its end, as long as wait.
func (s *Service) Turn(ctx context.Context, tenant string, id, turn uuid.UUID, wait time.Duration) (*api.Turn, error) {
	key := sessionKey{tenant, id}
	st, err := s.state(ctx, key)
	if err != nil {
		return nil, err
	}
	running := func(st *State) bool { return st.Turn != nil && st.Turn.ID == turn }
	if st, err = s.await(ctx, key, st, wait, func(st *State) bool { return !running(st) }); err != nil {
		return nil, err
	}
	return s.readTurn(ctx, key, st, turn)
}

// await follows the session until done says so of its state, or the session has ended, at most as long as wait.
func (s *Service) await(ctx context.Context, key sessionKey, st *State, wait time.Duration, done func(*State) bool) (*State, error) {
	if wait <= 0 || done(st) || !st.Ended.IsZero() {
		return st, nil
	}
	follower, err := s.engine.Follow(ctx, key.tenant, key.id, st.Seq)
	if err != nil {
		return nil, unavailable(err)
	}
	defer follower.Close()
	deadline := time.Now().Add(wait)
	for !done(st) && st.Ended.IsZero() {
		left := time.Until(deadline)
		if left <= 0 {
			return st, nil
		}
		entries, err := follower.Next(ctx, left)
		if err != nil {
			return nil, unavailable(err)
		}
		for _, e := range entries {
			if st, err = st.Apply(e); err != nil {
				return nil, err
			}
		}
	}
	return st, nil
}

// CancelTurn cancels a turn. A turn that has ended, however it did, is returned as it is.
func (s *Service) CancelTurn(ctx context.Context, tenant string, id, turn uuid.UUID) (*api.Turn, error) {
	key := sessionKey{tenant, id}
	st, err := s.commit(ctx, key, func(st *State) (*draft, error) {
		return st.cancel(time.Now(), turn, s.partialText(ctx, key, st)), nil
	})
	if err != nil {
		return nil, err
	}
	return s.readTurn(ctx, key, st, turn)
}

// partialText returns what the model has said so far in an unfinished step of the running turn, as readers saw it.
func (s *Service) partialText(ctx context.Context, key sessionKey, st *State) string {
	t := st.Turn
	if t == nil || t.Step == 0 || t.Answered {
		return ""
	}
	var text strings.Builder
	for after := t.StepSeq; ; {
		entries, err := s.engine.Read(ctx, key.tenant, key.id, after, 0, true)
		if err != nil || len(entries) == 0 {
			return text.String() // a cancel is worth more than the text that it saves
		}
		for _, e := range entries {
			after = e.Seq
			if e.Kind() != KindDelta || e.Term != t.Term {
				continue
			}
			for _, raw := range e.Events {
				event, err := api.DecodeEvent(raw)
				if delta, ok := event.(*api.TextDelta); err == nil && ok && delta.Step == t.Step && delta.Attempt == t.Attempt {
					text.WriteString(delta.Text)
				}
			}
		}
	}
}
