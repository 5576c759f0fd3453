package scripted

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"treadle/api"
	"treadle/sessions"
)

// playback is one answer while it is played.
type playback struct {
	ctx   context.Context
	yield func(sessions.Part, error) bool
	// try counts the earlier requests for this answer.
	try    func() int
	answer sessions.Answer
}

// play reports whether the answer goes on after the actions.
func (p *playback) play(actions []action) bool {
	for i := range actions {
		if !p.wait(0) || !p.act(&actions[i]) {
			return false
		}
	}
	return true
}

func (p *playback) act(a *action) bool {
	switch {
	case a.Text != nil && a.Chunk > 0:
		return p.chunks(*a.Text, a.Chunk, a.Every)
	case a.Text != nil:
		return p.text(*a.Text)
	case a.Texts != nil:
		return !slices.ContainsFunc(a.Texts, func(s string) bool { return !p.text(s) })
	case a.Reasoning != nil:
		p.answer.Reasoning += *a.Reasoning
		return *a.Reasoning == "" || p.yield(sessions.Part{Reasoning: *a.Reasoning}, nil)
	case a.Call != nil:
		p.answer.Calls = append(p.answer.Calls, sessions.AnswerCall{
			WireID: a.Call.WireID, Tool: a.Call.Tool, Args: bytes.Clone(a.Call.args),
		})
	case a.Delay != nil:
		return p.wait(*a.Delay)
	case a.Usage != nil:
		u := api.Usage(*a.Usage)
		p.answer.Usage = &u
	case a.StopReason != nil:
		p.answer.StopReason = *a.StopReason
	case a.Fail != nil:
		p.yield(sessions.Part{}, &sessions.ModelError{
			Class:     a.Fail.Class,
			Message:   cmp.Or(a.Fail.Message, "The script says that this call fails."),
			Retryable: a.Fail.Retryable, RetryAfter: a.Fail.RetryAfter,
		})
		return false
	case a.Truncate:
		return false
	case a.Block:
		<-p.ctx.Done()
		return p.wait(0)
	case a.Attempts != nil:
		return p.play(a.Attempts[min(p.try(), len(a.Attempts)-1)])
	}
	return true
}

func (p *playback) text(s string) bool {
	p.answer.Text += s
	return s == "" || p.yield(sessions.Part{Text: s}, nil)
}

// chunks says text in pieces of n characters.
func (p *playback) chunks(text string, n int, every time.Duration) bool {
	pause := time.Duration(0)
	for piece := range slices.Chunk([]rune(text), n) {
		if !p.wait(pause) || !p.text(string(piece)) {
			return false
		}
		pause = every
	}
	return true
}

// wait reports whether d passed before the context ended; if not, it has yielded the context's error.
func (p *playback) wait(d time.Duration) bool {
	if d > 0 && p.ctx.Err() == nil {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return true
		case <-p.ctx.Done():
		}
	}
	if p.ctx.Err() != nil {
		p.yield(sessions.Part{}, context.Cause(p.ctx))
		return false
	}
	return true
}

func (p *playback) finish() {
	if p.answer.StopReason == "" {
		p.answer.StopReason = "end"
		if len(p.answer.Calls) > 0 {
			p.answer.StopReason = "tool_calls"
		}
	}
	p.yield(sessions.Part{Answer: &p.answer}, nil)
}
