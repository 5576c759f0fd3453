package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"treadle/api"
)

// The two commands that the README and the check of every change share.
const (
	serveCommand = "go run ./cmd/treadle serve"
	testCommand  = "go test ./..."
)

// readRepository reads a file by its path in the repository.
func readRepository(tb testing.TB, path ...string) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, path...)...))
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// section returns what stands under the first heading of the README that matches.
func section(tb testing.TB, heading string) string {
	tb.Helper()
	text := readRepository(tb, "README.md")
	start := regexp.MustCompile(`(?m)^## ` + heading + `$`).FindStringIndex(text)
	if start == nil {
		tb.Fatalf("the README has no heading %q", heading)
	}
	rest := text[start[1]:]
	if end := strings.Index(rest, "\n## "); end >= 0 {
		rest = rest[:end]
	}
	return rest
}

// block returns the first code block of a language.
func block(tb testing.TB, text, language string) string {
	tb.Helper()
	found := regexp.MustCompile("(?s)\n```" + language + "\n(.*?)```\n").FindStringSubmatch(text)
	if found == nil {
		tb.Fatalf("no %s block in: %s", language, text)
	}
	return found[1]
}

// TestReadme_setUp: two commands are enough, and the second is what every change must pass.
func TestReadme_setUp(t *testing.T) {
	var commands []string
	for line := range strings.Lines(block(t, section(t, "Run it"), "console")) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			commands = append(commands, strings.TrimSpace(command))
		}
	}
	if len(commands) != 2 || commands[0] != serveCommand || commands[1] != testCommand {
		t.Errorf("the README sets up with %q", commands)
	}
	if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(testCommand) + `$`).MatchString(readRepository(t, ".ci", "run")) {
		t.Errorf(".ci/run lacks %q", testCommand)
	}
}

// TestReadme_greeting: what the README shows of the first command is what it prints.
func TestReadme_greeting(t *testing.T) {
	t.Parallel()
	address, dir := freeAddress(t), filepath.Join(t.TempDir(), "data")
	stdout := greeting(t, address, dir)
	shown := block(t, section(t, "Run it"), "console")
	for line := range strings.Lines(stdout) {
		line = strings.NewReplacer(address, "127.0.0.1:8080", dir, "treadle-data").Replace(line)
		if !strings.Contains(shown, line) {
			t.Errorf("treadle serve prints %q, which the README does not show", line)
		}
	}
}

// greeting runs treadle serve, and returns what it prints until it listens.
func greeting(tb testing.TB, address, dir string) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "serve", "--listen", address, "--data-dir", dir)
	var stdout lockedBuffer
	cmd.Env, cmd.Stdout = cleanEnviron(), &stdout
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	eventually(tb, "the greeting", func() bool { return strings.Contains(stdout.String(), "\nopen ") })
	return stdout.String()
}

// TestReadme_curl runs the round trip of the README as it stands there, against a server at another address.
func TestReadme_curl(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"bash", "curl", "jq"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the README's commands need %s: %v", tool, err)
		}
	}
	const address = "http://127.0.0.1:8080"
	script := block(t, section(t, ".*curl.*"), "sh")
	first, _, _ := strings.Cut(script, "\n")
	if !strings.HasPrefix(first, "BASE="+address) || strings.Count(script, address) != 1 {
		t.Fatalf("the first command must set BASE, and the address be nowhere else: %s", script)
	}
	commands := 0
	for line := range strings.Lines(script) {
		if !strings.HasPrefix(line, " ") { // which goes on with the command of the line before
			commands++
		}
	}
	if commands > 6 {
		t.Errorf("the round trip takes %d commands, at most 6 are allowed", commands)
	}

	p := startServer(t, "--data-dir", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	bash := exec.CommandContext(ctx, "bash", "-c", strings.Replace(script, address, p.url, 1))
	var errs strings.Builder
	bash.Env, bash.Stderr = cleanEnviron(), &errs
	out, err := bash.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, &errs)
	}
	var settled api.ToolCall
	var turn api.Turn
	answers := json.NewDecoder(strings.NewReader(string(out)))
	for _, answer := range []any{&settled, &turn} {
		if err := answers.Decode(answer); err != nil {
			t.Fatalf("the commands printed %s%s: %v", out, &errs, err)
		}
	}
	if settled.Status != api.ToolCallSettled || turn.Outcome == nil || *turn.Outcome != api.OutcomeCompleted {
		t.Errorf("the commands printed %s%s", out, &errs)
	}
	// The README says how the last answer looks.
	text, err := api.Marshal(turn.Text)
	if err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{`"outcome":"completed"`, `"text":` + string(text)} {
		if !strings.Contains(section(t, ".*curl.*"), "`"+said+"`") {
			t.Errorf("the README does not promise %s, which is the end of %s", said, out)
		}
	}
}
