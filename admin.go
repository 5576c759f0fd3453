package treadle

import (
	"net"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func metricsHandler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// adminHandler serves operators: metrics, health and profiles. The health endpoints are those of the API.
func adminHandler(registry *prometheus.Registry, health http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metricsHandler(registry))
	mux.Handle("GET /healthz", health)
	mux.Handle("GET /readyz", health)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return loopbackHosts(mux)
}

// loopbackHosts guards a listener on loopback against web pages. By DNS rebinding one can make its own name point here, but not
// make a browser send another Host; and what asks on behalf of another site, if only to start a long trace, says so in Origin or
// Sec-Fetch-Site. On other addresses, names are the operator's business.
func loopbackHosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if ok && local.IP.IsLoopback() {
			strange := r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") == "cross-site"
			if strange || !isLoopback(hostOnly(r.Host)) {
				http.Error(w, "this server answers to loopback names only, and to no other site's pages", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func hostOnly(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return hostport
}
