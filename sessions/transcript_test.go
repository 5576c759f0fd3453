package sessions_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/tools/txtar"

	"treadle/api"
	"treadle/sessions"
)

// Transcripts are whole conversations as files. Each has the sections
//
//	script   what the model plays, see package scripted
//	do       what clients do, one command a line: see transcript.do
//	events   what a reader of the session is shown, one event a line: see describe
//	prompt   the messages of the last prompt, one a line; optional
//
// Calls are named #1, #2, … in the order in which the model made them. Time is fake: waiting costs nothing.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			section := map[string]string{}
			for _, f := range archive.Files {
				section[f.Name] = string(f.Data)
			}
			bubble(t, section["script"], func(f *fixture) {
				tr := &transcript{fixture: f, calls: map[string]uuid.UUID{}}
				for line := range strings.Lines(section["do"]) {
					if line = strings.TrimSpace(line); line != "" {
						tr.do(line)
					}
				}
				f.invariants(tr.session)
				compare(t, "events", tr.events(), section["events"])
				if want, ok := section["prompt"]; ok {
					compare(t, "prompt", tr.prompt(), want)
				}
			})
		})
	}
}

func compare(t *testing.T, what, got, want string) {
	t.Helper()
	if strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

type transcript struct {
	*fixture
	session, turn uuid.UUID
	reader        *reader
	calls         map[string]uuid.UUID
	claims        map[string]uuid.UUID
}

// do runs one command:
//
//	create TOOL[:TIMEOUT] …          create the session and read it from the start
//	turn TEXT [CODE]                 start a turn; CODE is the refusal that is expected
//	until TYPE                       read until an event of that type
//	wait DURATION                    let time pass
//	result CALL JSON [CODE]          submit an output
//	error CALL CODE MESSAGE          submit an error
//	claim CALL CLIENT DURATION       claim a call; later results of CLIENT: result CALL@CLIENT …
//	cancel | end | restart           cancel the turn, end the session, replace the replica
//	tools TOOL …                     replace the registry
func (tr *transcript) do(line string) {
	tr.Helper()
	word, rest, _ := strings.Cut(line, " ")
	fields := strings.Fields(rest)
	switch word {
	case "create":
		tr.session = tr.create(parseTools(tr.TB, fields)...)
		tr.reader = tr.open(tr.session, sessions.StreamQuery{})
	case "turn":
		text, code, _ := strings.Cut(rest, " => ")
		turn, err := tr.StartTurn(tr.ctx, tenant, tr.session, input(text), "")
		if tr.expect(err, code) {
			tr.turn = turn.ID
		}
	case "until":
		tr.reader.until(rest)
	case "wait":
		d, err := time.ParseDuration(rest)
		if err != nil {
			tr.Fatal(err)
		}
		<-time.After(d)
	case "result":
		body, code, _ := strings.Cut(rest, " => ")
		name, output, _ := strings.Cut(body, " ")
		name, client, _ := strings.Cut(name, "@")
		_, err := tr.SubmitResult(tr.ctx, tenant, tr.session, tr.call(name), &api.ResultSubmit{Output: json.RawMessage(output), ClaimID: tr.claims[client]})
		tr.expect(err, code)
	case "error":
		_, err := tr.SubmitResult(tr.ctx, tenant, tr.session, tr.call(fields[0]), &api.ResultSubmit{Error: &api.ToolError{Code: fields[1], Message: strings.Join(fields[2:], " ")}})
		tr.expect(err, "")
	case "claim":
		lease, err := time.ParseDuration(fields[2])
		if err != nil {
			tr.Fatal(err)
		}
		claim, err := tr.ClaimToolCall(tr.ctx, tenant, tr.session, tr.call(fields[0]), &api.ClaimRequest{ClientID: fields[1], LeaseMS: lease.Milliseconds()})
		if tr.expect(err, strings.TrimPrefix(strings.Join(fields[3:], " "), "=> ")) {
			tr.claims = map[string]uuid.UUID{fields[1]: claim.ClaimID}
		}
	case "cancel":
		_, err := tr.CancelTurn(tr.ctx, tenant, tr.session, tr.turn)
		tr.expect(err, "")
	case "end":
		_, err := tr.EndSession(tr.ctx, tenant, tr.session)
		tr.expect(err, "")
	case "restart":
		tr.replicas[len(tr.replicas)-1].stop()
		tr.Service = tr.replica().Service
	case "tools":
		_, _, err := tr.ReplaceTools(tr.ctx, tenant, tr.session, "", &api.ToolsReplace{Tools: parseTools(tr.TB, fields)})
		tr.expect(err, "")
	default:
		tr.Fatalf("unknown command %q", line)
	}
}

// expect checks a refusal and tells whether there is none.
func (tr *transcript) expect(err error, code string) bool {
	tr.Helper()
	if code != "" {
		tr.refused(err, sessions.Code(code))
		return false
	}
	if err != nil {
		tr.Fatal(err)
	}
	return true
}

func parseTools(tb testing.TB, fields []string) []api.Tool {
	var tools []api.Tool
	for _, field := range fields {
		name, timeout, timed := strings.Cut(field, ":")
		declared := tool(name)
		if timed {
			d, err := time.ParseDuration(timeout)
			if err != nil {
				tb.Fatal(err)
			}
			declared.TimeoutMS = d.Milliseconds()
		}
		tools = append(tools, declared)
	}
	return tools
}

// call returns the id of a call by its name.
func (tr *transcript) call(name string) uuid.UUID {
	tr.Helper()
	tr.events()
	id, ok := tr.calls[name]
	if !ok {
		tr.Fatalf("there is no call %s", name)
	}
	return id
}

// events describes what a reader is shown.
func (tr *transcript) events() string {
	var lines strings.Builder
	names := map[uuid.UUID]string{}
	for _, item := range tr.pages(tr.session) {
		event, err := api.DecodeEvent(item.Event)
		if err != nil {
			tr.Fatal(err)
		}
		if m, ok := event.(*api.MessageEvent); ok {
			for _, c := range m.ToolCalls {
				names[c.ToolCallID] = "#" + strconv.Itoa(len(names)+1)
				tr.calls[names[c.ToolCallID]] = c.ToolCallID
			}
		}
		fmt.Fprintln(&lines, strings.TrimSpace(event.Header().Type+" "+describe(event, names)))
	}
	return lines.String()
}

func describe(event api.Event, names map[uuid.UUID]string) string {
	switch ev := event.(type) {
	case *api.StatusChanged:
		return string(ev.Status)
	case *api.TurnStarted:
		return ev.Input.Text()
	case *api.StepStarted:
		return strconv.Itoa(ev.Step)
	case *api.AttemptVoided:
		return fmt.Sprint(ev.Attempt, " ", ev.Reason)
	case *api.TextDelta:
		return ev.Text
	case *api.MessageEvent:
		parts := []string{ev.StopReason}
		for _, c := range ev.ToolCalls {
			parts = append(parts, names[c.ToolCallID]+"="+c.Tool+string(c.Args))
		}
		return strings.TrimSpace(strings.Join(parts, " ") + " " + ev.Text)
	case *api.ToolCallEvent:
		line := fmt.Sprintf("%s %s%s attempt %d", names[ev.ToolCallID], ev.Tool, ev.Args, ev.Attempt)
		if ev.MayHaveRun {
			line += " may have run"
		}
		return line
	case *api.ToolClaimed:
		return names[ev.ToolCallID] + " " + ev.ClientID
	case *api.ToolResultEvent:
		if ev.Result.OK {
			return fmt.Sprintf("%s %s by %s", names[ev.ToolCallID], ev.Result.Output, ev.SettledBy)
		}
		return fmt.Sprintf("%s %s by %s", names[ev.ToolCallID], ev.Result.Error.Code, ev.SettledBy)
	case *api.TurnFailed:
		return ev.Failure.Class
	case *api.TurnCanceled:
		return ev.Reason
	}
	return ""
}

// prompt describes the messages of the last prompt.
func (tr *transcript) prompt() string {
	prompts := tr.model.Prompts()
	var lines strings.Builder
	for _, m := range prompts[len(prompts)-1].Messages {
		line := string(m.Role) + " " + m.Text
		for _, c := range m.Calls {
			line += " " + c.Tool + string(c.Args)
		}
		if m.Result != nil && m.Result.OK {
			line += m.Tool + " " + string(m.Result.Output)
		} else if m.Result != nil {
			line += m.Tool + " " + m.Result.Error.Code
		}
		fmt.Fprintln(&lines, strings.TrimSpace(line))
	}
	return lines.String()
}
