package sessions

import (
	"encoding/json"
	"slices"

	"github.com/kaptinlin/jsonschema"
)

// The validator applies every branch, keeps a result for each, and compiles the names of patternProperties over and over. So
// before it runs, the same steps are counted here, in about nanoseconds as measured, and given up when they exceed a budget.
const (
	// maxCost is what any value may cost, and maxCostByte what it may cost more for each of its bytes.
	maxCost     = 250_000_000
	maxCostByte = 40
	// fullShares is how many values that are checked together may cost maxCost each; more share what these may.
	fullShares = 4
	// costNode is for applying one subschema to one value, costAssert for each of its assertions, and costMember for each
	// member or item that is kept account of.
	costNode   = 2500
	costAssert = 700
	costMember = 200
	// costPlace is for writing down which member a subschema was applied to, or which branch was.
	costPlace = 500
	// costByte is for each byte of a string, which the validator quotes each time; costMatch for each of them and each instruction of a pattern.
	costByte  = 40
	costMatch = 10
	// costCompile is for each instruction of a name pattern that is compiled again.
	costCompile = 500
	// costDigit is for each digit of a number that is made exact; costCompare for comparing with one value of an enum.
	costDigit   = 150
	costCompare = 1000
	// costKeyword is for each name that a keyword lists.
	costKeyword = 100
)

// nodeCost is what applying a subschema costs apart from its children.
type nodeCost struct {
	fixed, perByte int64
	// compared counts the values within enum and const, numbers how many of them are numbers.
	compared, numbers int64
}

// addCosts fills s.costs for n and everything below.
func (s *schema) addCosts(n *jsonschema.Schema) {
	if n == nil {
		return
	}
	if _, done := s.costs[n]; done {
		return
	}
	c := nodeCost{fixed: costNode, perByte: costByte}
	for _, v := range n.Enum {
		c.weigh(v)
	}
	if n.Const != nil {
		c.weigh(n.Const.Value)
	}
	c.fixed += c.compared*costCompare + c.numbers*2*costCompare + costAssert*assertions(n)
	if n.Pattern != nil {
		c.perByte += costMatch * int64(s.programs[*n.Pattern])
	}
	if n.PatternProperties != nil {
		for pattern := range *n.PatternProperties {
			c.fixed += costCompile * int64(s.programs[pattern]+10)
		}
	}
	c.fixed += costKeyword * int64(len(n.Required))
	for _, names := range n.DependentRequired {
		c.fixed += costKeyword * int64(len(names)+1)
	}
	s.costs[n] = c
	for child := range children(n) {
		s.addCosts(child)
	}
}

// assertions counts the keywords of n that may fail by themselves; bounds of numbers count double, being written out exactly.
func assertions(n *jsonschema.Schema) int64 {
	count := int64(0)
	for _, present := range []bool{
		len(n.Type) > 0, n.Enum != nil, n.Const != nil, n.Pattern != nil, n.MinLength != nil, n.MaxLength != nil, n.UniqueItems != nil,
		n.MinItems != nil, n.MaxItems != nil, n.MinContains != nil, n.MaxContains != nil, n.MinProperties != nil, n.MaxProperties != nil,
		n.AnyOf != nil, n.OneOf != nil, n.AllOf != nil, n.ResolvedRef != nil,
	} {
		if present {
			count++
		}
	}
	for _, bound := range []*jsonschema.Rat{n.Minimum, n.Maximum, n.ExclusiveMinimum, n.ExclusiveMaximum, n.MultipleOf} {
		if bound != nil {
			count += 2
		}
	}
	return count
}

// weigh adds a value to what is compared with.
func (c *nodeCost) weigh(v any) {
	c.compared++
	switch v := v.(type) {
	case json.Number:
		c.numbers += int64(1 + magnitude(v.String())/10)
	case string:
		c.fixed += int64(len(v))
	case []any:
		for _, item := range v {
			c.weigh(item)
		}
	case map[string]any:
		for name, item := range v {
			c.fixed += int64(len(name))
			c.weigh(item)
		}
	}
}

// children visits the immediate subschemas of n, without the targets of references, which are visited under $defs.
func children(n *jsonschema.Schema) func(yield func(*jsonschema.Schema) bool) {
	return func(yield func(*jsonschema.Schema) bool) {
		lists := [][]*jsonschema.Schema{n.AllOf, n.AnyOf, n.OneOf, n.PrefixItems, {
			n.Not, n.If, n.Then, n.Else, n.Items, n.Contains, n.AdditionalProperties, n.PropertyNames, n.UnevaluatedItems, n.UnevaluatedProperties}}
		for _, list := range lists {
			for _, child := range list {
				if child != nil && !yield(child) {
					return
				}
			}
		}
		for _, named := range []map[string]*jsonschema.Schema{n.Defs, n.DependentSchemas, members(n.Properties), members(n.PatternProperties)} {
			for _, child := range named {
				if !yield(child) {
					return
				}
			}
		}
	}
}

func members(m *jsonschema.SchemaMap) map[string]*jsonschema.Schema {
	if m == nil {
		return nil
	}
	return *m
}

// patternsPerNode is how many instructions of patterns weigh as much as a subschema, in a registry.
const patternsPerNode = 100

// weight says what it costs to compile and keep the schema, in subschemas.
func (s *schema) weight() int { return s.nodes + s.instructions/patternsPerNode }

// affordable tells whether validating v, one of share values and of size bytes and with no number beyond the magnitude widest, stays within the budget.
func (s *schema) affordable(v any, size, widest, share int) bool {
	m := meter{schema: s, left: maxCost/max(1, int64(share)/fullShares) + maxCostByte*int64(size), widest: int64(widest)}
	m.apply(s.root, v)
	return m.left >= 0
}

// meter counts the cost of a validation down. Once left is negative, nothing else matters.
type meter struct {
	schema *schema
	left   int64
	widest int64
	// depth counts the nodes that are in work.
	depth int64
}

// apply counts what the validator does for n and v, all branches included.
func (m *meter) apply(n *jsonschema.Schema, v any) {
	if n == nil || m.left < 0 {
		return
	}
	c := m.schema.costs[n]
	m.depth++
	defer func() { m.depth-- }()
	m.left -= c.fixed + 3*m.depth // the validator looks for n among all that are in work
	switch v := v.(type) {
	case string:
		m.left -= c.perByte * int64(len(v))
	case json.Number:
		m.left -= costDigit * int64(magnitude(v.String())) * (1 + c.compared/10)
	case []any:
		m.items(n, v)
	case map[string]any:
		m.properties(n, v)
	}
	if c.numbers > 0 && isContainer(v) { // numbers within v are made exact for each comparison
		m.left -= (costCompare + costDigit*m.widest) * c.numbers
	}
	m.apply(n.ResolvedRef, v)
	for _, list := range [][]*jsonschema.Schema{n.AllOf, n.AnyOf, n.OneOf} {
		for _, child := range list {
			m.left -= costPlace
			m.apply(child, v)
		}
	}
	m.apply(n.Not, v)
	if n.If != nil {
		m.apply(n.If, v)
		m.apply(n.Then, v)
		m.apply(n.Else, v)
	}
}

func isContainer(v any) bool {
	switch v.(type) {
	case []any, map[string]any:
		return true
	default:
		return false
	}
}

func (m *meter) items(n *jsonschema.Schema, list []any) {
	m.left -= costMember * int64(len(list))
	if n.UniqueItems != nil && *n.UniqueItems {
		for _, item := range list {
			m.whole(item)
		}
	}
	for i, item := range list {
		if m.left < 0 {
			return
		}
		if i < len(n.PrefixItems) {
			m.apply(n.PrefixItems[i], item)
		} else {
			m.apply(n.Items, item)
		}
		m.apply(n.Contains, item)
	}
}

// whole counts a value that is read to its leaves, to find whether another is equal.
func (m *meter) whole(v any) {
	if m.left < 0 {
		return
	}
	m.left -= costCompare
	switch v := v.(type) {
	case string:
		m.left -= int64(len(v))
	case json.Number:
		m.left -= costDigit * int64(magnitude(v.String()))
	case []any:
		for _, item := range v {
			m.whole(item)
		}
	case map[string]any:
		for name, item := range v {
			m.left -= costMember + int64(len(name))
			m.whole(item)
		}
	}
}

func (m *meter) properties(n *jsonschema.Schema, object map[string]any) {
	m.left -= costMember * int64(len(object))
	declared, patterns := members(n.Properties), members(n.PatternProperties)
	m.left -= costKeyword * int64(len(declared))
	if n.AdditionalProperties != nil {
		m.left -= costMember * int64(len(declared))
	}
	for name, child := range declared {
		if m.left < 0 {
			return
		}
		if v, ok := object[name]; ok {
			m.member(child, name, v)
			continue
		}
		m.left -= int64(len(n.Required)) * 5
		if m.left >= 0 && slices.Contains(n.Required, name) { // the validator applies it to null
			m.member(child, name, nil)
		}
	}
	for name, v := range object {
		if m.left < 0 {
			return
		}
		m.member(n.PropertyNames, name, name)
		_, known := declared[name]
		for pattern, child := range patterns {
			if m.left -= 2 * costMatch * int64(m.schema.programs[pattern]) * int64(len(name)+1); m.left < 0 {
				return
			}
			if m.schema.patterns[pattern].MatchString(name) {
				known = true
				m.member(child, name, v)
			}
		}
		if !known {
			m.member(n.AdditionalProperties, name, v)
			m.member(n.UnevaluatedProperties, name, v)
		}
	}
	for name, child := range n.DependentSchemas {
		if _, ok := object[name]; ok {
			m.member(child, name, object)
		}
	}
}

// member counts n for a value that the validator locates by its name.
func (m *meter) member(n *jsonschema.Schema, name string, v any) {
	if n != nil {
		m.left -= costPlace + costByte*int64(len(name))
		m.apply(n, v)
	}
}
