package sessions

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kaptinlin/jsonschema"
)

// collect adds the faults of a validation: what stands at r itself, and what stands below. v is the value at path.
func (f *schemaFaults) collect(r *jsonschema.EvaluationResult, path []string, v any) {
	for _, keyword := range slices.Sorted(maps.Keys(r.Errors)) {
		if reason := wording(r, r.Errors[keyword], v); reason != "" {
			f.add(path, reason)
		}
	}
	for _, d := range byLocation(r.Details) {
		if len(*f) == maxFaults {
			return
		}
		keyword, name := splitLocation(d)
		child, childPath := v, path
		switch keyword {
		case "if", "not", "anyOf", "oneOf":
			continue // whether they fail decides nothing by itself; wording tells when it does
		case "dependentSchemas":
			// The validator locates the failure at the property, but it is about the object.
		case "propertyNames":
			var names schemaFaults
			if names.collect(d, nil, name); len(names) > 0 {
				f.add(append(slices.Clone(path), name), "the property name: "+names[0].Reason)
			}
			continue
		default:
			if d.InstanceLocation != "" {
				token := d.InstanceLocation[1:]
				var exists bool
				if child, exists = member(v, token); !exists {
					continue // required and missing, which has been said
				}
				childPath = append(slices.Clone(path), token)
			}
		}
		if (keyword == "additionalProperties" || keyword == "unevaluatedProperties") && isFalse(d) {
			f.add(childPath, "unexpected property "+quoteShort(childPath[len(childPath)-1]))
			continue
		}
		f.collect(d, childPath, child)
	}
}

// byLocation returns the failed results in an order that does not change from run to run.
func byLocation(details []*jsonschema.EvaluationResult) []*jsonschema.EvaluationResult {
	failed := slices.DeleteFunc(slices.Clone(details), func(d *jsonschema.EvaluationResult) bool { return d.IsValid() })
	slices.SortStableFunc(failed, func(a, b *jsonschema.EvaluationResult) int {
		return cmp.Or(cmp.Compare(len(a.InstanceLocation), len(b.InstanceLocation)), cmp.Compare(a.InstanceLocation, b.InstanceLocation), cmp.Compare(a.EvaluationPath, b.EvaluationPath))
	})
	return failed
}

// splitLocation returns the keyword that applied d, and the name or index under it; none of both for a reference.
func splitLocation(d *jsonschema.EvaluationResult) (keyword, name string) {
	keyword, name, _ = strings.Cut(strings.TrimPrefix(d.EvaluationPath, "/"), "/")
	return keyword, name
}

func isFalse(r *jsonschema.EvaluationResult) bool { return r.Errors["schema"] != nil }

// member returns the child of v that a token of a pointer names.
func member(v any, token string) (child any, exists bool) {
	switch v := v.(type) {
	case map[string]any:
		child, exists = v[token]
	case []any:
		if i, err := strconv.Atoi(token); err == nil && i >= 0 && i < len(v) {
			return v[i], true
		}
	}
	return child, exists
}

// wording says what an error of the validator means; nothing, for one that only tells of failures below.
func wording(r *jsonschema.EvaluationResult, e *jsonschema.EvaluationError, v any) string {
	param := func(name string) string { return fmt.Sprint(e.Params[name]) }
	switch e.Code {
	case "type_mismatch":
		return fmt.Sprintf("expected %s, got %s", strings.ReplaceAll(param("expected"), ", ", " or "), typeName(v))
	case "missing_required_property":
		return "missing required property " + param("property")
	case "missing_required_properties":
		return "missing required properties " + param("properties")
	case "value_not_in_enum":
		return fmt.Sprintf("expected one of %s, got %s", shorten(param("expected"), maxReason/2), describe(v))
	case "const_mismatch", "const_mismatch_null":
		return "is not the one value that the schema allows (const)"
	case "false_schema_mismatch":
		return "nothing is allowed here"
	case "unevaluated_items_not_allowed":
		return "unexpected items at " + shorten(param("indexes"), maxPointer)
	case "dependent_property_required":
		return "missing properties that others require: " + shorten(param("missing_properties"), maxReason/2)
	case "not_schema_mismatch":
		return "is what the schema excludes (not)"
	case "any_of_item_mismatch":
		return alternatives(r, "anyOf", v)
	case "one_of_item_mismatch":
		return alternatives(r, "oneOf", v)
	case "one_of_multiple_matches":
		return fmt.Sprintf("must satisfy exactly one alternative of oneOf, but satisfies those at %s", shorten(param("matches"), maxPointer))
	case "pattern_mismatch":
		return "does not match the pattern " + shorten(param("pattern"), maxPointer)
	case "contains_too_few_items":
		return fmt.Sprintf("expected at least %s items that satisfy contains, got %s", param("min_contains"), param("count"))
	case "contains_too_many_items":
		return fmt.Sprintf("expected at most %s items that satisfy contains, got %s", param("max_contains"), param("count"))
	case "string_too_long":
		return fmt.Sprintf("expected at most %s characters, got %s", param("max_length"), param("length"))
	case "string_too_short":
		return fmt.Sprintf("expected at least %s characters, got %s", param("min_length"), param("length"))
	case "items_too_long":
		return fmt.Sprintf("expected at most %s items, got %s", param("max_items"), param("count"))
	case "items_too_short":
		return fmt.Sprintf("expected at least %s items, got %s", param("min_items"), param("count"))
	case "too_many_properties":
		return "has too many properties (maxProperties)"
	case "too_few_properties":
		return "has too few properties (minProperties)"
	case "value_above_maximum", "exclusive_maximum_mismatch", "value_below_minimum", "exclusive_minimum_mismatch", "not_multiple_of", "unique_items_mismatch":
		return strings.Replace(e.Error(), "Array items", "items", 1)
	}
	return ""
}

// alternatives says why none of the branches of anyOf or oneOf is satisfied, for the first three.
func alternatives(r *jsonschema.EvaluationResult, keyword string, v any) string {
	var reasons []string
	n := 0
	for _, d := range r.Details {
		if k, index := splitLocation(d); k == keyword {
			n++
			var faults schemaFaults
			if faults.collect(d, nil, v); len(faults) > 0 && len(reasons) < 3 {
				only := *faults[0]
				reasons = append(reasons, fmt.Sprintf("[%s] %s", index, shorten(only.Error(), maxReason/4)))
			}
		}
	}
	return fmt.Sprintf("satisfies none of the %d alternatives of %s: %s", n, keyword, strings.Join(reasons, "; "))
}

func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case json.Number:
		return "the number " + shorten(v.String(), 40)
	case string:
		return "string"
	case []any:
		return "array"
	default:
		return "object"
	}
}
