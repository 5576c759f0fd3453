package treadle

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"treadle/internal/auth"
	"treadle/sessions"
)

// The values that a zero Config stands for.
const (
	DefaultListen    = "127.0.0.1:8080"
	DefaultDataDir   = "treadle-data"
	DefaultHeartbeat = 15 * time.Second
)

// DevelopmentTenant is the tenant of every request when no tenants are configured.
const DevelopmentTenant = "default"

// Durability says when an acknowledged append is on the disk. In both modes it survives the death of the process.
type Durability string

// The modes. They differ in what the loss of power, or of the whole machine, may cost.
const (
	// DurabilityInterval syncs every 200 ms: at most that much is lost.
	DurabilityInterval Durability = "interval"
	// DurabilityAlways syncs before each acknowledgement: nothing is lost, and every append waits for the disk.
	DurabilityAlways Durability = "always"
)

// Config says everything about a Server. Its zero value is a development server on loopback.
type Config struct {
	// Listen is the HOST:PORT of the API; port 0 takes a free one. Set it to serve other machines, together with Tenants.
	// Default: DefaultListen.
	Listen string
	// AdminListen is the HOST:PORT of a second listener with /metrics, /healthz, /readyz and /debug/pprof/. It asks for no
	// key, so it belongs on an address that only operators reach. Default: none; in development /metrics is on Listen.
	AdminListen string

	// DataDir is where the embedded engine stores everything. It is made if it is missing, and belongs to one process at a
	// time. Not used with NATSURL. Default: DefaultDataDir.
	DataDir string
	// NATSURL, a comma-separated list of nats:// addresses, stores in that NATS server or cluster (with JetStream) instead of
	// in the embedded engine: for more than one replica. Default: embedded.
	NATSURL string
	// NATSReplicas is how many servers of that cluster keep each record. Set 3 where one of them may be lost. Default: 1.
	NATSReplicas int
	// ResetCursors makes every cursor that was given out before invalid, so that clients read their sessions anew. It is needed
	// once, at the first start on a store that was restored from a copy.
	ResetCursors bool
	// Durability is when the embedded engine writes through to the disk. Default: DurabilityInterval.
	Durability Durability

	// Tenants are who may use the API, and their keys. None means development: every request is DevelopmentTenant's and only
	// loopback addresses may be listened on. Default: none.
	Tenants []Tenant
	// AllowOrigins are the web origins (scheme://host[:port]) whose pages may call the API, besides its own. Default: none.
	AllowOrigins []string

	// Models are what sessions can choose from. Default: the demo model alone.
	Models []Model

	// Heartbeat is the longest silence on an event stream; shorten it for proxies that cut quiet connections sooner.
	// From 1 to 60 seconds. Default: DefaultHeartbeat.
	Heartbeat time.Duration

	// Limits bound what sessions, turns and streams may cost. Each zero field stands for its default.
	Limits sessions.Limits

	// Logger takes the log. It gets no argument, result, input or key at any level above debug. Default: slog.Default().
	Logger *slog.Logger
	// Registry takes the metrics, to share one with the embedding program. Default: a registry of the server's own, with the
	// process's and the Go runtime's metrics.
	Registry *prometheus.Registry
}

// Tenant is a customer whose sessions nobody else sees.
type Tenant struct {
	// ID is 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit. It is stored with each session: it cannot be
	// changed later.
	ID string
	// Keys are the SHA-256 hashes of the tenant's keys ("sha256:" and 64 hexadecimal digits), as `treadle key new` prints
	// them. Any of them is valid; a tenant without keys is suspended.
	Keys []string
}

// Model is an entry of GET /v1/models.
type Model struct {
	// Name is what sessions choose it by. Required, unique.
	Name string
	// Provider is "demo" or "scripted", or a label of your own when Model is set. Required.
	Provider string
	// Description is shown to clients. Default: none.
	Description string
	// Default marks the model of sessions that name none. Default: the first entry.
	Default bool
	// File is the script, for the provider "scripted".
	File string
	// Model is an implementation of your own. Default: the one that Provider names.
	Model sessions.Model
}

// development tells whether there is no authentication.
func (c *Config) development() bool { return len(c.Tenants) == 0 }

// withDefaults returns a copy in which nothing is left open.
func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.DataDir == "" {
		c.DataDir = DefaultDataDir
	}
	if c.Durability == "" {
		c.Durability = DurabilityInterval
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = DefaultHeartbeat
	}
	if len(c.Models) == 0 {
		c.Models = []Model{{Name: "demo", Provider: "demo"}}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// validate reports everything that is wrong, so that it can be mended at once.
func (c *Config) validate() error {
	var errs []error
	errs = append(errs, c.checkListen(c.Listen))
	if c.AdminListen != "" {
		errs = append(errs, c.checkListen(c.AdminListen))
	}
	if c.Durability != DurabilityInterval && c.Durability != DurabilityAlways {
		errs = append(errs, fmt.Errorf("durability %q: use %s or %s", c.Durability, DurabilityInterval, DurabilityAlways))
	}
	if c.Durability == DurabilityAlways && c.NATSURL != "" {
		errs = append(errs, errors.New("durability always is for the embedded engine: with a NATS server, set sync_interval there"))
	}
	if c.NATSReplicas < 0 || c.NATSReplicas > 5 || c.NATSReplicas > 1 && c.NATSURL == "" {
		errs = append(errs, fmt.Errorf("%d replicas of the log: use 1 to 5, and more than 1 with a NATS cluster only", c.NATSReplicas))
	}
	if c.Heartbeat < time.Second || c.Heartbeat > time.Minute {
		errs = append(errs, fmt.Errorf("heartbeat %v: use 1s to 60s", c.Heartbeat))
	}
	for _, origin := range c.AllowOrigins {
		errs = append(errs, checkOrigin(origin))
	}
	errs = append(errs, checkModels(c.Models))
	return errors.Join(errs...)
}

// checkListen refuses what would let strangers in.
func (c *Config) checkListen(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("listen address %q: use HOST:PORT, such as %s", address, DefaultListen)
	}
	if c.development() && !isLoopback(host) {
		if host == "" {
			host = "all addresses"
		}
		return fmt.Errorf("listening on %s without keys is refused: add tenants with `treadle key new` or listen on 127.0.0.1", host)
	}
	return nil
}

// isLoopback tells whether only this machine reaches the host, which may stand in brackets.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

func checkOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || origin != strings.ToLower(u.Scheme+"://"+u.Host) {
		return fmt.Errorf("allowed origin %q: use scheme://host[:port] as a browser sends it, such as http://localhost:5173", origin)
	}
	return nil
}

func checkModels(models []Model) error {
	var errs []error
	names, defaults := map[string]bool{}, 0
	for i, m := range models {
		if m.Name == "" || m.Provider == "" {
			errs = append(errs, fmt.Errorf("model %d: name and provider are required", i+1))
		}
		if names[m.Name] {
			errs = append(errs, fmt.Errorf("model %q is there twice", m.Name))
		}
		names[m.Name] = true
		if m.Default {
			defaults++
		}
	}
	if defaults > 1 {
		errs = append(errs, fmt.Errorf("%d models are marked as default: mark one", defaults))
	}
	return errors.Join(errs...)
}

// newKeys reads the tenants. Callers have told development apart: no tenants are no keys, not everybody.
func newKeys(tenants []Tenant) (*auth.Keys, error) {
	keys := new(auth.Keys)
	for _, t := range tenants {
		if err := keys.AddTenant(t.ID); err != nil {
			return nil, err
		}
		for _, hash := range t.Keys {
			if err := keys.AddKey(t.ID, hash); err != nil {
				return nil, fmt.Errorf("tenant %q: %w", t.ID, err)
			}
		}
	}
	return keys, nil
}
