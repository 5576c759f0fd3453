package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"treadle"
	"treadle/internal/auth"
	"treadle/sessions"
)

// configFile is what may stand in --config FILE. Every key is optional; an unknown one is an error.
type configFile struct {
	// Tenants are who may use the API. Without any, the server is for development: loopback only, one tenant "default".
	Tenants []tenantEntry `yaml:"tenants"`
	// Models are what sessions can choose from; without any, the demo model.
	Models []modelEntry `yaml:"models"`
	// AllowOrigins are web origins (scheme://host[:port]) whose pages may call the API, besides those of --allow-origin.
	AllowOrigins []string `yaml:"allow_origins"`
	// Heartbeat is the longest silence on an event stream, 1s to 60s; 15s by default.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Limits bound what sessions, turns and streams may cost.
	Limits limitsEntry `yaml:"limits"`
}

type tenantEntry struct {
	// ID is 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit.
	ID located `yaml:"id"`
	// Keys are hashes as `treadle key new TENANT` prints them. Several are valid at once; none suspends the tenant.
	Keys []located `yaml:"keys"`
}

type modelEntry struct {
	// Name is what sessions choose it by.
	Name string `yaml:"name"`
	// Provider is demo or scripted.
	Provider string `yaml:"provider"`
	// File is the script of provider scripted, relative to the config file.
	File string `yaml:"file"`
	// Description is shown to clients.
	Description string `yaml:"description"`
	// Default marks the model of sessions that name none; the first entry if none is marked.
	Default bool `yaml:"default"`
}

// limitsEntry has the fields of sessions.Limits; what is absent or 0 has its default.
type limitsEntry struct {
	// MaxSteps is the number of model calls in one turn; default 50.
	MaxSteps int `yaml:"max_steps"`
	// MaxToolFailures is how many calls in a row may be refused before they run until the turn fails; default 5.
	MaxToolFailures int `yaml:"max_tool_failures"`
	// MaxParallelCalls is how many calls of a session are offered at once; default 16.
	MaxParallelCalls int `yaml:"max_parallel_calls"`
	// ToolTimeout is the wait for a result when the tool names none; default 60s.
	ToolTimeout time.Duration `yaml:"tool_timeout"`
	// ModelAttempts is how often one step's model call is tried; default 3.
	ModelAttempts int `yaml:"model_attempts"`
	// ModelFirstPart and ModelIdle bound a model's silence before its first part and between parts; defaults 120s and 90s.
	ModelFirstPart time.Duration `yaml:"model_first_part"`
	ModelIdle      time.Duration `yaml:"model_idle"`
	// TurnTime bounds the time that a turn spends on model calls; default 30m.
	TurnTime time.Duration `yaml:"turn_time"`
	// MaxAnswerBytes bounds one model answer; default 1 MiB.
	MaxAnswerBytes int `yaml:"max_answer_bytes"`
	// MaxInputBytes bounds the text of one turn's input; default 1 MiB.
	MaxInputBytes int `yaml:"max_input_bytes"`
	// MaxTurns is the number of turns that the process runs at once; default 10000. Further turns wait.
	MaxTurns int `yaml:"max_turns"`
	// MaxStreams is the number of event streams that the process serves at once; default 20000.
	MaxStreams int `yaml:"max_streams"`
	// MaxTenantStreams is the same for one tenant; default 10000.
	MaxTenantStreams int `yaml:"max_tenant_streams"`
}

// located is a string that knows its line, so that an error found later can name it.
type located struct {
	value string
	line  int
}

// UnmarshalYAML takes a scalar.
func (l *located) UnmarshalYAML(node *yaml.Node) error {
	l.line = node.Line
	return node.Decode(&l.value)
}

// loadConfig reads the file into c. Errors name the file and the line.
func loadConfig(path string, c *treadle.Config) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the config file: %w", err)
	}
	defer f.Close()
	var file configFile
	decoder := yaml.NewDecoder(f)
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("config file %s: %s", path, plainYAML(err))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("config file %s: a second document is not read: keep everything in one", path)
	}

	if err := checkTenants(file.Tenants); err != nil {
		return fmt.Errorf("config file %s: %w", path, err)
	}
	for _, t := range file.Tenants {
		tenant := treadle.Tenant{ID: t.ID.value}
		for _, key := range t.Keys {
			tenant.Keys = append(tenant.Keys, key.value)
		}
		c.Tenants = append(c.Tenants, tenant)
	}
	for _, m := range file.Models {
		if m.File != "" && !filepath.IsAbs(m.File) {
			m.File = filepath.Join(filepath.Dir(path), m.File)
		}
		c.Models = append(c.Models, treadle.Model{Name: m.Name, Provider: m.Provider, Description: m.Description, Default: m.Default, File: m.File})
	}
	c.AllowOrigins = append(c.AllowOrigins, file.AllowOrigins...)
	c.Heartbeat = file.Heartbeat
	c.Limits = sessions.Limits(file.Limits)
	return nil
}

// checkTenants finds the faults that the server would find too, while their lines are known.
func checkTenants(tenants []tenantEntry) error {
	var keys auth.Keys
	for i, t := range tenants {
		if t.ID.line == 0 {
			return fmt.Errorf("tenant %d has no id", i+1)
		}
		if err := keys.AddTenant(t.ID.value); err != nil {
			return fmt.Errorf("line %d: %w", t.ID.line, err)
		}
		for _, key := range t.Keys {
			if err := keys.AddKey(t.ID.value, key.value); err != nil {
				return fmt.Errorf("line %d: %w", key.line, err)
			}
		}
	}
	return nil
}

var unknownField = regexp.MustCompile(`field (\S+) not found in type \S+`)

// plainYAML words the library's errors for people who do not know its types.
func plainYAML(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var faults *yaml.TypeError
	if errors.As(err, &faults) {
		text = strings.Join(faults.Errors, "; ")
	}
	return unknownField.ReplaceAllString(text, `unknown key "$1"`)
}
