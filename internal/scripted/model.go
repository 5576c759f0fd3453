package scripted

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"sync"

	"treadle/api"
	"treadle/sessions"
)

const (
	// maxPrompts is how many of the latest prompts a Model keeps.
	maxPrompts = 256
	// maxHistories is how many histories a Model counts the attempts of.
	maxHistories = 4096
)

// Model plays a script. It is safe for concurrent use.
type Model struct {
	rules []rule
	// wholeSession counts answers from the session's beginning instead of from the last user message.
	wholeSession bool

	// forgets is true for a model that keeps no prompts.
	forgets bool

	mu      sync.Mutex
	prompts []*sessions.Prompt
	// tries counts the requests for each history whose answer has attempts; order holds its keys, oldest first.
	tries map[[sha256.Size]byte]int
	order [][sha256.Size]byte
}

var _ sessions.Model = (*Model)(nil)

func newModel(rules []rule, wholeSession bool) *Model {
	return &Model{rules: rules, wholeSession: wholeSession, tries: map[[sha256.Size]byte]int{}}
}

// Prompts returns copies of the latest prompts that m was given, at most 256, oldest first; none of a model that was loaded from a file.
func (m *Model) Prompts() []*sessions.Prompt {
	m.mu.Lock()
	defer m.mu.Unlock()
	copies := make([]*sessions.Prompt, len(m.prompts))
	for i, p := range m.prompts {
		copies[i] = clonePrompt(p)
	}
	return copies
}

// Stream plays the answer that stands at the prompt's place in the script.
func (m *Model) Stream(ctx context.Context, prompt *sessions.Prompt) iter.Seq2[sessions.Part, error] {
	return func(yield func(sessions.Part, error) bool) {
		m.record(prompt)
		p := &playback{ctx: ctx, yield: yield, try: func() int { return m.try(prompt) }}
		if p.play(m.next(prompt)) {
			p.finish()
		}
	}
}

func (m *Model) record(prompt *sessions.Prompt) {
	if m.forgets {
		return
	}
	kept := clonePrompt(prompt)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.prompts) == maxPrompts {
		m.prompts = slices.Delete(m.prompts, 0, 1)
	}
	m.prompts = append(m.prompts, kept)
}

// next finds the answer to a prompt.
func (m *Model) next(prompt *sessions.Prompt) []action {
	user, step := "", 0
	for i := range prompt.Messages {
		switch msg := &prompt.Messages[i]; msg.Role {
		case sessions.RoleUser:
			user = msg.Text
			if !m.wholeSession {
				step = 0
			}
		case sessions.RoleAssistant:
			step++
		case sessions.RoleTool:
		}
	}
	i := slices.IndexFunc(m.rules, func(r rule) bool { return strings.Contains(user, r.Match) })
	if i < 0 {
		return say("(no rule matches)")
	}
	answers := m.rules[i].Answers
	switch {
	case step < len(answers):
		return answers[step]
	case m.rules[i].Repeat == "last":
		return answers[len(answers)-1]
	}
	return say("(end of script)")
}

func say(text string) []action { return []action{{Text: &text}} }

// try counts, from 0, how often the prompt's history was seen.
func (m *Model) try(prompt *sessions.Prompt) int {
	h := sha256.New()
	for i := range prompt.Messages {
		// An error means arguments that are not JSON; the other messages still tell the histories apart.
		_ = json.NewEncoder(h).Encode(&prompt.Messages[i])
	}
	key := [sha256.Size]byte(h.Sum(nil))

	m.mu.Lock()
	defer m.mu.Unlock()
	n, seen := m.tries[key]
	m.tries[key] = n + 1
	if !seen {
		if len(m.order) == maxHistories {
			delete(m.tries, m.order[0])
			m.order = slices.Delete(m.order, 0, 1)
		}
		m.order = append(m.order, key)
	}
	return n
}

func clonePrompt(p *sessions.Prompt) *sessions.Prompt {
	c := &sessions.Prompt{
		System: slices.Clone(p.System), Messages: slices.Clone(p.Messages), Tools: slices.Clone(p.Tools),
	}
	for i := range c.Tools {
		c.Tools[i].ArgsSchema = slices.Clone(c.Tools[i].ArgsSchema)
		c.Tools[i].ResultSchema = slices.Clone(c.Tools[i].ResultSchema)
	}
	for i := range c.Messages {
		msg := &c.Messages[i]
		msg.Opaque = slices.Clone(msg.Opaque)
		msg.Calls = slices.Clone(msg.Calls)
		for j := range msg.Calls {
			msg.Calls[j].Args = slices.Clone(msg.Calls[j].Args)
		}
		msg.Result = cloneResult(msg.Result)
	}
	return c
}

func cloneResult(r *api.ToolResult) *api.ToolResult {
	if r == nil {
		return nil
	}
	c := *r
	c.Output = slices.Clone(r.Output)
	if r.Error != nil {
		e := *r.Error
		e.Details = slices.Clone(e.Details)
		c.Error = &e
	}
	return &c
}
