package treadle

import (
	"strings"
	"testing"
	"time"
)

const someHash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func TestConfig_validate(t *testing.T) {
	tenants := []Tenant{{ID: "acme", Keys: []string{someHash}}}
	for _, c := range []struct {
		name   string
		config Config
		// want is part of the error; empty means that the configuration is good.
		want string
	}{
		{"zero", Config{}, ""},
		{"loopback by name", Config{Listen: "localhost:0"}, ""},
		{"loopback IPv6", Config{Listen: "[::1]:0", AdminListen: "127.8.9.1:0"}, ""},
		{"all addresses without keys", Config{Listen: "0.0.0.0:8080"}, "listening on 0.0.0.0 without keys is refused"},
		{"no host without keys", Config{Listen: ":8080"}, "listening on all addresses without keys is refused"},
		{"all IPv6 addresses without keys", Config{Listen: "[::]:8080"}, "without keys is refused"},
		{"mapped address without keys", Config{Listen: "[::ffff:10.0.0.1]:8080"}, "without keys is refused"},
		{"a name without keys", Config{Listen: "localhost.example:8080"}, "without keys is refused"},
		{"admin without keys", Config{AdminListen: ":9090"}, "without keys is refused"},
		{"all addresses with keys", Config{Listen: ":8080", AdminListen: ":9090", Tenants: tenants}, ""},
		{"no port", Config{Listen: "127.0.0.1"}, "use HOST:PORT"},
		{"a port too high", Config{Listen: "127.0.0.1:65536"}, "use HOST:PORT"},
		{"a port by name", Config{Listen: "127.0.0.1:http"}, "use HOST:PORT"},
		{"durability", Config{Durability: "sometimes"}, "use interval or always"},
		{"durability of a server", Config{Durability: DurabilityAlways, NATSURL: "nats://127.0.0.1:4222"}, "for the embedded engine"},
		{"replicas of a cluster", Config{NATSReplicas: 3, NATSURL: "nats://127.0.0.1:4222"}, ""},
		{"replicas of the embedded engine", Config{NATSReplicas: 3}, "with a NATS cluster only"},
		{"short heartbeat", Config{Heartbeat: time.Millisecond}, "use 1s to 60s"},
		{"long heartbeat", Config{Heartbeat: time.Hour}, "use 1s to 60s"},
		{"origins", Config{AllowOrigins: []string{"http://localhost:5173", "https://example.com", "http://[::1]:3000"}}, ""},
		{"any origin", Config{AllowOrigins: []string{"*"}}, "scheme://host"},
		{"null origin", Config{AllowOrigins: []string{"null"}}, "scheme://host"},
		{"origin with a path", Config{AllowOrigins: []string{"https://example.com/"}}, "scheme://host"},
		{"origin with a user", Config{AllowOrigins: []string{"https://me@example.com"}}, "scheme://host"},
		{"model without a name", Config{Models: []Model{{Provider: "demo"}}}, "name and provider are required"},
		{"model twice", Config{Models: []Model{{Name: "a", Provider: "demo"}, {Name: "a", Provider: "demo"}}}, `model "a" is there twice`},
		{"two defaults", Config{Models: []Model{{Name: "a", Provider: "demo", Default: true}, {Name: "b", Provider: "demo", Default: true}}}, "mark one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := c.config.withDefaults()
			err := config.validate()
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("err = %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestConfig_validate_everything(t *testing.T) {
	config := Config{Listen: "nowhere", Durability: "sometimes", Heartbeat: time.Hour}
	err := config.validate()
	if err == nil {
		t.Fatal("accepted")
	}
	if got := len(strings.Split(err.Error(), "\n")); got != 3 {
		t.Errorf("%d faults reported, want 3: %v", got, err)
	}
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.1.2.3": true, "::1": true, "[::1]": true, "::ffff:127.0.0.1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "evil.example": false, "localhost.evil.example": false,
		"127.0.0.1.evil.example": false, "0": false, "2130706433": false, "[::1": false,
	} {
		if got := isLoopback(host); got != want {
			t.Errorf("isLoopback(%q) = %v, want %v", host, got, want)
		}
	}
}
