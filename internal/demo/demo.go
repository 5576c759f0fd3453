// Package demo is a Model that needs no key and no network: a set of rules, not an LLM, and it says so.
//
// A request whose lines all read
//
//	call NAME {json}
//
// makes exactly those calls in one step, with name and arguments passed on as they are, right or wrong. Any other request is
// matched with the declared tools by its words, the arguments are taken from the text and the schema, and the next step
// reports what the calls returned. Lines, sentences and clauses that are separated by ";" or "and then" may each become a call.
package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"time"

	"treadle/api"
	"treadle/sessions"
)

const (
	defaultDelay = 15 * time.Millisecond
	// maxPieces bounds the deltas of an answer, so that a long report does not take long to say.
	maxPieces = 100
	// maxShown is how much of a JSON value is repeated in a text, in bytes.
	maxShown = 400
	// maxListed is how many tools an introduction names.
	maxListed = 20
)

// Config sets up the model. The zero value is ready to use.
type Config struct {
	// Delay is the pause between two pieces of text: 0 means 15 ms, negative means none.
	Delay time.Duration
}

type model struct{ delay time.Duration }

// New returns the model. It keeps nothing between requests.
func New(cfg Config) sessions.Model {
	if cfg.Delay == 0 {
		cfg.Delay = defaultDelay
	}
	return model{delay: cfg.Delay}
}

// Stream says the answer word by word.
func (m model) Stream(ctx context.Context, prompt *sessions.Prompt) iter.Seq2[sessions.Part, error] {
	return func(yield func(sessions.Part, error) bool) {
		answer := reply(prompt)
		for i, piece := range pieces(answer.Text) {
			if i > 0 {
				m.pause(ctx)
			}
			if ctx.Err() != nil {
				yield(sessions.Part{}, context.Cause(ctx))
				return
			}
			if !yield(sessions.Part{Text: piece}, nil) {
				return
			}
		}
		yield(sessions.Part{Answer: answer}, nil)
	}
}

func (m model) pause(ctx context.Context) {
	if m.delay <= 0 {
		return
	}
	timer := time.NewTimer(m.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// pieces splits text after its spaces, or after every few of them when there are many.
func pieces(text string) []string {
	words := strings.SplitAfter(text, " ")
	n := 1 + len(words)/maxPieces
	var out []string
	for ; len(words) > n; words = words[n:] {
		out = append(out, strings.Join(words[:n], ""))
	}
	return append(out, strings.Join(words, ""))
}

// reply decides on the whole answer.
func reply(prompt *sessions.Prompt) *sessions.Answer {
	last := sessions.Message{}
	if n := len(prompt.Messages); n > 0 {
		last = prompt.Messages[n-1]
	}
	if last.Role == sessions.RoleTool {
		return &sessions.Answer{Text: report(prompt.Messages), StopReason: "end"}
	}
	calls := exactCalls(last.Text, prompt.Tools)
	if calls == nil {
		calls = plan(last.Text, prompt.Tools)
	}
	if calls == nil {
		return &sessions.Answer{Text: introduce(last.Text, prompt.Tools), StopReason: "end"}
	}
	return &sessions.Answer{Text: announce(calls), Calls: calls, StopReason: "tool_calls"}
}

func announce(calls []sessions.AnswerCall) string {
	names := make([]string, 0, maxListed)
	for _, c := range calls[:min(len(calls), maxListed)] {
		names = append(names, c.Tool)
	}
	if more := len(calls) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return "Calling " + strings.Join(names, ", ") + "."
}

// report says what the calls of the last assistant message returned, one sentence each.
func report(messages []sessions.Message) string {
	first := len(messages)
	for first > 0 && messages[first-1].Role == sessions.RoleTool {
		first--
	}
	var sentences []string
	for _, m := range messages[first:] {
		sentences = append(sentences, outcome(m.Tool, m.Result))
	}
	return strings.Join(sentences, "\n")
}

func outcome(tool string, r *api.ToolResult) string {
	switch {
	case r == nil:
		return tool + " has no result."
	case r.OK:
		return tool + " returned " + shown(r.Output) + "."
	case r.Error == nil:
		return tool + " failed."
	}
	return fmt.Sprintf("%s failed with %s: %s", tool, r.Error.Code, shorten(r.Error.Message))
}

// shown is raw on one line, and shortened if it is long.
func shown(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return "something that is not JSON"
	}
	return shorten(b.String())
}

func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(s[:maxShown], ""), len(s))
}

// introduce answers a request that no tool fits.
func introduce(request string, tools []api.Tool) string {
	var b strings.Builder
	if isSmallTalk(request) {
		b.WriteString("Hello! I am the demo model: a set of rules, not an LLM. ")
	} else {
		b.WriteString("I found no tool for that, and I cannot think: I am the demo model, a set of rules, not an LLM. ")
	}
	if len(tools) == 0 {
		b.WriteString("This page declares no tools, so there is nothing that I can do here yet.")
		return b.String()
	}
	b.WriteString("I match the words of a request with this page's tools, call the one that fits and report what it returned:\n")
	for _, t := range tools[:min(len(tools), maxListed)] {
		fmt.Fprintf(&b, "\n- %s: %s", t.Name, shorten(t.Description))
	}
	if more := len(tools) - maxListed; more > 0 {
		fmt.Fprintf(&b, "\n- and %d more", more)
	}
	fmt.Fprintf(&b, "\n\nFor an exact call, write a line such as: call %s {}", tools[0].Name)
	return b.String()
}
