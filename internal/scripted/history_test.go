package scripted_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/scripted"
	"treadle/sessions"
)

func TestCheckHistory(t *testing.T) {
	a := sessions.Call{ID: uuid.New(), Tool: "a", Args: json.RawMessage(`{}`)}
	b := sessions.Call{ID: uuid.New(), Tool: "b", Args: json.RawMessage(`{}`)}
	broken := sessions.Call{ID: uuid.New(), Tool: "a", Args: json.RawMessage(`{`)}
	result := func(c sessions.Call) sessions.Message {
		return sessions.Message{
			Role: sessions.RoleTool, CallID: c.ID, Tool: c.Tool,
			Result: &api.ToolResult{OK: true, Output: json.RawMessage(`null`)},
		}
	}
	with := func(r *api.ToolResult) sessions.Message {
		m := result(a)
		m.Result = r
		return m
	}
	failed := with(&api.ToolResult{Error: &api.ToolError{Code: "TOOL_TIMEOUT"}})

	for _, tt := range []struct {
		name, want string
		messages   []sessions.Message
	}{
		{"user", "", []sessions.Message{user("hi")}},
		{"two users", "", []sessions.Message{user("hi"), user("again")}},
		{"calls", "", []sessions.Message{user("hi"), assistant("", a, b), result(a), result(b), assistant("x"), user("y")}},
		{"failed call", "", []sessions.Message{user("hi"), assistant("x", a), failed}},
		{"turn that ended after its calls", "", []sessions.Message{user("hi"), assistant("x", a), failed, user("y")}},

		{"nothing", "history is empty", nil},
		{"no user", "begins with an assistant", []sessions.Message{assistant("x"), user("hi")}},
		{"nothing to answer", "nothing to answer", []sessions.Message{user("hi"), assistant("x")}},
		{"empty user", "message 1 of 1: empty user", []sessions.Message{user("")}},
		{"empty assistant", "empty assistant", []sessions.Message{user("hi"), assistant(""), user("x")}},
		{"assistants", "directly after another", []sessions.Message{user("hi"), assistant("x"), assistant("y")}},
		{"orphan", "without an open call", []sessions.Message{user("hi"), result(a)}},
		{"second result", "without an open call", []sessions.Message{user("hi"), assistant("", a), result(a), result(a)}},
		{"missing result", `call of "b"`, []sessions.Message{user("hi"), assistant("", a, b), result(a)}},
		{"late result", "user message where", []sessions.Message{user("hi"), assistant("", a), user("x"), result(a)}},
		{"swapped results", "belongs", []sessions.Message{user("hi"), assistant("", a, b), result(b), result(a)}},
		{"repeated id", "not unique", []sessions.Message{user("hi"), assistant("", a), result(a), assistant("", a), result(a)}},
		{"no id", "without id", []sessions.Message{user("hi"), assistant("", sessions.Call{Tool: "a"})}},
		{"broken arguments", "not JSON", []sessions.Message{user("hi"), assistant("", broken)}},
		{"nil result", "is nil", []sessions.Message{user("hi"), assistant("", a), with(nil)}},
		{"ok without output", "no JSON output", []sessions.Message{user("hi"), assistant("", a), with(&api.ToolResult{OK: true})}},
		{"failed without error", "no error code", []sessions.Message{user("hi"), assistant("", a), with(&api.ToolResult{})}},
		{"role", "unknown role", []sessions.Message{{Role: "system", Text: "x"}}},
	} {
		err := scripted.CheckHistory(prompt(tt.messages...))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}
