package treadle

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

//go:embed web-demo/client.* web-demo/demo
var web embed.FS

// demoPolicy lets the demo page run its own scripts and reach this server, and nothing else.
const demoPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// webMounts serves the browser SDK and, in development, where it works without a key, the demo page.
func webMounts(development bool) map[string]http.Handler {
	mounts := map[string]http.Handler{}
	// A page of any origin may load the module; in development only one that may call the API, too, since the guard comes first.
	mountFiles(mounts, "web-demo/client.*", "/sdk/v1/", map[string]string{
		"Access-Control-Allow-Origin": "*", "Cross-Origin-Resource-Policy": "cross-origin",
	})
	if development {
		mountFiles(mounts, "web-demo/demo/*", "/demo/", map[string]string{
			"Content-Security-Policy": demoPolicy, "Cross-Origin-Opener-Policy": "same-origin",
		})
		mounts["/demo/"] = mounts["/demo/index.html"]
		mounts["/demo"] = http.RedirectHandler("/demo/", http.StatusFound)
	}
	return mounts
}

// contentTypes are those of the files that are served; the host's own table is not asked.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".ts":   "text/plain; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
}

// mountFiles serves each embedded file that matches the pattern under prefix. Browsers may keep it but ask each time whether it
// still holds, so that a new binary's page and module are seen at once.
func mountFiles(mounts map[string]http.Handler, pattern, prefix string, headers map[string]string) {
	names, err := fs.Glob(web, pattern)
	if err != nil {
		panic(err) // the patterns are ours
	}
	for _, name := range names {
		body, err := web.ReadFile(name)
		if err != nil {
			panic(err) // it is embedded
		}
		sum := sha256.Sum256(body)
		etag := `"` + hex.EncodeToString(sum[:8]) + `"`
		mounts[prefix+path.Base(name)] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			for key, value := range headers {
				h.Set(key, value)
			}
			h.Set("Content-Type", contentTypes[path.Ext(name)])
			h.Set("Cache-Control", "no-cache")
			h.Set("ETag", etag)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
		})
	}
}
