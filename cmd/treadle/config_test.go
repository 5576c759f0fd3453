package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"treadle"
	"treadle/sessions"
)

const (
	hashA = `sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa`
	hashB = `sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb`
)

func TestLoadConfig(t *testing.T) {
	path := mustConfig(t, `
tenants:
  - id: acme
    keys: ["`+hashA+`", "`+hashB+`"]
  - id: suspended
models:
  - {name: demo, provider: demo, description: A stand-in}
  - {name: play, provider: scripted, file: play.txt, default: true}
allow_origins: ["http://localhost:5173"]
heartbeat: 5s
limits:
  max_steps: 7
  tool_timeout: 90s
`)
	got := treadle.Config{AllowOrigins: []string{"http://localhost:3000"}}
	if err := loadConfig(path, &got); err != nil {
		t.Fatal(err)
	}
	want := treadle.Config{
		Tenants: []treadle.Tenant{{ID: "acme", Keys: []string{hashA, hashB}}, {ID: "suspended"}},
		Models: []treadle.Model{
			{Name: "demo", Provider: "demo", Description: "A stand-in"},
			{Name: "play", Provider: "scripted", File: filepath.Join(filepath.Dir(path), "play.txt"), Default: true},
		},
		AllowOrigins: []string{"http://localhost:3000", "http://localhost:5173"},
		Heartbeat:    5 * time.Second,
		Limits:       sessions.Limits{MaxSteps: 7, ToolTimeout: 90 * time.Second},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestLoadConfig_empty(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "{}\n"} {
		var got treadle.Config
		if err := loadConfig(mustConfig(t, text), &got); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if !reflect.DeepEqual(got, treadle.Config{}) {
			t.Errorf("%q: got %+v, want the zero Config", text, got)
		}
	}
}

func TestLoadConfig_refused(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "tenats: []\n", `line 1: unknown key "tenats"`},
		{"unknown key within", "tenants:\n  - id: acme\n    key: x\n", `line 3: unknown key "key"`},
		{"wrong kind", "tenants: acme\n", "line 1: "},
		{"not YAML", "tenants: [\n", "line "},
		{"two documents", "heartbeat: 5s\n---\nheartbeat: 6s\n", "a second document"},
		{"no id", "tenants:\n  - keys: []\n", "tenant 1 has no id"},
		{"malformed id", "tenants:\n  - id: Acme Inc\n", "line 2: tenant id"},
		{"tenant twice", "tenants:\n  - id: acme\n  - id: acme\n", `line 3: tenant "acme" is there twice`},
		{"key twice", "tenants:\n  - id: acme\n    keys:\n      - " + hashA + "\n      - " + hashA + "\n", "line 5: this key is there twice"},
		{"key of two tenants", "tenants:\n  - id: a\n    keys: [" + hashA + "]\n  - id: b\n    keys: [" + hashA + "]\n", `line 5: this key is there twice: tenant "a"`},
		{"malformed key", "tenants:\n  - id: acme\n    keys:\n      - secret\n", `line 4: a key is kept as "sha256:"`},
		{"malformed duration", "heartbeat: soon\n", "line 1: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := mustConfig(t, c.text)
			err := loadConfig(path, new(treadle.Config))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("err = %v, want one with the file and %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error repeats a key: %v", err)
			}
		})
	}
}

func mustConfig(tb testing.TB, text string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "treadle.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}
