package sessions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"treadle/api"
)

// ToolCalls lists the calls of the running turn's last message, in call order; with a status only those. While there is none the
// call waits for one, as long as wait.
func (s *Service) ToolCalls(ctx context.Context, tenant string, id uuid.UUID, status api.ToolCallStatus, wait time.Duration) (*api.ToolCallList, error) {
	key := sessionKey{tenant, id}
	st, err := s.state(ctx, key)
	if err != nil {
		return nil, err
	}
	wanted := func(c CallState) bool { return status == "" || c.Status == status }
	st, err = s.await(ctx, key, st, wait, func(st *State) bool { return st.Turn != nil && slices.ContainsFunc(st.Turn.Calls, wanted) })
	if err != nil {
		return nil, err
	}
	list := &api.ToolCallList{ToolCalls: []api.ToolCall{}}
	if st.Turn == nil {
		return list, nil
	}
	settled := callFinder{}
	for _, c := range st.Turn.Calls {
		if wanted(c) && c.Status == api.ToolCallSettled {
			settled[c.ID] = nil
		}
	}
	if len(settled) > 0 {
		// The message that made the calls comes after the announcement of its step.
		err := s.scan(ctx, key, st.Turn.StepSeq, func(_ Entry, event api.Event) bool {
			settled.visit(event)
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	now := time.Now()
	for _, c := range st.Turn.Calls {
		switch {
		case !wanted(c):
		case settled[c.ID] != nil:
			list.ToolCalls = append(list.ToolCalls, *settled[c.ID])
		default:
			list.ToolCalls = append(list.ToolCalls, st.view(&c, now))
		}
	}
	return list, nil
}

// ToolCall returns a call, open or settled, of any turn.
func (s *Service) ToolCall(ctx context.Context, tenant string, id, call uuid.UUID) (*api.ToolCall, error) {
	key := sessionKey{tenant, id}
	st, err := s.state(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.showCall(ctx, key, st, call)
}

func (s *Service) showCall(ctx context.Context, key sessionKey, st *State, call uuid.UUID) (*api.ToolCall, error) {
	if c := st.call(call); c != nil && c.Status != api.ToolCallSettled {
		view := st.view(c, time.Now())
		return &view, nil
	}
	return s.findCall(ctx, key, st, call)
}

// SubmitResult settles a call with what the page answered. The identical result again returns the call as before; any other
// result for a settled call is refused with TOOL_CALL_SETTLED and the result that won.
func (s *Service) SubmitResult(ctx context.Context, tenant string, id, call uuid.UUID, req *api.ResultSubmit) (*api.ToolCall, error) {
	result, err := checkResult(req)
	if err != nil {
		return nil, err
	}
	key := sessionKey{tenant, id}
	var view api.ToolCall
	_, err = s.commit(ctx, key, func(st *State) (*draft, error) {
		d, err := st.submitResult(time.Now(), call, req.ClaimID, *result)
		if err != nil {
			return nil, err
		}
		view = st.view(st.call(call), d.now)
		if result.OK {
			err = checkOutput(st, view.Tool, result.Output)
		}
		return d, err
	})
	if err == nil {
		view.Status, view.Result, view.SettledBy, view.Claim = api.ToolCallSettled, result, api.SettledByPage, nil
		return &view, nil
	}
	settled, err := s.orSettled(ctx, key, call, err)
	if err != nil {
		return nil, err
	}
	if sameResult(settled.Result, result) {
		return settled, nil
	}
	return nil, settledError(settled)
}

// orSettled turns errNotOpen into the settled call, if the log has it.
func (s *Service) orSettled(ctx context.Context, key sessionKey, call uuid.UUID, err error) (*api.ToolCall, error) {
	if !errors.Is(err, errNotOpen) {
		return nil, err
	}
	st, err := s.state(ctx, key)
	if err != nil {
		return nil, err
	}
	settled, err := s.findCall(ctx, key, st, call)
	if err != nil {
		return nil, err
	}
	if settled.Status != api.ToolCallSettled {
		return nil, fmt.Errorf("call %s is neither open nor settled", call)
	}
	return settled, nil
}

func settledError(call *api.ToolCall) *Error {
	return refuse(CodeToolCallSettled, "the call was settled before, by %s; the result that counts is in tool_call", call.SettledBy).with("tool_call", call)
}

// checkResult makes a result of a submission.
func checkResult(req *api.ResultSubmit) (*api.ToolResult, error) {
	switch {
	case (req.Output == nil) == (req.Error == nil):
		return nil, refuse(CodeInvalidInput, "a result has either \"output\" (any JSON value, null included) or \"error\", not both and not neither").with("pointer", "")
	case req.Error == nil:
		if err := checkJSON(req.Output, maxJSONDepth); err != nil {
			return nil, refuse(CodeInvalidInput, "output: %v", err).with("pointer", "/output")
		}
		return &api.ToolResult{OK: true, Output: req.Output}, nil
	case req.Error.Code == "" || len(req.Error.Code) > 128:
		return nil, refuse(CodeInvalidInput, "error.code is an UPPER_SNAKE word of 1 to 128 characters that the model can tell apart").with("pointer", "/error/code")
	case req.Error.Message == "" || utf8.RuneCountInString(req.Error.Message) > 65_536:
		return nil, refuse(CodeInvalidInput, "error.message says in 1 to 65,536 characters what went wrong").with("pointer", "/error/message")
	}
	if req.Error.Details != nil {
		if err := checkJSON(req.Error.Details, maxJSONDepth); err != nil {
			return nil, refuse(CodeInvalidInput, "error.details: %v", err).with("pointer", "/error/details")
		}
	}
	return &api.ToolResult{Error: req.Error}, nil
}

// maxJSONDepth bounds the nesting of free JSON.
const maxJSONDepth = 200

// checkOutput holds an output against the tool's result_schema, if it has one.
func checkOutput(st *State, name string, output []byte) error {
	tool := st.tool(name)
	if tool == nil || tool.ResultSchema == nil {
		return nil
	}
	schema, err := compileSchema(tool.ResultSchema)
	if err != nil {
		return fmt.Errorf("compiling the result schema of a registered tool: %w", err)
	}
	if err := schema.validate(output); err != nil {
		pointer := "/output"
		var fault *schemaError
		if errors.As(err, &fault) {
			pointer += fault.Pointer
		}
		return refuse(CodeToolResultInvalid, "the output of %s does not satisfy its result_schema: %v; the call is still open", name, err).with("pointer", pointer)
	}
	return nil
}

// sameResult compares two results as JSON values, numbers digit for digit.
func sameResult(a, b *api.ToolResult) bool {
	if a == nil || b == nil {
		return false
	}
	ra, errA := api.Marshal(a)
	rb, errB := api.Marshal(b)
	if errA != nil || errB != nil {
		return false
	}
	if bytes.Equal(ra, rb) { // as after a retry; the canonical form of a large result is not cheap
		return true
	}
	ca, errA := canonicalize(ra)
	cb, errB := canonicalize(rb)
	return errA == nil && errB == nil && bytes.Equal(ca, cb)
}

// ClaimToolCall gives a call to one client for a while, so that no other runs it too.
func (s *Service) ClaimToolCall(ctx context.Context, tenant string, id, call uuid.UUID, req *api.ClaimRequest) (*api.Claim, error) {
	claimed := *req
	if n := utf8.RuneCountInString(req.ClientID); n == 0 || n > 128 {
		return nil, refuse(CodeInvalidInput, "client_id is a name of 1 to 128 characters that the client chose for itself").with("pointer", "/client_id")
	}
	switch {
	case req.LeaseMS == 0:
		claimed.LeaseMS = 30_000
	case req.LeaseMS < 1000 || req.LeaseMS > 300_000:
		return nil, refuse(CodeInvalidInput, "lease_ms is %d, it must be 1000 to 300000", req.LeaseMS).with("pointer", "/lease_ms")
	}
	key := sessionKey{tenant, id}
	var claim *api.Claim
	_, err := s.commit(ctx, key, func(st *State) (d *draft, err error) {
		d, claim, err = st.claim(time.Now(), call, &claimed)
		return d, err
	})
	if err != nil {
		return nil, s.refuseSettled(ctx, key, call, err)
	}
	return claim, nil
}

// ReportProgress shows how far a call is. It renews the claim, and the deadline as far as the tool's max_timeout_ms.
func (s *Service) ReportProgress(ctx context.Context, tenant string, id, call uuid.UUID, req *api.ProgressRequest) (*api.ToolCall, error) {
	if err := checkText("message", req.Message, 1024); err != nil {
		return nil, err
	}
	if f := req.Fraction; f != nil && !(*f >= 0 && *f <= 1) {
		return nil, refuse(CodeInvalidInput, "fraction is %v, it must be 0 to 1", *f).with("pointer", "/fraction")
	}
	key := sessionKey{tenant, id}
	st, err := s.commit(ctx, key, func(st *State) (*draft, error) { return st.progress(time.Now(), call, req, &s.limits) })
	if err != nil {
		return nil, s.refuseSettled(ctx, key, call, err)
	}
	return s.showCall(ctx, key, st, call)
}

// refuseSettled says that a call is settled where that is why it is not open.
func (s *Service) refuseSettled(ctx context.Context, key sessionKey, call uuid.UUID, err error) error {
	settled, err := s.orSettled(ctx, key, call, err)
	if err != nil {
		return err
	}
	return settledError(settled)
}
