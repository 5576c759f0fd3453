package scripted_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/scripted"
	"treadle/sessions"
)

func mustParse(tb testing.TB, text string) *scripted.Model {
	tb.Helper()
	m, err := scripted.Parse(strings.NewReader(text))
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func user(text string) sessions.Message {
	return sessions.Message{Role: sessions.RoleUser, Text: text}
}

func assistant(text string, calls ...sessions.Call) sessions.Message {
	return sessions.Message{Role: sessions.RoleAssistant, Text: text, Calls: calls}
}

func prompt(messages ...sessions.Message) *sessions.Prompt {
	return &sessions.Prompt{Messages: messages}
}

// played is what a stream gave.
type played struct {
	pieces []string
	answer *sessions.Answer
	err    error
}

func play(ctx context.Context, m sessions.Model, p *sessions.Prompt) played {
	var got played
	for part, err := range m.Stream(ctx, p) {
		switch {
		case err != nil:
			got.err = err
		case part.Answer != nil:
			got.answer = part.Answer
		case part.Reasoning != "":
			got.pieces = append(got.pieces, "("+part.Reasoning+")")
		default:
			got.pieces = append(got.pieces, part.Text)
		}
	}
	return got
}

func TestModel_Stream(t *testing.T) {
	m := mustParse(t, `
answers:
  - - reasoning: Hm.
    - text: "größer"
      chunk: 2
    - texts: ["one ", "two"]
    - call: {tool: echo, args: {n: 1.50, big: 12345678901234567890, list: [true, null, 0x10, "a<b"], 7: x}}
    - call: {tool: echo, args: '{"n": 1.50', wire_id: c1}
    - call: {tool: ping}
    - usage: {input_tokens: 3, output_tokens: 0}
  - - text: Done.
    - stop_reason: max_tokens
`)
	zero, three := int64(0), int64(3)
	got := play(t.Context(), m, prompt(user("go")))
	want := played{
		pieces: []string{"(Hm.)", "gr", "öß", "er", "one ", "two"},
		answer: &sessions.Answer{
			Text: "größerone two", Reasoning: "Hm.", StopReason: "tool_calls",
			Calls: []sessions.AnswerCall{
				{Tool: "echo", Args: []byte(`{"n":1.50,"big":12345678901234567890,"list":[true,null,16,"a<b"],"7":"x"}`)},
				{Tool: "echo", Args: []byte(`{"n": 1.50`), WireID: "c1"},
				{Tool: "ping"},
			},
			Usage: &api.Usage{InputTokens: &three, OutputTokens: &zero},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}

	got = play(t.Context(), m, prompt(user("go"), assistant("x"), user("on")))
	if got.err != nil || got.answer.Text != "Done." || got.answer.StopReason != "max_tokens" {
		t.Errorf("second answer: %+v", got)
	}
	got = play(t.Context(), m, prompt(user("go"), assistant("x"), user("on"), assistant("y"), user("more")))
	if got.err != nil || got.answer.Text != "(end of script)" || got.answer.StopReason != "end" {
		t.Errorf("after the last answer: %+v", got)
	}
}

func TestModel_Stream_picks(t *testing.T) {
	m := mustParse(t, `
rules:
  - match: rain
    repeat: last
    answers:
      - [text: rain 1]
      - [text: rain 2]
  - match: sun
    answers: [[text: sun 1]]
`)
	for _, tt := range []struct {
		want   string
		prompt *sessions.Prompt
	}{
		{"rain 1", prompt(user("will it rain?"))},
		{"rain 2", prompt(user("rain"), assistant("a"))},
		{"rain 2", prompt(user("rain"), assistant("a"), assistant("b"))},
		{"sun 1", prompt(user("rain"), assistant("a"), user("and sun?"))},
		{"(end of script)", prompt(user("sun"), assistant("a"))},
		{"(no rule matches)", prompt(user("rain"), assistant("a"), user("snow"))},
		{"(no rule matches)", prompt()},
	} {
		if got := play(t.Context(), m, tt.prompt); got.err != nil || got.answer.Text != tt.want {
			t.Errorf("%v: got %+v, want %q", tt.prompt.Messages, got, tt.want)
		}
	}
}

func TestModel_Stream_attempts(t *testing.T) {
	m := mustParse(t, `
repeat: last
answers:
  - - text: "Well: "
    - attempts:
        - - text: half
          - truncate: true
        - - fail: {class: overloaded, message: Busy., retryable: true, retry_after: 50ms}
        - - text: done
`)
	p := prompt(user("go"))
	if got := play(t.Context(), m, p); got.err != nil || got.answer != nil || strings.Join(got.pieces, "") != "Well: half" {
		t.Errorf("first: %+v", got)
	}
	got := play(t.Context(), m, p)
	want := sessions.ModelError{Class: "overloaded", Message: "Busy.", Retryable: true, RetryAfter: 50 * time.Millisecond}
	if e, ok := errors.AsType[*sessions.ModelError](got.err); !ok || *e != want || got.answer != nil {
		t.Errorf("second: %+v", got)
	}
	for range 2 {
		if got := play(t.Context(), m, p); got.answer == nil || got.answer.Text != "Well: done" {
			t.Errorf("third and later: %+v", got)
		}
	}
	if got := play(t.Context(), m, prompt(user("other"))); got.answer != nil {
		t.Errorf("another history shares attempts: %+v", got)
	}
}

func TestModel_Stream_canceled(t *testing.T) {
	for name, script := range map[string]string{
		"delay": `answers: [[{text: a}, {delay: 1h}, {text: b}]]`,
		"every": `answers: [[{text: ab, chunk: 1, every: 1h}]]`,
		"block": `answers: [[{text: a}, {block: true}]]`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := mustParse(t, script)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				got := play(ctx, m, prompt(user("go")))
				if !errors.Is(got.err, context.DeadlineExceeded) || got.answer != nil || len(got.pieces) != 1 {
					t.Errorf("got %+v", got)
				}
				if d := time.Since(start); d != time.Minute {
					t.Errorf("ended after %v", d)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		m := mustParse(t, `answers: [[{text: abc, chunk: 1, every: 10ms}, {delay: 1s}]]`)
		start := time.Now()
		if got := play(t.Context(), m, prompt(user("go"))); got.err != nil || len(got.pieces) != 3 {
			t.Errorf("got %+v", got)
		}
		if d := time.Since(start); d != 1020*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
}

func TestModel_Stream_stopsWithItsReader(t *testing.T) {
	m := mustParse(t, `answers: [[{texts: [a, b]}, {reasoning: c}]]`)
	for part, err := range m.Stream(t.Context(), prompt(user("go"))) {
		if part.Text != "a" || err != nil {
			t.Errorf("got %+v, %v", part, err)
		}
		break
	}
}

func TestModel_Prompts(t *testing.T) {
	m := mustParse(t, `answers: [[{text: a}]]`)
	p := prompt(user("0"), assistant("", sessions.Call{ID: uuid.New(), Tool: "t", Args: json.RawMessage(`{}`)}),
		sessions.Message{Role: sessions.RoleTool, Result: &api.ToolResult{OK: true, Output: json.RawMessage(`1`)}})
	for i := range 300 {
		p.Messages[0].Text = fmt.Sprint(i)
		play(t.Context(), m, p)
	}
	p.Messages[1].Calls[0].Args[0] = 'X'
	p.Messages[2].Result.Output[0] = 'X'
	got := m.Prompts()
	if len(got) != 256 || got[0].Messages[0].Text != "44" || got[255].Messages[0].Text != "299" {
		t.Errorf("kept %d prompts", len(got))
	}
	if s := string(got[255].Messages[1].Calls[0].Args) + string(got[255].Messages[2].Result.Output); s != "{}1" {
		t.Errorf("the copy changed with the prompt: %s", s)
	}
}

func TestParse_errors(t *testing.T) {
	for _, tt := range []struct{ script, want string }{
		{"", "empty"},
		{"answers: [[{text: a}]]\n---\nanswers: []", "single YAML document"},
		{"{}", "either answers or rules"},
		{"answers: [[{text: a}]]\nrules: []", "either answers or rules"},
		{"answers: []", "at least one answer"},
		{"rules: [{match: a}]", "rule 1: there must be at least one answer"},
		{"match: a\nanswers: [[{text: a}]]", "belong into each of the rules"},
		{"repeat: last\nrules: [{answers: [[{text: a}]]}]", "belong into each of the rules"},
		{"repeat: all\nanswers: [[{text: a}]]", `repeat can only be "last"`},
		{"answers:\n- - text: a\n  - txt: b", "line 3: field txt not found"},
		{"answers:\n- - call: {tool: a, arg: {}}", "line 2: field arg not found"},
		{"answers:\n- text: a", "line 2: cannot unmarshal"},
		{"answers:\n- - text: a\n  - text: a\n    delay: 1s", "answer 1: action 2: want exactly one thing to do, got 2"},
		{"answers:\n- - {}", "answer 1: action 1: want exactly one thing to do, got 0"},
		{"answers:\n- - truncate: false", "got 0"},
		{"answers:\n- - delay: 5", "line 2: cannot unmarshal"},
		{"answers:\n- - delay: -5s", "cannot be negative"},
		{"answers:\n- - delay: 5s\n    chunk: 2", "chunk needs text"},
		{"answers:\n- - text: a\n    every: 2s", "every needs chunk"},
		{"answers:\n- - stop_reason: tired", "stop_reason must be one of"},
		{"answers:\n- - fail: {message: a}", "fail needs a class"},
		{"answers:\n- - call: {args: {}}", "a call needs a tool"},
		{"answers:\n- - call: {tool: a, args: 7}", "line 2: args are a mapping"},
		{"answers:\n- - call: {tool: a, args: {n: .inf}}", "line 2: .inf is not a JSON value"},
		{"answers:\n- - call: {tool: a, args: &x {n: *x}}", "contains itself"},
		{"answers:\n- - block: true\n  - text: a", "answer 1: action 1: nothing can follow"},
		{"answers:\n- - attempts: []", "at least one attempt"},
		{"rules:\n- answers:\n  - - text: a\n  - - attempts: [[{fail: {class: A}}]]",
			"rule 1: answer 2: action 1: attempt 1: action 1: fail needs a class"},
	} {
		_, err := scripted.Parse(strings.NewReader(tt.script))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.script, err, tt.want)
		}
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "script.yaml")
	if _, err := scripted.Load(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(path, []byte("answers: [[{text: a}, {speak: b}]]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := scripted.Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("the error does not name the file: %v", err)
	}
}
