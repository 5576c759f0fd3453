package sessions

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// quoteShort quotes text that a client or a model chose, cut to 64 characters, for use in a message.
func quoteShort(text string) string {
	if utf8.RuneCountInString(text) > 64 {
		text = string([]rune(text)[:64]) + "…"
	}
	return strconv.Quote(text)
}

// pointerToken escapes a member name for a JSON pointer (RFC 6901).
func pointerToken(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
