package sessions_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
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
		queued, err := f.ToolCalls(f.ctx, tenant, id, api.ToolCallQueued, 0)
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

func TestToolCalls_wait(t *testing.T) {
	bubble(t, "answers:\n- - delay: 20s\n  - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		if list, err := f.ToolCalls(f.ctx, tenant, id, api.ToolCallPending, time.Second); err != nil || len(list.ToolCalls) != 0 {
			t.Errorf("idle: %+v, %v", list, err)
		}
		began := time.Now()
		turn := f.turn(id, "go")
		list, err := f.ToolCalls(f.ctx, tenant, id, api.ToolCallPending, time.Minute)
		if err != nil || len(list.ToolCalls) != 1 || time.Since(began) != 20*time.Second {
			t.Fatalf("after %s: %+v, %v", time.Since(began), list, err)
		}
		f.submit(id, list.ToolCalls[0].ID, "1")
		f.ended(id, turn)
	})
}
