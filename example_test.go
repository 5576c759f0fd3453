package treadle_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"treadle"
)

// A client declares a tool, starts a turn, receives the call on the turn's stream, posts the result, and the turn goes on.
func ExampleNew() {
	dir, err := os.MkdirTemp("", "treadle-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	server, err := treadle.New(context.Background(), treadle.Config{DataDir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	web := httptest.NewServer(server.Handler())
	defer web.Close()

	session := post(web.URL+"/v1/sessions", "application/json", `{"skills": {"tools": [{
		"name": "get_price",
		"description": "Price of a product in the cart",
		"args_schema": {"type": "object", "properties": {"product": {"type": "string"}}, "required": ["product"]}
	}]}}`)
	var created struct{ ID string }
	if err := json.NewDecoder(session.Body).Decode(&created); err != nil {
		log.Fatal(err)
	}
	session.Body.Close()

	// The demo model makes exactly the call that it is told; a real one decides by itself.
	base := web.URL + "/v1/sessions/" + created.ID
	stream := post(base+"/turns", "text/event-stream", `{"input": "call get_price {\"product\": \"lamp\"}"}`)
	defer stream.Body.Close()
	for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		var event struct {
			Type       string
			ToolCallID string `json:"tool_call_id"`
			Tool       string
			Args       json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			log.Fatal(err)
		}
		switch event.Type {
		case "tool_call":
			fmt.Println("call of", event.Tool, "with", string(event.Args))
			result := post(base+"/tool_calls/"+event.ToolCallID+"/result", "application/json", `{"output": {"price": 49.90}}`)
			result.Body.Close()
			fmt.Println("result:", result.StatusCode)
		case "turn_completed":
			fmt.Println("completed")
		}
	}
	// Output:
	// call of get_price with {"product":"lamp"}
	// result: 200
	// completed
}

func post(url, accept, body string) *http.Response {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", accept)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		log.Fatal(err)
	}
	return res
}
