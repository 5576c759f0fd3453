package demo

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"treadle/api"
)

const (
	// maxDepth and maxProperties bound how much of a schema is looked at.
	maxDepth      = 4
	maxProperties = 64
)

// schema is the part of a JSON Schema that arguments are made from.
type schema struct {
	Type       json.RawMessage   `json:"type"`
	Properties json.RawMessage   `json:"properties"`
	Required   []string          `json:"required"`
	Items      json.RawMessage   `json:"items"`
	AnyOf      []json.RawMessage `json:"anyOf"`
	OneOf      []json.RawMessage `json:"oneOf"`
	Enum       []json.RawMessage `json:"enum"`
	Const      json.RawMessage   `json:"const"`
	Default    json.RawMessage   `json:"default"`
	Examples   []json.RawMessage `json:"examples"`
	Minimum    json.RawMessage   `json:"minimum"`
	Format     string            `json:"format"`
}

// slot is a place in the arguments that wants a value.
type slot struct {
	schema
	key  string
	name []string
	// kind is a JSON Schema type.
	kind     string
	required bool
	// parts are the properties of an object, in the order of the schema.
	parts []*slot
	value json.RawMessage
}

// newSlot reads as much of a schema as it understands.
func newSlot(key string, raw json.RawMessage, required bool, depth int) *slot {
	s := &slot{key: key, name: stems(key), required: required}
	// What does not fit the struct stays zero: the rest is still worth having.
	_ = json.Unmarshal(raw, &s.schema)
	s.kind = s.typeName()
	if s.kind == "" && depth < maxDepth {
		for _, branch := range slices.Concat(s.AnyOf, s.OneOf) {
			if b := newSlot(key, branch, required, depth+1); b.kind != "null" {
				return b
			}
		}
	}
	if s.kind == "" {
		s.kind = "string"
	}
	if s.kind == "object" && depth < maxDepth {
		s.readParts(depth)
	}
	return s
}

func (s *slot) readParts(depth int) {
	dec := json.NewDecoder(bytes.NewReader(s.Properties))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return
	}
	for dec.More() && len(s.parts) < maxProperties {
		k, err := dec.Token()
		var v json.RawMessage
		if err != nil || dec.Decode(&v) != nil {
			break
		}
		name, _ := k.(string)
		s.parts = append(s.parts, newSlot(name, v, slices.Contains(s.Required, name), depth+1))
	}
}

// typeName is the first type that is not null, or what the other keywords imply.
func (s *slot) typeName() string {
	var one string
	var several []string
	if json.Unmarshal(s.Type, &one) == nil {
		return one
	}
	_ = json.Unmarshal(s.Type, &several)
	for _, t := range several {
		if t != "null" {
			return t
		}
	}
	switch {
	case s.Properties != nil:
		return "object"
	case s.Items != nil:
		return "array"
	}
	return ""
}

// leaves are the slots that a value can be put into.
func (s *slot) leaves() []*slot {
	if len(s.parts) == 0 {
		return []*slot{s}
	}
	var out []*slot
	for _, p := range s.parts {
		out = append(out, p.leaves()...)
	}
	return out
}

// render is the slot's value, for an object made of its parts; nil for an optional slot without a value. The request stands
// in for a required text that nothing was found for.
func (s *slot) render(request string) json.RawMessage {
	if s.value != nil {
		return s.value
	}
	if !s.required && !slices.ContainsFunc(s.leaves(), func(leaf *slot) bool { return leaf.value != nil }) {
		return nil
	}
	if len(s.parts) == 0 {
		return s.fallback(request)
	}
	var b bytes.Buffer
	for _, p := range s.parts {
		v := p.render(request)
		if v == nil {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.Write(quote(p.key))
		b.WriteByte(':')
		b.Write(v)
	}
	return json.RawMessage("{" + b.String() + "}")
}

// preset is the value that the schema itself names, if any.
func (s *slot) preset() json.RawMessage {
	if s.Const != nil {
		return s.Const
	}
	return s.Default
}

func (s *slot) fallback(request string) json.RawMessage {
	switch {
	case s.preset() != nil:
		return s.preset()
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.Examples) > 0:
		return s.Examples[0]
	}
	switch s.kind {
	case "number", "integer":
		if s.Minimum != nil {
			return s.Minimum
		}
		return json.RawMessage("0")
	case "boolean":
		return json.RawMessage("true")
	case "array":
		return json.RawMessage("[]")
	case "object":
		return json.RawMessage("{}")
	case "null":
		return json.RawMessage("null")
	}
	return quote(strings.TrimSpace(request))
}

func quote(s string) json.RawMessage {
	b, err := api.Marshal(s)
	if err != nil {
		return json.RawMessage(`""`)
	}
	return b
}
