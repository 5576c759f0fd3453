package handlers

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"treadle/api"
	"treadle/sessions"
)

func (h *handler) createSession(c *call, req *api.SessionCreate) (*api.Session, error) {
	key := c.idempotencyKey()
	if c.err != nil {
		return nil, c.err
	}
	session, err := h.Service.CreateSession(c.Context(), c.tenant, req, key)
	if err == nil {
		c.created("%s", session.ID)
	}
	return session, err
}

func (h *handler) listSessions(c *call, _ *none) (*api.SessionList, error) {
	q := sessions.SessionQuery{
		Before: c.before(), Limit: c.limit(), Subject: c.query.Get("subject"),
		Status: choice(c, "status", api.StatusIdle, api.StatusRunning, api.StatusEnded),
	}
	if c.err != nil {
		return nil, c.err
	}
	return h.Service.Sessions(c.Context(), c.tenant, q)
}

func (h *handler) getSession(c *call, _ *none) (*api.Session, error) {
	return h.Service.Session(c.Context(), c.tenant, c.sessionID)
}

func (h *handler) updateSession(c *call, req *api.SessionPatch) (*api.Session, error) {
	return h.Service.UpdateSession(c.Context(), c.tenant, c.sessionID, req)
}

func (h *handler) deleteSession(c *call, _ *none) (none, error) {
	return none{}, h.Service.DeleteSession(c.Context(), c.tenant, c.sessionID)
}

func (h *handler) endSession(c *call, _ *empty) (*api.Session, error) {
	return h.Service.EndSession(c.Context(), c.tenant, c.sessionID)
}

func (h *handler) listMessages(c *call, _ *none) (*api.MessageList, error) {
	before, limit := c.number("before", 1, 1<<53, "a position, from 1"), c.limit()
	if c.err != nil {
		return nil, c.err
	}
	return h.Service.Messages(c.Context(), c.tenant, c.sessionID, before, limit)
}

func (h *handler) listTurns(c *call, _ *none) (*api.TurnList, error) {
	before, limit := c.before(), c.limit()
	if c.err != nil {
		return nil, c.err
	}
	return h.Service.Turns(c.Context(), c.tenant, c.sessionID, before, limit)
}

func (h *handler) startTurn(c *call, req *api.TurnCreate) (*api.Turn, error) {
	key := c.idempotencyKey()
	if c.err != nil {
		return nil, c.err
	}
	turn, err := h.Service.StartTurn(c.Context(), c.tenant, c.sessionID, req, key)
	if err == nil {
		c.created("%s/turns/%s", c.sessionID, turn.ID)
	}
	return turn, err
}

func (h *handler) getTurn(c *call, _ *none) (*api.Turn, error) {
	return hold(h, c, func(ctx context.Context, wait time.Duration) (*api.Turn, error) {
		return h.Service.Turn(ctx, c.tenant, c.sessionID, c.turnID, wait)
	})
}

func (h *handler) cancelTurn(c *call, _ *empty) (*api.Turn, error) {
	return h.Service.CancelTurn(c.Context(), c.tenant, c.sessionID, c.turnID)
}

func (h *handler) getTools(c *call, _ *none) (*api.Skills, error) {
	skills, etag, err := h.Service.Tools(c.Context(), c.tenant, c.sessionID)
	if err == nil {
		c.w.Header().Set("ETag", etag)
	}
	return skills, err
}

func (h *handler) replaceTools(c *call, req *api.ToolsReplace) (*api.Skills, error) {
	if req.Tools == nil {
		return nil, refuse(sessions.CodeInvalidInput, "\"tools\" is missing; an empty list withdraws all tools", "pointer", "/tools")
	}
	skills, etag, err := h.Service.ReplaceTools(c.Context(), c.tenant, c.sessionID, c.Header.Get("If-Match"), req)
	if err == nil {
		c.w.Header().Set("ETag", etag)
	}
	return skills, err
}

func (h *handler) getTool(c *call, _ *none) (*api.Tool, error) {
	name, err := url.PathUnescape(chi.URLParam(c.Request, "name"))
	if err != nil {
		return nil, refuse(sessions.CodeToolNotFound, "the session declares no tool of this name")
	}
	return h.Service.Tool(c.Context(), c.tenant, c.sessionID, name)
}

func (h *handler) pageEvents(c *call, _ *none) (*api.EventPage, error) {
	limit := c.limit()
	return hold(h, c, func(ctx context.Context, wait time.Duration) (*api.EventPage, error) {
		return h.Service.EventPage(ctx, c.tenant, c.sessionID, c.query.Get("after"), limit, wait)
	})
}

func (h *handler) listToolCalls(c *call, _ *none) (*api.ToolCallList, error) {
	status := choice(c, "status", api.ToolCallQueued, api.ToolCallPending, api.ToolCallSettled)
	return hold(h, c, func(ctx context.Context, wait time.Duration) (*api.ToolCallList, error) {
		return h.Service.ToolCalls(ctx, c.tenant, c.sessionID, status, wait)
	})
}

func (h *handler) getToolCall(c *call, _ *none) (*api.ToolCall, error) {
	return h.Service.ToolCall(c.Context(), c.tenant, c.sessionID, c.toolCallID)
}

func (h *handler) submitResult(c *call, req *api.ResultSubmit) (*api.ToolCall, error) {
	return h.Service.SubmitResult(c.Context(), c.tenant, c.sessionID, c.toolCallID, req)
}

func (h *handler) claimToolCall(c *call, req *api.ClaimRequest) (*api.Claim, error) {
	return h.Service.ClaimToolCall(c.Context(), c.tenant, c.sessionID, c.toolCallID, req)
}

func (h *handler) reportProgress(c *call, req *api.ProgressRequest) (*api.ToolCall, error) {
	return h.Service.ReportProgress(c.Context(), c.tenant, c.sessionID, c.toolCallID, req)
}

func (h *handler) listModels(c *call, _ *none) (*api.ModelList, error) {
	return h.Service.Models(c.Context(), c.tenant), nil
}

// hold calls get with the time that the client is willing to wait, and cuts the wait short when the server drains.
func hold[A any](h *handler, c *call, get func(ctx context.Context, wait time.Duration) (A, error)) (answer A, err error) {
	wait := c.wait()
	if c.err != nil {
		return answer, c.err
	}
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	defer context.AfterFunc(h.Draining, cancel)()
	answer, err = get(ctx, wait)
	if err != nil && ctx.Err() != nil && c.Context().Err() == nil {
		return get(c.Context(), 0)
	}
	return answer, err
}

// probe answers whether check finds nothing wrong.
func (h *handler) probe(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := check(); err != nil {
			h.fail(w, r, err)
			return
		}
		write(w, http.StatusOK, typeJSON, []byte(`{"status":"ok"}`))
	}
}

func (h *handler) ready() error {
	if h.Draining.Err() != nil {
		return errDraining
	}
	if err := h.Service.Healthy(); err != nil {
		return &sessions.Error{Code: sessions.CodeStorageUnavailable, Detail: "the log cannot be written now", Err: err}
	}
	return nil
}

func (h *handler) contract(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, "application/yaml", h.OpenAPI)
}
