package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"treadle/api"
)

// errStepOver is why a model call is dropped: its step is not this run's any more (the turn was canceled, ended or taken over).
var errStepOver = errors.New("the step is over")

// step makes the current step's model call, with retries, and appends what comes of it.
func (r *run) step(ctx context.Context) error {
	t := r.state.Turn
	model, ok := r.service.models[t.Model]
	if !ok || model.Unavailable != "" {
		return r.fail(ctx, t.Step, &ModelError{Class: "model_unavailable", Message: "The model " + quoteShort(t.Model) + " is not available on this server any more."}, false)
	}
	if err := r.compileTools(); err != nil {
		return err
	}
	prompt := &Prompt{Messages: r.history.prompt(), Tools: r.skills.Tools}
	if r.skills.Guidance != "" {
		prompt.System = []string{r.skills.Guidance}
	}
	for tries := 1; ; tries++ {
		answer, shown, err := r.attempt(ctx, model.Model, prompt)
		if err == nil {
			return r.answer(ctx, t.Step, answer)
		}
		if errors.Is(err, errStepOver) {
			return nil
		}
		var fault *ModelError
		if !errors.As(err, &fault) {
			return err
		}
		r.service.log.Warn("A model call failed", "session_id", r.key.id, "turn_id", t.ID, "step", t.Step, "try", tries, "class", fault.Class, "err", fault.Err)
		pause := max(fault.RetryAfter, backoff(tries))
		if !fault.Retryable || tries >= r.service.limits.ModelAttempts || pause > r.service.limits.TurnTime-r.modelTime {
			return r.fail(ctx, t.Step, fault, shown)
		}
		if err := r.retry(ctx, t.Step, pause, fault.Class, shown); err != nil {
			if errors.Is(err, errStepOver) {
				return nil
			}
			return err
		}
	}
}

// retry voids what was shown of a failed attempt and waits before the next one.
func (r *run) retry(ctx context.Context, step int, wait time.Duration, class string, shown bool) error {
	if shown {
		err := r.appendStep(ctx, step, func(st *State) *draft {
			d := st.draft(time.Now())
			d.add(&api.AttemptVoided{Step: step, Attempt: st.Turn.Attempt, Reason: class})
			return d
		})
		if err != nil {
			return err
		}
	}
	for until := time.Now().Add(wait); time.Now().Before(until); {
		if err := r.await(ctx, time.Until(until), nil); err != nil {
			return err
		}
		if !r.inStep(step) {
			return errStepOver
		}
	}
	return nil
}

// backoff is 0.5, 1, 2 … 8 seconds, less up to a half so that many do not come back at once.
func backoff(tries int) time.Duration {
	full := min(500*time.Millisecond<<(tries-1), 8*time.Second)
	return full/2 + rand.N(full/2)
}

// inStep tells whether this run still owns the turn, and the step still has no message.
func (r *run) inStep(step int) bool {
	t := r.state.Turn
	return t != nil && t.Seq == r.turn && t.Term == r.term && t.Step == step && !t.Answered
}

// appendStep appends what decide makes of the state, unless the step is over.
func (r *run) appendStep(ctx context.Context, step int, decide func(*State) *draft) error {
	for r.inStep(step) {
		if err := r.append(ctx, decide(r.state)); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return errStepOver
}

// fail ends the turn.
func (r *run) fail(ctx context.Context, step int, fault *ModelError, shown bool) error {
	err := r.appendStep(ctx, step, func(st *State) *draft {
		d := st.draft(time.Now())
		d.failTurn(api.Failure{Class: fault.Class, Message: fault.Message}, shown)
		return d
	})
	if errors.Is(err, errStepOver) {
		return nil
	}
	return err
}

// answer checks the calls of a model's answer and appends it.
func (r *run) answer(ctx context.Context, step int, a *Answer) error {
	args := make([]json.RawMessage, len(a.Calls))
	faults := make([]*api.ToolError, len(a.Calls))
	for i, c := range a.Calls {
		args[i], faults[i] = r.tools.checkArgs(c.Tool, c.Args, len(a.Calls))
		if reason := stopReason(a); reason != "tool_calls" {
			faults[i] = &api.ToolError{Code: "TOOL_CALL_TRUNCATED", Message: "The answer was cut off (" + reason + "), so the call was not made. Make it again, shorter."}
		}
	}
	err := r.appendStep(ctx, step, func(st *State) *draft { return st.answer(time.Now(), a, args, faults, &r.service.limits) })
	var refused *Error
	switch {
	case errors.Is(err, errStepOver):
		return nil
	case errors.As(err, &refused) && refused.Code == CodeBodyTooLarge:
		return r.fail(ctx, step, &ModelError{Class: "output_limit", Message: "The model's answer is larger than the log can store in one piece."}, true)
	}
	return err
}

func (r *run) compileTools() error {
	if r.skills == r.state.Skills {
		return nil
	}
	tools, err := newToolset(r.state.Skills)
	if err != nil {
		return fmt.Errorf("compiling the session's tools: %w", err)
	}
	r.tools, r.skills = tools, r.state.Skills
	return nil
}

// attempt makes one model call while it keeps following the log. shown tells whether deltas went out.
func (r *run) attempt(ctx context.Context, model Model, prompt *Prompt) (answer *Answer, shown bool, err error) {
	t := r.state.Turn
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	deltas := newDeltaWriter(func(event api.Event) {
		h := event.Header()
		h.Type, h.SessionID, h.TurnID, h.Time = api.TypeOf(event), r.key.id, t.ID, time.Now().UTC().Truncate(time.Millisecond)
		raw, err := api.Marshal(event)
		if err != nil {
			return
		}
		// A lost delta is no loss: the message has its text.
		_ = r.service.engine.AppendDelta(ctx, r.key.tenant, r.key.id, &Record{V: RecordVersion, Term: r.term, Events: []json.RawMessage{raw}})
	}, t.Step, t.Attempt)
	type outcome struct {
		answer *Answer
		err    error
	}
	done := make(chan outcome, 1)
	budget := r.service.limits.TurnTime - r.modelTime
	began := time.Now()
	go func() {
		a, err := r.service.stream(ctx, model, prompt, deltas, budget)
		done <- outcome{a, err}
	}()
	defer func() { r.modelTime += time.Since(began) }()
	for {
		select {
		case out := <-done:
			return out.answer, deltas.close(), out.err
		case facts, ok := <-r.facts:
			err := r.taken(ctx, facts, ok)
			if err == nil && r.inStep(t.Step) {
				continue
			}
			if err == nil {
				err = errStepOver
			}
			cancel(err)
			<-done
			return nil, deltas.close(), err
		case <-ctx.Done():
			<-done
			return nil, deltas.close(), context.Cause(ctx)
		}
	}
}

var errModelSilent = &ModelError{Class: "provider_timeout", Message: "The model stopped answering."}
var errTurnTime = &ModelError{Class: "turn_timeout", Message: "The turn's model calls took longer than this server allows."}

// stream makes one model call within its limits and checks that the answer is whole.
func (s *Service) stream(ctx context.Context, model Model, prompt *Prompt, deltas *deltaWriter, budget time.Duration) (answer *Answer, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(s.limits.ModelFirstPart, func() { cancel(errModelSilent) })
	defer silence.Stop()
	total := time.AfterFunc(max(budget, 0), func() { cancel(errTurnTime) })
	defer total.Stop()
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("A model panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			answer, err = nil, &ModelError{Class: "internal", Message: "The model's adapter failed; the server's log has the details."}
		}
	}()
	size := 0
	for part, err := range model.Stream(ctx, prompt) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			var fault *ModelError
			if !errors.As(err, &fault) {
				fault = &ModelError{Class: "internal", Message: "The model's adapter failed; the server's log has the details.", Err: err}
			}
			return nil, fault
		}
		silence.Reset(s.limits.ModelIdle)
		if part.Answer != nil {
			return part.Answer, s.checkAnswer(part.Answer)
		}
		if size += len(part.Text) + len(part.Reasoning); size > s.limits.MaxAnswerBytes {
			return nil, s.tooLong()
		}
		deltas.add(part)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, &ModelError{Class: "truncated", Message: "The model's answer broke off.", Retryable: true}
}

func (s *Service) tooLong() *ModelError {
	return &ModelError{Class: "output_limit", Message: fmt.Sprintf("The model's answer is longer than the %d bytes that this server takes.", s.limits.MaxAnswerBytes)}
}

// checkAnswer refuses an answer that cannot be stored, or that would make a history which no provider takes.
func (s *Service) checkAnswer(a *Answer) error {
	size := len(a.Text) + len(a.Reasoning)
	for _, c := range a.Calls {
		size += len(c.Tool) + len(c.Args)
	}
	switch {
	case len(a.Calls) > maxCallsPerStep:
		return &ModelError{Class: "too_many_tool_calls", Message: fmt.Sprintf("The model made %d calls at once; at most %d are taken.", len(a.Calls), maxCallsPerStep)}
	case size > s.limits.MaxAnswerBytes:
		return s.tooLong()
	case a.Text == "" && len(a.Calls) == 0:
		return &ModelError{Class: "empty_response", Message: "The model answered nothing.", Retryable: true}
	}
	return nil
}
