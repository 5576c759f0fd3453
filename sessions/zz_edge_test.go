package sessions

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestEdge(t *testing.T) {
	list := func(n int, item string) string { return "[" + strings.Repeat(item+",", n-1) + item + "]" }
	names := func(n int, value string) string {
		return "{" + repeat(n, func(i int) string { return fmt.Sprintf(`"%d":%s`, i, value) }) + "}"
	}
	nest := func(n int, open, inner, end string) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
	}
	numbers := func(n int) string { return repeat(n, func(i int) string { return fmt.Sprint(i) }) }
	strs := func(n int) string { return repeat(n, func(i int) string { return fmt.Sprintf(`"%d"`, i) }) }
	tests := []struct {
		name, schema string
		value        func(n int) string
	}{
		{"integers", `{"items":{"type":"integer"}}`, func(n int) string { return list(n, "1") }},
		{"wrong items", `{"items":{"type":"string"}}`, func(n int) string { return list(n, "1") }},
		{"wrong items null", `{"items":{"type":"string"}}`, func(n int) string { return list(n, "null") }},
		{"false items", `{"items":false}`, func(n int) string { return list(n, "null") }},
		{"wrong props", `{"additionalProperties":{"type":"string"}}`, func(n int) string { return names(n, "null") }},
		{"unexpected props", `{"additionalProperties":false}`, func(n int) string { return names(n, "1") }},
		{"unevaluated props", `{"unevaluatedProperties":false}`, func(n int) string { return names(n, "1") }},
		{"right props", `{"additionalProperties":{}}`, func(n int) string { return names(n, "1") }},
		{"prop names wrong", `{"propertyNames":{"maxLength":1},"additionalProperties":{"type":"string"}}`, func(n int) string { return names(n, "1") }},
		{"empty objects", `{"items":{"additionalProperties":false}}`, func(n int) string { return list(n, "{}") }},
		{"objs wrong", `{"items":{"additionalProperties":false}}`, func(n int) string { return list(n, `{"a":1}`) }},
		{"unique", `{"uniqueItems":true}`, func(n int) string { return "[" + numbers(n) + "]" }},
		{"unique large", `{"uniqueItems":true}`, func(n int) string { return "[" + repeat(n, func(i int) string { return fmt.Sprintf("1%0480d", i) }) + "]" }},
		{"unique exps", `{"uniqueItems":true}`, func(n int) string { return "[" + repeat(n, func(i int) string { return fmt.Sprintf("1%de-490", i) }) + "]" }},
		{"unique objs", `{"uniqueItems":true}`, func(n int) string { return "[" + repeat(n, func(i int) string { return fmt.Sprintf(`{"a":%d}`, i) }) + "]" }},
		{"string", `{"allOf":[{},{},{},{}]}`, func(n int) string { return `"` + strings.Repeat("x", n) + `"` }},
		{"string esc", `{"allOf":[{},{},{},{}]}`, func(n int) string { return `"` + strings.Repeat("\u0080", n) + `"` }},
		{"string nested", nest(25, `{"allOf":[`, `{}`, `]}`), func(n int) string { return `"` + strings.Repeat("\u0080", n) + `"` }},
		{"pattern states", `{"pattern":"^(?:a?){950}(?:b?){950}$"}`, func(n int) string { return `"` + strings.Repeat("a", n) + `"` }},
		{"pattern unanch", `{"pattern":"(?:a?b?){900}c"}`, func(n int) string { return `"` + strings.Repeat("ab", n) + `"` }},
		{"pattern classes", `{"pattern":"(?:[a-z0-9]?[a-f]?[^\\pL]?){300}[^\\PL]{5}c"}`, func(n int) string { return `"` + strings.Repeat("é", n) + `"` }},
		{"pattern small", `{"pattern":"(x+x+)+y"}`, func(n int) string { return `"` + strings.Repeat("x", n) + `"` }},
		{"namepat compile", `{"items":{"patternProperties":{"^[a-z]{500}$":{}}}}`, func(n int) string { return list(n, "1") }},
		{"namepat compile small", `{"items":{"patternProperties":{"a":{}}}}`, func(n int) string { return list(n, "1") }},
		{"namepat compile cls", `{"items":{"patternProperties":{"[^\\pL]{300}":{}}}}`, func(n int) string { return list(n, "1") }},
		{"namepat compile cls2", `{"items":{"patternProperties":{"` + strings.Repeat(`(?i:\\pL)`, 80) + `":{}}}}`, func(n int) string { return list(n, "1") }},
		{"namepat", `{"patternProperties":{"^[0-9]{1,500}$":{},"(1+1+)+2":{}},"additionalProperties":false}`, func(n int) string { return names(n, "1") }},
		{"enum nums", `{"items":{"enum":[` + numbers(2000) + `]}}`, func(n int) string { return list(n, "-1") }},
		{"enum small nums", `{"items":{"enum":[1,2,3]}}`, func(n int) string { return list(n, "-1") }},
		{"enum strs", `{"items":{"enum":[` + strs(2000) + `]}}`, func(n int) string { return list(n, `"x"`) }},
		{"enum strs vs num", `{"items":{"enum":[` + strs(2000) + `]}}`, func(n int) string { return list(n, `1`) }},
		{"enum lists", `{"items":{"enum":[` + strings.Repeat("[1,2,3],", 1000) + `0]}}`, func(n int) string { return list(n, "[1,2,4]") }},
		{"enum exps", `{"items":{"enum":[` + strings.Repeat("1e-490,", 1000) + `0]}}`, func(n int) string { return list(n, "1e-489") }},
		{"enum exps in list", `{"items":{"enum":[` + strings.Repeat("[1e-490],", 1000) + `0]}}`, func(n int) string { return list(n, "[1e-489]") }},
		{"const long", `{"items":{"const":"` + strings.Repeat("x", 10000) + `"}}`, func(n int) string { return list(n, `"`+strings.Repeat("x", 9999)+`y"`) }},
		{"num large", `{"items":{"minimum":3.5,"multipleOf":7.3}}`, func(n int) string { return list(n, strings.Repeat("7", 490)) }},
		{"num exps", `{"items":{"minimum":3.5,"multipleOf":7.3}}`, func(n int) string { return list(n, "1e-490") }},
		{"num exps2", `{"items":{"minimum":1e490,"maximum":1e-490,"multipleOf":7.3e-490}}`, func(n int) string { return list(n, "1e-490") }},
		{"num exps3", `{"items":{"type":["integer","string"]}}`, func(n int) string { return list(n, "1e-490") }},
		{"num small", `{"items":{"minimum":3.5,"multipleOf":7.3}}`, func(n int) string { return list(n, "1") }},
		{"required", `{"items":{"required":[` + strs(5000) + `]}}`, func(n int) string { return list(n, "{}") }},
		{"required missing", `{"items":{"required":[` + strs(3000) + `],"properties":` + names(3000, "{}") + `}}`, func(n int) string { return list(n, "{}") }},
		{"many props", `{"items":{"additionalProperties":{},"properties":` + names(9000, "{}") + `}}`, func(n int) string { return list(n, "{}") }},
		{"dependentReq", `{"items":{"dependentRequired":` + names(3000, `["a","b"]`) + `}}`, func(n int) string { return list(n, names(3000, "1")) }},
		{"rec doubles", `{"anyOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`, func(n int) string { return nest(min(n, 199), `{"a":`, "1", "}") }},
		{"rec doubles wrong", `{"type":"object","anyOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`, func(n int) string { return nest(min(n, 199), `{"a":`, "1", "}") }},
		{"rec if", `{"if":{"properties":{"a":{"$ref":"#"}}},"then":{"properties":{"a":{"$ref":"#"}}},"else":{"properties":{"a":{"$ref":"#"}}}}`, func(n int) string { return nest(min(n, 199), `{"a":`, "1", "}") }},
		{"rec nested allOf", nest(25, `{"allOf":[`, `{"items":{"$ref":"#"}}`, `]}`), func(n int) string { return nest(150, "[", numbers(n), "]") }},
		{"rec nested wrong", nest(25, `{"allOf":[`, `{"type":"array","items":{"$ref":"#"}}`, `]}`), func(n int) string { return nest(150, "[", numbers(n), "]") }},
		{"weight", `{"items":{"allOf":[` + strings.Repeat("{},", 1900) + `{}]}}`, func(n int) string { return list(n, "1") }},
		{"weight wrong", `{"items":{"anyOf":[` + strings.Repeat(`{"type":"string"},`, 1900) + `{"type":"null"}]}}`, func(n int) string { return list(n, "1") }},
		{"lists thr allOf", nest(25, `{"allOf":[`, `{"items":{}}`, `]}`), func(n int) string { return list(n, "null") }},
		{"maps thr allOf", nest(25, `{"allOf":[`, `{"additionalProperties":true}`, `]}`), func(n int) string { return names(n, "null") }},
		{"just lists thr allOf", nest(25, `{"allOf":[`, `true`, `]}`), func(n int) string { return list(n, "null") }},
		{"contains", `{"contains":{"const":1},"minContains":100000}`, func(n int) string { return list(n, "null") }},
		{"deep", `{"items":{"$ref":"#"}}`, func(n int) string { return nest(195, "[", numbers(n), "]") }},
		{"long name", `{"allOf":[` + strings.Repeat(`{"additionalProperties":{}},`, 90) + `{}]}`, func(n int) string { return `{"` + strings.Repeat("n", n) + `":1}` }},
		{"unexpected long", `{"items":{"additionalProperties":false}}`, func(n int) string { return list(n, `{"`+strings.Repeat("n", 500)+`":1}`) }},
		{"unchecked", `{}`, func(n int) string { return list(n, "{}") }},
		{"unchecked arr", `{}`, func(n int) string { return list(n, "[]") }},
		{"titles", `{"items":{"title":"x","description":"x","default":1}}`, func(n int) string { return list(n, "[]") }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := mustCompile(t, tt.schema)
			ok := func(n int) bool {
				v := tt.value(n)
				if len(v) > 4<<20 {
					return false
				}
				d, _ := decodeNumbers([]byte(v))
				return scanJSON([]byte(v), maxJSONDepth, nil) == nil && s.affordable(d, len(v)) && strings.Count(v, ",") < 490000
			}
			n := 1
			for n < 4<<20 && ok(n*2) {
				n *= 2
			}
			for step := n / 2; step > n/64; step /= 2 {
				if ok(n + step) {
					n += step
				}
			}
			v := json.RawMessage(tt.value(n))
			var err error
			took, peak, total := measure(func() { err = s.validate(v) })
			flag := ""
			if took.Milliseconds() > 600 || peak>>20 > 100 {
				flag = "!!!"
			}
			e := fmt.Sprintf("%.60v", err)
			fmt.Printf("%-22s n=%-8d len=%-8d %8v peak %4dMB total %5dMB %s %s\n", tt.name, n, len(v), took.Round(1e6), peak>>20, total>>20, flag, e)
		})
	}
}
