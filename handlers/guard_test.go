package handlers_test

import (
	"net/http"
	"strings"
	"testing"

	"treadle/handlers"
	"treadle/sessions"
)

const friend = "http://localhost:5173"

func allowFriend(s *setup) { s.AllowOrigins = []string{friend} }

func TestDevelopment_hosts(t *testing.T) {
	f := newFixture(t, development)
	f.key = ""
	for _, host := range []string{"localhost", "localhost:1", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:99", "127.1.2.3:80", "[::1]", "[::1]:8080"} {
		f.want(f.do("GET", "/v1/models", "", "Host", host), http.StatusOK)
	}
	for _, host := range []string{
		"evil.example", "evil.example:8080", "localhost.evil.example", "localhost.", "0.0.0.0", "10.0.0.1:8080", "127.0.0.1.evil.example", "[::]", "[fe80::1]:1",
	} {
		for _, path := range []string{"/v1/models", "/healthz", "/readyz", "/openapi.yaml", "/nothing", fill("/v1/sessions/{session_id}/events")} {
			f.want(f.do("GET", path, "", "Host", host), http.StatusForbidden, handlers.CodeHostNotAllowed)
		}
	}
	f.want(f.do("GET", "/v1/models", "", "Host", "evil.example", "X-Forwarded-Host", "localhost", "Forwarded", "host=localhost"), http.StatusForbidden, handlers.CodeHostNotAllowed)
	f.want(f.do("GET", "/v1/models", "", "X-Forwarded-Host", "evil.example"), http.StatusOK)
}

func TestDevelopment_origins(t *testing.T) {
	f := newFixture(t, development, allowFriend)
	f.key = ""
	for _, origin := range []string{f.url, friend} {
		f.want(f.do("POST", "/v1/sessions", "{}", "Origin", origin), http.StatusCreated)
		f.want(f.do("POST", "/v1/sessions", "{}", "Origin", origin, "Sec-Fetch-Site", "cross-site"), http.StatusCreated)
	}
	for _, origin := range []string{
		"null", "http://evil.example", "http://localhost.evil.example", "http://localhost", "http://127.0.0.1:1", friend + "/", f.url + ".evil.example", "http://", "x",
	} {
		for _, method := range []string{"GET", "POST"} {
			f.want(f.do(method, "/v1/sessions", "{}", "Origin", origin), http.StatusForbidden, handlers.CodeOriginNotAllowed)
		}
	}
	r := f.request("GET", "/v1/models", "")
	r.Header["Origin"] = []string{friend, "http://evil.example"}
	f.want(f.send(r), http.StatusForbidden, handlers.CodeOriginNotAllowed)

	for _, site := range []string{"same-origin", "same-site", "none", ""} {
		f.want(f.do("POST", "/v1/sessions", "{}", "Sec-Fetch-Site", site), http.StatusCreated)
	}
	f.want(f.do("POST", "/v1/sessions", "{}", "Sec-Fetch-Site", "cross-site"), http.StatusForbidden, handlers.CodeOriginNotAllowed)
	f.want(f.do("POST", fill("/v1/sessions/{session_id}/end"), "", "Sec-Fetch-Site", "cross-site"), http.StatusForbidden, handlers.CodeOriginNotAllowed)
	// A link from another site to a page of this server is no attack.
	f.want(f.do("GET", "/openapi.yaml", "", "Sec-Fetch-Site", "cross-site"), http.StatusOK)
}

func TestCORS(t *testing.T) {
	for name, change := range map[string]func(*setup){"keys": allowFriend, "development": func(s *setup) { allowFriend(s); development(s) }} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, change)
			a := f.want(f.do("OPTIONS", "/v1/sessions", "", "Authorization", "", "Origin", friend, "Access-Control-Request-Method", "POST"), http.StatusNoContent)
			for header, want := range map[string]string{
				"Access-Control-Allow-Origin": friend, "Vary": "Origin",
				"Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
				"Access-Control-Allow-Headers": "Accept, Authorization, Content-Type, Idempotency-Key, If-Match, Last-Event-ID",
			} {
				if got := a.Header.Get(header); got != want {
					t.Errorf("%s is %q, want %q", header, got, want)
				}
			}
			for _, path := range []string{"/v1/models", "/nothing", fill("/v1/sessions/{session_id}/events")} {
				a := f.do("GET", path, "", "Origin", friend)
				if a.Header.Get("Access-Control-Allow-Origin") != friend || !strings.Contains(a.Header.Get("Access-Control-Expose-Headers"), "ETag") {
					t.Errorf("%s: %v", path, a.Header)
				}
			}
			if a := f.do("GET", "/v1/models", ""); a.Header.Get("Vary") != "Origin" || a.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("without an origin: %v", a.Header)
			}
		})
	}
}

// TestCORS_strangers: with keys, a page of another origin is answered like any client, but may not read the answer.
func TestCORS_strangers(t *testing.T) {
	f := newFixture(t, allowFriend)
	for _, origin := range []string{"http://evil.example", "null"} {
		a := f.want(f.do("GET", "/v1/models", "", "Origin", origin), http.StatusOK)
		preflight := f.want(f.do("OPTIONS", "/v1/models", "", "Origin", origin, "Access-Control-Request-Method", "GET"), http.StatusMethodNotAllowed, handlers.CodeMethodNotAllowed)
		for header := range a.Header {
			if strings.HasPrefix(header, "Access-Control-") || strings.HasPrefix(preflight.Header.Get(header), "Access-Control-") {
				t.Errorf("%s is told %s", origin, header)
			}
		}
	}
	f.want(f.do("GET", "/v1/models", "", "Host", "api.example.com"), http.StatusOK)
}

func TestEmptyBodies(t *testing.T) {
	f := newFixture(t, development)
	f.key = ""
	session := f.session()
	f.want(f.do("POST", session+"/end", "", "Content-Type", "text/plain"), http.StatusUnsupportedMediaType, handlers.CodeUnsupportedMediaType)
	f.want(f.do("POST", session+"/end", "x"), http.StatusBadRequest, sessions.CodeInvalidInput)
	f.want(f.do("POST", session+"/end", `{"a":1}`), http.StatusBadRequest, sessions.CodeInvalidInput)
	f.want(f.do("GET", session, ""), http.StatusOK)
	f.want(f.do("POST", session+"/end", "", "Content-Type", "application/json"), http.StatusOK)
	f.want(f.do("POST", session+"/end", ""), http.StatusOK)
	f.want(f.do("POST", "/v1/sessions", "", "Content-Type", "application/json"), http.StatusBadRequest, sessions.CodeInvalidInput)
}
