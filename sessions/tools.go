package sessions

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"treadle/api"
)

// The bounds of a registry.
const (
	maxTools         = 500
	maxRegistryBytes = 1 << 20
	// maxRegistryNodes bounds the subschemas of all tools together: compiled, each takes about 2 KB.
	maxRegistryNodes    = 20_000
	maxGuidanceBytes    = 64 << 10
	maxToolName         = 64
	maxDescriptionRunes = 4096
	maxToolTimeoutMS    = 86_400_000
	defaultToolTimeout  = 60_000
)

// toolName is what every provider's rules can be mapped from. Names that differ only by case are different names.
var toolName = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_.-]*$`)

// reservedToolNames are those of the tools by which a model asks for schemas when it has not got them all.
var reservedToolNames = []string{"tool_spec", "tool_call"}

// checkSkills refuses a declaration that could not be used as it is. The refusal names the tool and has a pointer into the
// request, where the declaration stands at prefix.
func checkSkills(s *api.Skills, prefix string) *Error {
	switch {
	case !utf8.ValidString(s.Guidance):
		return refuse(CodeInvalidInput, "guidance is not valid UTF-8").with("pointer", prefix+"/guidance")
	case len(s.Guidance) > maxGuidanceBytes:
		return refuse(CodeInvalidInput, "guidance has %d bytes, more than %d", len(s.Guidance), maxGuidanceBytes).with("pointer", prefix+"/guidance")
	case len(s.Tools) > maxTools:
		return refuse(CodeInvalidInput, "%d tools were declared, more than %d", len(s.Tools), maxTools).with("pointer", prefix+"/tools")
	}
	if size := registryBytes(s); size > maxRegistryBytes {
		return refuse(CodeInvalidInput, "guidance and tools have %d bytes together, more than %d", size, maxRegistryBytes).with("pointer", prefix+"/tools")
	}
	first := make(map[string]int, len(s.Tools))
	nodes := 0
	for i := range s.Tools {
		tool, pointer := &s.Tools[i], fmt.Sprintf("%s/tools/%d", prefix, i)
		if j, known := first[tool.Name]; known {
			return refuseTool(tool, pointer+"/name", "tools %d and %d have the same name", j, i)
		}
		first[tool.Name] = i
		if err := checkTool(tool, pointer); err != nil {
			return err
		}
		n, err := checkToolSchemas(tool, pointer)
		if err != nil {
			return err
		}
		if nodes += n; nodes > maxRegistryNodes {
			return refuseTool(tool, pointer, "the schemas of the tools up to this one have more than %d subschemas together; a pattern counts for one per %d instructions", maxRegistryNodes, patternsPerNode)
		}
	}
	return nil
}

// registryBytes is about the size of the encoded registry.
func registryBytes(s *api.Skills) int {
	const members = 64 // names and punctuation of a tool's members
	size := len(s.Guidance)
	for i := range s.Tools {
		t := &s.Tools[i]
		size += members + len(t.Name) + len(t.Description) + len(t.ArgsSchema) + len(t.ResultSchema)
	}
	return size
}

func refuseTool(tool *api.Tool, pointer, format string, args ...any) *Error {
	detail := fmt.Sprintf("tool %s: ", quoteShort(tool.Name)) + fmt.Sprintf(format, args...)
	return refuse(CodeInvalidInput, "%s", detail).with("tool", shorten(tool.Name, maxPointer)).with("pointer", pointer)
}

// checkTool checks everything but the schemas.
func checkTool(t *api.Tool, pointer string) *Error {
	timeout := t.TimeoutMS
	if timeout == 0 {
		timeout = defaultToolTimeout
	}
	switch {
	case !toolName.MatchString(t.Name) || len(t.Name) > maxToolName:
		return refuseTool(t, pointer+"/name", "a name is at most %d characters, begins with a letter, and holds letters, digits, _ . and - only (%s)", maxToolName, toolName)
	case slices.Contains(reservedToolNames, t.Name):
		return refuseTool(t, pointer+"/name", "this name is the service's own; choose another")
	case strings.TrimSpace(t.Description) == "" || !utf8.ValidString(t.Description):
		return refuseTool(t, pointer+"/description", "a description tells the model when and how to use the tool, in valid UTF-8")
	case utf8.RuneCountInString(t.Description) > maxDescriptionRunes:
		return refuseTool(t, pointer+"/description", "the description has %d characters, more than %d", utf8.RuneCountInString(t.Description), maxDescriptionRunes)
	case t.TimeoutMS < 0 || t.TimeoutMS > maxToolTimeoutMS:
		return refuseTool(t, pointer+"/timeout_ms", "timeout_ms is 1 to %d, or absent for %d", maxToolTimeoutMS, defaultToolTimeout)
	case t.MaxTimeoutMS != 0 && (t.MaxTimeoutMS < timeout || t.MaxTimeoutMS > maxToolTimeoutMS):
		return refuseTool(t, pointer+"/max_timeout_ms", "max_timeout_ms is at least the timeout of %d and at most %d, or absent", timeout, maxToolTimeoutMS)
	}
	return nil
}

// checkToolSchemas compiles the schemas of a tool and returns how much they weigh.
func checkToolSchemas(t *api.Tool, pointer string) (nodes int, refusal *Error) {
	args, err := compileArgsSchema(t.ArgsSchema)
	if err != nil {
		return 0, refuseSchema(t, pointer, "args_schema", err)
	}
	nodes = args.weight()
	if t.ResultSchema != nil {
		result, err := compileSchema(t.ResultSchema)
		if err != nil {
			return 0, refuseSchema(t, pointer, "result_schema", err)
		}
		nodes += result.weight()
	}
	return nodes, nil
}

func refuseSchema(t *api.Tool, pointer, field string, err error) *Error {
	e := refuseTool(t, pointer+"/"+field+asSchemaError(err).Pointer, "%s: %v", field, err)
	e.Err = err
	return e
}

// toolset is a registry in force, ready to check calls. It is safe for concurrent use.
type toolset struct {
	tools map[string]*compiledTool
}

// compiledTool compiles its schemas when they are first needed: most tools of a session are never called.
type compiledTool struct {
	*api.Tool
	args func() (*schema, error)
}

// newToolset returns the tools of s, which is not changed afterwards. It fails if s has a name twice, as checkSkills would.
func newToolset(s *api.Skills) (*toolset, error) {
	ts := &toolset{tools: make(map[string]*compiledTool, len(s.Tools))}
	for i := range s.Tools {
		tool := &s.Tools[i]
		if _, known := ts.tools[tool.Name]; known {
			return nil, fmt.Errorf("tool %s stands twice in the registry", quoteShort(tool.Name))
		}
		ts.tools[tool.Name] = &compiledTool{
			Tool: tool,
			args: sync.OnceValues(func() (*schema, error) { return compileArgsSchema(tool.ArgsSchema) }),
		}
	}
	return ts, nil
}

// checkArgs checks a call as a model made it. args are the model's bytes, or {} for no arguments (nothing, whitespace, null). They
// are always an object that may be stored: also {} when what the model sent is none. terr tells the model what to do better.
//
// share is how many calls the model made at once: what it costs to check them is bounded for all of them together.
func (ts *toolset) checkArgs(name string, raw []byte, share int) (args json.RawMessage, terr *api.ToolError) {
	args = bytes.TrimSpace(raw)
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage("{}")
	}
	syntax := checkJSON(args, maxJSONDepth)
	made := args
	if syntax != nil || args[0] != '{' {
		args = json.RawMessage("{}")
	}
	tool, ok := ts.tools[name]
	if !ok {
		return args, ts.unknownTool(name)
	}
	if syntax != nil {
		return args, argsError(syntax)
	}
	s, err := tool.args()
	if err != nil { // a registry of an older version
		return args, argsError(fmt.Errorf("the tool cannot be called, its args_schema is not valid: %w", err))
	}
	if err := s.validateShare(made, share); err != nil {
		return args, argsError(err)
	}
	return args, nil
}

func argsError(err error) *api.ToolError {
	return &api.ToolError{Code: "TOOL_ARGS_INVALID", Message: "The tool was not run, its arguments are invalid: " + err.Error()}
}

// unknownTool tells the model which name it may have meant. It never lists them all: a model that is lost would only guess.
func (ts *toolset) unknownTool(name string) *api.ToolError {
	meant := strings.TrimSpace(name)
	msg := "There is no tool " + quoteShort(name) + ". Call one of the declared tools by its exact name."
	if meant == "" {
		msg = "The call names no tool. Call one of the declared tools by its exact name."
	} else if len(meant) <= maxToolName {
		for _, candidate := range slices.Sorted(maps.Keys(ts.tools)) {
			if strings.EqualFold(candidate, meant) {
				msg = "There is no tool " + quoteShort(name) + ". Did you mean " + quoteShort(candidate) + "?"
				break
			}
		}
	}
	return &api.ToolError{Code: "TOOL_NOT_FOUND", Message: msg}
}
