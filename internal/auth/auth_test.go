package auth

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

func TestNewKey(t *testing.T) {
	key, hash, err := NewKey("acme")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^tdl_acme_[A-Za-z0-9_-]{43}$`).MatchString(key) {
		t.Errorf("key %q has an unexpected shape", key)
	}
	if !regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(hash) {
		t.Errorf("hash %q has an unexpected shape", hash)
	}
	other, _, err := NewKey("acme")
	if err != nil {
		t.Fatal(err)
	}
	if other == key {
		t.Error("two keys are equal")
	}
}

func TestNewKey_badTenant(t *testing.T) {
	for _, id := range []string{"", "Acme", "-a", "_a", "a b", "a.b", "ü", strings.Repeat("a", 64), "a\n"} {
		if key, _, err := NewKey(id); err == nil {
			t.Errorf("NewKey(%q) = %q, want an error", id, key)
		}
	}
	for _, id := range []string{"a", "0", "a-b_c", strings.Repeat("a", 63)} {
		if _, _, err := NewKey(id); err != nil {
			t.Errorf("NewKey(%q): %v", id, err)
		}
	}
}

func TestKeys_Tenant(t *testing.T) {
	var keys Keys
	if _, ok := keys.Tenant("tdl_x"); ok {
		t.Error("the zero value knows a key")
	}
	first, second := mustAdd(t, &keys, "acme"), mustKey(t, &keys, "acme")
	foreign := mustAdd(t, &keys, "globex")

	for key, want := range map[string]string{first: "acme", second: "acme", foreign: "globex"} {
		if got, ok := keys.Tenant(key); !ok || got != want {
			t.Errorf("Tenant = %q, %v, want %q", got, ok, want)
		}
	}
	for _, key := range []string{"", first + "x", first[:len(first)-1], strings.ToUpper(first), "tdl_acme_"} {
		if got, ok := keys.Tenant(key); ok {
			t.Errorf("Tenant(%q) = %q, want none", key, got)
		}
	}
	if keys.Tenants() != 2 {
		t.Errorf("Tenants = %d, want 2", keys.Tenants())
	}
}

func TestKeys_refused(t *testing.T) {
	var keys Keys
	if err := keys.AddTenant("acme"); err != nil {
		t.Fatal(err)
	}
	key, hash, err := NewKey("acme")
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.AddKey("acme", hash); err != nil {
		t.Fatal(err)
	}
	if err := keys.AddTenant("globex"); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name string
		err  error
	}{
		{"tenant twice", keys.AddTenant("acme")},
		{"malformed tenant", keys.AddTenant("Acme")},
		{"unknown tenant", keys.AddKey("initech", hash)},
		{"hash twice", keys.AddKey("acme", hash)},
		{"hash of another tenant", keys.AddKey("globex", hash)},
		{"hash in capitals", keys.AddKey("globex", "sha256:"+strings.ToUpper(hash[7:]))},
		{"key in place of hash", keys.AddKey("globex", key)},
		{"empty hash", keys.AddKey("globex", "")},
		{"other algorithm", keys.AddKey("globex", "sha512:"+hash[7:])},
		{"not hexadecimal", keys.AddKey("globex", "sha256:"+strings.Repeat("g", 64))},
	} {
		if c.err == nil {
			t.Errorf("%s: accepted", c.name)
		} else if strings.Contains(c.err.Error(), key) {
			t.Errorf("%s: the error repeats the key: %v", c.name, c.err)
		}
	}
}

func TestBearer(t *testing.T) {
	for _, c := range []struct {
		values []string
		want   string
	}{
		{nil, ""},
		{[]string{"Bearer tdl_a_x"}, "tdl_a_x"},
		{[]string{"bearer  tdl_a_x "}, "tdl_a_x"},
		{[]string{"Bearer"}, ""},
		{[]string{"tdl_a_x"}, ""},
		{[]string{"Basic tdl_a_x"}, ""},
		{[]string{"Bearertdl_a_x"}, ""},
		{[]string{"Bearer a", "Bearer b"}, ""},
	} {
		if got := Bearer(http.Header{"Authorization": c.values}); got != c.want {
			t.Errorf("Bearer(%q) = %q, want %q", c.values, got, c.want)
		}
	}
}

func mustAdd(tb testing.TB, keys *Keys, tenant string) string {
	tb.Helper()
	if err := keys.AddTenant(tenant); err != nil {
		tb.Fatal(err)
	}
	return mustKey(tb, keys, tenant)
}

func mustKey(tb testing.TB, keys *Keys, tenant string) string {
	tb.Helper()
	key, hash, err := NewKey(tenant)
	if err != nil {
		tb.Fatal(err)
	}
	if err := keys.AddKey(tenant, hash); err != nil {
		tb.Fatal(err)
	}
	return key
}
