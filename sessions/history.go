package sessions

import (
	"slices"

	"github.com/google/uuid"

	"treadle/api"
)

// history builds the messages of a prompt from facts. It is well formed at every moment at which no call is open: each call
// has exactly one result, directly after its message, in call order.
type history struct {
	messages []Message
	// calls are those of the last assistant message, results what came for them so far.
	calls   []Call
	results map[uuid.UUID]*api.ToolResult
	// bytes is about what all of it takes.
	bytes int
}

// add takes one event.
func (h *history) add(e Entry, event api.Event) {
	switch ev := event.(type) {
	case *api.TurnStarted:
		h.settle()
		h.append(Message{Role: RoleUser, Text: ev.Input.Text()})
	case *api.MessageEvent:
		h.settle()
		m := Message{Role: RoleAssistant, Text: ev.Text, Reasoning: ev.Reasoning}
		for _, c := range ev.ToolCalls {
			m.Calls = append(m.Calls, Call{ID: c.ToolCallID, Tool: c.Tool, Args: c.Args})
		}
		if p := e.Private; p != nil {
			m.Opaque, m.Origin = p.Opaque, p.Origin
			for i := range min(len(m.Calls), len(p.WireIDs)) {
				m.Calls[i].WireID = p.WireIDs[i]
			}
		}
		h.append(m)
		h.calls, h.results = m.Calls, map[uuid.UUID]*api.ToolResult{}
	case *api.ToolResultEvent:
		if _, double := h.results[ev.ToolCallID]; h.results != nil && !double {
			h.results[ev.ToolCallID] = &ev.Result
		}
	case *api.TurnCompleted, *api.TurnFailed, *api.TurnCanceled:
		h.settle()
	}
}

// settle puts the results behind their message. A call without one, which only a damaged log has, gets an error, since
// every provider refuses a history with an open call.
func (h *history) settle() {
	for _, c := range h.calls {
		result := h.results[c.ID]
		if result == nil {
			result = &api.ToolResult{Error: &api.ToolError{Code: "TOOL_INTERRUPTED", Message: "The result was lost. Whether the tool ran is not known."}}
		}
		h.append(Message{Role: RoleTool, CallID: c.ID, Tool: c.Tool, Result: result})
	}
	h.calls, h.results = nil, nil
}

func (h *history) append(m Message) {
	h.messages = append(h.messages, m)
	h.bytes += 256 + len(m.Text) + len(m.Reasoning) + len(m.Opaque)
	for _, c := range m.Calls {
		h.bytes += 128 + len(c.Args)
	}
	if m.Result != nil {
		h.bytes += len(m.Result.Output)
		if e := m.Result.Error; e != nil {
			h.bytes += len(e.Message) + len(e.Details)
		}
	}
}

// prompt returns the messages so far. Nothing may be open.
func (h *history) prompt() []Message {
	h.settle()
	return slices.Clip(h.messages)
}
