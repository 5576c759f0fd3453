package sessions_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

// C24, C31: the first result wins; the identical one again is fine; any other is told who won.
func TestSubmitResult_repeats(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0].ID
		submit := func(body api.ResultSubmit) (*api.ToolCall, error) {
			return f.SubmitResult(f.ctx, tenant, id, call, &body)
		}
		for _, bad := range []api.ResultSubmit{
			{}, {Output: json.RawMessage("1"), Error: &api.ToolError{Code: "X", Message: "m"}}, {Error: &api.ToolError{Message: "m"}}, {Error: &api.ToolError{Code: "X"}},
		} {
			_, err := submit(bad)
			f.refused(err, sessions.CodeInvalidInput)
		}
		f.submit(id, call, `{"a":1,"b":[1.0,null]}`)
		if c, err := submit(api.ResultSubmit{Output: json.RawMessage(`{ "b":[1.0,null],"a":1}`)}); err != nil || c.Status != api.ToolCallSettled {
			t.Errorf("identical: %v", err)
		}
		for _, other := range []string{`{"a":1,"b":[1,null]}`, `null`} {
			_, err := submit(api.ResultSubmit{Output: json.RawMessage(other)})
			winner := f.refused(err, sessions.CodeToolCallSettled).Facts["tool_call"].(*api.ToolCall)
			if string(winner.Result.Output) != `{"a":1,"b":[1.0,null]}` || winner.SettledBy != api.SettledByPage {
				t.Errorf("winner: %+v", winner)
			}
		}
		_, err := f.SubmitResult(f.ctx, tenant, id, uuid.New(), &api.ResultSubmit{Output: json.RawMessage("1")})
		f.refused(err, sessions.CodeToolCallNotFound)
		_, err = f.SubmitResult(f.ctx, "other", id, call, &api.ResultSubmit{Output: json.RawMessage("1")})
		f.refused(err, sessions.CodeSessionNotFound)
		f.ended(id, turn)
		// After the turn, and after another one, the answer is the same.
		f.ended(id, f.turn(id, "more"))
		f.submit(id, call, `{"a":1,"b":[1.0,null]}`)
		_, err = submit(api.ResultSubmit{Output: json.RawMessage("1")})
		f.refused(err, sessions.CodeToolCallSettled)
	})
}

// C24: two tabs answer at once.
func TestSubmitResult_race(t *testing.T) {
	bubble(t, "rules:\n- repeat: last\n  answers:\n  - - call: {tool: a}\n  - - text: Done.\n", func(f *fixture) {
		second := f.replica()
		var id uuid.UUID
		for trial := range 200 {
			if trial%20 == 0 {
				id = f.create(tool("a"))
			}
			turn := f.turn(id, "go")
			call := f.pending(id, 1)[0].ID
			var wg sync.WaitGroup
			errs := make([]error, 2)
			for i, svc := range []*sessions.Service{f.Service, second.Service} {
				wg.Go(func() {
					_, errs[i] = svc.SubmitResult(f.ctx, tenant, id, call, &api.ResultSubmit{Output: json.RawMessage(fmt.Sprint(i))})
				})
			}
			wg.Wait()
			if (errs[0] == nil) == (errs[1] == nil) {
				t.Fatalf("trial %d: %v, %v", trial, errs[0], errs[1])
			}
			loser := errs[0]
			if loser == nil {
				loser = errs[1]
			}
			f.refused(loser, sessions.CodeToolCallSettled)
			if r, err := f.Turn(f.ctx, tenant, id, turn, time.Minute); err != nil || len(r.ToolResults) != 1 {
				t.Fatalf("trial %d: %+v, %v", trial, r, err)
			}
		}
		f.invariants(id)
	})
}

func TestClaim(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0].ID
		claim, err := f.ClaimToolCall(f.ctx, tenant, id, call, &api.ClaimRequest{ClientID: "tab 1", LeaseMS: 5000})
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.ClaimToolCall(f.ctx, tenant, id, call, &api.ClaimRequest{ClientID: "tab 2"})
		f.refused(err, sessions.CodeToolCallClaimed)
		_, err = f.SubmitResult(f.ctx, tenant, id, call, &api.ResultSubmit{Output: json.RawMessage("2")})
		f.refused(err, sessions.CodeToolCallClaimed)
		renewed, err := f.ClaimToolCall(f.ctx, tenant, id, call, &api.ClaimRequest{ClientID: "tab 1", LeaseMS: 5000})
		if err != nil || renewed.ClaimID != claim.ClaimID || claim.MayHaveRun || !renewed.MayHaveRun || renewed.Attempt != 1 {
			t.Errorf("renewed: %+v, %v", renewed, err)
		}
		if c, err := f.ReportProgress(f.ctx, tenant, id, call, &api.ProgressRequest{Message: "half", ClaimID: claim.ClaimID}); err != nil || c.Claim == nil {
			t.Errorf("progress: %+v, %v", c, err)
		}
		// The lease ends: the call is offered again, to whoever takes it.
		r := f.open(id, sessions.StreamQuery{After: "latest"})
		r.until(api.TypeReady)
		frame := r.until(api.TypeToolCall)
		var again api.ToolCallEvent
		if err := json.Unmarshal(frame.Data, &again); err != nil || again.Attempt != 2 || !again.MayHaveRun || again.ToolCallID != call {
			t.Errorf("offered again: %s", frame.Data)
		}
		second, err := f.ClaimToolCall(f.ctx, tenant, id, call, &api.ClaimRequest{ClientID: "tab 2"})
		if err != nil || second.Attempt != 2 || !second.MayHaveRun {
			t.Fatalf("%+v, %v", second, err)
		}
		_, err = f.SubmitResult(f.ctx, tenant, id, call, &api.ResultSubmit{Output: json.RawMessage("1"), ClaimID: claim.ClaimID})
		f.refused(err, sessions.CodeToolCallClaimed)
		if _, err := f.SubmitResult(f.ctx, tenant, id, call, &api.ResultSubmit{Output: json.RawMessage("2"), ClaimID: second.ClaimID}); err != nil {
			t.Error(err)
		}
		if _, err := f.SubmitResult(f.ctx, tenant, id, call, &api.ResultSubmit{Output: json.RawMessage("2")}); err != nil {
			t.Errorf("the repeat needs no claim: %v", err)
		}
		f.ended(id, turn)
		_, err = f.ClaimToolCall(f.ctx, tenant, id, call, &api.ClaimRequest{ClientID: "tab 3"})
		f.refused(err, sessions.CodeToolCallSettled)
	})
}

func TestProgress_extendsTheDeadline(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		long := tool("a")
		long.TimeoutMS, long.MaxTimeoutMS = 10_000, 25_000
		id := f.create(long)
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0]
		for range 4 {
			<-time.After(5 * time.Second)
			if _, err := f.ReportProgress(f.ctx, tenant, id, call.ID, &api.ProgressRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		result := f.ended(id, turn)
		if d := result.ToolResults[0].DurationMS; d < 25_000 || d > 25_500 {
			t.Errorf("timed out after %d ms", d)
		}
	})
}
