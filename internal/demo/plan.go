package demo

import (
	"cmp"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"treadle/api"
	"treadle/sessions"
)

const (
	// maxRequest is the longest request that is matched with the tools, in bytes, and maxClauses how finely it is divided.
	maxRequest = 8 << 10
	maxClauses = 64
	// maxPlanned bounds the calls that one request is turned into.
	maxPlanned = 16
	// meaningful is the least score of a tool that fits.
	meaningful = 2
)

// exactCalls returns the calls that the lines of text spell out, or nil if a line is anything else.
func exactCalls(text string, tools []api.Tool) []sessions.AnswerCall {
	var calls []sessions.AnswerCall
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		rest, ok := strings.CutPrefix(line, "call ")
		if !ok {
			return nil
		}
		rest = strings.TrimSpace(rest)
		name, args := rest, "{}"
		if i := strings.IndexFunc(rest, unicode.IsSpace); i >= 0 {
			name, args = rest[:i], strings.TrimSpace(rest[i:])
		}
		if stopWords[name] && startsWithWord(args) && !slices.ContainsFunc(tools, func(t api.Tool) bool { return t.Name == name }) {
			// "call the plumber" is a request, not a call of a tool named "the".
			return nil
		}
		calls = append(calls, sessions.AnswerCall{Tool: name, Args: []byte(args)})
	}
	return calls
}

func startsWithWord(args string) bool {
	first, _ := utf8.DecodeRuneInString(args)
	return unicode.IsLetter(first) && !json.Valid([]byte(args))
}

var (
	separators = regexp.MustCompile(`(?i)\n|;|[.!?]\s|,?\s+and\s+then\s|,\s*then\s`)
	quotations = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|“[^”]*”|`[^`]*`")
)

// plan turns each clause of a request that fits a tool into a call. A clause that fits none belongs to its neighbour.
func plan(text string, tools []api.Tool) []sessions.AnswerCall {
	if len(text) > maxRequest || isSmallTalk(text) {
		return nil
	}
	masked := quotations.ReplaceAllStringFunc(text, func(q string) string { return strings.Repeat("_", len(q)) })
	ends := append(separators.FindAllStringIndex(masked, maxClauses-1), []int{len(text), len(text)})

	type clause struct {
		start, end int
		tool       *profile
	}
	profiles := newProfiles(tools)
	var clauses []clause
	start := 0
	for _, sep := range ends {
		// What is quoted is more likely an argument than the name of a deed.
		tool := cmp.Or(pick(profiles, masked[start:sep[0]]), pick(profiles, text[start:sep[0]]))
		switch last := len(clauses) - 1; {
		case tool != nil && len(clauses) < maxPlanned:
			clauses = append(clauses, clause{start, sep[0], tool})
		case tool == nil && last >= 0:
			clauses[last].end = sep[0]
		case last < 0:
			// What leads up to the first request stays part of it.
			continue
		}
		start = sep[1]
	}
	var calls []sessions.AnswerCall
	for _, c := range clauses {
		calls = append(calls, sessions.AnswerCall{Tool: c.tool.tool.Name, Args: fill(text[c.start:c.end], c.tool)})
	}
	return calls
}

// profile is what the words of a request are compared with.
type profile struct {
	tool      api.Tool
	name      []string
	described []string
}

func newProfiles(tools []api.Tool) []profile {
	profiles := make([]profile, 0, len(tools))
	for _, t := range tools {
		described := slices.Sorted(maps.Keys(content(t.Description)))
		profiles = append(profiles, profile{tool: t, name: meanings(stems(t.Name)), described: described})
	}
	return profiles
}

// pick returns the first of the tools that fit best, or nil.
func pick(profiles []profile, text string) *profile {
	words := content(text)
	var best *profile
	bestScore := meaningful - 1
	for i := range profiles {
		if s := profiles[i].score(words); s > bestScore {
			best, bestScore = &profiles[i], s
		}
	}
	return best
}

// score weighs the words that a request shares with a tool: the name says more than the description, a word that could
// mean anything says little, and the whole name says most.
func (p *profile) score(words map[string]bool) int {
	score, whole := 0, len(p.name) > 0
	for _, w := range p.name {
		switch {
		case !words[w]:
			whole = whole && stopWords[w]
		case vagueWords[w]:
			score++
		default:
			score += 2
		}
	}
	if whole {
		score += 3
	}
	described := 0
	for _, w := range p.described {
		if words[w] && !slices.Contains(p.name, w) {
			described++
		}
	}
	return score + min(described, 3)
}

// content returns what the words mean that carry a meaning.
func content(text string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.FieldsFunc(text, notWord) {
		if stopWords[strings.ToLower(w)] {
			continue
		}
		for _, s := range meanings(stems(w)) {
			set[s] = true
		}
	}
	return set
}

// isSmallTalk reports whether a request asks for nothing but attention.
func isSmallTalk(text string) bool {
	for w := range content(text) {
		if !greetings[w] {
			return false
		}
	}
	return true
}

func notWord(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '\'' }

// stems splits s into words, also at a change of case, and cuts each down to its stem.
func stems(s string) []string {
	var out []string
	for _, w := range strings.FieldsFunc(s, notWord) {
		start, lower := 0, false
		for i, r := range w {
			if lower && unicode.IsUpper(r) {
				out = append(out, stem(w[start:i]))
				start = i
			}
			lower = unicode.IsLower(r)
		}
		out = append(out, stem(w[start:]))
	}
	return out
}

// stem makes forms of one word equal; that others become equal too does little harm here.
func stem(w string) string {
	w = strings.ToLower(strings.Trim(w, "'"))
	for _, suffix := range []string{"ies", "ing", "ed", "es", "s"} {
		base, ok := strings.CutSuffix(w, suffix)
		if !ok || utf8.RuneCountInString(base) < 3 || suffix == "s" && strings.HasSuffix(base, "s") {
			continue
		}
		if w = base; suffix == "ies" {
			w += "y"
		}
		break
	}
	if len(w) > 3 {
		w = strings.TrimSuffix(w, "e")
	}
	if n := len(w); n > 2 && w[n-1] == w[n-2] {
		w = w[:n-1]
	}
	return w
}

// meanings replaces verbs by the one that tools are usually named with. It changes and returns words.
func meanings(words []string) []string {
	for i, w := range words {
		if verb, ok := synonyms[w]; ok {
			words[i] = verb
		}
	}
	return words
}

func wordSet(words string, form func(string) string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		set[form(w)] = true
	}
	return set
}

var (
	stopWords = wordSet(`a an the this that these those it its i me my mine we us our you your is are am was be do does did
		can could would will shall should may might must have has had to of in on at by for from with as and or but not so
		please just now then there here who when where why all any some if up out into than too very want need like let
		let's i'd i'm it's`, strings.ToLower)
	greetings = wordSet(`hi hello hey hiya howdy greetings good morning afternoon evening day thanks thank welcome help
		tool tools ok okay yes no get`, stem)
	vagueWords = wordSet(`get set add delete list run call use open close find write go start stop give page app`, stem)

	synonyms = invert(map[string]string{
		"get":    "show read display fetch tell view what what's which how",
		"set":    "change update put",
		"add":    "create make new insert",
		"delete": "remove clear erase",
	})
)

// invert maps the stem of each word to the stem of the word that it stands under.
func invert(groups map[string]string) map[string]string {
	out := map[string]string{}
	for word, others := range groups {
		for other := range wordSet(others, stem) {
			out[other] = stem(word)
		}
	}
	return out
}
