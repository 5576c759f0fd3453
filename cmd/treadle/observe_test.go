package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/internal/logtest"
)

// TestObserve_cardinality: the number of series does not depend on how many clients there are and what they send.
func TestObserve_cardinality(t *testing.T) {
	t.Parallel()
	tenantCount, perTenant, paths := 20, 10, 500
	if logtest.Full() {
		tenantCount, perTenant, paths = 200, 10, 5000
	}
	var names []string
	for i := range tenantCount {
		names = append(names, fmt.Sprintf("tenant%d", i))
	}
	tenants := rawTenants(t, "", "", names)
	s := tenants[0]
	s.finish(s.start(s.session("ask"), "hello"))
	before := s.metrics()

	for i, tenant := range tenants {
		for j := range perTenant {
			name := fmt.Sprintf("tool_%d_%d", i, j)
			session := tenant.session(name)
			turn := tenant.start(session, "call "+name+" {}")
			call := tenant.pending(session, 1)[0]
			tenant.want(http.StatusOK, http.MethodPost, fmt.Sprintf("%s/tool_calls/%v/result", session, call.ID), `{"error":{"code":"CODE_`+name+`","message":"x"}}`)
			tenant.finish(turn)
			tenant.want(http.StatusUnprocessableEntity, http.MethodPost, session+"/turns", `{"input":"hi","model":"model_`+name+`"}`)
		}
	}
	for i := range paths {
		s.want(http.StatusNotFound, http.MethodGet, "/"+uuid.NewString(), "")
		s.want(http.StatusNotFound, http.MethodGet, "/v1/sessions/"+uuid.NewString()+"/turns/"+uuid.NewString(), "")
		s.line(fmt.Sprintf("ODD%d", i%50), "/v1/models")
	}
	after := s.metrics()
	if grown := len(after) - len(before); grown > 200 {
		t.Errorf("%d series became %d", len(before), len(after))
	} else {
		t.Logf("%d series became %d", len(before), len(after))
	}
	label := regexp.MustCompile(`route="([^"]*)"`)
	for _, series := range after {
		found := label.FindStringSubmatch(series)
		if found != nil && found[1] != "unmatched" && !regexp.MustCompile(`^/[a-z0-9_/.]*(\{[a-z_]+\}[a-z_/]*)*$`).MatchString(found[1]) {
			t.Errorf("%s is no pattern", series)
		}
		for _, word := range []string{"tenant", "tool_0", "ODD", "model_", "CODE_"} {
			if strings.Contains(strings.ReplaceAll(series, "treadle_tool_calls", ""), word) {
				t.Errorf("a label of a client's: %s", series)
			}
		}
	}
}

// TestObserve_secrets: nothing that a page, a user or a model says is in the log or the metrics, at the level that tells most and
// whatever goes wrong; and no line of the log is more than a line.
func TestObserve_secrets(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			key, lines := mustNewKey(t, "acme")
			s := rawStart(t, lines, `
rules:
  - {match: fail, answers: [[{text: CANARY_TEXT}, {fail: {class: bad_request, message: "CANARY_PROVIDER\n\e[31m"}}]]}
  - {match: cut, answers: [[{text: CANARY_TEXT}, {truncate: true}]]}
  - {match: stumble, answers: [[{attempts: [[{fail: {class: overloaded, message: CANARY_PROVIDER, retryable: true}}], [{text: CANARY_TEXT}]]}]]}
  - {match: wrong, answers: [[{call: {tool: ask, args: '{"n":"CANARY_ARG\n"}'}}, {call: {tool: "CANARY_TOOL\n", args: {}}}, {call: {tool: ask, args: 'CANARY_ARG'}}]], repeat: last}
  - {match: "", answers: [[{reasoning: CANARY_REASONING}, {call: {tool: ask, args: {n: 1, secret: "CANARY_ARG\n\e[31m"}}}], [text: CANARY_TEXT]]}
`, "--admin-listen", "127.0.0.1:0", "--log-level", "debug", "--log-format", format).as(key)
			s.disclose(key)
			s.signal(os.Interrupt)
			if code := s.exitCode(); code != exitOK {
				t.Errorf("exit code %d", code)
			}
			log := s.stderr.String()
			for _, secret := range []string{"CANARY", key, key[len(key)-20:], "\x1b", "\r"} {
				if i := strings.Index(log, secret); i >= 0 {
					t.Errorf("the log has %q: %q", secret, log[max(0, i-300):min(len(log), i+100)])
				}
			}
			begin := map[string]string{"text": "time=", "json": `{"time":`}[format]
			for line := range strings.Lines(log) {
				if !strings.HasPrefix(line, begin) {
					t.Errorf("a line that is none: %q", line)
				}
			}
			if !strings.Contains(log, "Request served") || !strings.Contains(log, "Stream ended") {
				t.Errorf("the log does not tell everything: %s", log)
			}
		})
	}
}

// disclose says secrets to the server in every way there is.
func (s *rawServer) disclose(key string) {
	t := s.tb
	session := s.want(http.StatusCreated, http.MethodPost, "/v1/sessions", `{"metadata":{"CANARY_META":"CANARY_META\n"},"subject":"CANARY_SUBJECT\n\u001b[31m","skills":{
		"guidance":"CANARY_GUIDANCE","tools":[{"name":"ask","description":"CANARY_DESCRIPTION",
		"args_schema":{"type":"object","properties":{"n":{"type":"integer"}}},"result_schema":{"type":"object","properties":{"a":{"enum":["CANARY_ENUM"]}}}}]}}`,
		"Idempotency-Key", "CANARY_IDEMPOTENCY").Header.Get("Location")
	events := s.stream(http.MethodGet, session+"/events", "", "Last-Event-ID", "CANARY_CURSOR")
	turn := s.start(session, "CANARY_USER\n\x1b[31m\r\nlevel=ERROR")
	call := fmt.Sprintf("%s/tool_calls/%v", session, s.pending(session, 1)[0].ID)
	s.want(http.StatusOK, http.MethodPost, call+"/claim", `{"client_id":"CANARY_CLIENT\n"}`)
	s.want(http.StatusConflict, http.MethodPost, call+"/result", `{"output":"CANARY_RES"}`)
	s.want(http.StatusOK, http.MethodPost, turn+"/cancel", "")
	turn = s.start(session, "CANARY_USER")
	call = fmt.Sprintf("%s/tool_calls/%v", session, s.pending(session, 1)[0].ID)
	s.want(http.StatusOK, http.MethodPost, call+"/progress", `{"message":"CANARY_PROGRESS\n"}`)
	for status, bodies := range map[int][]string{
		http.StatusBadRequest:          {`{"output":"CANARY_RES"`, `{"CANARY_MEMBER":"CANARY_RES"}`, `{"output":1,"error":{"code":"CANARY_CODE","message":"CANARY_RES"}}`, `["CANARY_RES"]`, `{"output":{"CANARY":1,"CANARY":2}}`},
		http.StatusUnprocessableEntity: {`{"output":"CANARY_RES"}`, `{"output":{"a":"CANARY_RES"}}`},
	} {
		for _, body := range bodies {
			s.want(status, http.MethodPost, call+"/result", body)
		}
	}
	s.want(http.StatusOK, http.MethodPost, call+"/result", `{"error":{"code":"CANARY_CODE","message":"CANARY_RES\n\u001b[31m","details":"CANARY_RES"}}`)
	s.want(http.StatusConflict, http.MethodPost, call+"/result", `{"output":{"a":"CANARY_ENUM"}}`)
	s.finish(turn)
	for input, outcome := range map[string]api.Outcome{"fail CANARY_USER": api.OutcomeFailed, "cut": api.OutcomeFailed, "stumble": api.OutcomeCompleted, "wrong": api.OutcomeFailed} {
		if got := s.finish(s.start(session, input)); *got.Outcome != outcome {
			t.Errorf("%s: %+v", input, got)
		}
	}
	for _, tool := range []string{`"name":"CANARY NAME","description":"x"`, `"name":"a","description":"x","args_schema":{"type":"CANARY_TYPE"}`, `"name":"a","description":"x","args_schema":{"properties":{"CANARY_PROPERTY":"CANARY"}}`} {
		s.want(http.StatusBadRequest, http.MethodPut, session+"/tools", `{"tools":[{`+tool+`}]}`)
	}
	for _, headers := range [][]string{
		{"Authorization", "Bearer CANARY_KEY"}, {"Authorization", "CANARY_KEY"}, {"Cookie", "a=CANARY_COOKIE"}, {"X-Secret", "CANARY_HEADER"}, {"User-Agent", "CANARY_AGENT"},
		{"Accept", "CANARY_ACCEPT/x"}, {"Origin", "http://CANARY.example"}, {"If-Match", "CANARY"}, {"Host", "CANARY.example"},
	} {
		s.do(http.MethodGet, "/v1/models", "", headers...)
		s.do(http.MethodPut, session+"/tools", `{"tools":[]}`, headers...)
	}
	for _, path := range []string{"/CANARY_PATH%0a%1b", "/v1/sessions?key=" + key, "/v1/sessions?CANARY_NAME=CANARY_VALUE", "/v1/sessions?before=CANARY", "/v1/sessions/CANARY_ID", session + "/tools/CANARY"} {
		s.do(http.MethodGet, path, "")
	}
	s.line("CANARYMETHOD", "/v1/models")
	s.line(http.MethodGet, "/healthz", "CANARY HEADER: x", "Content-Length: CANARY")
	for _, series := range s.metrics() {
		if strings.Contains(series, "CANARY") || strings.Contains(series, key) {
			t.Errorf("a secret in a metric: %s", series)
		}
	}
	s.want(http.StatusOK, http.MethodPost, session+"/end", "")
	<-events.ended
}

// TestObserve_keyFile: the key itself is nowhere in what the server keeps.
func TestObserve_keyFile(t *testing.T) {
	t.Parallel()
	key, lines := mustNewKey(t, "acme")
	dir := t.TempDir()
	s := rawStart(t, lines, "", "--data-dir", dir).as(key)
	s.finish(s.start(s.session(), "hello"))
	found := 0
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		found++
		if strings.Contains(string(raw), key) {
			t.Errorf("%s has the key", path)
		}
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("%d files, %v", found, err)
	}
}
