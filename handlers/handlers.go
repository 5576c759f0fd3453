// Package handlers is the HTTP surface of openapi.yaml: it turns requests into calls of [sessions.Service] and results and
// errors into answers. It decides nothing about sessions.
//
// Every operation is a method of one domain call, adapted by [endpoint] or, where the answer is an event stream, by [stream].
// Every error goes through the one table of problems. Request bodies are decoded strictly by [decode].
package handlers

import (
	"net/http"

	"github.com/go-chi/chi/v5"
)

// handler is the Config at work.
type handler struct {
	Config
}

// New returns the handler of the whole API, which is a [chi.Routes] too. It never writes anything but what openapi.yaml says.
func New(cfg Config) (http.Handler, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &handler{cfg}
	r := chi.NewRouter()
	r.Use(h.observe, h.guard, headAsGet)
	r.NotFound(h.notFound)
	r.MethodNotAllowed(h.methodNotAllowed)

	h.route(r)
	for pattern, mount := range cfg.Mounts {
		r.Method(http.MethodGet, pattern, mount)
	}
	return r, nil
}

// route lists the operations of openapi.yaml. The names after a method are the query parameters that it takes.
func (h *handler) route(r chi.Router) {
	const session = "/v1/sessions/{session_id}"
	r.Post("/v1/sessions", endpoint(h, http.StatusCreated, h.createSession))
	r.Get("/v1/sessions", endpoint(h, http.StatusOK, h.listSessions, "before", "limit", "status", "subject"))
	r.Get(session, endpoint(h, http.StatusOK, h.getSession))
	r.Patch(session, endpoint(h, http.StatusOK, h.updateSession))
	r.Delete(session, endpoint(h, http.StatusNoContent, h.deleteSession))
	r.Post(session+"/end", endpoint(h, http.StatusOK, h.endSession))
	r.Get(session+"/messages", endpoint(h, http.StatusOK, h.listMessages, "before", "limit"))

	r.Get(session+"/turns", endpoint(h, http.StatusOK, h.listTurns, "before", "limit"))
	r.Post(session+"/turns", h.negotiate(typeJSON,
		endpoint(h, http.StatusAccepted, h.startTurn), stream(h, h.streamTurn)))
	r.Get(session+"/turns/{turn_id}", endpoint(h, http.StatusOK, h.getTurn, "wait"))
	r.Post(session+"/turns/{turn_id}/cancel", endpoint(h, http.StatusOK, h.cancelTurn))

	r.Get(session+"/tools", endpoint(h, http.StatusOK, h.getTools))
	r.Put(session+"/tools", endpoint(h, http.StatusOK, h.replaceTools))
	r.Get(session+"/tools/{name}", endpoint(h, http.StatusOK, h.getTool))

	r.Get(session+"/events", h.negotiate(typeStream,
		endpoint(h, http.StatusOK, h.pageEvents, "after", "limit", "wait"), stream(h, h.streamEvents, "after", "heartbeat")))

	r.Get(session+"/tool_calls", endpoint(h, http.StatusOK, h.listToolCalls, "status", "wait"))
	r.Get(session+"/tool_calls/{tool_call_id}", endpoint(h, http.StatusOK, h.getToolCall))
	r.Post(session+"/tool_calls/{tool_call_id}/result", endpoint(h, http.StatusOK, h.submitResult))
	r.Post(session+"/tool_calls/{tool_call_id}/claim", endpoint(h, http.StatusOK, h.claimToolCall))
	r.Post(session+"/tool_calls/{tool_call_id}/progress", endpoint(h, http.StatusOK, h.reportProgress))

	r.Get("/v1/models", endpoint(h, http.StatusOK, h.listModels))
	r.Get("/healthz", h.probe(func() error { return nil }))
	r.Get("/readyz", h.probe(h.ready))
	r.Get("/openapi.yaml", h.contract)
}

// headAsGet routes HEAD to what answers GET; net/http leaves the body out.
func headAsGet(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			chi.RouteContext(r.Context()).RouteMethod = http.MethodGet
		}
		next.ServeHTTP(w, r)
	})
}
