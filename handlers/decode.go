package handlers

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	stdjson "encoding/json"

	"treadle/api"
	"treadle/sessions"
)

const (
	// maxNesting bounds the depth of a request body.
	maxNesting = 256
	// maxEntries bounds its lists and maps outside of free JSON; the domain's own bounds are narrower.
	maxEntries = 1000
)

// readBody reads a JSON body into req, or says why it is not one that the API takes. Every body is read to its end or to the
// limit, and within the time that [handler.observe] gave it.
func (h *handler) readBody(w http.ResponseWriter, r *http.Request, req any) error {
	_, optional := req.(*empty)
	if optional && r.ContentLength == 0 && r.Header.Get("Content-Type") == "" {
		return nil
	}
	if err := checkContentType(r.Header); err != nil {
		return err
	}
	tooLarge := refuse(sessions.CodeBodyTooLarge, fmt.Sprintf("the body is larger than %d bytes", h.MaxBody), "limit", h.MaxBody)
	if r.ContentLength > h.MaxBody {
		return tooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.MaxBody))
	switch _, exceeded := errors.AsType[*http.MaxBytesError](err); {
	case exceeded:
		return tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(CodeRequestTimeout, fmt.Sprintf("the body did not arrive within %v", h.BodyTimeout))
	case err != nil:
		return refuse(sessions.CodeInvalidInput, "the body ended before its time")
	}
	// From here on, a read timeout would look as if the client had hung up.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if optional && len(body) == 0 {
		return nil
	}
	return decode(body, req)
}

func checkContentType(h http.Header) error {
	if coding := h.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return refuse(CodeUnsupportedMediaType, "send the body without a content encoding")
	}
	types := h.Values("Content-Type")
	if len(types) == 1 {
		mediaType, params, err := mime.ParseMediaType(types[0])
		charset, hasCharset := params["charset"]
		if err == nil && mediaType == typeJSON && (!hasCharset || strings.EqualFold(charset, "utf-8")) {
			return nil
		}
	}
	return refuse(CodeUnsupportedMediaType, "send the body as Content-Type: application/json")
}

// decode reads one JSON value into req. It refuses what encoding/json lets pass: unknown and duplicate members, members in
// another case, null for what is not free JSON, invalid UTF-8 and trailing data.
func decode(body []byte, req any) error {
	if tooDeep(body) {
		return refuse(sessions.CodeInvalidInput, fmt.Sprintf("the body is nested more than %d deep", maxNesting), "limit", maxNesting)
	}
	err := json.Unmarshal(body, req, json.RejectUnknownMembers(true), json.WithUnmarshalers(unmarshalers))
	if err == nil {
		return nil
	}
	var pointer jsontext.Pointer
	detail := "the body is not valid JSON"
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		pointer = syntactic.JSONPointer
		detail = fmt.Sprintf("the body is not valid JSON at byte %d", syntactic.ByteOffset)
		if errors.Is(err, jsontext.ErrDuplicateName) {
			detail = "the member " + quote(pointer.LastToken()) + " is there twice"
		}
	} else if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		pointer = semantic.JSONPointer
		switch {
		case errors.Is(err, json.ErrUnknownName):
			detail = "the member " + quote(pointer.LastToken()) + " is not known here"
		case errors.Is(err, errTooMany):
			detail = fmt.Sprintf("there are more than %d entries", maxEntries)
		case pointer == "":
			detail = "the body must be an object"
		default:
			detail = "the value of " + quote(pointer.LastToken()) + " is not of a kind that it can have"
		}
	}
	if len(pointer) > 256 {
		pointer = "" // an author's own names are short
	}
	return refuse(sessions.CodeInvalidInput, detail, "pointer", string(pointer))
}

var (
	// errNull is a null where only a value makes sense.
	errNull = errors.New("null is not a value")
	// errTooMany is a list or map that nobody means.
	errTooMany = errors.New("too many entries")
)

// unmarshalers say how the wire types are decoded more strictly than their own methods do. Free JSON is left as it is.
var unmarshalers = json.JoinUnmarshalers(
	json.UnmarshalFromFunc(func(dec *jsontext.Decoder, value any) error {
		if _, free := value.(*stdjson.RawMessage); !free && dec.PeekKind() == 'n' {
			return errNull
		}
		return errors.ErrUnsupported
	}),
	json.UnmarshalFromFunc(decodeInput),
	json.UnmarshalFromFunc(decodeList[api.Tool]),
	json.UnmarshalFromFunc(decodeTexts),
)

func decodeInput(dec *jsontext.Decoder, in *api.Input) error {
	if dec.PeekKind() != '"' {
		return decodeList(dec, (*[]api.InputPart)(in))
	}
	var text string
	if err := json.UnmarshalDecode(dec, &text); err != nil {
		return err
	}
	*in = api.Input{{Type: "text", Text: text}}
	return nil
}

// decodeList bounds what a small body can grow to.
func decodeList[T any](dec *jsontext.Decoder, into *[]T) error {
	if token, err := dec.ReadToken(); err != nil || token.Kind() != '[' {
		return cmp.Or(err, errors.New("not a list"))
	}
	*into = []T{}
	for dec.PeekKind() != ']' {
		if len(*into) == maxEntries {
			return errTooMany
		}
		var item T
		if err := json.UnmarshalDecode(dec, &item); err != nil {
			return err
		}
		*into = append(*into, item)
	}
	_, err := dec.ReadToken()
	return err
}

// decodeTexts does the same for maps.
func decodeTexts(dec *jsontext.Decoder, into *map[string]string) error {
	if token, err := dec.ReadToken(); err != nil || token.Kind() != '{' {
		return cmp.Or(err, errors.New("not a map"))
	}
	*into = map[string]string{}
	for dec.PeekKind() != '}' {
		if len(*into) == maxEntries {
			return errTooMany
		}
		var name, text string
		if err := json.UnmarshalDecode(dec, &name); err != nil {
			return err
		}
		if err := json.UnmarshalDecode(dec, &text); err != nil {
			return err
		}
		(*into)[name] = text
	}
	_, err := dec.ReadToken()
	return err
}

// tooDeep counts brackets outside of strings. It says nothing about whether they match.
func tooDeep(body []byte) bool {
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[' || c == '{':
			if depth++; depth > maxNesting {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}
