package handlers

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

// call is one request of an authenticated tenant on its way to the domain.
type call struct {
	*http.Request
	w      http.ResponseWriter
	tenant string
	// The ids of the path; zero if it has none of that kind.
	sessionID, turnID, toolCallID uuid.UUID
	query                         url.Values
	// err is the first thing that was wrong with a parameter.
	err error
}

// none is the request of an operation without a body.
type none struct{}

// empty is the request of an operation whose body may be missing and has no members.
type empty struct{}

// endpoint adapts an operation: do makes one domain call with what the request says and returns the answer's body. Params are
// the query parameters that it takes.
func endpoint[Q, A any](h *handler, status int, do func(*call, *Q) (A, error), params ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, req, err := prepare[Q](h, w, r, params)
		if err != nil {
			h.fail(w, r, err)
			return
		}
		answer, err := do(c, req)
		if err != nil {
			h.fail(w, r, err)
			return
		}
		if status == http.StatusNoContent {
			w.WriteHeader(status)
			return
		}
		body, err := api.Marshal(answer)
		if err != nil {
			h.fail(w, r, fmt.Errorf("encoding the answer: %w", err))
			return
		}
		write(w, status, typeJSON, body)
	}
}

// prepare finds out whose request it is, before it reads anything else, and takes path, query and body apart.
func prepare[Q any](h *handler, w http.ResponseWriter, r *http.Request, params []string) (*call, *Q, error) {
	c := &call{Request: r, w: w}
	var malformed error
	c.query, malformed = url.ParseQuery(r.URL.RawQuery)
	for _, name := range []string{"access_token", "api_key", "key", "token"} {
		if c.query.Has(name) {
			return nil, nil, refuse(CodeUnauthenticated, "a key does not belong in a URL; send it as \"Authorization: Bearer …\"", "parameter", name)
		}
	}
	identity, err := h.Authenticate(r)
	if err != nil {
		return nil, nil, err
	}
	c.tenant = identity.Tenant
	if malformed != nil {
		return nil, nil, refuse(sessions.CodeInvalidInput, "the query is not valid URL encoding")
	}
	if err := c.checkParams(params); err != nil {
		return nil, nil, err
	}
	if err := c.readIDs(); err != nil {
		return nil, nil, err
	}
	req := new(Q)
	if _, bodyless := any(req).(*none); !bodyless {
		err = h.readBody(w, r, req)
	}
	return c, req, err
}

func (c *call) checkParams(known []string) error {
	takes := "takes none"
	if len(known) > 0 {
		takes = "takes " + strings.Join(known, ", ")
	}
	for name, values := range c.query {
		switch {
		case !slices.Contains(known, name):
			return refuse(sessions.CodeInvalidInput, fmt.Sprintf("there is no query parameter %s here; this representation %s", quote(name), takes), "parameter", shorten(name))
		case len(values) > 1:
			return refuse(sessions.CodeInvalidInput, "the query parameter "+name+" is there twice", "parameter", name)
		}
	}
	return nil
}

// readIDs reads the ids of the path. One that is malformed names nothing, like one that was never given out.
func (c *call) readIDs() error {
	for _, id := range []struct {
		name string
		into *uuid.UUID
		code sessions.Code
		kind string
	}{
		{"session_id", &c.sessionID, sessions.CodeSessionNotFound, "session"},
		{"turn_id", &c.turnID, sessions.CodeTurnNotFound, "turn"},
		{"tool_call_id", &c.toolCallID, sessions.CodeToolCallNotFound, "tool call"},
	} {
		if !strings.Contains(c.Pattern, "{"+id.name+"}") {
			continue
		}
		var ok bool
		if *id.into, ok = parseID(chi.URLParam(c.Request, id.name)); !ok {
			return refuse(id.code, "there is no "+id.kind+" with this id, which is not even a UUID")
		}
	}
	return nil
}

// parseID takes only the form that the server itself gives out.
func parseID(text string) (id uuid.UUID, ok bool) {
	if len(text) != 36 {
		return id, false
	}
	id, err := uuid.Parse(text)
	return id, err == nil && id != uuid.Nil
}

// badParam keeps the first complaint about a parameter.
func (c *call) badParam(name, want string) {
	if c.err == nil {
		c.err = refuse(sessions.CodeInvalidInput, "the query parameter "+name+" must be "+want, "parameter", name)
	}
}

// before is the id that a list continues from; zero without one.
func (c *call) before() uuid.UUID {
	if !c.query.Has("before") {
		return uuid.Nil
	}
	id, ok := parseID(c.query.Get("before"))
	if !ok {
		c.badParam("before", "an id as it stands in \"next\"")
	}
	return id
}

// limit is the size of a page; 0 without one.
func (c *call) limit() int { return int(c.number("limit", 1, 200, "1 to 200")) }

// number reads a whole decimal number; 0 without one.
func (c *call) number(name string, least, most int64, want string) int64 {
	if !c.query.Has(name) {
		return 0
	}
	n, err := strconv.ParseInt(c.query.Get(name), 10, 64)
	if err != nil || n < least || n > most {
		c.badParam(name, want)
		return 0
	}
	return n
}

// maxWait bounds long polls.
const maxWait = 60

// wait is how long the client is willing to wait.
func (c *call) wait() time.Duration {
	seconds := c.number("wait", 0, 1<<32, "a number of seconds")
	return time.Duration(min(seconds, maxWait)) * time.Second
}

// choice reads one of a few words; "" without one.
func choice[T ~string](c *call, name string, words ...T) T {
	if !c.query.Has(name) {
		return ""
	}
	word := T(c.query.Get(name))
	if !slices.Contains(words, word) {
		c.badParam(name, fmt.Sprintf("one of %v", words))
	}
	return word
}

// idempotencyKey reads the header; "" without one.
func (c *call) idempotencyKey() string {
	values := c.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return ""
	}
	key := values[0]
	invisible := func(r rune) bool { return r < '!' || r > '~' }
	if len(values) > 1 || len(key) < 1 || len(key) > 255 || strings.ContainsFunc(key, invisible) {
		c.err = refuse(sessions.CodeIdempotencyKeyInvalid, "an Idempotency-Key has 1 to 255 visible ASCII characters and is sent once")
	}
	return key
}

// created names what the request created.
func (c *call) created(format string, ids ...any) {
	c.w.Header().Set("Location", fmt.Sprintf("/v1/sessions/"+format, ids...))
}

// shorten keeps what a client sent from filling an answer.
func shorten(text string) string {
	if len(text) > 64 {
		return text[:64] + "…"
	}
	return text
}

// quote is shorten for a sentence.
func quote(text string) string { return strconv.QuoteToASCII(shorten(text)) }
