package sessions_test

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

func TestTurn_roundTrip(t *testing.T) {
	bubble(t, `
answers:
  - - text: "Let me look."
    - call: {tool: read, args: '{"n":9007199254740993}'}
  - - text: "Done."
`, func(f *fixture) {
		id := f.create(tool("read"))
		r := f.open(id, sessions.StreamQuery{})
		turn := f.turn(id, "look")
		frame := r.until(api.TypeToolCall)
		var call api.ToolCallEvent
		if err := json.Unmarshal(frame.Data, &call); err != nil {
			t.Fatal(err)
		}
		if string(call.Args) != `{"n":9007199254740993}` || call.Source != api.SourcePage || call.Attempt != 1 || call.MayHaveRun {
			t.Errorf("call: %s", frame.Data)
		}
		if s, _ := f.Session(f.ctx, tenant, id); s.Status != api.StatusWaitingToolResult || len(s.PendingToolCalls) != 1 || s.TurnID != turn {
			t.Errorf("session: %+v", s)
		}
		settled := f.submit(id, call.ToolCallID, `{"v":1.10}`)
		if settled.Status != api.ToolCallSettled || string(settled.Result.Output) != `{"v":1.10}` {
			t.Errorf("settled: %+v", settled)
		}
		result := f.ended(id, turn)
		if *result.Outcome != api.OutcomeCompleted || result.Text != "Done." || result.Steps != 2 || len(result.ToolResults) != 1 {
			t.Errorf("turn: %+v", result)
		}
		prompts := f.model.Prompts()
		last := prompts[len(prompts)-1].Messages
		if m := last[len(last)-1]; m.Role != sessions.RoleTool || string(m.Result.Output) != `{"v":1.10}` {
			t.Errorf("the model was told %+v", m)
		}
		if s, _ := f.Session(f.ctx, tenant, id); s.Status != api.StatusIdle || len(s.PendingToolCalls) != 0 {
			t.Errorf("session after the turn: %+v", s)
		}
		r.until(api.TypeTurnCompleted)
		want := []string{"session_created", "turn_started", "status_changed", "step_started", "text_delta", "message", "tool_call", "status_changed",
			"tool_result", "status_changed", "step_started", "text_delta", "message", "turn_completed", "status_changed"}
		var got []string
		for _, item := range f.pages(id) {
			got = append(got, api.EventType(item.Event))
		}
		if !slices.Equal(got, want) {
			t.Errorf("events:\n got %v\nwant %v", got, want)
		}
	})
}

// C23: the model goes on when all results are in, in call order.
func TestTurn_parallelCalls(t *testing.T) {
	bubble(t, `
answers:
  - - call: {tool: a, args: {n: 1}}
    - call: {tool: a, args: {n: 1}}
    - call: {tool: b, args: {n: 3}}
    - call: {tool: b}
    - call: {tool: a, args: {n: 5}}
  - - text: "Done."
`, func(f *fixture) {
		id := f.create(tool("a"), tool("b"))
		turn := f.turn(id, "go")
		calls := f.pending(id, 5)
		for _, i := range []int{4, 2, 0, 1} {
			f.submit(id, calls[i].ID, fmt.Sprint(i))
		}
		<-time.After(20 * time.Second)
		if n := len(f.model.Prompts()); n != 1 {
			t.Fatalf("%d model calls before the last result", n)
		}
		f.submit(id, calls[3].ID, "3")
		result := f.ended(id, turn)
		prompts := f.model.Prompts()
		if len(prompts) != 2 {
			t.Fatalf("%d model calls", len(prompts))
		}
		for i, m := range prompts[1].Messages[2:] {
			if string(m.Result.Output) != fmt.Sprint(i) || m.CallID != calls[i].ID || result.ToolResults[i].ToolCallID != calls[i].ID {
				t.Errorf("result %d is %s", i, m.Result.Output)
			}
		}
	})
}

func TestTurn_boundedParallelCalls(t *testing.T) {
	bubbleWith(t, `
answers:
  - - call: {tool: a, args: {n: 1}}
    - call: {tool: a, args: {n: 2}}
    - call: {tool: a, args: {n: 3}}
`, sessions.Limits{MaxParallelCalls: 2}, func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		calls := f.pending(id, 2)
		queued, err := f.ToolCalls(f.ctx, tenant, id, api.ToolCallQueued)
		if err != nil || len(queued.ToolCalls) != 1 {
			t.Fatalf("queued: %+v, %v", queued, err)
		}
		_, err = f.SubmitResult(f.ctx, tenant, id, queued.ToolCalls[0].ID, &api.ResultSubmit{Output: json.RawMessage("1")})
		f.refused(err, sessions.CodeToolCallNotOffered)
		f.submit(id, calls[1].ID, "2")
		calls = f.pending(id, 2)
		f.submit(id, calls[0].ID, "1")
		f.submit(id, calls[1].ID, "3")
		f.ended(id, turn)
	})
}

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
		id := f.create(tool("a"))
		for trial := range 200 {
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

// C26: the page never answers.
func TestTurn_toolTimeout(t *testing.T) {
	bubble(t, `
answers:
  - - call: {tool: slow}
    - call: {tool: slower}
  - - text: "Nobody answered."
`, func(f *fixture) {
		slow, slower := tool("slow"), tool("slower")
		slow.TimeoutMS = 2000
		id := f.create(slow, slower)
		started := time.Now()
		turn := f.turn(id, "go")
		f.pending(id, 2)
		for time.Since(started) < 3*time.Second {
			<-time.After(100 * time.Millisecond)
		}
		f.pending(id, 1)
		result := f.ended(id, turn)
		for i, want := range []int64{2000, 60_000} {
			r := result.ToolResults[i]
			if r.SettledBy != api.SettledByTimeout || r.Result.OK || r.Result.Error.Code != "TOOL_TIMEOUT" || r.DurationMS < want || r.DurationMS > want+500 {
				t.Errorf("result: %+v %+v", r, r.Result.Error)
			}
			if !strings.Contains(r.Result.Error.Message, "No client was connected") {
				t.Errorf("message: %s", r.Result.Error.Message)
			}
		}
		if *result.Outcome != api.OutcomeCompleted || result.Text != "Nobody answered." {
			t.Errorf("turn: %+v", result)
		}
	})
}

// C37: bad arguments and invented tools are the model's business; the page is not bothered.
func TestTurn_invalidCalls(t *testing.T) {
	bubble(t, `
answers:
  - - call: {tool: nope}
    - call: {tool: "?"}
    - call: {tool: " a "}
    - call: {tool: a, args: '[]'}
    - call: {tool: a, args: '{"n":"5"}'}
    - call: {tool: a, args: '{"n":1,"n":2}'}
    - call: {tool: a, args: '{"x":1}'}
    - call: {tool: a, args: '{"n":'}
    - call: {tool: a, args: '{"n":7}'}
  - - text: "Done."
`, func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0]
		if string(call.Args) != `{"n":7}` {
			t.Errorf("offered: %s", call.Args)
		}
		f.submit(id, call.ID, "true")
		result := f.ended(id, turn)
		for i, r := range result.ToolResults[:8] {
			want := "TOOL_ARGS_INVALID"
			if i < 3 {
				want = "TOOL_NOT_FOUND"
			}
			if r.SettledBy != api.SettledByValidation || r.Result.Error.Code != want || r.Result.Error.Message == "" {
				t.Errorf("call %d: %+v, %+v", i, r, r.Result.Error)
			}
		}
	})
}

func TestTurn_toolFailuresInARow(t *testing.T) {
	bubble(t, "repeat: last\nanswers:\n- - call: {tool: nope}\n", func(f *fixture) {
		id := f.create(tool("a"))
		result := f.ended(id, f.turn(id, "go"))
		if *result.Outcome != api.OutcomeFailed || result.Failure.Class != "tool_failures" || result.Steps != 5 {
			t.Errorf("turn: %+v %+v", result, result.Failure)
		}
		f.turn(id, "again") // the session is usable
	})
}

// C55: loop limits.
func TestTurn_maxSteps(t *testing.T) {
	bubble(t, "repeat: last\nanswers:\n- - call: {tool: a}\n", func(f *fixture) {
		id := f.create(tool("a"))
		for range 2 {
			before := len(f.model.Prompts())
			req := input("go")
			req.MaxSteps = 3
			turn, err := f.StartTurn(f.ctx, tenant, id, req, "")
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				f.submit(id, f.pending(id, 1)[0].ID, "1")
			}
			result := f.ended(id, turn.ID)
			if *result.Outcome != api.OutcomeFailed || result.Failure.Class != "max_steps" || len(f.model.Prompts())-before != 3 {
				t.Errorf("turn: %+v after %d model calls", result.Failure, len(f.model.Prompts())-before)
			}
		}
	})
}

// C43: of many turns at once one starts; after its end the next one starts at once.
func TestStartTurn_busy(t *testing.T) {
	bubble(t, "repeat: last\nanswers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		second := f.replica()
		id := f.create(tool("a"))
		var wg sync.WaitGroup
		var mu sync.Mutex
		var started []uuid.UUID
		var refusals []error
		for i := range 50 {
			wg.Go(func() {
				svc := f.Service
				if i%2 == 1 {
					svc = second.Service
				}
				turn, err := svc.StartTurn(f.ctx, tenant, id, input("go"), "")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					refusals = append(refusals, err)
				} else {
					started = append(started, turn.ID)
				}
			})
		}
		wg.Wait()
		if len(started) != 1 {
			t.Fatalf("%d turns started", len(started))
		}
		for _, err := range refusals {
			if got := f.refused(err, sessions.CodeSessionBusy).Facts["turn_id"]; got != started[0] {
				t.Errorf("refusal names %v", got)
			}
		}
		f.submit(id, f.pending(id, 1)[0].ID, "1")
		r := f.open(id, sessions.StreamQuery{Turn: started[0]})
		r.until(api.TypeTurnCompleted)
		for range 500 {
			turn := f.turn(id, "go")
			r := f.open(id, sessions.StreamQuery{Turn: turn})
			r.until(api.TypeTurnCompleted)
			r.Close()
		}
	})
}

// C57: a retried request runs once.
func TestIdempotency(t *testing.T) {
	bubble(t, "repeat: last\nanswers:\n- - text: Done.\n", func(f *fixture) {
		req := func(text string) *api.SessionCreate {
			return &api.SessionCreate{Metadata: map[string]string{"k": text}}
		}
		first, err := f.CreateSession(f.ctx, tenant, req("a"), "key")
		if err != nil {
			t.Fatal(err)
		}
		second := f.replica()
		again, err := second.CreateSession(f.ctx, tenant, req("a"), "key")
		if err != nil || again.ID != first.ID {
			t.Errorf("again: %v, %v", again, err)
		}
		_, err = f.CreateSession(f.ctx, tenant, req("b"), "key")
		f.refused(err, sessions.CodeIdempotencyKeyReused)
		other, err := f.CreateSession(f.ctx, "other", req("a"), "key")
		if err != nil || other.ID == first.ID {
			t.Errorf("another tenant: %v, %v", other, err)
		}
		turn, err := f.StartTurn(f.ctx, tenant, first.ID, input("go"), "key")
		if err != nil {
			t.Fatal(err)
		}
		for _, svc := range []*sessions.Service{f.Service, second.Service, f.replica().Service} {
			again, err := svc.StartTurn(f.ctx, tenant, first.ID, input("go"), "key")
			if err != nil || again.ID != turn.ID {
				t.Errorf("again: %v, %v", again, err)
			}
			_, err = svc.StartTurn(f.ctx, tenant, first.ID, input("stop"), "key")
			f.refused(err, sessions.CodeIdempotencyKeyReused)
			f.ended(first.ID, turn.ID)
		}
		if n := len(f.model.Prompts()); n != 1 {
			t.Errorf("the model was called %d times", n)
		}
	})
}

// C45: cancel closes what is open, keeps what was said and answered, and leaves a session that works.
func TestCancelTurn(t *testing.T) {
	bubble(t, `
rules:
  - match: text
    answers:
      - - {text: "Half a sen"}
        - block: true
  - match: calls
    answers:
      - - call: {tool: a, args: {n: 1}}
        - call: {tool: a, args: {n: 2}}
        - call: {tool: a, args: {n: 3}}
  - match: hi
    answers: [[{text: "Hi."}]]
`, func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "text")
		r := f.open(id, sessions.StreamQuery{})
		r.until(api.TypeTextDelta)
		for range 2 {
			canceled, err := f.CancelTurn(f.ctx, tenant, id, turn)
			if err != nil || *canceled.Outcome != api.OutcomeCanceled || canceled.Text != "Half a sen" {
				t.Fatalf("canceled: %+v, %v", canceled, err)
			}
		}
		f.ended(id, f.turn(id, "hi"))

		turn = f.turn(id, "calls")
		f.submit(id, f.pending(id, 3)[1].ID, `"kept"`)
		canceled, err := f.CancelTurn(f.ctx, tenant, id, turn)
		if err != nil {
			t.Fatal(err)
		}
		for i, res := range canceled.ToolResults {
			if i == 1 && string(res.Result.Output) != `"kept"` || i != 1 && (res.SettledBy != api.SettledByCancel || res.Result.Error.Code != "TOOL_CANCELED") {
				t.Errorf("result %d: %+v", i, res)
			}
		}
		_, err = f.SubmitResult(f.ctx, tenant, id, canceled.ToolResults[0].ToolCallID, &api.ResultSubmit{Output: json.RawMessage("1")})
		f.refused(err, sessions.CodeToolCallSettled)
		if result := f.ended(id, f.turn(id, "hi")); result.Text != "Hi." {
			t.Errorf("after it: %+v", result)
		}
		_, err = f.CancelTurn(f.ctx, tenant, id, uuid.New())
		f.refused(err, sessions.CodeTurnNotFound)
	})
}

func TestTurn_retriesVoidWhatWasShown(t *testing.T) {
	bubble(t, `
answers:
  - - attempts:
      - - text: "Wrong"
        - truncate: true
      - - fail: {class: overloaded, message: "Busy.", retryable: true, retry_after: 3s}
      - - text: "Right"
`, func(f *fixture) {
		id := f.create()
		started := time.Now()
		result := f.ended(id, f.turn(id, "go"))
		if result.Text != "Right" || time.Since(started) < 3*time.Second {
			t.Errorf("turn: %+v after %s", result, time.Since(started))
		}
		var got []string
		for _, item := range f.pages(id) {
			switch event, _ := api.DecodeEvent(item.Event); ev := event.(type) {
			case *api.TextDelta:
				got = append(got, fmt.Sprint(ev.Attempt, ev.Text))
			case *api.AttemptVoided:
				got = append(got, fmt.Sprint("void ", ev.Attempt))
			}
		}
		if want := []string{"1Wrong", "void 1", "2Right"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// C53: silence.
func TestTurn_modelSilent(t *testing.T) {
	bubble(t, "rules:\n- match: never\n  answers: [[{block: true}]]\n- match: text\n  answers: [[{text: Half}, {block: true}]]\n- answers: [[{text: a}, {delay: 80s}, {text: b}]]\n", func(f *fixture) {
		id := f.create()
		for text, limit := range map[string]time.Duration{"never": 2 * time.Minute, "text": 90 * time.Second} {
			started := time.Now()
			result := f.ended(id, f.turn(id, text))
			if result.Failure == nil || result.Failure.Class != "provider_timeout" || time.Since(started) > limit+time.Second {
				t.Errorf("%s: %+v after %s", text, result.Failure, time.Since(started))
			}
		}
		if result := f.ended(id, f.turn(id, "slow")); result.Text != "ab" {
			t.Errorf("slow but live: %+v", result)
		}
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
		if err != nil || renewed.ClaimID != claim.ClaimID {
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
		if err != nil {
			t.Fatal(err)
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

// C28: after a reload, pending calls are found in the state, in the whole stream and before ready of a live one.
func TestStream_reload(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0]
		whole := f.open(id, sessions.StreamQuery{})
		offered := whole.until(api.TypeToolCall)
		live := f.open(id, sessions.StreamQuery{After: "latest"})
		frames, err := live.Next(f.ctx, time.Second)
		if err != nil || len(frames) != 2 || frames[0].ID != offered.ID || string(frames[0].Data) != string(offered.Data) || frames[1].Type != api.TypeReady {
			t.Errorf("live: %v, %v", types(frames), err)
		}
		state, err := f.Session(f.ctx, tenant, id)
		if err != nil || state.PendingToolCalls[0].ID != call.ID || state.PendingToolCalls[0].Deadline.IsZero() {
			t.Errorf("state: %+v, %v", state, err)
		}
		past := f.open(id, sessions.StreamQuery{LastEventID: state.Cursor, After: "nonsense"})
		past.until(api.TypeReady)
		f.submit(id, call.ID, "1")
		past.until(api.TypeToolResult)
		f.ended(id, turn)
	})
}

// C13: a cursor that is not of this history leads to a reset on a stream and to a refusal on a page.
func TestStream_foreignCursors(t *testing.T) {
	bubble(t, "answers:\n- - text: Done.\n", func(f *fixture) {
		id, other := f.create(), f.create()
		f.ended(id, f.turn(id, "go"))
		state, _ := f.Session(f.ctx, tenant, id)
		foreign, _ := f.Session(f.ctx, tenant, other)
		tag, _, _ := strings.Cut(state.Cursor, "-")
		for _, cursor := range []string{"0", "-1", "abc", strings.Repeat("9", 10_000), "1.5", foreign.Cursor, tag + "-", tag + "-1x", tag + "-0001", tag + "-" + strings.Repeat("9", 19), tag + "-99999999000"} {
			r := f.open(id, sessions.StreamQuery{LastEventID: cursor})
			frames, err := r.Next(f.ctx, time.Second)
			if err != nil || frames[0].Type != api.TypeReset {
				t.Fatalf("%.20s: %v, %v", cursor, types(frames), err)
			}
			r.until(api.TypeTurnCompleted)
			_, err = f.EventPage(f.ctx, tenant, id, cursor, 10, 0)
			f.refused(err, sessions.CodeCursorInvalid)
		}
		r := f.open(id, sessions.StreamQuery{After: tag + "-0"})
		r.until(api.TypeReady)
		r.until(api.TypeSessionCreated)
	})
}

// A reader may stop and resume between any two events, those of one record included.
func TestStream_resumeAnywhere(t *testing.T) {
	bubble(t, "answers:\n- - text: A.\n  - call: {tool: a}\n  - call: {tool: nope}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		f.submit(id, f.pending(id, 1)[0].ID, "1")
		f.ended(id, turn)
		items := f.pages(id)
		for i, item := range items {
			r := f.open(id, sessions.StreamQuery{LastEventID: item.ID})
			got := r.rest()[1:]
			r.Close()
			var want []string
			for _, later := range items[i+1:] {
				want = append(want, api.EventType(later.Event))
			}
			if !slices.Equal(got, want) {
				t.Errorf("after event %d: got %v, want %v", i, got, want)
			}
		}
	})
}

func TestSession_endAndDelete(t *testing.T) {
	bubble(t, "repeat: last\nanswers:\n- - call: {tool: a}\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		f.pending(id, 1)
		r := f.open(id, sessions.StreamQuery{})
		for range 2 {
			if s, err := f.EndSession(f.ctx, tenant, id); err != nil || s.Status != api.StatusEnded {
				t.Fatalf("end: %+v, %v", s, err)
			}
		}
		if got := r.rest(); !slices.Equal(got[len(got)-4:], []string{"tool_result", "turn_canceled", "session_ended", "stream_end"}) {
			t.Errorf("events: %v", got)
		}
		if _, err := r.Next(f.ctx, time.Second); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
		f.ended(id, turn)
		_, err := f.StartTurn(f.ctx, tenant, id, input("go"), "")
		f.refused(err, sessions.CodeSessionEnded)
		s, _ := f.Session(f.ctx, tenant, id)
		if _, err := f.OpenStream(f.ctx, tenant, id, sessions.StreamQuery{LastEventID: s.Cursor}); err != sessions.ErrStreamOver {
			t.Errorf("resuming at the end: %v", err)
		}

		second := f.create(tool("a"))
		f.turn(second, "go")
		f.pending(second, 1)
		r = f.open(second, sessions.StreamQuery{})
		r.until(api.TypeToolCall)
		if err := f.DeleteSession(f.ctx, tenant, second); err != nil {
			t.Fatal(err)
		}
		r.until(api.TypeStreamEnd)
		for _, err := range []error{
			f.DeleteSession(f.ctx, tenant, second),
			func() error { _, err := f.Session(f.ctx, tenant, second); return err }(),
			func() error { _, err := f.replica().Session(f.ctx, tenant, second); return err }(),
			func() error { _, err := f.StartTurn(f.ctx, tenant, second, input("go"), ""); return err }(),
		} {
			f.refused(err, sessions.CodeSessionNotFound)
		}
		list, err := f.Sessions(f.ctx, tenant, sessions.SessionQuery{})
		if err != nil || len(list.Sessions) != 1 || list.Sessions[0].ID != id {
			t.Errorf("list: %+v, %v", list, err)
		}
	})
}

func TestReplaceTools(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - call: {tool: b}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0].ID
		_, etag, err := f.Tools(f.ctx, tenant, id)
		if err != nil {
			t.Fatal(err)
		}
		skills, next, err := f.ReplaceTools(f.ctx, tenant, id, etag, &api.ToolsReplace{Tools: []api.Tool{tool("b")}})
		if err != nil || skills.Guidance != "Be brief." || next == etag {
			t.Fatalf("%+v, %s, %v", skills, next, err)
		}
		_, _, err = f.ReplaceTools(f.ctx, tenant, id, etag, &api.ToolsReplace{Tools: []api.Tool{}})
		f.refused(err, sessions.CodePreconditionFailed)
		f.submit(id, call, "1") // what is pending stays so
		f.submit(id, f.pending(id, 1)[0].ID, "2")
		f.ended(id, turn)
		if tools := f.model.Prompts()[1].Tools; len(tools) != 1 || tools[0].Name != "b" {
			t.Errorf("the model was told of %+v", tools)
		}
		_, err = f.Tool(f.ctx, tenant, id, "a")
		f.refused(err, sessions.CodeToolNotFound)
	})
}

// An append whose answer is lost, and a log that takes nothing for a while, cost time but no work.
func TestTurn_engineFaults(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0].ID
		f.engine.FailAppends(sessions.ErrUnavailable)
		_, err := f.SubmitResult(f.ctx, tenant, id, call, &api.ResultSubmit{Output: json.RawMessage("1")})
		f.refused(err, sessions.CodeStorageUnavailable)
		if err := f.Healthy(); err == nil {
			t.Error("the service says that it is healthy")
		}
		f.engine.FailAppends(nil)
		f.submit(id, call, "1")
		f.engine.FailAppends(sessions.ErrUnavailable)
		<-time.After(10 * time.Second)
		f.engine.FailAppends(nil)
		f.ended(id, turn)
		synctest.Wait()
	})
}
