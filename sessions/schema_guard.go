package sessions

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The guard stands between a schema that anybody may have sent and the validator. The validator ignores what it does not
// understand, so that a schema with a slip in it accepts or refuses everything; it resolves references relative to where they
// stand, follows them over the network, and asserts content. The guard reads the schema by itself, refuses what would not be
// checked as written, and hands on an equivalent schema that holds assertions only, with every reference target under $defs.

// node is one subschema.
type node struct {
	// up is the node around this one, and at the way from there.
	up      *node
	at      []string
	boolean *bool
	// asserts are the keywords that hold no subschemas, as decoded.
	asserts map[string]any
	one     map[string]*node
	list    map[string][]*node
	named   map[string]map[string]*node
	ref     *node
	// def is the node's name under $defs if it is a reference's target.
	def string
	// weight is how many nodes are applied to one and the same value, this one included; 0 while unknown, inWork on the way down.
	weight int
}

const inWork = -1

// guard reads one schema and collects its faults.
type guard struct {
	faults schemaFaults
	path   []string
	// around is the node that is being read, depth how many there are around it, and begun where its part of path begins.
	around   *node
	begun    int
	depth    int
	root     *node
	nodes    []*node
	refWork  int
	refs     []*node
	targets  []string // of refs
	programs map[string]int
	program  int
	// draft7 is set if the schema says that it is of draft-07.
	draft7 bool
	stack  []*node // in work
}

// guardSchema returns the schema for the validator, with the cost of each pattern.
func guardSchema(v any) (*guard, error) {
	g := &guard{programs: map[string]int{}}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, &schemaError{Reason: fmt.Sprintf("expected a schema, which is an object, got %s", describe(v))}
	}
	uri, _ := object["$schema"].(string)
	g.draft7 = strings.Contains(uri, "draft-07")
	g.root = g.parse(object)
	g.resolve()
	if len(g.faults) > 0 {
		return nil, g.faults.err()
	}
	for _, n := range g.nodes {
		if g.weigh(n) > maxSchemaWeight && len(g.faults) == 0 {
			g.faults.addAt(n.pointer(), fmt.Sprintf("allOf, anyOf, oneOf, not, if, dependentSchemas and $ref would apply more than %d schemas to one value", maxSchemaWeight))
		}
	}
	return g, g.faults.err()
}

func (g *guard) fault(format string, args ...any) {
	g.faults.add(g.path, fmt.Sprintf(format, args...))
}

// in runs read with the tokens added to the path.
func (g *guard) in(read func(), tokens ...string) {
	n := len(g.path)
	g.path = append(g.path, tokens...)
	read()
	g.path = g.path[:n]
}

func (g *guard) parse(v any) *node {
	n := &node{up: g.around}
	if len(g.nodes) == maxSchemaNodes {
		g.fault("the schema has more than %d subschemas", maxSchemaNodes)
		return n
	}
	n.at = slices.Clone(g.path[g.begun:])
	g.nodes = append(g.nodes, n)
	around, begun := g.around, g.begun
	g.around, g.begun, g.depth = n, len(g.path), g.depth+1
	defer func() { g.around, g.begun, g.depth = around, begun, g.depth-1 }()
	switch v := v.(type) {
	case bool:
		n.boolean = &v
	case map[string]any:
		for _, keyword := range slices.Sorted(maps.Keys(v)) {
			g.in(func() { g.keyword(n, keyword, v[keyword]) }, keyword)
		}
		g.addPatterns(n)
		if g.draft7 && v["$ref"] != nil && n.hasSiblings() {
			g.faults.addAt(n.pointer("$ref"), `beside $ref nothing counts in draft-07, but it does in 2020-12; remove it, or "$schema"`)
		}
	default:
		g.fault("expected a schema, which is an object or a boolean, got %s", describe(v))
	}
	return n
}

func (g *guard) keyword(n *node, keyword string, v any) {
	rule, known := schemaKeywords[keyword]
	if !known { // an annotation of somebody's own, as the standard has it
		return
	}
	switch rule.shape {
	case shapeSchema:
		n.one = put(n.one, keyword, g.parse(v))
	case shapeList:
		n.list = put(n.list, keyword, g.parseList(v))
	case shapeNamed:
		n.named = put(n.named, keyword, g.parseNamed(v))
	case shapeRef:
		if target, ok := v.(string); ok {
			g.refs, g.targets = append(g.refs, n), append(g.targets, target)
			before := g.refWork
			if g.refWork += g.depth * g.depth; before <= maxRefWork && g.refWork > maxRefWork {
				g.fault("the schema has too many references deep inside; put the parts that hold them under $defs")
			}
		} else {
			g.fault("expected a string, got %s", describe(v))
		}
	case shapeAssertion:
		if reason := rule.check(v); reason != "" {
			g.fault("%s", reason)
		}
		n.asserts = put(n.asserts, keyword, v)
	case shapeAnnotation:
		if reason := rule.check(v); reason != "" {
			g.fault("%s", reason)
		}
	case shapeRoot:
		if len(g.path) > 1 {
			g.fault("only the root of a schema may have %s: a schema cannot embed another document", keyword)
		} else if reason := rule.check(v); reason != "" {
			g.fault("%s", reason)
		}
	case shapeRefused:
		g.fault("%s", rule.advice)
	}
}

func put[V any](m map[string]V, key string, v V) map[string]V {
	if m == nil {
		m = map[string]V{}
	}
	m[key] = v
	return m
}

func (g *guard) parseList(v any) []*node {
	items, ok := v.([]any)
	if !ok || len(items) == 0 {
		g.fault("expected a list of at least one schema, got %s", describe(v))
		return nil
	}
	nodes := make([]*node, len(items))
	for i, item := range items {
		g.in(func() { nodes[i] = g.parse(item) }, strconv.Itoa(i))
	}
	return nodes
}

func (g *guard) parseNamed(v any) map[string]*node {
	members, ok := v.(map[string]any)
	if !ok {
		g.fault("expected an object whose members are schemas, got %s", describe(v))
		return nil
	}
	nodes := make(map[string]*node, len(members))
	for _, name := range slices.Sorted(maps.Keys(members)) {
		g.in(func() { nodes[name] = g.parse(members[name]) }, name)
	}
	return nodes
}

// addPatterns checks the regular expressions of n, which count wherever they stand: the validator compiles each by itself.
func (g *guard) addPatterns(n *node) {
	if p, ok := n.asserts["pattern"].(string); ok {
		g.in(func() { g.addPattern(p) }, "pattern")
	}
	for _, p := range slices.Sorted(maps.Keys(n.named["patternProperties"])) {
		g.in(func() { g.addPattern(p) }, "patternProperties", p)
	}
}

func (g *guard) addPattern(pattern string) {
	size, known := g.programs[pattern]
	if !known {
		var reason string
		if size, reason = checkPattern(pattern); reason != "" {
			g.fault("%s", reason)
			return
		}
		g.programs[pattern] = size
	}
	if g.program <= maxPrograms && g.program+size > maxPrograms {
		g.fault("the patterns of the schema are too large together; use fewer or shorter repetitions")
	}
	g.program += size
}

// resolve finds the targets of all references within the document.
func (g *guard) resolve() {
	for i, n := range g.refs {
		target := g.targets[i]
		pointer, local := strings.CutPrefix(target, "#")
		switch {
		case !local:
			g.faults.addAt(n.pointer("$ref"), fmt.Sprintf("%s refers to another document, and these are not fetched; put the schema under $defs and refer to it as \"#/$defs/NAME\"", quoteShort(target)))
		case pointer != "" && pointer[0] != '/':
			g.faults.addAt(n.pointer("$ref"), fmt.Sprintf("%s refers to an anchor, which is not supported; refer by JSON pointer, as \"#/$defs/NAME\"", quoteShort(target)))
		default:
			if n.ref = g.root.find(pointer); n.ref == nil {
				g.faults.addAt(n.pointer("$ref"), fmt.Sprintf("there is no schema at %s in this document", quoteShort(target)))
			} else if n.ref != g.root && n.ref.def == "" {
				n.ref.def = strconv.Itoa(i)
			}
		}
	}
}

// weigh finds how much is applied to one value, and refuses references that never get past it.
func (g *guard) weigh(n *node) int {
	if n.weight > 0 {
		return n.weight
	}
	n.weight = inWork
	g.stack = append(g.stack, n)
	weight := 1
	for child := range n.inPlace {
		if child.weight == inWork {
			g.faults.addAt(g.cycleRef(child), "the reference leads back to itself without a step into the value, so that it says nothing")
			continue
		}
		weight = min(weight+g.weigh(child), maxSchemaWeight+1)
	}
	g.stack = g.stack[:len(g.stack)-1]
	n.weight = weight
	return weight
}

// cycleRef returns where a reference stands on the cycle that leads back to n, which is in work.
func (g *guard) cycleRef(n *node) string {
	for i := len(g.stack) - 1; i >= 0; i-- {
		if at := g.stack[i]; at.ref != nil {
			return at.pointer("$ref")
		} else if at == n {
			break
		}
	}
	return n.pointer()
}

// inPlace visits the subschemas that are applied to the same value as n.
func (n *node) inPlace(yield func(*node) bool) {
	if n.ref != nil && !yield(n.ref) {
		return
	}
	for keyword, children := range n.list {
		for _, child := range children {
			if keyword != "prefixItems" && !yield(child) {
				return
			}
		}
	}
	for _, keyword := range []string{"not", "if", "then", "else"} {
		if child := n.one[keyword]; child != nil && !yield(child) {
			return
		}
	}
	for _, child := range n.named["dependentSchemas"] {
		if !yield(child) {
			return
		}
	}
}

// pointer leads to what the tokens name within n; it may be cut.
func (n *node) pointer(tokens ...string) string {
	for ; n != nil; n = n.up {
		tokens = slices.Concat(n.at, tokens)
	}
	return pointerOf(tokens)
}

// hasSiblings tells whether n asserts anything besides its reference.
func (n *node) hasSiblings() bool {
	named := 0
	for keyword := range n.named {
		if keyword != "$defs" && keyword != "definitions" {
			named++
		}
	}
	return len(n.asserts)+len(n.one)+len(n.list)+named > 0
}

// find follows a JSON pointer, as it stands in a reference, from n to a subschema.
func (n *node) find(pointer string) *node {
	pointer, err := url.PathUnescape(pointer)
	if err != nil {
		return nil
	}
	tokens := strings.Split(pointer, "/")[1:]
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for len(tokens) > 0 && n != nil {
		keyword := unescape.Replace(tokens[0])
		if child := n.one[keyword]; child != nil {
			n, tokens = child, tokens[1:]
			continue
		}
		if len(tokens) == 1 {
			return nil
		}
		name := unescape.Replace(tokens[1])
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(n.list[keyword]) && strconv.Itoa(i) == name {
			n = n.list[keyword][i]
		} else {
			n = n.named[keyword][name]
		}
		tokens = tokens[2:]
	}
	return n
}

// admitsObject tells whether an object can satisfy n, as far as types tell. Only for a schema without faults: it has no cycles.
func (n *node) admitsObject() bool {
	if n.boolean != nil {
		return *n.boolean
	}
	if t, ok := n.asserts["type"]; ok && !slices.Contains(typesOf(t), "object") {
		return false
	}
	isObject := func(v any) bool { _, ok := v.(map[string]any); return ok }
	if v, ok := n.asserts["const"]; ok && !isObject(v) {
		return false
	}
	if values, ok := n.asserts["enum"].([]any); ok && !slices.ContainsFunc(values, isObject) {
		return false
	}
	if n.ref != nil && !n.ref.admitsObject() {
		return false
	}
	for keyword, children := range n.list {
		admits := true
		switch keyword {
		case "allOf":
			admits = !slices.ContainsFunc(children, func(c *node) bool { return !c.admitsObject() })
		case "anyOf", "oneOf":
			admits = slices.ContainsFunc(children, (*node).admitsObject)
		}
		if !admits {
			return false
		}
	}
	return true
}

// schema returns the equivalent schema for the validator.
func (g *guard) schema() any {
	schema := g.plain(g.root).(map[string]any)
	defs := map[string]any{}
	for _, n := range g.refs {
		if target := n.ref; target != g.root && defs[target.def] == nil {
			defs[target.def] = g.plain(target)
		}
	}
	if len(defs) > 0 {
		schema["$defs"] = defs
	}
	return schema
}

// place returns what stands for n within another schema.
func (g *guard) place(n *node) any {
	switch {
	case n == g.root:
		return map[string]any{"$ref": "#"}
	case n.def != "":
		return map[string]any{"$ref": "#/$defs/" + n.def}
	default:
		return g.plain(n)
	}
}

// plain returns n with its assertions only.
func (g *guard) plain(n *node) any {
	if n.boolean != nil {
		return *n.boolean
	}
	plain := make(map[string]any, len(n.asserts)+len(n.one)+len(n.list)+len(n.named))
	maps.Copy(plain, n.asserts)
	if n.ref != nil {
		plain["$ref"] = g.place(n.ref).(map[string]any)["$ref"]
	}
	for keyword, child := range n.one {
		if keyword != "contentSchema" {
			plain[keyword] = g.place(child)
		}
	}
	for keyword, children := range n.list {
		places := make([]any, len(children))
		for i, child := range children {
			places[i] = g.place(child)
		}
		plain[keyword] = places
	}
	for keyword, children := range n.named {
		if keyword == "$defs" || keyword == "definitions" {
			continue
		}
		places := make(map[string]any, len(children))
		for name, child := range children {
			places[name] = g.place(child)
		}
		plain[keyword] = places
	}
	return plain
}
