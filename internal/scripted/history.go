package scripted

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"treadle/sessions"
)

// CheckHistory returns an error that names the first message of the prompt at which its history is not what every provider
// accepts: each assistant call has exactly one result, directly after its message and in call order; call ids are unique; no
// message is empty; assistant messages do not follow each other directly; the history begins with the user and ends with
// something to answer.
func CheckHistory(p *sessions.Prompt) error {
	if len(p.Messages) == 0 {
		return fmt.Errorf("the history is empty")
	}
	var open []sessions.Call
	ids := map[uuid.UUID]bool{}
	var previous sessions.Role
	for i := range p.Messages {
		msg := &p.Messages[i]
		var err error
		switch {
		case len(open) > 0:
			err = checkResult(msg, open[0])
			open = open[1:]
		case msg.Role == sessions.RoleTool:
			err = fmt.Errorf("result of %q (%s) without an open call", msg.Tool, msg.CallID)
		case msg.Role == sessions.RoleUser:
			err = checkUser(msg)
		case msg.Role == sessions.RoleAssistant:
			err = checkAssistant(msg, previous, ids)
			open = msg.Calls
		default:
			err = fmt.Errorf("unknown role %q", msg.Role)
		}
		if err != nil {
			return fmt.Errorf("message %d of %d: %w", i+1, len(p.Messages), err)
		}
		previous = msg.Role
	}
	if len(open) > 0 {
		return fmt.Errorf("call of %q (%s) has no result", open[0].Tool, open[0].ID)
	}
	if previous == sessions.RoleAssistant {
		return fmt.Errorf("the history ends with an assistant message: there is nothing to answer")
	}
	return nil
}

func checkUser(msg *sessions.Message) error {
	switch {
	case msg.Text == "":
		return fmt.Errorf("empty user message")
	case len(msg.Calls) > 0 || msg.Result != nil || msg.Reasoning != "":
		return fmt.Errorf("user message with calls, a result or reasoning")
	}
	return nil
}

func checkAssistant(msg *sessions.Message, previous sessions.Role, ids map[uuid.UUID]bool) error {
	switch {
	case previous == "":
		return fmt.Errorf("the history begins with an assistant message")
	case previous == sessions.RoleAssistant:
		return fmt.Errorf("assistant message directly after another")
	case msg.Result != nil:
		return fmt.Errorf("assistant message with a result")
	case msg.Text == "" && len(msg.Calls) == 0 && msg.Reasoning == "" && len(msg.Opaque) == 0:
		return fmt.Errorf("empty assistant message")
	}
	for _, call := range msg.Calls {
		switch {
		case call.ID == uuid.Nil:
			return fmt.Errorf("call of %q without id", call.Tool)
		case ids[call.ID]:
			return fmt.Errorf("call id %s is not unique", call.ID)
		case call.Tool == "":
			return fmt.Errorf("call %s names no tool", call.ID)
		case !json.Valid(call.Args):
			return fmt.Errorf("call of %q (%s): arguments are not JSON: %q", call.Tool, call.ID, call.Args)
		}
		ids[call.ID] = true
	}
	return nil
}

// checkResult checks that msg is the result of call.
func checkResult(msg *sessions.Message, call sessions.Call) error {
	r := msg.Result
	switch {
	case msg.Role != sessions.RoleTool:
		return fmt.Errorf("%s message where the result of %q (%s) belongs", msg.Role, call.Tool, call.ID)
	case msg.CallID != call.ID || msg.Tool != call.Tool:
		return fmt.Errorf("result of %q (%s) where that of %q (%s) belongs", msg.Tool, msg.CallID, call.Tool, call.ID)
	case msg.Text != "" || len(msg.Calls) > 0 || msg.Reasoning != "":
		return fmt.Errorf("result of %q with text, calls or reasoning", msg.Tool)
	case r == nil:
		return fmt.Errorf("result of %q (%s) is nil", msg.Tool, msg.CallID)
	case r.OK && (r.Error != nil || !json.Valid(r.Output)):
		return fmt.Errorf("result of %q is ok but has an error or no JSON output", msg.Tool)
	case !r.OK && (r.Error == nil || r.Error.Code == "" || r.Output != nil):
		return fmt.Errorf("result of %q is not ok but has an output or no error code", msg.Tool)
	}
	return nil
}
