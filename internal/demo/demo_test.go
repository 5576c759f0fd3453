package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"treadle/api"
	"treadle/sessions"
)

// page declares tools as an ordinary page would.
var page = []api.Tool{
	{Name: "set_counter", Description: "Sets the counter to a value.",
		ArgsSchema: json.RawMessage(`{"type":"object","properties":{"value":{"type":"integer"}},"required":["value"]}`)},
	{Name: "get_counter", Description: "Reads the current value of the counter."},
	{Name: "add_circle", Description: "Draws a circle on the canvas.", ArgsSchema: json.RawMessage(`{"type":"object","properties":{
		"radius":{"type":"number","default":20},"color":{"type":"string"},"filled":{"type":"boolean"},
		"position":{"type":"object","properties":{"x":{"type":"number"},"y":{"type":"number"}},"required":["x","y"]}},
		"required":["radius"]}`)},
	{Name: "add_todo", Description: "Adds an item to the todo list.", ArgsSchema: json.RawMessage(`{"type":"object","properties":{
		"title":{"type":"string"},"priority":{"enum":["low","medium","high"]},"dueDate":{"type":"string","format":"date"},
		"tags":{"type":"array","items":{"type":"string"}}},"required":["title"]}`)},
	{Name: "delete_todo", Description: "Deletes a todo item.", ArgsSchema: json.RawMessage(`{"type":"object",
		"properties":{"id":{"type":"string"}},"required":["id"]}`)},
	{Name: "greet", Description: "Say hello to someone.", ArgsSchema: json.RawMessage(`{"type":"object",
		"properties":{"name":{"type":"string"}},"required":["name"]}`)},
	{Name: "setDarkMode", Description: "Switches the theme.", ArgsSchema: json.RawMessage(`{"type":"object",
		"properties":{"enabled":{"type":"boolean"}},"required":["enabled"]}`)},
	{Name: "move", Description: "Moves the turtle.", ArgsSchema: json.RawMessage(`{"type":"object","properties":{
		"direction":{"type":"string","enum":["left","right","up","down"]},"steps":{"type":["integer","null"]}},
		"required":["direction","steps"]}`)},
	{Name: "plot", Description: "Plots a line chart of numbers.", ArgsSchema: json.RawMessage(`{"type":"object","properties":{
		"kind":{"const":"line"},"points":{"type":"array","items":{"type":"number"}},
		"caption":{"anyOf":[{"type":"null"},{"type":"string"}]}},"required":["kind","points"]}`)},
}

func request(text string) *sessions.Prompt {
	return &sessions.Prompt{Tools: page, Messages: []sessions.Message{{Role: sessions.RoleUser, Text: text}}}
}

// calls are the calls of an answer, one per line.
func calls(a *sessions.Answer) string {
	var b strings.Builder
	for _, c := range a.Calls {
		fmt.Fprintf(&b, "%s %s\n", c.Tool, c.Args)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func TestReply_words(t *testing.T) {
	for _, tt := range []struct{ request, want string }{
		{"set counter to 7", `set_counter {"value":7}`},
		{"Please set the counter of this page to -3!", `set_counter {"value":-3}`},
		{"set the counter to seven", `set_counter {"value":7}`},
		{"set counter to 007", `set_counter {"value":7}`},
		{"set counter, value = 12345678901234567890", `set_counter {"value":12345678901234567890}`},
		{"set counter to 1.5", `set_counter {"value":0}`},
		{"what is the counter's current value?", `get_counter {}`},
		{"show me the counter", `get_counter {}`},
		{"change the counter, value 5", `set_counter {"value":5}`},

		{"add a circle", `add_circle {"radius":20}`},
		{"draw a red circle with radius 5.50", `add_circle {"radius":5.50,"color":"red"}`},
		{"add a circle: color #FF8800, filled, x 3, y 4",
			`add_circle {"radius":20,"color":"#FF8800","filled":true,"position":{"x":3,"y":4}}`},
		{"draw a circle of 9 pixels that is not filled", `add_circle {"radius":9,"filled":false}`},
		{`add a circle {"radius": 1e2}`, `add_circle {"radius": 1e2}`},

		{"add buy milk to my todo list", `add_todo {"title":"buy milk"}`},
		{"add todo: Buy milk, eggs and bread", `add_todo {"title":"Buy milk, eggs and bread"}`},
		{"new todo with title: Call \"Bob\"", `add_todo {"title":"Call \"Bob\""}`},
		{`add a todo "Write; then rest" with high priority`, `add_todo {"title":"Write; then rest","priority":"high"}`},
		{"add a todo titled Pay rent, due date 2026-03-01, priority: low",
			`add_todo {"title":"Pay rent","priority":"low","dueDate":"2026-03-01"}`},
		{"add todo, title: Party, tags: fun, work and home", `add_todo {"title":"Party","tags":["fun","work","home"]}`},
		{"Add a todo\ntitle: Größe <b> & 漢字", `add_todo {"title":"Größe <b> & 漢字"}`},
		{"remove the todo with id abc-123", `delete_todo {"id":"abc-123"}`},
		{"delete todo 42", `delete_todo {"id":"42"}`},

		{`add a todo "show me the counter"`, `add_todo {"title":"show me the counter"}`},
		{"say hello to Bob", `greet {"name":"Bob"}`},
		{"switch dark mode off", `setDarkMode {"enabled":false}`},
		{"dark mode please", `setDarkMode {"enabled":true}`},
		{"move 10 steps left", `move {"direction":"left","steps":10}`},
		{"move to the left, steps: 5", `move {"direction":"left","steps":5}`},
		{"move the turtle", `move {"direction":"left","steps":0}`},
		{"plot 1, 2.5 and 3 with caption Rain in May", `plot {"kind":"line","points":[1,2.5,3],"caption":"Rain in May"}`},

		{"add a circle and then set the counter to 3", "add_circle {\"radius\":20}\nset_counter {\"value\":3}"},
		{"Add a circle. Set the counter to 3.", "add_circle {\"radius\":20}\nset_counter {\"value\":3}"},
		{"Do this for me:\ndraw a circle, radius 1\ndraw a circle, radius 2; move up 3",
			"add_circle {\"radius\":1}\nadd_circle {\"radius\":2}\nmove {\"direction\":\"up\",\"steps\":3}"},

		{"hello", ""},
		{"Hi there! What can you do?", ""},
		{"who are you", ""},
		{"what tools do you have? show me", ""},
		{"", ""},
		{"what is the meaning of life?", ""},
		{"add milk", ""},
		{"call the plumber", ""},
	} {
		a := reply(request(tt.request))
		if got := calls(a); got != tt.want {
			t.Errorf("%q:\n got %s\nwant %s", tt.request, got, tt.want)
		}
		for _, c := range a.Calls {
			if !json.Valid(c.Args) {
				t.Errorf("%q: arguments are not JSON: %s", tt.request, c.Args)
			}
		}
		if want := map[bool]string{true: "tool_calls", false: "end"}[len(a.Calls) > 0]; a.StopReason != want || a.Usage != nil {
			t.Errorf("%q: stop reason %q, usage %v", tt.request, a.StopReason, a.Usage)
		}
	}
}

func TestReply_exactCalls(t *testing.T) {
	for _, tt := range []struct{ request, want string }{
		{`call set_counter {"value": 7}`, `set_counter {"value": 7}`},
		{`call set_counter`, `set_counter {}`},
		{`call nosuch {"a":  [1, 2 ]}`, `nosuch {"a":  [1, 2 ]}`},
		{`call no/such! not json`, `no/such! not json`},
		{`call set_counter {"value": 1e400, "value": 0.10`, `set_counter {"value": 1e400, "value": 0.10`},
		{`call set_counter {"text": "a\nb; c and then call d {}"}`, `set_counter {"text": "a\nb; c and then call d {}"}`},
		{"call a {}\r\n\n  call   b\t[ ]  \ncall a null\n", "a {}\nb [ ]\na null"},
		{"call a\ncall the {bad", "a {}\nthe {bad"},
		{"call set_counter {}\nand then draw a circle", `set_counter {}` + "\n" + `add_circle {"radius":20}`},
	} {
		if got := calls(reply(request(tt.request))); got != tt.want {
			t.Errorf("%q:\n got %s\nwant %s", tt.request, got, tt.want)
		}
	}
	long := strings.Repeat("call set_counter {\"value\":1}\n", 5000)
	if got := len(reply(request(long)).Calls); got != 5000 {
		t.Errorf("got %d calls of 5000", got)
	}
}

func TestReply_tie(t *testing.T) {
	p := request("paint the wall")
	p.Tools = []api.Tool{{Name: "red_wall", Description: "x"}, {Name: "blue_wall", Description: "x"}}
	if got := calls(reply(p)); got != "red_wall {}" {
		t.Errorf("got %q, want the tool declared first", got)
	}
}

func TestReply_introduces(t *testing.T) {
	hello := reply(request("hello")).Text
	for _, want := range []string{"not an LLM", "set_counter: Sets the counter", "plot: Plots"} {
		if !strings.Contains(hello, want) {
			t.Errorf("%q lacks %q", hello, want)
		}
	}
	if got := reply(request("sing a song")).Text; !strings.Contains(got, "no tool for that") || !strings.Contains(got, "not an LLM") {
		t.Errorf("got %q", got)
	}
	if got := reply(&sessions.Prompt{}).Text; !strings.Contains(got, "declares no tools") {
		t.Errorf("got %q", got)
	}
	many := request("help")
	for range 3 {
		many.Tools = append(many.Tools, page...)
	}
	if got := reply(many).Text; !strings.HasSuffix(got, "- and 16 more\n\nFor an exact call, write a line such as: call set_counter {}") {
		t.Errorf("got %q", got)
	}
}

func TestReply_reports(t *testing.T) {
	result := func(tool string, r *api.ToolResult) sessions.Message {
		return sessions.Message{Role: sessions.RoleTool, Tool: tool, Result: r}
	}
	p := request("go")
	p.Messages = append(p.Messages,
		sessions.Message{Role: sessions.RoleAssistant},
		result("earlier", &api.ToolResult{OK: true, Output: json.RawMessage(`1`)}),
		sessions.Message{Role: sessions.RoleAssistant},
		result("a", &api.ToolResult{OK: true, Output: json.RawMessage("{ \"n\": 1.50,\n \"s\": \"x y\" }")}),
		result("b", &api.ToolResult{Error: &api.ToolError{Code: "TOOL_TIMEOUT", Message: "Nobody answered."}}),
		result("c", &api.ToolResult{OK: true, Output: json.RawMessage(`"` + strings.Repeat("ä", 500) + `"`)}),
	)
	a := reply(p)
	want := "a returned {\"n\":1.50,\"s\":\"x y\"}.\n" +
		"b failed with TOOL_TIMEOUT: Nobody answered.\n" +
		"c returned \"" + strings.Repeat("ä", 199) + "… (1002 bytes)."
	if a.Text != want || a.StopReason != "end" || a.Calls != nil {
		t.Errorf("got  %q\nwant %q", a.Text, want)
	}
}

// Whatever a page declares and a user writes, the arguments are JSON and the tool is one of the page's.
func FuzzReply(f *testing.F) {
	f.Add("set x to 3; and then \"a\" {", `{"properties":{"x":{"type":"number"},"y":{"anyOf":[{"type":"array"}]}},"required":["x","y","z"]}`)
	f.Add("run it: -0.0 'a' `b` #fff 1:2", `{"type":["null","object"],"properties":{"":{"enum":[]},"a":true},"required":[""]}`)
	f.Add("run on", `{"type":"object","properties":{"on":{"type":"object","properties":{"on":{"items":{}}}}},"required":["on"]}`)
	f.Fuzz(func(t *testing.T, text, schema string) {
		if !json.Valid([]byte(schema)) || strings.HasPrefix(text, "call ") {
			return
		}
		p := request("run the thing " + text)
		p.Tools = []api.Tool{{Name: "thing", Description: "Does the thing.", ArgsSchema: json.RawMessage(schema)}}
		for _, c := range reply(p).Calls {
			if c.Tool != "thing" || !json.Valid(c.Args) {
				t.Errorf("got %s %q", c.Tool, c.Args)
			}
		}
	})
}

func TestModel_Stream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		start := time.Now()
		text, last := "", (*sessions.Answer)(nil)
		pieces := 0
		for part, err := range m.Stream(t.Context(), request("hello")) {
			if err != nil || last != nil {
				t.Fatalf("got %+v, %v", part, err)
			}
			if last = part.Answer; last == nil {
				text += part.Text
				pieces++
			}
		}
		if last == nil || last.Text != text || pieces < 10 {
			t.Errorf("%d pieces, %q is not %+v", pieces, text, last)
		}
		if d := time.Since(start); d != time.Duration(pieces-1)*15*time.Millisecond {
			t.Errorf("%d pieces took %v", pieces, d)
		}
	})
}

func TestModel_Stream_withoutDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		for _, err := range New(Config{Delay: -1}).Stream(t.Context(), request("hello")) {
			if err != nil {
				t.Error(err)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("took %v", d)
		}
	})
}

func TestModel_Stream_canceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute/2)
		defer cancel()
		start := time.Now()
		var errs []error
		pieces := 0
		for part, err := range New(Config{Delay: time.Minute}).Stream(ctx, request("hello")) {
			if err != nil {
				errs = append(errs, err)
			} else if pieces++; part.Answer != nil {
				t.Errorf("got an answer")
			}
		}
		if !reflect.DeepEqual(errs, []error{context.DeadlineExceeded}) || pieces != 2 || time.Since(start) != 90*time.Second {
			t.Errorf("%d pieces and %v after %v", pieces, errs, time.Since(start))
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("over")
	cancel(cause)
	for part, err := range New(Config{Delay: -1}).Stream(ctx, request("hello")) {
		if !errors.Is(err, cause) || part != (sessions.Part{}) {
			t.Errorf("got %+v, %v", part, err)
		}
	}
	for range New(Config{Delay: -1}).Stream(t.Context(), request("hello")) {
		break
	}
}

func TestPieces(t *testing.T) {
	text := strings.Repeat("word ", 1000) + "end"
	got := pieces(text)
	if strings.Join(got, "") != text || len(got) > maxPieces {
		t.Errorf("%d pieces", len(got))
	}
}

func BenchmarkReply_hostile(b *testing.B) {
	for name, text := range map[string]string{
		"words":   strings.Repeat("add circle radius ", maxRequest/18),
		"clauses": strings.Repeat("x;", maxRequest/2),
		"long":    strings.Repeat("add circle radius ", maxRequest),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				reply(request(text))
			}
		})
	}
}
