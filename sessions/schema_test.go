package sessions

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
)

// The schemas that are refused, with where and why.
var refusedSchemas = []struct {
	name, schema, pointer, reason string
}{
	{"null", `null`, "", "expected a schema, which is an object, got null"},
	{"false", `false`, "", "got false"},
	{"true", `true`, "", "got true"},
	{"list", `[{"type":"object"}]`, "", "got a list"},
	{"string", `"object"`, "", `got the string "object"`},
	{"nothing", ``, "", "got nothing"},
	{"not JSON", `{"type":`, "/type", "ends too early"},
	{"keyword twice", `{"properties":{"a":{}},"properties":{"b":{}}}`, "/properties", `"properties" stands twice`},

	{"missing local target", `{"$ref":"#/$defs/missing"}`, "/$ref", `no schema at "#/$defs/missing"`},
	{"target that is no schema", `{"properties":{"a":{"$ref":"#/properties"}}}`, "/properties/a/$ref", "no schema at"},
	{"target under an unknown keyword", `{"components":{"schemas":{"a":{}}},"properties":{"a":{"$ref":"#/components/schemas/a"}}}`, "/properties/a/$ref", "no schema at"},
	{"target index out of range", `{"allOf":[{}],"properties":{"a":{"$ref":"#/allOf/1"}}}`, "/properties/a/$ref", "no schema at"},
	{"file", `{"$ref":"file:///etc/passwd"}`, "/$ref", "not fetched"},
	{"http", `{"$defs":{"a":{"$ref":"http://127.0.0.1:1/x"}}}`, "/$defs/a/$ref", "not fetched"},
	{"relative to $id", `{"$id":"http://127.0.0.1:1/r","items":{"$ref":"other.json"}}`, "/items/$ref", "not fetched"},
	{"own $id", `{"$id":"http://127.0.0.1:1/r","items":{"$ref":"http://127.0.0.1:1/r"}}`, "/items/$ref", "not fetched"},
	{"anchor", `{"$defs":{"a":{"$anchor":"x"}},"$ref":"#x"}`, "/$ref", "anchor, which is not supported"},
	{"$ref of a wrong type", `{"$ref":{"type":"object"}}`, "/$ref", "expected a string, got an object"},
	{"$dynamicRef", `{"$dynamicRef":"http://127.0.0.1:1/x"}`, "/$dynamicRef", "use $ref"},
	{"$dynamicAnchor", `{"$dynamicAnchor":"x"}`, "/$dynamicAnchor", "use $ref"},
	{"$recursiveRef", `{"properties":{"a":{"$recursiveRef":"#"}}}`, "/properties/a/$recursiveRef", "use $ref"},
	{"embedded document", `{"properties":{"a":{"$id":"x"}}}`, "/properties/a/$id", "cannot embed another document"},

	{"draft-04", `{"$schema":"http://json-schema.org/draft-04/schema#"}`, "/$schema", "only JSON Schema 2020-12"},
	{"draft-06", `{"$schema":"http://json-schema.org/draft-06/schema#"}`, "/$schema", "only JSON Schema 2020-12"},
	{"meta-schema of one's own", `{"$schema":"http://127.0.0.1:1/x"}`, "/$schema", "only JSON Schema 2020-12"},
	{"$schema of a wrong type", `{"$schema":7}`, "/$schema", "only JSON Schema 2020-12"},
	{"draft-07 with siblings of $ref", `{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"a":{}},"properties":{"b":{"$ref":"#/definitions/a","type":"string"}}}`, "/properties/b/$ref", "nothing counts in draft-07"},
	{"draft-07 with properties beside $ref", `{"$schema":"https://json-schema.org/draft-07/schema","$ref":"#/definitions/a","definitions":{"a":{}},"properties":{"b":{}}}`, "/$ref", "nothing counts in draft-07"},
	{"list of items", `{"items":[{"type":"string"}]}`, "/items", "expected a schema, which is an object or a boolean, got a list"},
	{"additionalItems", `{"additionalItems":false}`, "/additionalItems", "use prefixItems"},
	{"dependencies", `{"dependencies":{"a":["b"]}}`, "/dependencies", "use dependentRequired"},
	{"boolean exclusiveMinimum", `{"minimum":1,"exclusiveMinimum":true}`, "/exclusiveMinimum", "expected a number, got true"},
	{"nullable", `{"properties":{"a":{"type":"string","nullable":true}}}`, "/properties/a/nullable", `["string", "null"]`},
	{"unevaluatedItems with a schema", `{"unevaluatedItems":{"type":"string"}}`, "/unevaluatedItems", "expected true or false"},

	{"unknown type", `{"type":"objekt"}`, "/type", `no type "objekt"; the types are array`},
	{"unknown type in a list", `{"properties":{"x":{"type":["string","int"]}}}`, "/properties/x/type", `no type "int"`},
	{"no types", `{"type":[]}`, "/type", "expected a type"},
	{"type twice", `{"type":["string","string"]}`, "/type", "stands twice"},
	{"type null", `{"type":null}`, "/type", "got null"},
	{"required as a string", `{"required":"x"}`, "/required", `expected a list of property names, got the string "x"`},
	{"required on a property, as of old", `{"properties":{"x":{"required":true}}}`, "/properties/x/required", "got true"},
	{"required with a number", `{"required":["a",1]}`, "/required", "the number 1"},
	{"properties as a list", `{"properties":[]}`, "/properties", "expected an object whose members are schemas, got an empty list"},
	{"properties null", `{"properties":null}`, "/properties", "got null"},
	{"property null", `{"properties":{"a":null}}`, "/properties/a", "got null"},
	{"property as a type", `{"properties":{"a/b":"string"}}`, "/properties/a~1b", `got the string "string"`},
	{"items null", `{"items":null}`, "/items", "got null"},
	{"minimum as a string", `{"minimum":"1"}`, "/minimum", `expected a number, got the string "1"`},
	{"minimum null", `{"minimum":null}`, "/minimum", "got null"},
	{"negative length", `{"maxLength":-1}`, "/maxLength", "whole number"},
	{"fractional length", `{"maxLength":1.5}`, "/maxLength", "whole number"},
	{"length beyond any", `{"maxLength":1e300}`, "/maxLength", "whole number"},
	{"multipleOf 0", `{"multipleOf":0}`, "/multipleOf", "above 0"},
	{"empty enum", `{"enum":[]}`, "/enum", "at least one value"},
	{"enum as an object", `{"enum":{"a":1}}`, "/enum", "got an object"},
	{"empty anyOf", `{"anyOf":[]}`, "/anyOf", "at least one schema"},
	{"uniqueItems as a string", `{"uniqueItems":"true"}`, "/uniqueItems", "true or false"},
	{"description as a number", `{"description":1}`, "/description", "expected a string"},
	{"format as a list", `{"format":["email"]}`, "/format", "expected a string"},
	{"dependentRequired as a list", `{"dependentRequired":{"a":"b"}}`, "/dependentRequired", `"a": expected a list of property names`},

	{"look-ahead", `{"properties":{"p":{"pattern":"(?=x)y"}}}`, "/properties/p/pattern", "look-ahead or look-behind, (?=…), which is not supported"},
	{"negative look-behind", `{"pattern":"(?<!x)y"}`, "/pattern", "look-behind, (?<!…)"},
	{"back-reference", `{"pattern":"(a)\\1"}`, "/pattern", "no back-references"},
	{"broken pattern", `{"pattern":"["}`, "/pattern", "not a regular expression"},
	{"pattern as a number", `{"pattern":1}`, "/pattern", "expected a string"},
	{"case ignored beyond ASCII", `{"pattern":"(?i)[a-é]"}`, "/pattern", "held to ASCII"},
	{"case ignored in classes", `{"pattern":"(?s-i:x)(?i:\\pL)"}`, "/pattern", "held to ASCII"},
	{"many classes", `{"pattern":"` + strings.Repeat(`\\pL`, 21) + `"}`, "/pattern", "more than 20 Unicode classes"},
	{"broken name pattern", `{"patternProperties":{"(":{}}}`, "/patternProperties/(", "not a regular expression"},
	{"long pattern", `{"pattern":"` + strings.Repeat("a", 1025) + `"}`, "/pattern", "more than 1024 bytes"},
	{"large pattern", `{"pattern":"(x{100}){10}(y{100}){10}(z{100}){10}(x{100}){10}(x{100}){10}"}`, "/pattern", "too large"},
	{"many patterns", `{"allOf":[` + strings.Repeat(`{"pattern":"x{1000}"},`, 60) + `{}]}`, "/allOf/49/pattern", "too large together"},

	{"reference to itself", `{"$ref":"#"}`, "/$ref", "leads back to itself"},
	{"references in a circle", `{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"anyOf":[{},{"not":{"$ref":"#/$defs/a"}}]}}}`, "/$defs/b/anyOf/1/not/$ref", "leads back to itself"},
	{"circle entered in the middle", `{"properties":{"x":{"$ref":"#/$defs/b/allOf/0"}},"$defs":{"b":{"allOf":[{"not":{"$ref":"#/$defs/b"}}]}}}`, "/$defs/b/allOf/0/not/$ref", "leads back to itself"},
	{"references that double", doubling(40, "allOf"), "", "more than 2000 schemas to one value"},
	{"references that double through oneOf", doubling(40, "oneOf"), "", "more than 2000 schemas to one value"},
	{"too many references, too deep", `{"$defs":{"a":{}},"items":` + strings.Repeat(`{"items":`, 58) + `{"properties":{` + repeat(4500, func(i int) string { return fmt.Sprintf(`"p%d":{"$ref":"#/$defs/a"}`, i) }) + `}}` + strings.Repeat("}", 59), "", "too many references"},
	{"too many subschemas", `{"properties":{` + repeat(10_000, func(i int) string { return fmt.Sprintf(`"p%d":{}`, i) }) + `}}`, "/properties/p9999", "more than 10000 subschemas"},
	{"too deep", nested(64, `{"items":`, "{}", "}"), strings.Repeat("/items", 33) + "/…", "deeper than 64"},
	{"too long", `{"description":"` + strings.Repeat("x", 256<<10) + `"}`, "", "more than 262144"},
	{"number without end", `{"minimum":1e-999999}`, "/minimum", "cannot be checked"},
	{"number of many digits", `{"enum":[1` + strings.Repeat("0", 600) + `]}`, "/enum/0", "cannot be checked"},
}

// doubling is a schema of n definitions, each applying the next one twice to the same value.
func doubling(n int, keyword string) string {
	defs := repeat(n, func(i int) string {
		return fmt.Sprintf(`"d%d":{%q:[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, keyword, i+1, i+1)
	})
	return fmt.Sprintf(`{"$ref":"#/$defs/d0","$defs":{%s,"d%d":{}}}`, defs, n)
}

func repeat(n int, item func(i int) string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = item(i)
	}
	return strings.Join(items, ",")
}

func TestCompileSchema_refused(t *testing.T) {
	for _, tt := range refusedSchemas {
		t.Run(tt.name, func(t *testing.T) {
			var err error
			compile := func() { _, err = compileSchema(json.RawMessage(tt.schema)) }
			if compile(); !raceEnabled {
				costs(t, compile)
			}
			pointer := tt.pointer
			if strings.HasPrefix(tt.name, "references that double") || strings.HasPrefix(tt.name, "too ") {
				var fault *schemaError
				if errors.As(err, &fault) {
					pointer = fault.Pointer // whichever of the many
				}
			}
			checkFault(t, err, pointer, tt.reason)
		})
	}
}

func TestCompileSchema_severalFaults(t *testing.T) {
	_, err := compileSchema(json.RawMessage(`{"properties":{"a":{"type":"int"},"b":{"$ref":"#/x"},"c":null,"d":1,"e":2,"f":3}}`))
	want := `"/properties/a/type": there is no type "int"`
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Fatalf("got %v", err)
	}
	if n := strings.Count(err.Error(), "/properties/"); n != 5 {
		t.Errorf("%d faults are listed: %v", n, err)
	}
}

func TestCompileArgsSchema(t *testing.T) {
	tests := []struct{ name, schema, pointer, reason string }{
		{"absent", ``, "", ""},
		{"empty", `{}`, "", ""},
		{"object", `{"type":"object"}`, "", ""},
		{"no properties", `{"type":"object","properties":{}}`, "", ""},
		{"properties without type", `{"properties":{"a":{"type":"string"}}}`, "", ""},
		{"root reference", `{"$ref":"#/$defs/args","$defs":{"args":{"type":"object"}}}`, "", ""},
		{"root anyOf", `{"anyOf":[{"type":"null"},{"properties":{"a":{}},"required":["a"]}]}`, "", ""},
		{"root oneOf beside type", `{"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]}`, "", ""},
		{"root allOf", `{"allOf":[{"type":"object"},{"type":["object","string"]}]}`, "", ""},
		{"root if", `{"if":{"required":["a"]},"then":{"required":["b"]}}`, "", ""},
		{"draft-07", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","definitions":{"a":{}},"properties":{"a":{"$ref":"#/definitions/a"}}}`, "", ""},
		{"2020-12", `{"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"https://example.com/x","type":"object"}`, "", ""},
		{"format", `{"properties":{"a":{"type":"string","format":"email"}}}`, "", ""},
		{"enum with null", `{"properties":{"a":{"enum":["x",null]}}}`, "", ""},
		{"nullable false", `{"properties":{"a":{"type":"string","nullable":false}}}`, "", ""},
		{"unknown keywords", `{"x-order":1,"example":{"a":1},"properties":{"a":{"example":7}}}`, "", ""},
		{"a property named like a keyword", `{"properties":{"type":{"type":"string"},"required":{"type":"boolean"},"$ref":{},"items":{}}}`, "", ""},
		{"200 KB", `{"properties":{` + repeat(2000, func(i int) string {
			return fmt.Sprintf(`"property_%d":{"type":"string","description":%q}`, i, strings.Repeat("text ", 10))
		}) + `}}`, "", ""},

		{"null", `null`, "", "got null"},
		{"true", `true`, "", "got true"},
		{"root string", `{"type":"string"}`, "/type", `the root has "type": "object"`},
		{"root object or null", `{"type":["object","null"]}`, "/type", `the root has "type": "object"`},
		{"root anyOf without an object", `{"anyOf":[{"type":"string"},{"type":"null"}]}`, "", "this schema allows none"},
		{"root reference to a string", `{"$ref":"#/$defs/a","$defs":{"a":{"type":"string"}}}`, "", "this schema allows none"},
		{"root allOf with a string", `{"allOf":[{},{"type":"string"}]}`, "", "this schema allows none"},
		{"root enum", `{"enum":["a",1]}`, "", "this schema allows none"},
		{"root const", `{"const":1}`, "", "this schema allows none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := compileArgsSchema(json.RawMessage(tt.schema))
			checkFault(t, err, tt.pointer, tt.reason)
			if err != nil {
				return
			}
			for _, raw := range []string{`[]`, `"x"`, `null`, `1`, `true`} {
				if err := s.validate(json.RawMessage(raw)); err == nil {
					t.Errorf("%s was accepted as arguments", raw)
				}
			}
		})
	}
}

func TestSchema_validate(t *testing.T) {
	user := `{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string","minLength":2,"maxLength":5},
		"mail":{"type":"string","format":"email"},"role":{"enum":["admin","user"]},"tags":{"type":"array","items":{"type":"string"},"maxItems":2,"uniqueItems":true}},
		"required":["id"],"additionalProperties":false}`
	tests := []struct{ name, schema, value, pointer, reason string }{
		{"valid", user, `{"id":9007199254740993,"name":"Ada","tags":["a","b"]}`, "", ""},
		{"integer with a fraction of zero", user, `{"id":5.0}`, "", ""},
		{"format is an annotation", user, `{"id":1,"mail":"nobody"}`, "", ""},
		{"string for integer", user, `{"id":"5"}`, "/id", "expected integer, got string"},
		{"fraction for integer", user, `{"id":1.5}`, "/id", "expected integer, got the number 1.5"},
		{"missing", user, `{"name":"Ada"}`, "", "missing required property 'id'"},
		{"unexpected", user, `{"id":1,"age":5}`, "/age", `unexpected property "age"`},
		{"unexpected, to be escaped", user, `{"id":1,"a/b~":5}`, "/a~1b~0", `unexpected property "a/b~"`},
		{"not in enum", user, `{"id":1,"role":"root"}`, "/role", `expected one of admin, user, got the string "root"`},
		{"too short", user, `{"id":1,"name":"A"}`, "/name", "at least 2 characters, got 1"},
		{"too long", user, `{"id":1,"name":"Adalbert"}`, "/name", "at most 5 characters, got 8"},
		{"item", user, `{"id":1,"tags":["a",2]}`, "/tags/1", "expected string, got the number 2"},
		{"items twice", user, `{"id":1,"tags":["a","a"]}`, "/tags", "items at indices 0 and 1 are not unique"},
		{"member twice", user, `{"id":1,"id":2}`, "/id", `the member "id" stands twice`},
		{"not JSON", user, `{"id":1`, "", "ends too early"},
		{"list for object", user, `[]`, "", "expected object, got array"},

		{"large integers are told apart", `{"const":9007199254740993}`, `9007199254740992`, "", "const"},
		{"large integer at the bound", `{"maximum":9007199254740993}`, `9007199254740993`, "", ""},
		{"large integer above the bound", `{"maximum":9007199254740993}`, `9007199254740994`, "", "should be at most 9007199254740993"},
		{"beyond float64", `{"type":"number","minimum":1}`, `1e400`, "", ""},
		{"beyond float64, wrong", `{"type":"string"}`, `1e400`, "", "the number 1e400"},
		{"decimal multiple", `{"multipleOf":0.01}`, `19.99`, "", ""},
		{"no multiple", `{"multipleOf":0.01}`, `19.999`, "", "should be a multiple of 0.01"},
		{"number without end", `{"type":"number","multipleOf":3}`, `{"a":[1e-999999]}`, "/a/0", "cannot be checked"},

		{"anyOf", `{"properties":{"a":{"anyOf":[{"type":"string"},{"type":"object","required":["x"]}]}}}`, `{"a":{}}`, "/a", "satisfies none of the 2 alternatives of anyOf: [0] expected string, got object; [1] missing required property 'x'"},
		{"anyOf satisfied", `{"anyOf":[{"type":"string"},{"type":"integer"}]}`, `1`, "", ""},
		{"oneOf twice", `{"oneOf":[{"type":"integer"},{"minimum":0}]}`, `1`, "", "exactly one alternative"},
		{"not", `{"not":{"type":"string"}}`, `"x"`, "", "excludes (not)"},
		{"not satisfied", `{"not":{"type":"string"}}`, `1`, "", ""},
		{"then", `{"if":{"required":["a"]},"then":{"required":["b"]}}`, `{"a":1}`, "", "missing required property 'b'"},
		{"if alone", `{"if":{"required":["a"]},"then":{"required":["b"]}}`, `{}`, "", ""},
		{"else", `{"if":{"required":["a"]},"else":{"required":["c"]}}`, `{}`, "", "missing required property 'c'"},
		{"allOf", `{"allOf":[{"properties":{"a":{"type":"null"}}}]}`, `{"a":1}`, "/a", "expected null"},
		{"reference", `{"items":{"$ref":"#/$defs/n"},"$defs":{"n":{"type":"integer"}}}`, `[1,"2"]`, "/1", "expected integer, got string"},
		{"reference with escapes", `{"items":{"$ref":"#/$defs/a~1b%20c"},"$defs":{"a/b c":{"type":"integer"}}}`, `["2"]`, "/0", "expected integer"},
		{"recursion", `{"properties":{"next":{"$ref":"#"},"v":{"type":"integer"}}}`, `{"next":{"next":{"v":"x"}}}`, "/next/next/v", "expected integer"},
		{"reference into properties, from where there are others", `{"properties":{"a":{"type":"string"},"b":{"properties":{"a":{"type":"integer"},"c":{"$ref":"#/properties/a"}}}}}`, `{"b":{"c":1}}`, "/b/c", "expected string"},
		{"definitions beside others of the same name", `{"properties":{"a":{"$defs":{"x":{}},"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string"}}}`, `{"a":1}`, "/a", "expected string"},
		{"name pattern", `{"patternProperties":{"^x_":{"type":"integer"}},"additionalProperties":false}`, `{"x_a":"1"}`, "/x_a", "expected integer"},
		{"beside the name pattern", `{"patternProperties":{"^x_":{"type":"integer"}},"additionalProperties":false}`, `{"y":1}`, "/y", "unexpected property"},
		{"property names", `{"propertyNames":{"maxLength":2}}`, `{"abc":1}`, "/abc", "the property name: expected at most 2 characters, got 3"},
		{"dependent schema", `{"dependentSchemas":{"a":{"required":["b"]}}}`, `{"a":1}`, "", "missing required property 'b'"},
		{"dependent required", `{"dependentRequired":{"a":["b"]}}`, `{"a":1}`, "", `missing properties that others require: {"a":["b"]}`},
		{"unevaluated property", `{"allOf":[{"properties":{"a":{}}}],"unevaluatedProperties":false}`, `{"a":1,"b":2}`, "/b", `unexpected property "b"`},
		{"unevaluated item", `{"prefixItems":[{}],"unevaluatedItems":false}`, `[1,2]`, "", "unexpected items at 1"},
		{"default is no substitute", `{"properties":{"a":{"default":1}},"required":["a"]}`, `{}`, "", "missing required property 'a'"},
		{"contains", `{"contains":{"type":"string"}}`, `[1]`, "", "at least 1 items that satisfy contains, got 0"},
		{"pattern", `{"pattern":"^a+$"}`, `"b"`, "", "does not match the pattern ^a+$"},
		{"pattern that ignores case", `{"pattern":"^(?i)abc$"}`, `"aBC"`, "", ""},
		{"pattern with a Unicode class", `{"pattern":"^\\p{Lu}$"}`, `"É"`, "", ""},
		{"empty property name", `{"properties":{"":{"type":"string"}}}`, `{"":1}`, "/", "expected string"},
		{"content is an annotation", `{"contentEncoding":"base64","contentMediaType":"application/json","contentSchema":{"type":"integer"}}`, `"x"`, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := compileSchema(json.RawMessage(tt.schema))
			if err != nil {
				t.Fatal(err)
			}
			value := json.RawMessage(tt.value)
			checkFault(t, s.validate(value), tt.pointer, tt.reason)
			if string(value) != tt.value {
				t.Errorf("the value was changed to %s", value)
			}
		})
	}
}

func TestSchema_validate_severalFaults(t *testing.T) {
	s := mustCompile(t, `{"properties":{`+repeat(20, func(i int) string { return fmt.Sprintf(`"p%02d":{"type":"string"}`, i) })+`},"required":["a","b"]}`)
	value := json.RawMessage(`{` + repeat(20, func(i int) string { return fmt.Sprintf(`"p%02d":%d`, i, i) }) + `}`)
	first := s.validate(value).Error()
	want := `missing required properties 'a', 'b'; "/p00": expected string, got the number 0; "/p01": expected string, got the number 1; ` +
		`"/p02": expected string, got the number 2; "/p03": expected string, got the number 3`
	if first != want {
		t.Errorf("got  %s\nwant %s", first, want)
	}
	for range 20 {
		if again := s.validate(value).Error(); again != first {
			t.Fatalf("the message changes: %s", again)
		}
	}
}

// TestCompileSchema_network listens where every reference leads, and wants nobody to come.
func TestCompileSchema_network(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepts := make(chan struct{})
	go func() {
		defer close(accepts)
		if conn, err := listener.Accept(); err == nil {
			t.Errorf("somebody connected from %s", conn.RemoteAddr())
		}
	}()
	url := "http://" + listener.Addr().String() + "/x"
	for _, format := range []string{
		`{"$ref":%q}`, `{"$defs":{"a":{"$ref":%q}}}`, `{"items":{"$ref":%q}}`, `{"$dynamicRef":%q}`, `{"$schema":%q}`,
		`{"$id":%q,"$ref":"other.json"}`, `{"$id":%q,"$ref":"#x"}`, `{"$id":%q}`, `{"format":"uri","const":%q}`, `{"contentSchema":{"$ref":%q}}`,
		`{"properties":{"a":{"$id":%q,"$ref":"y"}}}`, `{"x-unknown":{"$ref":%q}}`, `{"enum":[{"$ref":%q}]}`, `{"properties":{"$ref":{"const":%q}}}`,
		`{"$recursiveRef":%q}`, `{"$vocabulary":{%q:true}}`,
	} {
		if s, err := compileSchema(fmt.Appendf(nil, format, url)); err == nil {
			_ = s.validate(fmt.Appendf(nil, `{"$ref":%q,"a":%q}`, url, url))
		}
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	<-accepts
}

func TestSchema_concurrent(t *testing.T) {
	s := mustCompile(t, `{"properties":{"a":{"pattern":"^a+$"}},"patternProperties":{"^x":{"type":"integer","enum":[1,2]}},"additionalProperties":{"$ref":"#"}}`)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if err := s.validate(json.RawMessage(`{"a":"aa","x1":1,"y":{"a":"a"}}`)); err != nil {
					t.Error(err)
				}
				if err := s.validate(json.RawMessage(`{"y":{"x1":3}}`)); err == nil {
					t.Error("accepted")
				}
			}
		})
	}
	all.Wait()
}

func mustCompile(tb testing.TB, raw string) *schema {
	tb.Helper()
	s, err := compileSchema(json.RawMessage(raw))
	if err != nil {
		tb.Fatalf("%.200s: %v", raw, err)
	}
	return s
}

// Whether the root admits an object is found out in one walk: 31 levels, twice each, would take for ever.
func TestCompileArgsSchema_nested(t *testing.T) {
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		costs(t, func() {
			if _, err := compileArgsSchema(json.RawMessage(nested(31, `{"`+keyword+`":[`, "{}", "]}"))); err != nil {
				t.Errorf("%s: %v", keyword, err)
			}
		})
	}
}
