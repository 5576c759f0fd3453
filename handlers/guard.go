package handlers

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"treadle/sessions"
)

// guard keeps strange pages away and lets allowed ones in. It looks at nothing that a proxy may have added.
func (h *handler) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		origins := r.Header.Values("Origin")
		allowed := len(origins) == 1 && slices.Contains(h.AllowOrigins, origins[0])
		if len(h.AllowOrigins) > 0 {
			header.Add("Vary", "Origin")
		}
		if h.Development {
			if refusal := checkLocal(r, origins, allowed); refusal != nil {
				h.fail(w, r, refusal)
				return
			}
		}
		if allowed {
			header.Set("Access-Control-Allow-Origin", origins[0])
			header.Set("Access-Control-Expose-Headers", "ETag, Location, Retry-After")
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				preflight(w)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func preflight(w http.ResponseWriter) {
	w.Header().Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
	w.Header().Set("Access-Control-Allow-Headers", "Accept, Authorization, Content-Type, Idempotency-Key, If-Match, Last-Event-ID")
	w.Header().Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

// checkLocal stands in for the key that development mode does not ask for. A name that was rebound to loopback still shows in
// Host; a page of another site shows in Origin or, where browsers leave that out, in Sec-Fetch-Site.
func checkLocal(r *http.Request, origins []string, allowed bool) *sessions.Error {
	if !isLoopback(r.Host) {
		return refuse(CodeHostNotAllowed, "without keys this server answers only to localhost and loopback addresses; configure tenants to serve others")
	}
	strange := refuse(CodeOriginNotAllowed, "without keys this server answers only its own pages; start it with --allow-origin for another origin")
	if allowed {
		return nil
	}
	if len(origins) > 0 {
		if len(origins) == 1 && (strings.EqualFold(origins[0], "http://"+r.Host) || strings.EqualFold(origins[0], "https://"+r.Host)) {
			return nil
		}
		return strange
	}
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Method != http.MethodGet && r.Method != http.MethodHead {
		return strange
	}
	return nil
}

// isLoopback tells whether a Host header names this machine in a way that DNS cannot bend.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}
