package contract

// closeObjects makes schemas refuse members that they do not declare. Answers are open by contract, so that clients take what a
// later server adds; but this server adds nothing that its contract does not have.
func closeObjects(components map[string]any) {
	bases := map[string]bool{"Problem": true} // a problem's facts are open
	for _, schema := range components {
		collectBases(schema, bases)
	}
	for name, schema := range components {
		if node, ok := schema.(map[string]any); ok {
			closeObject(node, bases[name])
		}
	}
}

// collectBases finds the components that are parts of others: those cannot be closed by themselves.
func collectBases(node any, bases map[string]bool) {
	switch node := node.(type) {
	case map[string]any:
		parts, _ := node["allOf"].([]any)
		for _, part := range parts {
			const prefix = "#/components/schemas/"
			if part, ok := part.(map[string]any); ok {
				if ref, ok := part["$ref"].(string); ok && len(ref) > len(prefix) {
					bases[ref[len(prefix):]] = true
				}
			}
		}
		for _, child := range node {
			collectBases(child, bases)
		}
	case []any:
		for _, child := range node {
			collectBases(child, bases)
		}
	}
}

// closeObject closes a schema, unless it is only a part of one, and the schemas of its members and items.
func closeObject(node map[string]any, part bool) {
	properties, _ := node["properties"].(map[string]any)
	parts, _ := node["allOf"].([]any)
	_, decided := node["additionalProperties"]
	if (properties != nil || parts != nil) && !part && !decided {
		node["unevaluatedProperties"] = false
	}
	for _, p := range parts {
		if p, ok := p.(map[string]any); ok {
			closeObject(p, true)
		}
	}
	for _, p := range properties {
		if p, ok := p.(map[string]any); ok {
			closeObject(p, false)
		}
	}
	if items, ok := node["items"].(map[string]any); ok {
		closeObject(items, false)
	}
}
