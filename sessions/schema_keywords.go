package sessions

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// shape is what the guard does with a keyword.
type shape int

const (
	// shapeSchema, shapeList and shapeNamed hold one subschema, a list of them, or named ones.
	shapeSchema shape = iota + 1
	shapeList
	shapeNamed
	shapeRef
	// shapeAssertion goes to the validator; shapeAnnotation does not, but its value is held to the standard, since model providers do so too.
	shapeAssertion
	shapeAnnotation
	// shapeRoot is an annotation that only the root may have.
	shapeRoot
	// shapeRefused would be ignored, or mean something else than its author thinks.
	shapeRefused
)

// keywordRule says how a keyword is read. check returns what is wrong with a value, or nothing.
type keywordRule struct {
	shape  shape
	check  func(v any) string
	advice string
}

// schemaKeywords are the keywords of JSON Schema 2020-12 as this service takes them.
//
// format and content* are annotations, as the standard has it by default: they tell the model and the page, and nothing is refused for them.
// Keywords of older drafts are refused where 2020-12 gives them another meaning or none, and pass where it does not, as definitions.
var schemaKeywords = map[string]keywordRule{
	"not": {shape: shapeSchema}, "if": {shape: shapeSchema}, "then": {shape: shapeSchema}, "else": {shape: shapeSchema},
	"contains": {shape: shapeSchema}, "additionalProperties": {shape: shapeSchema}, "propertyNames": {shape: shapeSchema},
	"unevaluatedProperties": {shape: shapeSchema}, "contentSchema": {shape: shapeSchema}, "items": {shape: shapeSchema},
	"allOf": {shape: shapeList}, "anyOf": {shape: shapeList}, "oneOf": {shape: shapeList}, "prefixItems": {shape: shapeList},
	"properties": {shape: shapeNamed}, "patternProperties": {shape: shapeNamed}, "dependentSchemas": {shape: shapeNamed},
	"$defs": {shape: shapeNamed}, "definitions": {shape: shapeNamed},
	"$ref": {shape: shapeRef},

	"type":    {shape: shapeAssertion, check: checkTypes},
	"enum":    {shape: shapeAssertion, check: checkEnum},
	"const":   {shape: shapeAssertion, check: anything},
	"pattern": {shape: shapeAssertion, check: checkString}, // its text is checked by addPatterns
	"minimum": {shape: shapeAssertion, check: checkNumber}, "exclusiveMinimum": {shape: shapeAssertion, check: checkNumber},
	"maximum": {shape: shapeAssertion, check: checkNumber}, "exclusiveMaximum": {shape: shapeAssertion, check: checkNumber},
	"multipleOf": {shape: shapeAssertion, check: checkPositive},
	"minLength":  {shape: shapeAssertion, check: checkCount}, "maxLength": {shape: shapeAssertion, check: checkCount},
	"minItems": {shape: shapeAssertion, check: checkCount}, "maxItems": {shape: shapeAssertion, check: checkCount},
	"minContains": {shape: shapeAssertion, check: checkCount}, "maxContains": {shape: shapeAssertion, check: checkCount},
	"minProperties": {shape: shapeAssertion, check: checkCount}, "maxProperties": {shape: shapeAssertion, check: checkCount},
	"uniqueItems": {shape: shapeAssertion, check: checkBool},
	"required":    {shape: shapeAssertion, check: checkNames}, "dependentRequired": {shape: shapeAssertion, check: checkDependentRequired},
	// The validator takes indices within an item for indices of the list, unless this is a boolean.
	"unevaluatedItems": {shape: shapeAssertion, check: checkBool},

	"title": {shape: shapeAnnotation, check: checkString}, "description": {shape: shapeAnnotation, check: checkString},
	"$comment": {shape: shapeAnnotation, check: checkString}, "format": {shape: shapeAnnotation, check: checkString},
	"contentEncoding": {shape: shapeAnnotation, check: checkString}, "contentMediaType": {shape: shapeAnnotation, check: checkString},
	"$anchor": {shape: shapeAnnotation, check: checkString}, "default": {shape: shapeAnnotation, check: anything},
	"examples": {shape: shapeAnnotation, check: checkList}, "deprecated": {shape: shapeAnnotation, check: checkBool},
	"readOnly": {shape: shapeAnnotation, check: checkBool}, "writeOnly": {shape: shapeAnnotation, check: checkBool},
	"nullable": {shape: shapeAnnotation, check: checkNullable},

	"$schema": {shape: shapeRoot, check: checkDialect}, "$id": {shape: shapeRoot, check: checkString},

	"$dynamicRef":      {shape: shapeRefused, advice: "dynamic references are not supported; use $ref"},
	"$dynamicAnchor":   {shape: shapeRefused, advice: "dynamic references are not supported; use $ref"},
	"$recursiveRef":    {shape: shapeRefused, advice: "this keyword of draft 2019-09 is not supported; use $ref"},
	"$recursiveAnchor": {shape: shapeRefused, advice: "this keyword of draft 2019-09 is not supported; use $ref"},
	"dependencies":     {shape: shapeRefused, advice: "this keyword of older drafts has no effect in 2020-12; use dependentRequired or dependentSchemas"},
	"additionalItems":  {shape: shapeRefused, advice: "this keyword of older drafts has no effect in 2020-12; use prefixItems for the first items and items for the rest"},
}

var schemaTypes = []string{"array", "boolean", "integer", "null", "number", "object", "string"}

func anything(any) string { return "" }

func checkString(v any) string { return wantType[string](v, "a string") }

func checkBool(v any) string { return wantType[bool](v, "true or false") }

func checkList(v any) string { return wantType[[]any](v, "a list") }

func checkNumber(v any) string { return wantType[json.Number](v, "a number") }

func wantType[T any](v any, want string) string {
	if _, ok := v.(T); !ok {
		return fmt.Sprintf("expected %s, got %s", want, describe(v))
	}
	return ""
}

func checkPositive(v any) string {
	if n, ok := v.(json.Number); ok {
		if r, ok := new(big.Rat).SetString(n.String()); ok && r.Sign() > 0 {
			return ""
		}
	}
	return fmt.Sprintf("expected a number above 0, got %s", describe(v))
}

// checkCount takes what the validator can hold exactly in a float64.
func checkCount(v any) string {
	if n, ok := v.(json.Number); ok {
		if r, ok := new(big.Rat).SetString(n.String()); ok && r.IsInt() && r.Sign() >= 0 && r.Num().BitLen() <= 53 {
			return ""
		}
	}
	return fmt.Sprintf("expected a whole number from 0 to 2^53, got %s", describe(v))
}

func checkTypes(v any) string {
	types := typesOf(v)
	if len(types) == 0 {
		return fmt.Sprintf("expected a type or a list of types, got %s", describe(v))
	}
	for i, t := range types {
		if !slices.Contains(schemaTypes, t) {
			return fmt.Sprintf("there is no type %s; the types are %s", quoteShort(t), strings.Join(schemaTypes, ", "))
		}
		if slices.Contains(types[:i], t) {
			return fmt.Sprintf("the type %s stands twice", t)
		}
	}
	return ""
}

// typesOf returns the types that the keyword type names; none if v is no such value.
func typesOf(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		types := make([]string, len(v))
		for i := range v {
			t, ok := v[i].(string)
			if !ok {
				return nil
			}
			types[i] = t
		}
		return types
	default:
		return nil
	}
}

func checkEnum(v any) string {
	if list, ok := v.([]any); !ok || len(list) == 0 {
		return fmt.Sprintf("expected a list of at least one value, got %s", describe(v))
	}
	return ""
}

func checkNames(v any) string {
	list, ok := v.([]any)
	if !ok {
		return fmt.Sprintf("expected a list of property names, got %s", describe(v))
	}
	seen := make(map[string]bool, len(list))
	for _, item := range list {
		name, ok := item.(string)
		if !ok {
			return fmt.Sprintf("expected a list of property names, got one with %s in it", describe(item))
		}
		if seen[name] {
			return fmt.Sprintf("the name %s stands twice", quoteShort(name))
		}
		seen[name] = true
	}
	return ""
}

func checkDependentRequired(v any) string {
	members, ok := v.(map[string]any)
	if !ok {
		return fmt.Sprintf("expected an object whose members are lists of property names, got %s", describe(v))
	}
	for name, names := range members {
		if reason := checkNames(names); reason != "" {
			return fmt.Sprintf("%s: %s", quoteShort(name), reason)
		}
	}
	return ""
}

// checkNullable refuses OpenAPI 3.0's way to say "or null": a model that follows it would be told that null is wrong.
func checkNullable(v any) string {
	if v == true {
		return `nullable is not JSON Schema and would have no effect; name the type "null", as in "type": ["string", "null"]`
	}
	return ""
}

// checkDialect takes the drafts whose common keywords mean the same. They are all read as 2020-12, and what changed between
// them is refused at its keyword.
func checkDialect(v any) string {
	uri, _ := v.(string)
	_, uri, _ = strings.Cut(strings.TrimSuffix(uri, "#"), "://json-schema.org/")
	if slices.Contains([]string{"draft/2020-12/schema", "draft/2019-09/schema", "draft-07/schema"}, uri) {
		return ""
	}
	return `only JSON Schema 2020-12 is supported, and of draft 2019-09 and draft-07 what means the same; rewrite the schema, or leave "$schema" away if it is one of these`
}

// foldsCase finds patterns that may ignore case.
var foldsCase = regexp.MustCompile(`\(\?[a-zA-Z-]*i`)

// checkPattern returns the size of the pattern's program, or what is wrong with it.
func checkPattern(pattern string) (size int, reason string) {
	classes := strings.Count(pattern, `\p`) + strings.Count(pattern, `\P`)
	switch folds := foldsCase.MatchString(pattern); {
	case len(pattern) > maxPattern:
		return 0, fmt.Sprintf("the pattern has more than %d bytes", maxPattern)
	case folds && (classes > 0 || strings.Contains(pattern, `\x`) || strings.ContainsFunc(pattern, func(r rune) bool { return r >= utf8.RuneSelf })):
		return 0, "a pattern that ignores case, (?i), is held to ASCII"
	case classes > maxClasses:
		return 0, fmt.Sprintf("the pattern has more than %d Unicode classes", maxClasses)
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, patternFault(pattern, err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, patternFault(pattern, err)
	}
	size = len(program.Inst)
	for _, inst := range program.Inst {
		size += len(inst.Rune) / 10
	}
	if size > maxProgram {
		return 0, "the pattern is too large; use fewer or shorter repetitions, or minLength and maxLength"
	}
	if _, err := regexp.Compile(pattern); err != nil {
		return 0, patternFault(pattern, err)
	}
	return size, ""
}

func patternFault(pattern string, err error) string {
	for _, around := range []string{"(?=", "(?!", "(?<=", "(?<!"} {
		if strings.Contains(pattern, around) {
			return fmt.Sprintf("the pattern uses look-ahead or look-behind, %s…), which is not supported (patterns are RE2); write it without, or let the tool check that", around)
		}
	}
	var fault *syntax.Error
	if errors.As(err, &fault) {
		return fmt.Sprintf("the pattern is not a regular expression that is supported (RE2: no look-around, no back-references, no \\u): %s: %s", fault.Code, quoteShort(fault.Expr))
	}
	return "the pattern is not a regular expression that is supported (RE2)"
}

// describe names a decoded value's type, and the value itself if it is small.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return fmt.Sprint(v)
	case json.Number:
		return "the number " + shorten(v.String(), 64)
	case string:
		return "the string " + quoteShort(v)
	case []any:
		if len(v) == 0 {
			return "an empty list"
		}
		return "a list"
	default:
		return "an object"
	}
}
