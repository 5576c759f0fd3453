package scripted

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"

	"treadle/api"
)

// callArgs is nil for an absent node, the exact bytes of a string, and JSON for a mapping.
func callArgs(n *yaml.Node) ([]byte, error) {
	if n.IsZero() {
		return nil, nil
	}
	// Decoding refuses what the walk below would follow forever: an anchor that contains itself.
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, err
	}
	n = resolve(n)
	switch {
	case n.Kind == yaml.MappingNode:
		return appendJSON(nil, n)
	case n.Tag == "!!str":
		return []byte(n.Value), nil
	}
	return nil, fmt.Errorf("line %d: args are a mapping, or a string for exact bytes", n.Line)
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// appendJSON appends a node as JSON, with its numbers as they were written and its keys in their order.
func appendJSON(b []byte, n *yaml.Node) (_ []byte, err error) {
	n = resolve(n)
	switch n.Kind {
	case yaml.MappingNode:
		b = append(b, '{')
		for i := 0; i < len(n.Content); i += 2 {
			if i > 0 {
				b = append(b, ',')
			}
			key, err := api.Marshal(resolve(n.Content[i]).Value)
			if err != nil {
				return nil, err
			}
			b = append(append(b, key...), ':')
			if b, err = appendJSON(b, n.Content[i+1]); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	case yaml.SequenceNode:
		b = append(b, '[')
		for i, c := range n.Content {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendJSON(b, c); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	}
	text, err := scalarJSON(n)
	return append(b, text...), err
}

func scalarJSON(n *yaml.Node) ([]byte, error) {
	switch n.Tag {
	case "!!int", "!!float", "!!bool", "!!null":
		if json.Valid([]byte(n.Value)) {
			return []byte(n.Value), nil
		}
		var v any
		if err := n.Decode(&v); err != nil {
			return nil, err
		}
		text, err := api.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s is not a JSON value", n.Line, n.Value)
		}
		return text, nil
	}
	return api.Marshal(n.Value)
}
