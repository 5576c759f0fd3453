package handlers_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"treadle/api"
	"treadle/handlers"
	"treadle/sessions"
)

func TestDecode_refused(t *testing.T) {
	for _, c := range []struct {
		req              any
		body, in, detail string
	}{
		{&api.TurnCreate{}, `{"input":5}`, "/input", `the value of "input" is not of a kind that it can have`},
		{&api.TurnCreate{}, `{"input":null}`, "/input", `the value of "input"`},
		{&api.TurnCreate{}, `{"input":[{"type":"text","text":"a","extra":1}]}`, "/input/0/extra", `the member "extra" is not known here`},
		{&api.TurnCreate{}, `{"input":[{"type":"text","TEXT":"a"}]}`, "/input/0/TEXT", `the member "TEXT" is not known here`},
		{&api.TurnCreate{}, `{"input":[{"type":"text","text":"a"},null]}`, "/input/1", `the value of "1"`},
		{&api.TurnCreate{}, `{"input":"a","max_steps":1.5}`, "/max_steps", `the value of "max_steps"`},
		{&api.TurnCreate{}, `{"input":"a","max_steps":1e99}`, "/max_steps", `the value of "max_steps"`},
		{&api.TurnCreate{}, `{"input":"a","max_steps":"1"}`, "/max_steps", `the value of "max_steps"`},
		{&api.TurnCreate{}, `{"input":"a","input":"a"}`, "/input", `the member "input" is there twice`},
		{&api.TurnCreate{}, `{"input":"a","Model":"b"}`, "/Model", `the member "Model" is not known here`},
		{&api.TurnCreate{}, `{"input":{}}`, "/input", `the value of "input"`},
		{&api.TurnCreate{}, `{"input":[` + strings.Repeat(`{},`, 1000) + `{}]}`, "/input", "more than 1000 entries"},
		{&api.SessionPatch{}, `{"metadata":[]}`, "/metadata", `the value of "metadata"`},
		{&api.SessionPatch{}, `{"metadata":{"a":"b","a":"c"}}`, "/metadata/a", `the member "a" is there twice`},
		{&api.ToolsReplace{}, `{"tools":{}}`, "/tools", `the value of "tools"`},
		{&api.SessionPatch{}, `{"metadata":null}`, "/metadata", `the value of "metadata"`},
		{&api.SessionPatch{}, `{"metadata":{"a":null}}`, "/metadata/a", `the value of "a"`},
		{&api.SessionPatch{}, `{"metadata":{"a":1}}`, "/metadata/a", `the value of "a"`},
		{&api.SessionCreate{}, `{"skills":{"tools":[{"name":"a","description":"b","agrs_schema":{}}]}}`, "/skills/tools/0/agrs_schema", `the member "agrs_schema" is not known here`},
		{&api.SessionCreate{}, `{"skills":{"tools":[{"args_schema":{"a":{"b":1,"b":2}}}]}}`, "/skills/tools/0/args_schema/a/b", `the member "b" is there twice`},
		{&api.ResultSubmit{}, `{"output":{"a":` + "\"\xff\"" + `}}`, "/output/a", "the body is not valid JSON at byte"},
		{&api.ResultSubmit{}, `{"output":"\ud800"}`, "/output", "the body is not valid JSON at byte"},
		{&api.ResultSubmit{}, `{"output":01}`, "", "the body is not valid JSON at byte"},
		{&api.ResultSubmit{}, `{"output":1,}`, "", "the body is not valid JSON at byte"},
		{&api.ResultSubmit{}, `{"output":NaN}`, "/output", "the body is not valid JSON at byte"},
		{&api.ResultSubmit{}, "\ufeff" + `{"output":1}`, "", "the body is not valid JSON at byte"},
		{&api.ResultSubmit{}, `{"output":1} {}`, "", "the body is not valid JSON at byte"},
		{&api.ResultSubmit{}, `{"output":`, "/output", "the body is not valid JSON at byte"},
		{&api.ResultSubmit{}, ` `, "", "the body is not valid JSON"},
		{&api.ResultSubmit{}, ``, "", "the body is not valid JSON"},
		{&api.ResultSubmit{}, `[]`, "", "the body must be an object"},
		{&api.ResultSubmit{}, `null`, "", "the body must be an object"},
		{&api.ResultSubmit{}, `{"claim_id":"x"}`, "/claim_id", `the value of "claim_id"`},
		{&api.ResultSubmit{}, `{"` + strings.Repeat("k", 1000) + `":1}`, "", `kkk\u2026" is not known here`},
		{&api.ResultSubmit{}, `{"output":` + strings.Repeat("[", 256) + strings.Repeat("]", 256) + `}`, "", "nested more than 256 deep"},
	} {
		err := handlers.Decode([]byte(c.body), c.req)
		refusal, ok := errors.AsType[*sessions.Error](err)
		if !ok {
			t.Errorf("%.60s: %v", c.body, err)
			continue
		}
		pointer, _ := refusal.Facts["pointer"].(string)
		if refusal.Code != sessions.CodeInvalidInput || !strings.Contains(refusal.Detail, c.detail) || pointer != c.in {
			t.Errorf("%.60s: %s at %q: %s", c.body, refusal.Code, pointer, refusal.Detail)
		}
	}
}

func TestDecode(t *testing.T) {
	var result api.ResultSubmit
	if err := handlers.Decode([]byte(` {"output" : {"n": 1.0, "big":12345678901234567890 , "s":"\u00e9\u2028"} } `), &result); err != nil {
		t.Fatal(err)
	}
	if got, want := string(result.Output), `{"n": 1.0, "big":12345678901234567890 , "s":"\u00e9\u2028"}`; got != want {
		t.Errorf("output is %s, want %s", got, want)
	}
	result = api.ResultSubmit{}
	if err := handlers.Decode([]byte(`{"output":null}`), &result); err != nil || string(result.Output) != "null" {
		t.Errorf("output null is %q, %v", result.Output, err)
	}
	result = api.ResultSubmit{}
	if err := handlers.Decode([]byte(`{"error":{"code":"A","message":"b","details":null}}`), &result); err != nil || result.Output != nil || string(result.Error.Details) != "null" {
		t.Errorf("an error is %+v, %v", result, err)
	}
	for body, want := range map[string]api.Input{
		`{"input":"a\u0000b"}`: {{Type: "text", Text: "a\x00b"}},
		`{"input":[{"type":"text","text":"a"},{"text":"b","type":"image"}]}`: {{Type: "text", Text: "a"}, {Type: "image", Text: "b"}},
		`{"input":[]}`: {},
		`{}`:           nil,
	} {
		var turn api.TurnCreate
		if err := handlers.Decode([]byte(body), &turn); err != nil || !reflect.DeepEqual(turn.Input, want) {
			t.Errorf("%s: %#v, %v", body, turn.Input, err)
		}
	}
}

// hostile returns bodies of the size that is just about taken.
func hostile() map[string][]byte {
	const size = handlers.DefaultMaxBody
	keys := new(bytes.Buffer)
	for i := 0; keys.Len() < size-32; i++ {
		fmt.Fprintf(keys, `"%x":1,`, i)
	}
	members := strings.TrimSuffix(keys.String(), ",")
	bodies := map[string][]byte{}
	for name, body := range map[string]string{
		"brackets":      strings.Repeat("[", size),
		"braces":        strings.Repeat(`{"":`, size/4),
		"arrays":        `{"output":[` + strings.Repeat("[],", size/3-10) + `[]]}`,
		"members":       `{"output":{` + members + `}}`,
		"metadata":      `{"metadata":{` + strings.ReplaceAll(members, ":1", `:""`)[:size-100] + `":""}}`,
		"unknown":       `{` + members + `}`,
		"digits":        `{"fraction":` + strings.Repeat("9", size-20) + `}`,
		"output digits": `{"output":` + strings.Repeat("9", size-20) + `}`,
		"string":        `{"output":"` + strings.Repeat(`\u0000`, size/6-10) + `"}`,
		"long name":     `{"` + strings.Repeat("x", size-10) + `":1}`,
		"parts":         `{"input":[` + strings.Repeat(`{},`, size/3-10) + `{}]}`,
		"tools":         `{"skills":{"tools":[` + strings.Repeat(`{},`, size/3-20) + `{}]}}`,
		"quotes":        strings.Repeat(`"`, size),
		"backslashes":   `{"output":"` + strings.Repeat(`\\`, size/2-10) + `"}`,
	} {
		bodies[name] = []byte(body)
	}
	return bodies
}

func requests() []any {
	return []any{&api.ResultSubmit{}, &api.SessionCreate{}, &api.TurnCreate{}, &api.ProgressRequest{}}
}

// TestDecode_hostile: no body within the limit takes much memory. How long they take, the benchmark of the same name tells.
func TestDecode_hostile(t *testing.T) {
	for name, body := range hostile() {
		for _, req := range requests() {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := handlers.Decode(body, req)
			runtime.ReadMemStats(&after)
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 100<<20 {
				t.Errorf("%s into %T: %d MB, %v", name, req, allocated>>20, err)
			}
		}
	}
}

func BenchmarkDecode_hostile(b *testing.B) {
	for name, body := range hostile() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				for _, req := range requests() {
					_ = handlers.Decode(body, req)
				}
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"input":"a"}`, `{"output":{"a":[1.0,null]},"claim_id":"0198c6a0-7c1e-7b1a-9a51-1f5c4b7c9d10"}`, `{"error":{"code":"A","message":"b"}}`,
		`{"skills":{"tools":[{"name":"a","description":"b","args_schema":{"type":"object"}}]},"metadata":{"a":"b"}}`, `{"input":[{"type":"text","text":"\ud83d\ude00"}]}`,
		`{`, `[]`, "\xff", `{"a":{"a":{"a":"\\"}}}`, `{"output":1,"output":2}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, req := range []any{&api.ResultSubmit{}, &api.SessionCreate{}, &api.TurnCreate{}} {
			err := handlers.Decode(body, req)
			if err == nil {
				if !json.Valid(body) {
					t.Errorf("invalid JSON was taken: %q", body)
				}
				continue
			}
			refusal, ok := errors.AsType[*sessions.Error](err)
			if !ok || refusal.Detail == "" || len(refusal.Detail) > 1024 {
				t.Errorf("%q is refused with %v", body, err)
			}
		}
	})
}
