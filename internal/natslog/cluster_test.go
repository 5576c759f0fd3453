package natslog_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"treadle/internal/logtest"
	"treadle/internal/natslog"
	"treadle/sessions"
)

const clusterAccounts = 60

// cluster is three NATS servers in this process, with an account for each history.
type cluster struct {
	servers []*server.Server
	used    atomic.Int32
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	routes := make([]string, 3)
	for i := range routes {
		routes[i] = fmt.Sprintf("nats-route://127.0.0.1:%d", freePort(t))
	}
	c := &cluster{}
	for i, route := range routes {
		var config strings.Builder
		fmt.Fprintf(&config, "server_name: n%d\nlisten: 127.0.0.1:-1\nmax_payload: 2MB\n", i)
		fmt.Fprintf(&config, "jetstream { store_dir: %q, max_file: 4GB, max_mem: 256MB, sync_interval: 1s }\n", t.TempDir())
		fmt.Fprintf(&config, "cluster { name: c, listen: %q, routes: [%s] }\n", strings.TrimPrefix(route, "nats-route://"), strings.Join(routes, ", "))
		config.WriteString("accounts {\n  SYS { users: [{user: sys, password: sys}] }\n")
		for a := range clusterAccounts {
			fmt.Fprintf(&config, "  A%d { jetstream: enabled, users: [{user: u%d, password: p}] }\n", a, a)
		}
		config.WriteString("}\nsystem_account: SYS\n")
		path := filepath.Join(t.TempDir(), "nats.conf")
		if err := os.WriteFile(path, []byte(config.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		options, err := server.ProcessConfigFile(path)
		if err != nil {
			t.Fatal(err)
		}
		options.NoSigs = true
		s, err := server.NewServer(options)
		if err != nil {
			t.Fatal(err)
		}
		c.servers = append(c.servers, s)
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		go s.Start()
	}
	eventually(t, "the cluster has a leader", func() bool {
		for _, s := range c.servers {
			if s.JetStreamIsLeader() {
				return true
			}
		}
		return false
	})
	return c
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// account returns the URLs of the three servers for an account that was not used before.
func (c *cluster) account() []string {
	a := c.used.Add(1) - 1
	urls := make([]string, len(c.servers))
	for i, s := range c.servers {
		urls[i] = fmt.Sprintf("nats://u%d:p@%s", a, s.Addr())
	}
	return urls
}

func clusterConfig(url string) natslog.Config {
	return natslog.Config{
		URL: url, Replicas: 3, Partitions: 2, MaxRecord: 1 << 20, DeltaTTL: 2 * time.Second,
		AckWait: 900 * time.Millisecond, KeepInterval: 300 * time.Millisecond,
	}
}

// TestCluster runs the suite with three replicas of everything, and writers and readers on different servers.
func TestCluster(t *testing.T) {
	if !logtest.Full() {
		t.Skip("takes a minute: set TREADLE_TEST_FULL=1")
	}
	c := startCluster(t)
	logtest.Run(t, func(t testing.TB) logtest.Fixture {
		urls := c.account()
		var l, peer *natslog.Log
		t.Cleanup(func() {
			l.Close()
			if peer != nil {
				peer.Close()
			}
		})
		return logtest.Fixture{
			DeltaTTL: 2 * time.Second,
			Open: func() sessions.Engine {
				if l != nil {
					l.Close()
				}
				l = open(t, clusterConfig(urls[0]))
				return l
			},
			Peer: func() sessions.Engine {
				if peer == nil {
					peer = open(t, clusterConfig(urls[1]))
				}
				return peer
			},
		}
	})
}

// TestClusterLosesLeader stops the server that leads a session's stream while it is written and followed.
func TestClusterLosesLeader(t *testing.T) {
	if !logtest.Full() {
		t.Skip("takes some seconds: set TREADLE_TEST_FULL=1")
	}
	c := startCluster(t)
	cfg := clusterConfig(strings.Join(c.account(), ","))
	cfg.Partitions = 1
	writing, reading := open(t, cfg), open(t, cfg)
	t.Cleanup(writing.Close)
	t.Cleanup(reading.Close)
	s := newScribe(t, writing)
	f := startFollower(t, reading, s.id, 0)
	for i := range 2000 {
		if i == 500 {
			for _, server := range c.servers {
				if server.JetStreamIsStreamLeader("A0", "EVT_0") {
					go server.Shutdown()
				}
			}
		}
		err := s.append(100)
		for err != nil {
			if !errors.Is(err, sessions.ErrUnavailable) {
				t.Fatalf("append %d: %v", i, err)
			}
			s.stored()
			err = s.append(100)
		}
	}
	s.stored()
	entries, err := readAll(t.Context(), reading, s.id, false)
	if err != nil {
		t.Fatal(err)
	}
	got := followed(t, f, len(entries))
	for i, e := range entries {
		if got[i] != e.Seq {
			t.Fatalf("followed %d in place of %d", got[i], e.Seq)
		}
	}
	t.Logf("%d appends acknowledged, %d facts stored and followed", len(s.acked), len(entries))
}
