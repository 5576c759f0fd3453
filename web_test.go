package treadle_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"treadle"
)

// The demo page may load nothing but what is served with it, and the SDK can be imported from another origin.
func TestWeb(t *testing.T) {
	server := mustNew(t, treadle.Config{DataDir: t.TempDir()})
	web := httptest.NewServer(server.Handler())
	defer web.Close()
	fetch := func(path string) (*http.Response, string) {
		t.Helper()
		res, err := web.Client().Get(web.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var body strings.Builder
		if _, err := io.Copy(&body, res.Body); err != nil {
			t.Fatal(err)
		}
		return res, body.String()
	}
	page, html := fetch("/demo/")
	if page.StatusCode != http.StatusOK || !strings.Contains(page.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Fatalf("demo: %s, %v", page.Status, page.Header)
	}
	for _, bad := range []string{"<script>", "<style", " onclick=", " style=", "http://", "https://"} {
		if strings.Contains(html, bad) {
			t.Errorf("the page holds %s, which its policy forbids", bad)
		}
	}
	links := regexp.MustCompile(`(?:src|href)="([^"#]+)"`).FindAllStringSubmatch(html, -1)
	if len(links) == 0 {
		t.Error("the page links to nothing")
	}
	for _, link := range links {
		target, err := url.Parse(link[1])
		if err != nil {
			t.Fatal(err)
		}
		path := (&url.URL{Path: "/demo/"}).ResolveReference(target).Path
		if res, _ := fetch(path); res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") == "" {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	sdk, _ := fetch("/sdk/v1/client.js")
	if sdk.StatusCode != http.StatusOK || sdk.Header.Get("Access-Control-Allow-Origin") != "*" || !strings.HasPrefix(sdk.Header.Get("Content-Type"), "text/javascript") {
		t.Errorf("sdk: %s, %v", sdk.Status, sdk.Header)
	}
	if res, body := fetch("/demo/nothing.js"); res.StatusCode != http.StatusNotFound || !strings.Contains(body, `"code":"NOT_FOUND"`) {
		t.Errorf("unknown file: %s %s", res.Status, body)
	}

	keyed := mustNew(t, treadle.Config{DataDir: t.TempDir(), Tenants: []treadle.Tenant{{ID: "acme", Keys: []string{hash}}}})
	closed := httptest.NewServer(keyed.Handler())
	defer closed.Close()
	for path, want := range map[string]int{"/demo/": http.StatusNotFound, "/sdk/v1/client.js": http.StatusOK} {
		res, err := closed.Client().Get(closed.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("with keys, %s: %s, want %d", path, res.Status, want)
		}
	}
}
