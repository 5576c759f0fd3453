package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	for _, c := range []struct {
		name         string
		args         string
		code         int
		stdout, errs string
	}{
		{"nothing", "", exitOK, "Usage: treadle", ""},
		{"help", "-h", exitOK, "key new", ""},
		{"help of serve", "serve -h", exitOK, "$TREADLE_DATA_DIR", ""},
		{"version", "version", exitOK, "treadle ", ""},
		{"unknown command", "start", exitUsage, "", "treadle: unexpected argument start"},
		{"unknown flag", "serve --port 80", exitUsage, "", "treadle: unknown flag --port"},
		{"wrong value", "serve --durability never", exitUsage, "", "--durability must be one of"},
		{"key without tenant", "key new", exitUsage, "", "treadle: "},
		{"key of a malformed tenant", "key new Acme", exitUsage, "", `treadle: tenant id "Acme"`},
		{"no such config", "serve --config /nonexistent/treadle.yaml", exitFailure, "", "no such file"},
		{"open listening", "serve --listen 0.0.0.0:0", exitFailure, "",
			"listening on 0.0.0.0 without keys is refused: add tenants with `treadle key new` or listen on 127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(strings.Fields(c.args), streams{&out, &errs}); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.Contains(out.String(), c.stdout) || c.stdout == "" && out.Len() > 0 {
				t.Errorf("stdout %q, want %q", &out, c.stdout)
			}
			if !strings.Contains(errs.String(), c.errs) || c.errs == "" && errs.Len() > 0 {
				t.Errorf("stderr %q, want %q", &errs, c.errs)
			}
		})
	}
}

// TestRun_help ties the help to the environment: every flag of serve has its variable.
func TestRun_help(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"serve", "--help"}, streams{&out, &errs}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	for _, flag := range []string{
		"--listen", "--data-dir", "--nats-url", "--nats-replicas", "--config", "--allow-origin", "--admin-listen", "--durability", "--log-level", "--log-format",
	} {
		variable := "$TREADLE_" + strings.ToUpper(strings.ReplaceAll(flag[2:], "-", "_"))
		if !strings.Contains(out.String(), flag) || !strings.Contains(out.String(), variable) {
			t.Errorf("the help lacks %s or %s", flag, variable)
		}
	}
}
