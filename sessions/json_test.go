package sessions

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestCheckJSON(t *testing.T) {
	tests := []struct {
		name, raw       string
		pointer, reason string // no reason: accepted
	}{
		{"object", `{"a":[1,null,true,"x"],"b":{}}`, "", ""},
		{"null", "null", "", ""},
		{"surrounding whitespace", " \n1\t", "", ""},
		{"large numbers", `[9007199254740993,1e400,-0,1.10]`, "", ""},
		{"depth at the limit", nested(200, "[", "", "]"), "", ""},
		{"names that need escapes", `{"a/b":{"c~d":1},"":2}`, "", ""},
		{"nothing", "", "", "got nothing"},
		{"whitespace", "  ", "", "got nothing"},
		{"cut", `{"a":[1`, "/a", "ends too early"},
		{"two values", `{} {}`, "", "data follows"},
		{"trailing comma", `[1,2,]`, "", "not valid JSON"},
		{"bare word", `{"a":x}`, "/a", "not valid JSON at byte 5"},
		{"duplicate name", `{"a":1,"a":2}`, "/a", `the member "a" stands twice`},
		{"duplicate name by escape", `{"b":[{"a":1,"\u0061":2}]}`, "/b/0/a", `the member "a" stands twice`},
		{"duplicate name to be escaped", `{"x/y":1,"x/y":2}`, "/x~1y", `the member "x/y" stands twice`},
		{"invalid UTF-8", "\"\xff\"", "", "invalid UTF-8"},
		{"half a surrogate pair", `{"s":"a\ud83d"}`, "/s", "half of a surrogate pair"},
		{"control character", "\"\x01\"", "", "not valid JSON"},
		{"too deep", nested(201, "[", "", "]"), strings.Repeat("/0", 100) + "…", "deeper than 200 levels"},
		{"hostile depth", strings.Repeat("[", 1_000_000), strings.Repeat("/0", 100) + "…", "deeper than 200 levels"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkFault(t, checkJSON([]byte(tt.raw), 200), tt.pointer, tt.reason)
		})
	}
}

// checkFault compares an error with the pointer and a part of the reason that are wanted; no reason wants no error.
func checkFault(t *testing.T, err error, pointer, reason string) {
	t.Helper()
	if reason == "" {
		if err != nil {
			t.Fatalf("refused: %v", err)
		}
		return
	}
	var fault *schemaError
	if !errors.As(err, &fault) {
		t.Fatalf("got %v, want a *schemaError with %q", err, reason)
	}
	if fault.Pointer != pointer || !strings.Contains(fault.Reason, reason) {
		t.Fatalf("got %q: %s\nwant %q: …%s…", fault.Pointer, fault.Reason, pointer, reason)
	}
	if len(err.Error()) > 2500 {
		t.Fatalf("the message has %d bytes", len(err.Error()))
	}
}

func TestCanonicalJSON(t *testing.T) {
	same := [][2]string{
		{`{"b":1,"a":2}`, ` { "a" : 2, "b":1 } `},
		{`"\u0041\/"`, `"A/"`},
		{`"\u00e9\ud83d\ude00"`, `"é😀"`},
		{`{"a":{"y":[1,{"q":1,"p":2}],"x":null}}`, `{"a":{"x":null,"y":[1,{"p":2,"q":1}]}}`},
	}
	for _, s := range same {
		if a, b := mustCanonical(t, s[0]), mustCanonical(t, s[1]); a != b {
			t.Errorf("%s and %s differ: %s, %s", s[0], s[1], a, b)
		}
	}
	different := [][2]string{
		{"1", "1.0"}, {"1e2", "100"}, {"0", "-0"}, {"null", `"null"`}, {"[]", "{}"}, {`""`, "null"}, {"[1,2]", "[2,1]"},
		{"9007199254740993", "9007199254740992"}, {"1e400", "1e401"}, {`"é"`, `"e\u0301"`}, {`{"a":null}`, "{}"},
	}
	for _, d := range different {
		if a, b := mustCanonical(t, d[0]), mustCanonical(t, d[1]); a == b {
			t.Errorf("%s and %s are both %s", d[0], d[1], a)
		}
	}
	for _, bad := range []string{"", `{"a":1,"a":1}`, "1 2", "\"\xff\"", `"\ud800"`, nested(203, "[", "", "]")} {
		if c, err := canonicalJSON([]byte(bad)); err == nil {
			t.Errorf("%.40q became %s", bad, c)
		}
	}
	raw := []byte(`{"b":1,"a":2}`)
	if _, err := canonicalJSON(raw); err != nil || string(raw) != `{"b":1,"a":2}` {
		t.Errorf("the argument was changed to %s, err %v", raw, err)
	}
}

func mustCanonical(tb testing.TB, raw string) string {
	tb.Helper()
	c, err := canonicalJSON([]byte(raw))
	if err != nil {
		tb.Fatalf("%s: %v", raw, err)
	}
	return string(c)
}

func FuzzCanonicalJSON(f *testing.F) {
	for _, s := range []string{`{"b":[1.0,1e400,"\u0041\n"],"a":null}`, `"\ud83d\ude00"`, `[{},[],"",-0]`, `{"a":1,"a":2}`, `{"\u0000":0}`} {
		f.Add([]byte(s), []byte(` {"a":null,"b":[1.0,1e400,"A\n"]}`))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		ca, err := canonicalJSON(a)
		if err != nil {
			return
		}
		again, err := canonicalJSON(ca)
		if err != nil || !bytes.Equal(ca, again) {
			t.Fatalf("not idempotent: %q became %q, err %v", ca, again, err)
		}
		if !reflect.DeepEqual(mustDecode(t, a), mustDecode(t, ca)) {
			t.Fatalf("%q means something else than %q", ca, a)
		}
		cb, err := canonicalJSON(b)
		if err != nil {
			return
		}
		if same := reflect.DeepEqual(mustDecode(t, a), mustDecode(t, b)); same != bytes.Equal(ca, cb) {
			t.Fatalf("%q and %q: same is %v, canonical forms %q and %q", a, b, same, ca, cb)
		}
	})
}

// mustDecode decodes with encoding/json, an independent reading of the same bytes; numbers keep their digits.
func mustDecode(tb testing.TB, raw []byte) any {
	tb.Helper()
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		tb.Fatalf("%q: %v", raw, err)
	}
	return v
}

func BenchmarkCanonicalJSON(b *testing.B) {
	raw := []byte(`{"rows":[` + strings.Repeat(`{"name":"Ada","id":12345678901234567890,"tags":["x","y"],"ok":true},`, 99) + `{}]}`)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := canonicalJSON(raw); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheckJSON(b *testing.B) {
	raw := []byte(`{"rows":[` + strings.Repeat(`{"name":"Ada","id":12345678901234567890,"tags":["x","y"],"ok":true},`, 99) + `{}]}`)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if err := checkJSON(raw, 200); err != nil {
			b.Fatal(err)
		}
	}
}
