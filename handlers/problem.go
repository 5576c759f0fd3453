package handlers

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	"treadle/api"
	"treadle/sessions"
)

// The refusals that are HTTP's alone.
const (
	CodeUnauthenticated      sessions.Code = "UNAUTHENTICATED"
	CodeHostNotAllowed       sessions.Code = "HOST_NOT_ALLOWED"
	CodeOriginNotAllowed     sessions.Code = "ORIGIN_NOT_ALLOWED"
	CodeNotFound             sessions.Code = "NOT_FOUND"
	CodeMethodNotAllowed     sessions.Code = "METHOD_NOT_ALLOWED"
	CodeNotAcceptable        sessions.Code = "NOT_ACCEPTABLE"
	CodeRequestTimeout       sessions.Code = "REQUEST_TIMEOUT"
	CodeUnsupportedMediaType sessions.Code = "UNSUPPORTED_MEDIA_TYPE"
	CodeInternal             sessions.Code = "INTERNAL"
)

// statusClientGone is recorded, and never seen by anybody, when the client left before the answer.
const statusClientGone = 499

// row is how one code looks over HTTP.
type row struct {
	status int
	title  string
	// retryAfter, in seconds, is sent if it is not 0.
	retryAfter int
}

// problems is the table of all errors; x-problem-codes of openapi.yaml is its copy.
var problems = map[sessions.Code]row{
	sessions.CodeInvalidInput:          {http.StatusBadRequest, "The input is not valid", 0},
	sessions.CodeModelRequired:         {http.StatusBadRequest, "A model must be named", 0},
	sessions.CodeCursorInvalid:         {http.StatusBadRequest, "The cursor is not valid", 0},
	sessions.CodeIdempotencyKeyInvalid: {http.StatusBadRequest, "The idempotency key is not valid", 0},
	CodeUnauthenticated:                {http.StatusUnauthorized, "A valid key is required", 0},
	CodeHostNotAllowed:                 {http.StatusForbidden, "The host is not allowed", 0},
	CodeOriginNotAllowed:               {http.StatusForbidden, "The origin is not allowed", 0},
	CodeNotFound:                       {http.StatusNotFound, "There is nothing here", 0},
	sessions.CodeSessionNotFound:       {http.StatusNotFound, "There is no such session", 0},
	sessions.CodeTurnNotFound:          {http.StatusNotFound, "There is no such turn", 0},
	sessions.CodeToolNotFound:          {http.StatusNotFound, "There is no such tool", 0},
	sessions.CodeToolCallNotFound:      {http.StatusNotFound, "There is no such tool call", 0},
	CodeMethodNotAllowed:               {http.StatusMethodNotAllowed, "The method is not allowed here", 0},
	CodeNotAcceptable:                  {http.StatusNotAcceptable, "No acceptable representation", 0},
	CodeRequestTimeout:                 {http.StatusRequestTimeout, "The body came too slowly", 0},
	sessions.CodeSessionBusy:           {http.StatusConflict, "The session is busy", 0},
	sessions.CodeSessionEnded:          {http.StatusConflict, "The session has ended", 0},
	sessions.CodeToolCallSettled:       {http.StatusConflict, "The tool call is settled", 0},
	sessions.CodeToolCallClaimed:       {http.StatusConflict, "The tool call is claimed", 0},
	sessions.CodeToolCallNotOffered:    {http.StatusConflict, "The tool call is not offered", 0},
	sessions.CodeToolNotClientSide:     {http.StatusConflict, "The tool is not the client's to run", 0},
	sessions.CodePreconditionFailed:    {http.StatusPreconditionFailed, "The precondition failed", 0},
	sessions.CodeBodyTooLarge:          {http.StatusRequestEntityTooLarge, "The body is too large", 0},
	CodeUnsupportedMediaType:           {http.StatusUnsupportedMediaType, "The media type is not supported", 0},
	sessions.CodeModelUnavailable:      {http.StatusUnprocessableEntity, "The model is not available", 0},
	sessions.CodeToolResultInvalid:     {http.StatusUnprocessableEntity, "The result is not valid for its tool", 0},
	sessions.CodeIdempotencyKeyReused:  {http.StatusUnprocessableEntity, "The idempotency key belongs to another request", 0},
	sessions.CodeProgressLimit:         {http.StatusTooManyRequests, "Too much progress", 0},
	sessions.CodeTooManyStreams:        {http.StatusTooManyRequests, "Too many streams", 5},
	CodeInternal:                       {http.StatusInternalServerError, "Internal error", 0},
	sessions.CodeStorageUnavailable:    {http.StatusServiceUnavailable, "The storage is unavailable", 1},
	sessions.CodeShuttingDown:          {http.StatusServiceUnavailable, "The server is shutting down", 2},
	sessions.CodeSessionUnsupported:    {http.StatusServiceUnavailable, "The session needs a newer server", 5},
}

// refuse makes an error that the client is told. Facts are pairs of a name and a value.
func refuse(code sessions.Code, detail string, facts ...any) *sessions.Error {
	e := &sessions.Error{Code: code, Detail: detail}
	for i := 0; i+1 < len(facts); i += 2 {
		if e.Facts == nil {
			e.Facts = map[string]any{}
		}
		e.Facts[facts[i].(string)] = facts[i+1]
	}
	return e
}

// fail answers with an error. Only what a [*sessions.Error] says reaches the client; any other error's text is for the log.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	// A context that has ended is not enough: net/http ends it when a body is late, too.
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		w.WriteHeader(statusClientGone)
		return
	}
	refusal, known := refusalOf(err)
	kind := problems[refusal.Code]
	switch {
	case !known:
		h.Logger.Error("Internal error", "request_id", requestID(r), "route", route(r), "err", err)
	case refusal.Err != nil && kind.status >= http.StatusInternalServerError:
		// The cause of a client's own mistake is for the client alone: it repeats what the client sent.
		h.Logger.Warn("Request refused", "request_id", requestID(r), "route", route(r), "code", refusal.Code, "err", refusal.Err)
	}
	body, err := api.Marshal(api.Problem{
		Type:   "/problems/" + strings.ReplaceAll(strings.ToLower(string(refusal.Code)), "_", "-"),
		Title:  kind.title,
		Status: kind.status, Code: string(refusal.Code), Detail: refusal.Detail, Instance: requestID(r), Facts: refusal.Facts,
	})
	if err != nil {
		h.Logger.Error("Encoding a problem did not work", "request_id", requestID(r), "code", refusal.Code, "err", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if kind.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(kind.retryAfter))
	}
	if kind.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="treadle"`)
	}
	if r.ContentLength < 0 {
		// To keep the connection, net/http would first wait for what is left of a body that nobody wants.
		w.Header().Set("Connection", "close")
	}
	write(w, kind.status, "application/problem+json", body)
}

// refusalOf returns what a client is told of an error, and whether the error was meant for that.
func refusalOf(err error) (refusal *sessions.Error, known bool) {
	if errors.As(err, &refusal) {
		if _, known = problems[refusal.Code]; known {
			return refusal, true
		}
	}
	return refuse(CodeInternal, "the server made a mistake; its log has more under the id in \"instance\""), false
}

// write sends a whole answer.
func write(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	// An error means that the client is gone, and it has nobody to be told to.
	_, _ = w.Write(body)
}

func (h *handler) notFound(w http.ResponseWriter, r *http.Request) {
	h.fail(w, r, refuse(CodeNotFound, "there is nothing at this path; GET /openapi.yaml lists what there is"))
}

// methodNotAllowed is also where the router sends methods that it never heard of, at whatever path.
func (h *handler) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	routes := chi.RouteContext(r.Context()).Routes
	for _, method := range methods {
		if routes.Match(chi.NewRouteContext(), method, routePath(r)) {
			allowed = append(allowed, method)
			if method == http.MethodGet {
				allowed = append(allowed, http.MethodHead)
			}
		}
	}
	if len(allowed) == 0 {
		h.notFound(w, r)
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	h.fail(w, r, refuse(CodeMethodNotAllowed, "this path takes "+strings.Join(allowed, ", ")))
}

// methods are those that the API uses; HEAD goes with GET.
var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

func routePath(r *http.Request) string {
	if r.URL.RawPath != "" {
		return r.URL.RawPath
	}
	return r.URL.Path
}
