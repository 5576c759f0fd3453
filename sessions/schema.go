package sessions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kaptinlin/jsonschema"
)

// The bounds of schemas. Together they keep compiling, and validating any value, under a second and about 100 MB.
const (
	maxSchemaBytes = 256 << 10
	maxSchemaDepth = 64
	// maxSchemaNodes bounds the subschemas of one schema, and maxSchemaWeight those that apply to one value.
	maxSchemaNodes  = 10_000
	maxSchemaWeight = 2000
	// maxPattern bounds a pattern in bytes, maxProgram in instructions, and maxPrograms all patterns of a schema together.
	maxPattern  = 1024
	maxClasses  = 20
	maxProgram  = 4096
	maxPrograms = 50_000
	// maxRefWork bounds the sum over all references of their depth squared: the validator looks for each target from each level up.
	maxRefWork = 300_000
	// maxNumber bounds the digits and the exponent of numbers that are compared: exact arithmetic has no cheap 1e-999999.
	maxNumber = 500
	// maxSchemaValues bounds the parts of a value that is validated.
	maxSchemaValues = 500_000
	// maxFaults is how many faults one error lists.
	maxFaults = 5
	// maxPointer and maxReason bound one fault's text in bytes.
	maxPointer = 200
	maxReason  = 400
)

// schema is a compiled JSON Schema. It is safe for concurrent use.
type schema struct {
	root *jsonschema.Schema
	// nodes counts the subschemas, as a measure of memory.
	nodes    int
	costs    map[*jsonschema.Schema]nodeCost
	patterns map[string]*regexp.Regexp
	programs map[string]int
	// instructions counts those of all patterns, wherever they stand.
	instructions int
	// validating is held if there are patterns: the validator keeps its compiled patterns without a lock.
	validating sync.Mutex
}

// compileSchema compiles a schema of any root type, as for results. The error is a *schemaError with a pointer into the schema.
//
// Schemas are read as JSON Schema 2020-12. See schemaKeywords for what is refused; nothing outside of raw is ever read.
func compileSchema(raw json.RawMessage) (*schema, error) {
	return compile(raw, func(*node) error { return nil })
}

// compileArgsSchema compiles the schema of a tool's arguments, which are an object always. An absent schema, or {}, means that the
// tool takes no parameters: it is the same as {"type":"object"}, so that what a model sends in spite of it does no harm.
//
// A root without type is held to objects too, and may use anyOf, oneOf, allOf, if or $ref as long as an object can satisfy it; what
// a provider does not take of that is rewritten for that provider, never here.
func compileArgsSchema(raw json.RawMessage) (*schema, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = json.RawMessage("{}")
	}
	return compile(raw, func(root *node) error {
		if t, ok := root.asserts["type"]; ok && t != "object" {
			return &schemaError{Pointer: "/type", Reason: `arguments are always an object: the root has "type": "object"`}
		}
		if !root.admitsObject() {
			return &schemaError{Reason: "arguments are always an object, and this schema allows none"}
		}
		root.asserts = put(root.asserts, "type", any("object"))
		return nil
	})
}

func compile(raw json.RawMessage, checkRoot func(*node) error) (*schema, error) {
	if len(raw) > maxSchemaBytes {
		return nil, &schemaError{Reason: fmt.Sprintf("the schema has %d bytes, more than %d", len(raw), maxSchemaBytes)}
	}
	if err := scanJSON(raw, maxSchemaDepth, checkMagnitude); err != nil {
		return nil, err
	}
	decoded, err := decodeNumbers(raw)
	if err != nil {
		return nil, err
	}
	g, err := guardSchema(decoded)
	if err != nil {
		return nil, err
	}
	if err := checkRoot(g.root); err != nil {
		return nil, err
	}
	plain, err := json.Marshal(g.schema())
	if err != nil {
		return nil, fmt.Errorf("encoding a schema: %w", err)
	}
	compiler := jsonschema.NewCompiler() // of its own, so that no two schemas share a space of names
	clear(compiler.Loaders)
	root, err := compiler.Compile(plain)
	if err != nil {
		return nil, &schemaError{Reason: "the schema cannot be compiled: " + shorten(err.Error(), maxReason)}
	}
	if unresolved := root.UnresolvedReferenceURIs(); len(unresolved) > 0 {
		return nil, &schemaError{Reason: "the schema has a reference that cannot be resolved: " + quoteShort(unresolved[0])}
	}
	s := &schema{root: root, nodes: len(g.nodes), costs: map[*jsonschema.Schema]nodeCost{}, programs: g.programs, instructions: g.program}
	if len(g.programs) > 0 {
		s.patterns = make(map[string]*regexp.Regexp, len(g.programs))
		for pattern := range g.programs {
			s.patterns[pattern] = regexp.MustCompile(pattern)
		}
	}
	s.addCosts(root)
	return s, nil
}

// validate returns nil if the value satisfies the schema, and otherwise a *schemaError with pointers into the value. It also
// refuses what checkJSON refuses, and values that are too large to be checked against this schema within the bounds.
func (s *schema) validate(value json.RawMessage) error { return s.validateShare(value, 1) }

// validateShare is validate for one of share values that are checked together, and may cost accordingly less.
func (s *schema) validateShare(value json.RawMessage, share int) error {
	values, widest := 0, 0
	err := scanJSON(value, maxJSONDepth, func(kind jsontext.Kind, raw []byte) error {
		if values++; values > maxSchemaValues {
			return fmt.Errorf("the value has more than %d parts and cannot be checked against a schema", maxSchemaValues)
		}
		if kind == '0' {
			widest = max(widest, magnitude(string(raw)))
		}
		return checkMagnitude(kind, raw)
	})
	if err != nil {
		return err
	}
	decoded, err := decodeNumbers(value)
	if err != nil {
		return err
	}
	if !s.affordable(decoded, len(value), widest, share) {
		return &schemaError{Reason: "the value is too large to be checked against this schema; make it smaller, or the schema simpler"}
	}
	if len(s.programs) > 0 {
		s.validating.Lock()
		defer s.validating.Unlock()
	}
	result := s.root.Validate(decoded)
	if result.IsValid() {
		return nil
	}
	var faults schemaFaults
	faults.collect(result, nil, decoded)
	if len(faults) == 0 {
		faults.add(nil, "does not satisfy the schema")
	}
	return faults.err()
}

func checkMagnitude(kind jsontext.Kind, raw []byte) error {
	if kind == '0' && magnitude(string(raw)) > maxNumber {
		return fmt.Errorf("a number with more than %d digits, or an exponent beyond it, cannot be checked", maxNumber)
	}
	return nil
}

// magnitude is about how many digits a number has when it is written out.
func magnitude(number string) int {
	digits, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	n, err := strconv.Atoi(exponent)
	if err != nil && exponent != "" {
		n = maxNumber // out of range
	}
	return max(n, -n) + len(digits)
}

// decodeNumbers decodes JSON that was checked before, keeping the digits of numbers.
func decodeNumbers(raw []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("decoding JSON: %w", err)
	}
	return v, nil
}

// schemaError is a fault in JSON, in a schema, or in a value that does not satisfy one.
type schemaError struct {
	// Pointer leads to the fault (RFC 6901); empty is the whole.
	Pointer string
	// Reason says what is wrong there, in words for whoever wrote it: a page's author or a model.
	Reason string
	// More are further faults.
	More []*schemaError
}

func (e *schemaError) Error() string {
	var b strings.Builder
	for i, fault := range append([]*schemaError{e}, e.More...) {
		if i > 0 {
			b.WriteString("; ")
		}
		if fault.Pointer != "" {
			b.WriteString(strconv.Quote(fault.Pointer) + ": ")
		}
		b.WriteString(fault.Reason)
	}
	return b.String()
}

// schemaFaults collects the first few faults.
type schemaFaults []*schemaError

func (f *schemaFaults) add(path []string, reason string) {
	f.addAt(pointerOf(path), reason)
}

func (f *schemaFaults) addAt(pointer, reason string) {
	fault := &schemaError{Pointer: pointer, Reason: shorten(reason, maxReason)}
	known := slices.ContainsFunc(*f, func(e *schemaError) bool { return e.Pointer == fault.Pointer && e.Reason == fault.Reason })
	if len(*f) < maxFaults && !known {
		*f = append(*f, fault)
	}
}

func (f schemaFaults) err() error {
	if len(f) == 0 {
		return nil
	}
	first := *f[0]
	first.More = f[1:]
	return &first
}

// pointerOf returns the pointer to path, cut if it is long.
func pointerOf(path []string) string {
	var b strings.Builder
	for _, token := range path {
		b.WriteString("/" + pointerToken(shorten(token, maxPointer)))
		if b.Len() > maxPointer {
			break
		}
	}
	return shorten(b.String(), maxPointer)
}

// asSchemaError returns the fault that err is about; its pointer is empty when err is about something else.
func asSchemaError(err error) *schemaError {
	var fault *schemaError
	if errors.As(err, &fault) {
		return fault
	}
	return &schemaError{Reason: err.Error()}
}
