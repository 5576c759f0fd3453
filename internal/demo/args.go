package demo

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

var (
	marks       = wordSet(`: =`, strings.ToLower)
	assigners   = wordSet(`: = to is as be equals called named titled saying says`, strings.ToLower)
	connectors  = wordSet(`: = to is as be equals of at by the a an`, strings.ToLower)
	introducers = wordSet(`, and with`, strings.ToLower)
	edges       = wordSet(`called named titled saying says about reading , . ! ? ;`, strings.ToLower)
	breaks      = wordSet(`. ! ? ; ( ) :`, strings.ToLower)
	listMarks   = wordSet(`, and &`, strings.ToLower)
	truthy      = wordSet(`true on yes enable enabled show`, strings.ToLower)
	falsy       = wordSet(`false off no not without disable disabled hide don't never`, strings.ToLower)
)

// shapes tell by the name or format of a property which words are values for it.
var shapes = map[string]*regexp.Regexp{
	"color": regexp.MustCompile(
		`^(#[0-9a-f]{3,8}|red|green|blue|yellow|orange|purple|pink|brown|black|white|gr[ae]y|cyan|magenta|teal)$`),
	"email": regexp.MustCompile(`.@.`),
	"url":   regexp.MustCompile(`://`),
	"date":  regexp.MustCompile(`^\d{4}-\d\d-\d\d$`),
	"time":  regexp.MustCompile(`^\d\d?:\d\d(:\d\d)?$`),
}

func shapeOf(s *slot) *regexp.Regexp {
	for word, shape := range shapes {
		if s.Format == word || len(s.name) > 0 && s.name[len(s.name)-1] == stem(word) {
			return shape
		}
	}
	return nil
}

// filler finds values for the slots of one call in the text of a request. Each item of the text is used once.
type filler struct {
	text  string
	items []item
	// words are the stems of all items.
	words  map[string]bool
	tool   *profile
	leaves []*slot
}

// fill makes the arguments for a call of tool from a request. An object that is spelt out in the request is taken as it is.
func fill(text string, tool *profile) json.RawMessage {
	if i := strings.IndexByte(text, '{'); i >= 0 {
		var object json.RawMessage
		if json.NewDecoder(strings.NewReader(text[i:])).Decode(&object) == nil {
			return object
		}
	}
	root := newSlot("", tool.tool.ArgsSchema, true, 0)
	if root.kind != "object" || len(root.parts) == 0 {
		return json.RawMessage("{}")
	}
	f := &filler{text: text, items: lex(text), words: map[string]bool{}, tool: tool, leaves: root.leaves()}
	for _, it := range f.items {
		for _, w := range it.stems {
			f.words[w] = true
		}
	}
	for _, find := range []func(*slot) json.RawMessage{f.named, f.required, f.optional} {
		for _, s := range f.leaves {
			if s.value == nil {
				s.value = find(s)
			}
		}
	}
	return root.render(text)
}

// named finds a value beside the words of the slot's name.
func (f *filler) named(s *slot) json.RawMessage {
	first, next := f.mention(s.name, 0)
	if first < 0 {
		return nil
	}
	v := f.beside(s, first, next)
	if v != nil {
		f.use(first, next)
	}
	return v
}

func (f *filler) beside(s *slot, first, next int) json.RawMessage {
	value := next
	for value < len(f.items) && f.items[value].is(connectors) {
		value++
	}
	if s.Const != nil {
		return s.Const
	}
	if len(s.Enum) > 0 {
		return f.choice(s, next)
	}
	if v := f.typed(s, value, value+1); v != nil {
		return v
	}
	switch {
	case (s.kind == "number" || s.kind == "integer") && first > 0:
		return f.typed(s, first-1, first)
	case s.kind == "boolean" && !slices.Contains(f.tool.name, s.name[0]):
		if slices.ContainsFunc(f.items[:first], func(it item) bool { return it.is(falsy) }) {
			return json.RawMessage("false")
		}
		return json.RawMessage("true")
	case s.kind == "array" && f.announced(first, next):
		return f.list(s, next)
	case s.kind == "string" && f.announced(first, next):
		return f.phrase(next)
	}
	return nil
}

// required finds a value for a slot that must have one: by type, else whatever the request leaves over.
func (f *filler) required(s *slot) json.RawMessage {
	if !s.required {
		return nil
	}
	if s.kind == "array" {
		return f.list(s, 0)
	}
	v := f.typed(s, 0, len(f.items))
	if v == nil && s.kind == "string" && len(s.Enum) == 0 && s.preset() == nil {
		if from, to := f.leftover(); from < to {
			v = quote(f.use(from, to))
		}
	}
	return v
}

// optional finds a value of the right type that nothing else wanted.
func (f *filler) optional(s *slot) json.RawMessage {
	if s.kind == "boolean" || s.Const != nil {
		return nil
	}
	return f.typed(s, 0, len(f.items))
}

// typed finds the first unused item between from and to that is a value of the slot's type.
func (f *filler) typed(s *slot, from, to int) json.RawMessage {
	if len(s.Enum) > 0 {
		return f.choice(s, from)
	}
	shape := shapeOf(s)
	// A quotation can be any text, so it comes after the words that have the right shape.
	for _, valueOf := range []func(it *item) json.RawMessage{
		func(it *item) json.RawMessage { return f.shaped(s.kind, shape, it) },
		func(it *item) json.RawMessage { return quotation(s.kind, it) },
	} {
		for i := from; i < min(to, len(f.items)); i++ {
			if v := valueOf(&f.items[i]); v != nil && !f.items[i].used {
				f.items[i].used = true
				return v
			}
		}
	}
	return nil
}

// shaped is the item as a value of the kind, or nil; a word is a string only if it has the shape.
func (f *filler) shaped(kind string, shape *regexp.Regexp, it *item) json.RawMessage {
	switch {
	case kind == "number", kind == "integer":
		if n := it.asNumber(); n != "" && (kind == "number" || !strings.Contains(n, ".")) {
			return json.RawMessage(n)
		}
	case kind == "boolean" && it.is(truthy):
		return json.RawMessage("true")
	case kind == "boolean" && it.is(falsy):
		return json.RawMessage("false")
	case kind == "string" && shape != nil && it.kind == itemWord && shape.MatchString(it.text):
		return quote(f.text[it.start:it.end])
	}
	return nil
}

func quotation(kind string, it *item) json.RawMessage {
	if kind != "string" || it.kind != itemQuoted {
		return nil
	}
	return quote(it.text)
}

// choice finds the value of an enum that the text names first, if possible after from.
func (f *filler) choice(s *slot, from int) json.RawMessage {
	best, end := -1, 0
	var value json.RawMessage
	for _, raw := range s.Enum {
		var word string
		if json.Unmarshal(raw, &word) != nil {
			word = string(raw)
		}
		first, next := f.mention(stems(word), from)
		if first >= 0 && (best < 0 || first < best || first == best && next > end) {
			best, end, value = first, next, raw
		}
	}
	if best < 0 {
		if from > 0 {
			return f.choice(s, 0)
		}
		return nil
	}
	f.use(best, end)
	return value
}

// mention finds the unused items that spell a name, or returns -1.
func (f *filler) mention(name []string, from int) (first, next int) {
	if slices.ContainsFunc(name, func(w string) bool { return !f.words[w] }) {
		return -1, 0
	}
	for i := from; i < len(f.items); i++ {
		n, j := 0, i
		for ; n < len(name) && j < len(f.items) && !f.items[j].used; j++ {
			spelt := f.items[j].stems
			if len(spelt) == 0 || len(spelt) > len(name)-n || !slices.Equal(spelt, name[n:n+len(spelt)]) {
				break
			}
			n += len(spelt)
		}
		if n > 0 && n == len(name) {
			return i, j
		}
	}
	return -1, 0
}

// announced reports whether the items around a mention of a property say that its value follows.
func (f *filler) announced(first, next int) bool {
	if next == len(f.items) {
		return false
	}
	it := &f.items[next]
	return it.is(assigners) || f.items[next-1].is(assigners) || it.kind == itemQuoted || it.kind == itemNumber || it.text == "of" ||
		first > 0 && f.items[first-1].is(introducers)
}

// phrase is the text from an announced mention on: a quotation, or all up to the next property.
func (f *filler) phrase(next int) json.RawMessage {
	from, to := f.region(next)
	if from >= to {
		return nil
	}
	if f.items[from].kind == itemQuoted {
		f.items[from].used = true
		return quote(f.items[from].text)
	}
	return quote(f.use(from, to))
}

// region finds the items between an announced mention, which ends before next, and the next property.
func (f *filler) region(next int) (from, to int) {
	to = next
	for to < len(f.items) && !f.items[to].used {
		to++
	}
	for _, s := range f.leaves {
		for i := next; i < to; {
			first, after := f.mention(s.name, i)
			if first < 0 {
				break
			}
			if first > next && first < to && f.announced(first, after) {
				to = first
			}
			i = first + 1
		}
	}
	from = next
	for i := next; i < to; i++ {
		if f.items[i].is(assigners) {
			from = i + 1
			break
		}
		if f.items[i].kind == itemQuoted {
			from = i
			break
		}
	}
	switch {
	case from == next && from < to && f.items[from].text == "of":
		return to, to
	case from < to && f.items[from].is(marks):
		from++
	}
	for to > from && (f.items[to-1].is(introducers) || f.items[to-1].is(edges) || f.items[to-1].text == "please") {
		to--
	}
	return from, to
}

// list collects the values of an array, from the item next on.
func (f *filler) list(s *slot, next int) json.RawMessage {
	element := newSlot(s.key, s.Items, true, maxDepth)
	var values []string
	for {
		v := f.typed(element, next, len(f.items))
		if v == nil {
			break
		}
		values = append(values, string(v))
	}
	if len(values) == 0 && element.kind == "string" && len(element.Enum) == 0 && s.preset() == nil {
		find := f.leftover
		if next > 0 {
			find = func() (int, int) { return f.region(next) }
		}
		from, to := find()
		for i := from; i <= to && from < to; i++ {
			if i < to && !f.items[i].is(listMarks) {
				continue
			}
			if from < i {
				values = append(values, string(quote(f.use(from, i))))
			}
			from = i + 1
		}
	}
	if len(values) == 0 {
		return nil
	}
	return json.RawMessage("[" + strings.Join(values, ",") + "]")
}

// leftover finds the text that a request is about: what follows a colon, or its longest stretch without words that chose
// the tool.
func (f *filler) leftover() (from, to int) {
	if i := slices.IndexFunc(f.items, func(it item) bool { return it.is(marks) }); i >= 0 && !f.items[i].used {
		for to = i + 1; to < len(f.items) && !f.items[to].used; to++ {
		}
		if from, to = f.trim(i+1, to); from < to {
			return from, to
		}
		from, to = 0, 0
	}
	for _, chosenBy := range [][]string{slices.Concat(f.tool.name, f.tool.described), f.tool.name} {
		start := 0
		for i := 0; i <= len(f.items); i++ {
			if i < len(f.items) && !f.separates(&f.items[i], chosenBy) {
				continue
			}
			if a, b := f.trim(start, i); b-a > to-from {
				from, to = a, b
			}
			start = i + 1
		}
		if from < to {
			break
		}
	}
	return from, to
}

func (f *filler) separates(it *item, words []string) bool {
	return it.used || it.is(breaks) ||
		slices.ContainsFunc(meanings(slices.Clone(it.stems)), func(s string) bool { return slices.Contains(words, s) })
}

// trim narrows a stretch of items to those that can begin and end a text of their own.
func (f *filler) trim(from, to int) (int, int) {
	outside := func(it *item) bool { return it.used || it.is(edges) || it.is(stopWords) }
	for from < to && outside(&f.items[from]) {
		from++
	}
	for to > from && outside(&f.items[to-1]) {
		to--
	}
	return from, to
}

// use marks items as used and returns their text.
func (f *filler) use(from, to int) string {
	for i := from; i < to; i++ {
		f.items[i].used = true
	}
	return f.text[f.items[from].start:f.items[to-1].end]
}
