package sessions

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"treadle/api"
)

// skillsCase is a declaration, and where and why it is refused; without detail it is accepted.
type skillsCase struct {
	name            string
	skills          api.Skills
	pointer, detail string
}

// skillsCases is all that can be wrong with a declaration.
func skillsCases() []skillsCase {
	with := func(change func(*api.Tool)) api.Skills {
		tool := api.Tool{Name: "search", Description: "Searches.", ArgsSchema: json.RawMessage(smallSchema)}
		change(&tool)
		return api.Skills{Guidance: "Be brief.", Tools: []api.Tool{{Name: "first", Description: "Comes first."}, tool}}
	}
	name := func(n string) api.Skills { return with(func(t *api.Tool) { t.Name = n }) }
	args := func(s string) api.Skills { return with(func(t *api.Tool) { t.ArgsSchema = json.RawMessage(s) }) }
	result := func(s string) api.Skills { return with(func(t *api.Tool) { t.ResultSchema = json.RawMessage(s) }) }
	timeouts := func(timeout, most int64) api.Skills {
		return with(func(t *api.Tool) { t.TimeoutMS, t.MaxTimeoutMS = timeout, most })
	}
	described := func(d string) api.Skills { return with(func(t *api.Tool) { t.Description = d }) }
	many := func(n int, change func(i int, t *api.Tool)) api.Skills {
		var s api.Skills
		for i := range n {
			tool := api.Tool{Name: fmt.Sprintf("tool_%d", i), Description: "Does something."}
			change(i, &tool)
			s.Tools = append(s.Tools, tool)
		}
		return s
	}
	const at = "/skills/tools/1"
	return []skillsCase{
		{"nothing", api.Skills{}, "", ""},
		{"a tool", with(func(*api.Tool) {}), "", ""},
		{"dots", name("a.b"), "", ""},
		{"dash and underscore", name("a-b_c"), "", ""},
		{"64 characters", name(strings.Repeat("a", 64)), "", ""},
		{"another case", name("First"), "", ""},
		{"500 tools", many(500, func(int, *api.Tool) {}), "", ""},
		{"timeouts", timeouts(1, 86_400_000), "", ""},
		{"one millisecond", timeouts(1, 0), "", ""},
		{"maximum beside the default", timeouts(0, 60_000), "", ""},
		{"4,096 characters", described(strings.Repeat("é", 4096)), "", ""},
		{"result of any type", result(`{"type":["string","null"]}`), "", ""},
		{"result without bounds", result(`{}`), "", ""},

		{"empty name", name(""), at + "/name", `tool "": a name is at most 64`},
		{"65 characters", name(strings.Repeat("a", 65)), at + "/name", "a name is at most 64"},
		{"slash", name("a/b"), at + "/name", `tool "a/b": a name`},
		{"Chinese", name("数据"), at + "/name", "a name"},
		{"accent, composed", name("\u00e9"), at + "/name", "a name"},
		{"accent, decomposed", name("e\u0301"), at + "/name", "a name"},
		{"space", name("a b"), at + "/name", "a name"},
		{"trailing newline", name("a\n"), at + "/name", `tool "a\n": a name`},
		{"leading dash", name("-x"), at + "/name", "a name"},
		{"leading digit", name("9x"), at + "/name", "a name"},
		{"prototype", name("__proto__"), at + "/name", "a name"},
		{"reserved", name("tool_spec"), at + "/name", "the service's own"},
		{"reserved too", name("tool_call"), at + "/name", "the service's own"},
		{"twice", name("first"), at + "/name", "tools 0 and 1 have the same name"},
		{"no description", described(""), at + "/description", "a description tells"},
		{"blank description", described(" \n\t"), at + "/description", "a description tells"},
		{"long description", described(strings.Repeat("é", 4097)), at + "/description", "4097 characters, more than 4096"},
		{"description of bytes", described("\xff"), at + "/description", "valid UTF-8"},
		{"negative timeout", timeouts(-1, 0), at + "/timeout_ms", "1 to 86400000"},
		{"huge timeout", timeouts(86_400_001, 0), at + "/timeout_ms", "1 to 86400000"},
		{"maximum below the timeout", timeouts(5000, 4999), at + "/max_timeout_ms", "at least the timeout of 5000"},
		{"maximum below the default", timeouts(0, 59_999), at + "/max_timeout_ms", "at least the timeout of 60000"},
		{"negative maximum", timeouts(0, -1), at + "/max_timeout_ms", "at least the timeout"},
		{"huge maximum", timeouts(0, 1<<62), at + "/max_timeout_ms", "at most 86400000"},
		{"unknown type", args(`{"properties":{"x":{"type":"objekt"}}}`), at + "/args_schema/properties/x/type", `tool "search": args_schema: "/properties/x/type": there is no type "objekt"`},
		{"remote reference", args(`{"$ref":"http://127.0.0.1:1/x"}`), at + "/args_schema/$ref", "not fetched"},
		{"null schema", args(`null`), at + "/args_schema", "got null"},
		{"look-ahead", args(`{"properties":{"x":{"pattern":"(?=x)y"}}}`), at + "/args_schema/properties/x/pattern", "look-ahead"},
		{"arguments that are no object", args(`{"type":"string"}`), at + "/args_schema/type", `"type": "object"`},
		{"not JSON", args(`{"type":`), at + "/args_schema/type", "ends too early"},
		{"null result schema", result(`null`), at + "/result_schema", "got null"},
		{"result of an unknown type", result(`{"items":{"type":"int"}}`), at + "/result_schema/items/type", "result_schema: "},
		{"long guidance", api.Skills{Guidance: strings.Repeat("x", 64<<10+1)}, "/skills/guidance", "65537 bytes, more than 65536"},
		{"guidance of bytes", api.Skills{Guidance: "\xff"}, "/skills/guidance", "valid UTF-8"},
		{"501 tools", many(501, func(int, *api.Tool) {}), "/skills/tools", "501 tools"},
		{"more than a MiB", many(300, func(_ int, t *api.Tool) { t.Description = strings.Repeat("x", 4000) }), "/skills/tools", "more than 1048576"},
		{"many subschemas", many(10, func(_ int, t *api.Tool) {
			t.ArgsSchema = json.RawMessage(`{"properties":` + membersOf(3000, "{}") + `}`)
		}), "/skills/tools/6", "more than 20000 subschemas together"},
	}
}

func TestCheckSkills(t *testing.T) {
	const at = "/skills/tools/1"
	for _, tt := range skillsCases() {
		t.Run(tt.name, func(t *testing.T) {
			err := checkSkills(&tt.skills, "/skills")
			if tt.detail == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			if err.Code != CodeInvalidInput || err.Facts["pointer"] != tt.pointer || !strings.Contains(err.Detail, tt.detail) {
				t.Errorf("got %s at %v: %s\nwant %s: …%s…", err.Code, err.Facts["pointer"], err.Detail, tt.pointer, tt.detail)
			}
			if strings.HasPrefix(tt.pointer, at) && err.Facts["tool"] != shorten(tt.skills.Tools[1].Name, maxPointer) {
				t.Errorf("the tool is %v", err.Facts["tool"])
			}
		})
	}
}

func TestCheckSkills_prefix(t *testing.T) {
	err := checkSkills(&api.Skills{Tools: []api.Tool{{Name: "a", Description: "A.", ArgsSchema: json.RawMessage(`{"type":1}`)}}}, "")
	if err == nil || err.Facts["pointer"] != "/tools/0/args_schema/type" {
		t.Errorf("got %v", err)
	}
}

func mustToolset(tb testing.TB) *toolset {
	tb.Helper()
	ts, err := newToolset(&api.Skills{Tools: []api.Tool{
		{Name: "search", Description: "Searches.", ArgsSchema: json.RawMessage(smallSchema), ResultSchema: json.RawMessage(`{"type":"array","items":{"type":"integer"}}`)},
		{Name: "Search.Web", Description: "Searches the web."},
		{Name: "now", Description: "Tells the time.", ArgsSchema: json.RawMessage(`{"type":"object","properties":{}}`)},
		{Name: "old", Description: "Was declared long ago.", ArgsSchema: json.RawMessage(`{"type":"objekt"}`), ResultSchema: json.RawMessage(`false`)},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return ts
}

func TestToolset_checkArgs(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	tests := []struct{ name, tool, raw, args, code, message string }{
		{"valid", "search", `{"query":"x","limit":10}`, `{"query":"x","limit":10}`, "", ""},
		{"bytes are kept", "now", " {\"id\": 9007199254740993, \"d\":1.10,\"e\":1e3 }\n", `{"id": 9007199254740993, "d":1.10,"e":1e3 }`, "", ""},
		{"nothing", "now", ``, `{}`, "", ""},
		{"whitespace", "now", " \n ", `{}`, "", ""},
		{"null", "Search.Web", ` null `, `{}`, "", ""},
		{"empty object", "now", `{}`, `{}`, "", ""},
		{"arguments for none", "Search.Web", `{"_":1}`, `{"_":1}`, "", ""},

		{"nothing, but required", "search", ``, `{}`, "TOOL_ARGS_INVALID", "missing required property 'query'"},
		{"list", "search", `[]`, `{}`, "TOOL_ARGS_INVALID", "expected object, got array"},
		{"string", "now", `"str"`, `{}`, "TOOL_ARGS_INVALID", "expected object, got string"},
		{"string for integer", "search", `{"query":"x","limit":"5"}`, `{"query":"x","limit":"5"}`, "TOOL_ARGS_INVALID", `"/limit": expected integer, got string`},
		{"extra", "search", `{"query":"x","page":1}`, `{"query":"x","page":1}`, "TOOL_ARGS_INVALID", `"/page": unexpected property "page"`},
		{"member twice", "search", `{"query":"x","query":"y"}`, `{}`, "TOOL_ARGS_INVALID", `the member "query" stands twice`},
		{"cut", "search", `{"query":"x`, `{}`, "TOOL_ARGS_INVALID", "ends too early"},
		{"two objects", "search", `{"query":"x"}{"query":"y"}`, `{}`, "TOOL_ARGS_INVALID", "data follows"},
		{"deep", "now", `{"a":` + nested(300, "[", "", "]") + "}", `{}`, "TOOL_ARGS_INVALID", "deeper than 200"},
		{"schema of an older version", "old", `{}`, `{}`, "TOOL_ARGS_INVALID", "the tool cannot be called"},

		{"unknown", "nope", `{}`, `{}`, "TOOL_NOT_FOUND", `There is no tool "nope". Call one of`},
		{"unknown, arguments broken", "nope", `{`, `{}`, "TOOL_NOT_FOUND", `There is no tool "nope"`},
		{"no name", "", `{}`, `{}`, "TOOL_NOT_FOUND", "names no tool"},
		{"blank name", "  ", `{}`, `{}`, "TOOL_NOT_FOUND", "names no tool"},
		{"another case", "Search", `{}`, `{}`, "TOOL_NOT_FOUND", `There is no tool "Search". Did you mean "search"?`},
		{"spaces around", " search ", `{}`, `{}`, "TOOL_NOT_FOUND", `Did you mean "search"?`},
		{"both", " SEARCH.web", `{}`, `{}`, "TOOL_NOT_FOUND", `Did you mean "Search.Web"?`},
		{"long name", long, `{}`, `{}`, "TOOL_NOT_FOUND", `"` + long[:64] + `…"`},
		{"name of controls", "a\n\"b\x00", `{}`, `{}`, "TOOL_NOT_FOUND", `"a\n\"b\x00"`},
	}
	ts := mustToolset(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args, terr := ts.checkArgs(tt.tool, []byte(tt.raw), 1)
			if string(args) != tt.args {
				t.Errorf("args are %s, want %s", args, tt.args)
			}
			if tt.code == "" {
				if terr != nil {
					t.Fatalf("refused: %+v", terr)
				}
				return
			}
			if terr == nil || terr.Code != tt.code || !strings.Contains(terr.Message, tt.message) {
				t.Fatalf("got %+v\nwant %s: …%s…", terr, tt.code, tt.message)
			}
			if len(terr.Message) > 400 {
				t.Errorf("the message has %d bytes: %s", len(terr.Message), terr.Message)
			}
		})
	}
}

func TestToolset_nameTwice(t *testing.T) {
	if _, err := newToolset(&api.Skills{Tools: []api.Tool{{Name: "a"}, {Name: "a"}}}); err == nil {
		t.Error("a name twice was accepted")
	}
}

func TestToolset_concurrent(t *testing.T) {
	ts := mustToolset(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				if _, terr := ts.checkArgs("search", []byte(`{"query":"x"}`), 1); terr != nil {
					t.Errorf("refused: %+v", terr)
				}
			}
		})
	}
	all.Wait()
}

func BenchmarkToolset_checkArgs(b *testing.B) {
	ts := mustToolset(b)
	raw := []byte(`{"query":"weather in Vienna","limit":10}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, terr := ts.checkArgs("search", raw, 1); terr != nil {
			b.Fatal(terr)
		}
	}
}

// What the arguments of one answer cost is bounded for all its calls together, and what a registry costs for all its tools.
func TestToolset_costsTogether(t *testing.T) {
	skipIfRaced(t)
	ts, err := newToolset(&api.Skills{Tools: []api.Tool{{Name: "t", Description: "T", ArgsSchema: json.RawMessage(`{"properties":{"a":{"pattern":"(?:a?){900}b"}}}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	raw := []byte(`{"a":"` + strings.Repeat("a", 6000) + `"}`)
	costs(t, func() {
		for range maxCallsPerStep {
			ts.checkArgs("t", raw, maxCallsPerStep)
		}
	})
	registry := &api.Skills{}
	properties := repeat(12, func(i int) string { return fmt.Sprintf(`"p%d":{"pattern":"a{1000}b{1000}c{1000}d{1000}"}`, i) })
	for i := range 500 {
		registry.Tools = append(registry.Tools, api.Tool{Name: fmt.Sprintf("t%d", i), Description: "T", ArgsSchema: json.RawMessage(`{"properties":{` + properties + `}}`)})
	}
	costs(t, func() {
		if checkSkills(registry, "") == nil {
			t.Error("the registry was accepted")
		}
	})
}
