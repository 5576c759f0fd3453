package sessions

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// listOf is a JSON list of n times the item, membersOf an object of n members with the value.
func listOf(n int, item string) string { return "[" + strings.Repeat(item+",", n-1) + item + "]" }

func membersOf(n int, value string) string {
	return "{" + repeat(n, func(i int) string { return fmt.Sprintf(`"%d":%s`, i, value) }) + "}"
}

// numbersTo are the first n numbers as items of a list, textsTo the same as strings.
func numbersTo(n int) string { return repeat(n, strconv.Itoa) }

func textsTo(n int) string { return repeat(n, func(i int) string { return fmt.Sprintf(`"%d"`, i) }) }

// nested is inner within n times open and end.
func nested(n int, open, inner, end string) string {
	return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
}

// costs runs f and holds it to the bound that no schema or value may exceed: a second, and some 100 MB at any moment.
func costs(t *testing.T, f func()) {
	t.Helper()
	took, peak, total := measure(f)
	for tries := 0; took > time.Second && tries < 3; tries++ { // others may be using the machine
		took, peak, total = measure(f)
	}
	if took > 20*time.Millisecond || peak > 20<<20 {
		t.Logf("took %v, %d MB at most, %d MB allocated", took.Round(time.Millisecond), peak>>20, total>>20)
	}
	if took > time.Second {
		t.Errorf("took %v", took)
	}
	if peak > 130<<20 {
		t.Errorf("needed %d MB", peak>>20)
	}
}

// skipIfRaced skips a test that measures the code as it runs in production.
func skipIfRaced(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector slows everything down")
	}
}

// measure returns how much processor time the process took for f, by how much the heap grew at most, and how much was allocated.
// Time on the clock would say more of what else the machine does.
func measure(f func()) (took time.Duration, peak, total int64) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	done, most := make(chan struct{}), make(chan uint64)
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		var now runtime.MemStats
		var top uint64
		for {
			select {
			case <-tick.C:
				runtime.ReadMemStats(&now)
				top = max(top, now.HeapAlloc)
			case <-done:
				most <- top
				return
			}
		}
	}()
	began := processorTime()
	f()
	took = processorTime() - began
	runtime.ReadMemStats(&after)
	close(done)
	peak = int64(max(<-most, after.HeapAlloc)) - int64(before.HeapAlloc)
	return took, peak, int64(after.TotalAlloc - before.TotalAlloc)
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestSchema_hostile validates values of up to 4 MiB against schemas that make much of them. What counts is that it ends in
// time: most are refused as too large, and some are checked after all.
func TestSchema_hostile(t *testing.T) {
	skipIfRaced(t)
	const size = 4 << 20
	full := func(item string) string { return listOf(size/(len(item)+1), item) }
	tests := []struct{ name, schema, value string }{
		{"many integers", `{"items":{"type":"integer"}}`, full("1")},
		{"50,000 integers", `{"items":{"type":"integer"}}`, "[" + numbersTo(50_000) + "]"},
		{"90,000 wrong items", `{"items":{"type":"string"}}`, "[" + numbersTo(90_000) + "]"},
		{"90,000 wrong properties", `{"additionalProperties":{"type":"string"}}`, membersOf(90_000, "1")},
		{"90,000 unexpected properties", `{"additionalProperties":false}`, membersOf(90_000, "1")},
		{"90,000 unevaluated properties", `{"unevaluatedProperties":false}`, membersOf(90_000, "1")},
		{"a table", `{"items":{"type":"object","properties":{` + repeat(10, func(i int) string { return fmt.Sprintf(`"c%d":{"type":"string"}`, i) }) + `}}}`,
			"[" + repeat(8000, func(int) string {
				return "{" + repeat(10, func(i int) string { return fmt.Sprintf(`"c%d":"some text in a cell"`, i) }) + "}"
			}) + "]"},
		{"empty lists", `{"items":{"items":{}}}`, full("[]")},
		{"empty objects", `{"items":{"additionalProperties":false}}`, full("{}")},
		{"parts that no schema looks at", `{}`, full("[]")},
		{"unique numbers", `{"uniqueItems":true}`, "[" + numbersTo(200_000) + "]"},
		{"unique large numbers", `{"uniqueItems":true}`, "[" + repeat(8000, func(i int) string { return fmt.Sprintf("1%0480d", i) }) + "]"},
		{"unique at every level", `{"uniqueItems":true,"items":{"$ref":"#"}}`, nested(190, "[", numbersTo(30_000), "]")},
		{"long string", `{"type":"string"}`, `"` + strings.Repeat("x", size) + `"`},
		{"long string of escapes", `{"type":"string"}`, `"` + strings.Repeat(`\u0001`, size/6) + `"`},
		{"long string through allOf", `{"allOf":[` + strings.Repeat(`{"minLength":1},`, 500) + `{}]}`, `"` + strings.Repeat("x", size) + `"`},
		{"long string through nested allOf", nested(30, `{"allOf":[`, `{"minLength":1}`, `]}`), `"` + strings.Repeat("x", size) + `"`},
		{"pattern of many states", `{"pattern":"^(?:a?){950}(?:b?){950}$"}`, `"` + strings.Repeat("a", size) + `"`},
		{"pattern within the budget", `{"pattern":"^(?:a?){950}(?:b?){950}$"}`, `"` + strings.Repeat("a", 10_000) + `"`},
		{"small pattern", `{"pattern":"(x+x+)+y"}`, `"` + strings.Repeat("x", size) + `"`},
		{"name patterns, compiled for each", `{"items":{"patternProperties":{"^[a-z]{500}$":{}}}}`, full("1")},
		{"name patterns", `{"patternProperties":{"^[0-9]{1,500}$":{},"(1+1+)+2":{}},"additionalProperties":false}`, membersOf(50_000, "1")},
		{"large enum of numbers", `{"items":{"enum":[` + numbersTo(20_000) + `]}}`, full("-1")},
		{"large enum of strings", `{"items":{"enum":[` + repeat(20_000, func(i int) string { return fmt.Sprintf(`"%d"`, i) }) + `]}}`, full(`"x"`)},
		{"large enum of lists", `{"items":{"enum":[` + strings.Repeat("[1,2,3],", 5000) + `0]}}`, full("[1,2]")},
		{"enum against a large number", `{"items":{"enum":[` + numbersTo(2000) + `]}}`, "[" + strings.Repeat(strings.Repeat("7", 490)+",", 8000) + "1]"},
		{"large numbers", `{"items":{"minimum":3.5,"multipleOf":7.3}}`, "[" + strings.Repeat(strings.Repeat("7", 490)+",", 8000) + "1]"},
		{"large exponents", `{"items":{"minimum":3.5,"multipleOf":7.3}}`, full("1e-499")},
		{"many required", `{"items":{"required":[` + repeat(10_000, func(i int) string { return fmt.Sprintf(`"%d"`, i) }) + `]}}`, full("{}")},
		{"required and missing", `{"items":{"required":[` + repeat(4000, func(i int) string { return fmt.Sprintf(`"%d"`, i) }) + `],"properties":` + membersOf(4000, "{}") + `}}`, full("{}")},
		{"many properties", `{"items":{"additionalProperties":{},"properties":` + membersOf(9000, "{}") + `}}`, full("{}")},
		{"dependent on all", `{"items":{"dependentRequired":` + membersOf(5000, `["a","b"]`) + `}}`, "[" + repeat(20, func(int) string { return membersOf(5000, "1") }) + "]"},
		{"recursion that doubles", `{"anyOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`, nested(190, `{"a":`, "1", "}")},
		{"recursion through if", `{"if":{"properties":{"a":{"$ref":"#"}}},"then":{"properties":{"a":{"$ref":"#"}}},"else":{"properties":{"a":{"$ref":"#"}}}}`, nested(190, `{"a":`, "1", "}")},
		{"recursion under nested allOf", `{"allOf":[` + nested(25, `{"allOf":[`, `{"properties":{"a":{"$ref":"#"}}}`, `]}`) + `]}`, nested(190, `{"a":`, "["+numbersTo(100_000)+"]", "}")},
		{"weight on every item", `{"items":{"allOf":[` + strings.Repeat("{},", 1900) + `{}]}}`, full("1")},
		{"lists through nested allOf", nested(25, `{"allOf":[`, `{"items":{}}`, `]}`), "[" + numbersTo(90_000) + "]"},
		{"nested anyOf that fails", nested(25, `{"anyOf":[`, `{"items":{"type":"null"}}`, `]}`), "[" + numbersTo(50_000) + "]"},
		{"contains", `{"contains":{"const":1},"minContains":100000}`, full("2")},
		{"property names", `{"propertyNames":{"pattern":"^(a|b)+$"}}`, membersOf(90_000, "1")},
		{"long name through allOf", `{"allOf":[` + strings.Repeat(`{"additionalProperties":{}},`, 900) + `{}]}`, `{"` + strings.Repeat("n", size/2) + `":1}`},
		{"deep value", `{"items":{"$ref":"#"}}`, nested(200, "[", "1", "]")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			value := json.RawMessage(tt.value)
			if len(value) > size+16 {
				t.Fatalf("the value has %d bytes", len(value))
			}
			var s *schema
			costs(t, func() { s = mustCompile(t, tt.schema) })
			var err error
			costs(t, func() { err = s.validate(value) })
			t.Logf("%.120v", err)
			if err != nil && len(err.Error()) > 2500 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
		})
	}
}

// TestSchema_edge validates values that are nearly the largest that the budget allows, each of another kind. They show that the
// costs are right: when one takes too long or too much, its cost is too low.
func TestSchema_edge(t *testing.T) {
	skipIfRaced(t)
	tests := []struct{ name, schema, value string }{
		{"integers", `{"items":{"type":"integer"}}`, listOf(70_000, "1")},
		{"wrong items", `{"items":{"type":"string"}}`, listOf(70_000, "1")},
		{"wrong properties", `{"additionalProperties":{"type":"string"}}`, membersOf(65_000, "null")},
		{"unexpected properties", `{"additionalProperties":false}`, membersOf(75_000, "1")},
		{"wrong names and values", `{"propertyNames":{"maxLength":1},"additionalProperties":{"type":"string"}}`, membersOf(30_000, "1")},
		{"wrong objects", `{"items":{"additionalProperties":false}}`, listOf(40_000, `{"a":1}`)},
		{"unique objects", `{"uniqueItems":true}`, "[" + repeat(85_000, func(i int) string { return fmt.Sprintf(`{"a":%d}`, i) }) + "]"},
		{"long text", `{"allOf":[{},{},{},{}]}`, `"` + strings.Repeat("\u0080", 700_000) + `"`},
		{"long text in nested allOf", nested(25, `{"allOf":[`, `{}`, `]}`), `"` + strings.Repeat("\u0080", 115_000) + `"`},
		{"pattern of many states", `{"pattern":"(?:a?b?){900}c"}`, `"` + strings.Repeat("ab", 3400) + `"`},
		{"small pattern", `{"pattern":"(x+x+)+y"}`, `"` + strings.Repeat("x", 2_400_000) + `"`},
		{"name pattern for each item", `{"items":{"patternProperties":{"^[a-z]{500}$":{}}}}`, listOf(900, "1")},
		{"name pattern of large classes for each item", `{"items":{"patternProperties":{"` + strings.Repeat(`\\pL`, 18) + `":{}}}}`, listOf(190, "1")},
		{"enum of numbers", `{"items":{"enum":[` + numbersTo(2000) + `]}}`, listOf(40, "-1")},
		{"enum of texts", `{"items":{"enum":[` + textsTo(2000) + `]}}`, listOf(115, "1")},
		{"enum of lists", `{"items":{"enum":[` + strings.Repeat("[1,2,3],", 1000) + `0]}}`, listOf(15, "[1,2,4]")},
		{"large numbers", `{"items":{"minimum":3.5,"multipleOf":7.3}}`, listOf(3000, strings.Repeat("7", 490))},
		{"large exponents", `{"items":{"minimum":1e490,"maximum":1e-490,"multipleOf":7.3e-490}}`, listOf(3000, "1e-490")},
		{"bounds", `{"items":{"minimum":3.5,"multipleOf":7.3}}`, listOf(43_000, "1")},
		{"required", `{"items":{"required":[` + textsTo(5000) + `]}}`, listOf(470, "{}")},
		{"many properties", `{"items":{"additionalProperties":{},"properties":` + membersOf(9000, "{}") + `}}`, listOf(85, "{}")},
		{"dependent on all", `{"items":{"dependentRequired":` + membersOf(3000, `["a","b"]`) + `}}`, listOf(150, membersOf(3000, "1"))},
		{"recursion that doubles", `{"type":"object","anyOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`, nested(13, `{"a":`, "1", "}")},
		{"many alternatives", `{"items":{"anyOf":[` + strings.Repeat(`{"type":"string"},`, 1900) + `{"type":"null"}]}}`, listOf(31, "1")},
		{"objects in nested allOf", nested(25, `{"allOf":[`, `{"additionalProperties":true}`, `]}`), membersOf(30_000, "null")},
		{"deep", `{"items":{"$ref":"#"}}`, nested(195, "[", numbersTo(22_000), "]")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := mustCompile(t, tt.schema)
			var err error
			costs(t, func() { err = s.validate(json.RawMessage(tt.value)) })
			if err != nil && strings.Contains(err.Error(), "too large") {
				t.Error("the value is beyond the edge")
			}
		})
	}
}

// TestCompileSchema_cost compiles schemas that are accepted and as hard to read as such can be.
func TestCompileSchema_cost(t *testing.T) {
	skipIfRaced(t)
	long := strings.Repeat("x", 200_000)
	tests := []struct{ name, schema string }{
		{"many properties", `{"properties":{` + repeat(9000, func(i int) string { return fmt.Sprintf(`"p%d":{"type":"string"}`, i) }) + `}}`},
		{"nested allOf", nested(31, `{"allOf":[`, "{}", "]}")},
		{"nested and long", nested(60, `{"items":`, `{"const":"`+long+`"}`, "}")},
		{"nested properties and long", nested(31, `{"properties":{"a":`, `{"const":"`+long+`"}`, "}}")},
		{"many references", `{"$defs":{"a":{}},"properties":{` + repeat(4500, func(i int) string { return fmt.Sprintf(`"p%d":{"$ref":"#/$defs/a"}`, i) }) + `}}`},
		{"many references, deep", `{"$defs":{"a":{}},"items":` + nested(20, `{"items":`, `{"anyOf":[`+strings.Repeat(`{"$ref":"#/$defs/a"},`, 500)+`{}]}`, "}") + "}"},
		{"many wide references, deep", `{"$defs":{"a":{}},"items":` + nested(6, `{"items":`, `{"properties":{`+repeat(3500, func(i int) string { return fmt.Sprintf(`"p%d":{"$ref":"#/$defs/a"}`, i) })+`}}`, "}") + "}"},
		{"a chain of references", `{"$ref":"#/$defs/d0","$defs":{` + repeat(1990, func(i int) string { return fmt.Sprintf(`"d%d":{"$ref":"#/$defs/d%d"}`, i, i+1) }) + `,"d1990":{}}}`},
		{"references that double, as far as they may", doubling(8, "allOf")},
		{"long names", `{"properties":{"` + strings.Repeat("n", 200_000) + `":{"properties":{` + repeat(2000, func(i int) string { return fmt.Sprintf(`"%d":{"$ref":"#"}`, i) }) + `}}}}`},
		{"large patterns", `{"allOf":[` + repeat(45, func(int) string { return `{"pattern":"x{1000}"}` }) + `]}`},
		{"many patterns", `{"patternProperties":{` + repeat(4000, func(i int) string { return fmt.Sprintf(`"^a%d$":{}`, i) }) + `}}`},
		{"large character classes", `{"pattern":"` + strings.Repeat(`\\pL`, 19) + `"}`},
		{"large enum", `{"enum":[` + repeat(40_000, func(i int) string { return fmt.Sprint(i) }) + `]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s *schema
			costs(t, func() { s = mustCompile(t, tt.schema) })
			costs(t, func() { _ = s.validate(json.RawMessage(`{"p1":1,"a":{"a":[]}}`)) })
			costs(t, func() { _ = s.validate(json.RawMessage(`"x"`)) })
		})
	}
}

func FuzzSchemaCompile(f *testing.F) {
	for _, tt := range refusedSchemas {
		if len(tt.schema) < 2000 {
			f.Add([]byte(tt.schema), []byte(`{"a":[1,"x",null]}`))
		}
	}
	f.Add([]byte(`{"patternProperties":{"^a":{"$ref":"#"}},"if":{"required":["a"]},"then":{"minProperties":2}}`), []byte(`{"a":{"a":1}}`))
	f.Add([]byte(`{"unevaluatedProperties":false,"allOf":[{"properties":{"a":{"multipleOf":0.1}}}]}`), []byte(`{"a":1e400}`))
	f.Add([]byte(`{"dependentSchemas":{"a":{"not":{}}},"propertyNames":{"pattern":"a"}}`), []byte(`{"a":1,"b":2}`))
	f.Add([]byte(`{"oneOf":[{"uniqueItems":true},{"contains":{"const":1}}],"prefixItems":[false]}`), []byte(`[1,1.0]`))
	f.Fuzz(func(t *testing.T, rawSchema, value []byte) {
		began := time.Now()
		for _, compile := range []func(json.RawMessage) (*schema, error){compileSchema, compileArgsSchema} {
			s, err := compile(rawSchema)
			if err == nil {
				err = s.validate(value)
			}
			if err != nil && len(err.Error()) > 4000 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

const smallSchema = `{"type":"object","properties":{"query":{"type":"string","description":"What to look for."},"limit":{"type":"integer","minimum":1,"maximum":100}},"required":["query"],"additionalProperties":false}`

func BenchmarkCompileSchema(b *testing.B) {
	large := `{"properties":{` + repeat(2000, func(i int) string {
		return fmt.Sprintf(`"property_%d":{"type":"string","description":%q}`, i, strings.Repeat("text ", 10))
	}) + `}}`
	for name, raw := range map[string]string{"small": smallSchema, "200KB": large} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustCompile(b, raw)
			}
		})
	}
}

func BenchmarkSchemaValidate(b *testing.B) {
	row := `{"type":"object","properties":{` + repeat(10, func(i int) string { return fmt.Sprintf(`"c%d":{"type":"string"}`, i) }) + `}}`
	table := "[" + repeat(1000, func(int) string {
		return "{" + repeat(10, func(i int) string { return fmt.Sprintf(`"c%d":"some text in a cell"`, i) }) + "}"
	}) + "]"
	for _, bench := range []struct{ name, schema, value string }{
		{"small", smallSchema, `{"query":"weather in Vienna","limit":10}`},
		{"small_invalid", smallSchema, `{"query":7,"limits":10}`},
		{"table_1000x10", `{"items":` + row + `}`, table},
	} {
		b.Run(bench.name, func(b *testing.B) {
			s := mustCompile(b, bench.schema)
			b.SetBytes(int64(len(bench.value)))
			b.ReportAllocs()
			for b.Loop() {
				_ = s.validate(json.RawMessage(bench.value))
			}
		})
	}
}
