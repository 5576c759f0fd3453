package sessions

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// canonicalJSON rewrites one JSON value so that two values are byte-equal exactly when they are the same result: members
// sorted, no whitespace, one escape form for each string. Numbers keep their digits: 1, 1.0 and 1e0 are three values.
// It refuses what checkJSON refuses, at a depth that leaves room for the members of a result around its output.
func canonicalJSON(raw []byte) ([]byte, error) {
	if err := checkJSON(raw, maxJSONDepth+2); err != nil {
		return nil, err
	}
	return canonicalize(raw)
}

// canonicalize is canonicalJSON for what was checked before.
func canonicalize(raw []byte) ([]byte, error) {
	v := jsontext.Value(bytes.Clone(raw))
	err := v.Canonicalize(jsontext.AllowDuplicateNames(true), jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false))
	if err != nil {
		return nil, fmt.Errorf("canonical form: %w", err)
	}
	return v, nil
}

// checkJSON reports whether raw is exactly one JSON value that everybody reads alike: valid UTF-8, no member name twice in an
// object, nested at most maxDepth deep. The error is a *schemaError whose pointer leads to the fault.
func checkJSON(raw []byte, maxDepth int) error {
	return scanJSON(raw, maxDepth, nil)
}

// scanJSON is checkJSON, and calls visit for every value with its kind; raw is nil for objects and arrays. An error of visit is a fault at that value.
func scanJSON(raw []byte, maxDepth int, visit func(kind jsontext.Kind, raw []byte) error) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw))
	for started := false; ; started = true {
		kind := dec.PeekKind()
		if started && dec.StackDepth() == 0 {
			return checkTrailing(dec)
		}
		if kind == '{' || kind == '[' {
			if _, err := dec.ReadToken(); err != nil {
				return syntaxFault(err)
			}
			if dec.StackDepth() > maxDepth {
				return faultAt(dec, fmt.Errorf("nested deeper than %d levels", maxDepth))
			}
			if visit != nil {
				if err := visit(kind, nil); err != nil {
					return faultAt(dec, err)
				}
			}
			continue
		}
		if kind == '}' || kind == ']' {
			if _, err := dec.ReadToken(); err != nil {
				return syntaxFault(err)
			}
			continue
		}
		isName := isMemberName(dec)
		v, err := dec.ReadValue()
		if err != nil {
			return syntaxFault(err)
		}
		if visit != nil && !isName {
			if err := visit(kind, v); err != nil {
				return faultAt(dec, err)
			}
		}
	}
}

// isMemberName tells whether the next token is the name of an object's member.
func isMemberName(dec *jsontext.Decoder) bool {
	kind, n := dec.StackIndex(dec.StackDepth())
	return kind == '{' && n%2 == 0
}

func checkTrailing(dec *jsontext.Decoder) error {
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return &schemaError{Reason: fmt.Sprintf("data follows the JSON value, from byte %d", dec.InputOffset())}
	}
	return nil
}

func faultAt(dec *jsontext.Decoder, err error) error {
	return &schemaError{Pointer: shorten(string(dec.StackPointer()), maxPointer), Reason: err.Error()}
}

// syntaxFault words an error of the decoder for whoever wrote the JSON.
func syntaxFault(err error) error {
	fault := &schemaError{Reason: "expected a JSON value, got nothing"}
	if errors.Is(err, io.EOF) {
		return fault
	}
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		fault.Reason = fmt.Sprintf("not valid JSON: %v", err)
		return fault
	}
	fault.Pointer = shorten(string(syntax.JSONPointer), maxPointer)
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		fault.Reason = fmt.Sprintf("the member %s stands twice in one object", quoteShort(syntax.JSONPointer.LastToken()))
	case errors.Is(err, io.ErrUnexpectedEOF):
		fault.Reason = fmt.Sprintf("not valid JSON: it ends too early, after %d bytes", syntax.ByteOffset)
	case strings.Contains(syntax.Err.Error(), "surrogate"):
		fault.Reason = fmt.Sprintf("not valid Unicode at byte %d: half of a surrogate pair, as when a text is cut within an emoji", syntax.ByteOffset)
	default:
		fault.Reason = fmt.Sprintf("not valid JSON at byte %d: %s", syntax.ByteOffset, shorten(syntax.Err.Error(), maxReason))
	}
	return fault
}

// shorten cuts text to about limit bytes, and makes it printable on one line.
func shorten(text string, limit int) string {
	if len(text) > limit {
		for !utf8.RuneStart(text[limit]) {
			limit--
		}
		text = text[:limit] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, text)
}
