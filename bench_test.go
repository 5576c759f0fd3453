package treadle_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"treadle"
	"treadle/sessions"
)

// instant is a model that takes no time: it calls the tool if the user says "call", and talks otherwise.
type instant struct{}

func (instant) Stream(_ context.Context, p *sessions.Prompt) iter.Seq2[sessions.Part, error] {
	return func(yield func(sessions.Part, error) bool) {
		answer := &sessions.Answer{Text: "Done."}
		if last := p.Messages[len(p.Messages)-1]; last.Role == sessions.RoleUser && last.Text == "call" {
			answer = &sessions.Answer{Calls: []sessions.AnswerCall{{Tool: "a", Args: []byte(`{}`)}}}
		}
		yield(sessions.Part{Answer: answer}, nil)
	}
}

// BenchmarkTurn is a whole turn over HTTP on the embedded engine with a model that takes no time, from the POST to the end of its
// stream: of text only, and with one tool call whose result is posted as soon as it is seen.
func BenchmarkTurn(b *testing.B) {
	server, err := treadle.New(context.Background(), treadle.Config{
		DataDir: b.TempDir(), Logger: slog.New(slog.DiscardHandler),
		Models: []treadle.Model{{Name: "instant", Provider: "test", Model: instant{}}},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	web := httptest.NewServer(server.Handler())
	defer web.Close()
	for name, input := range map[string]string{"text": `{"input":"talk"}`, "tool": `{"input":"call"}`} {
		b.Run(name, func(b *testing.B) {
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				session := benchPost(b, web.URL+"/v1/sessions", "application/json", `{"skills":{"tools":[{"name":"a","description":"A"}]}}`)
				var created struct{ ID string }
				if err := json.NewDecoder(session).Decode(&created); err != nil {
					b.Fatal(err)
				}
				session.Close()
				base := web.URL + "/v1/sessions/" + created.ID
				b.StartTimer()
				stream := benchPost(b, base+"/turns", "text/event-stream", input)
				for lines := bufio.NewScanner(stream); lines.Scan(); {
					if call, ok := bytes.CutPrefix(lines.Bytes(), []byte(`data: {"type":"tool_call"`)); ok {
						_, id, _ := strings.Cut(string(call), `"tool_call_id":"`)
						benchPost(b, base+"/tool_calls/"+id[:36]+"/result", "application/json", `{"output":1}`).Close()
					}
				}
				stream.Close()
			}
		})
	}
}

func benchPost(b *testing.B, url, accept, body string) io.ReadCloser {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", accept)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	if res.StatusCode >= 300 {
		b.Fatalf("%s: %s", url, res.Status)
	}
	return res.Body
}
