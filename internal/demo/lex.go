package demo

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// itemKind sorts the items of a request.
type itemKind int

const (
	itemWord itemKind = iota
	itemNumber
	itemQuoted
	itemPunct
)

// item is a word, number, quotation or punctuation mark of a request.
type item struct {
	kind itemKind
	// text is the content of a quotation, a number as JSON, anything else in lower case.
	text       string
	start, end int
	// stems are those of a word; a number is its own.
	stems []string
	// used items have become part of an argument.
	used bool
}

// The alternatives: quotations; addresses, dates and times, colours as words; numbers; words; marks.
var lexemes = regexp.MustCompile("(?P<quoted>\"(?:[^\"\\\\]|\\\\.)*\"|“[^”]*”|'[^']*'|`[^`]*`)" +
	`|(?P<word>\pL+://\S+|[\w.+-]+@[\w.-]+\w|\d+(?:[-/:]\d+)+|#[0-9A-Fa-f]{3,8}\b)` +
	`|(?P<number>-?\d+(?:\.\d+)?)` +
	`|(?P<plain>[\pL_][\pL\pN_]*(?:[-.'’][\pL\pN_]+)*)` +
	`|(?P<mark>\S)`)

var numberWords = []string{"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}

func lex(text string) []item {
	var items []item
	for _, m := range lexemes.FindAllStringSubmatchIndex(text, -1) {
		it := item{start: m[0], end: m[1], kind: itemPunct, text: strings.ToLower(text[m[0]:m[1]])}
		switch {
		case m[2] >= 0:
			it.kind, it.text = itemQuoted, unquote(text[m[0]:m[1]])
		case m[6] >= 0:
			it.kind, it.text = itemNumber, number(it.text)
			it.stems = []string{it.text}
		case m[4] >= 0 || m[8] >= 0:
			it.kind, it.stems = itemWord, stems(text[m[0]:m[1]])
		}
		items = append(items, it)
	}
	return items
}

// number makes JSON of digits that may begin with zeros.
func number(s string) string {
	digits, negative := strings.CutPrefix(s, "-")
	for len(digits) > 1 && digits[0] == '0' && digits[1] != '.' {
		digits = digits[1:]
	}
	if negative {
		return "-" + digits
	}
	return digits
}

func unquote(s string) string {
	var text string
	if s[0] == '"' && json.Unmarshal([]byte(s), &text) == nil {
		return text
	}
	return strings.Trim(s, "\"“”'`")
}

// asNumber returns the number that the item stands for, or "".
func (it *item) asNumber() string {
	if it.kind == itemNumber {
		return it.text
	}
	if i := slices.Index(numberWords, it.text); i >= 0 && it.kind == itemWord {
		return strconv.Itoa(i)
	}
	return ""
}

// is reports whether the item is an unquoted one of the words or marks.
func (it *item) is(words map[string]bool) bool {
	return (it.kind == itemWord || it.kind == itemPunct) && words[it.text]
}
