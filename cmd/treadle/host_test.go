package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// host is a server that is killed and started again, with the same data at the same address.
type host struct {
	tb testing.TB
	// dir has the config and, if it is not elsewhere, the data; script is the model's file.
	dir, data, script, address string
	process                    *process
	// started is when the process began to start.
	started time.Time
}

// newHost starts a server whose models are "play", the default, which plays the script, and "demo".
func newHost(tb testing.TB, script string) *host {
	tb.Helper()
	return newHostOn(tb, "", script)
}

// newHostOn is newHost with the data in a directory of its own, unless that is empty.
func newHostOn(tb testing.TB, data, script string) *host {
	tb.Helper()
	h := &host{tb: tb, dir: tb.TempDir(), data: data, address: freeAddress(tb)}
	if data == "" {
		h.data = filepath.Join(h.dir, "data")
	}
	h.script = filepath.Join(h.dir, "script.yaml")
	h.play(script)
	mustWrite(tb, h.config(), `
models:
  - {name: play, provider: scripted, file: script.yaml, default: true}
  - {name: demo, provider: demo}
`)
	h.start()
	return h
}

func (h *host) config() string { return filepath.Join(h.dir, "treadle.yaml") }

// play gives the next process another script.
func (h *host) play(script string) {
	h.tb.Helper()
	mustWrite(h.tb, h.script, script)
}

func (h *host) start() {
	h.tb.Helper()
	h.started = time.Now()
	h.process = startServer(h.tb, "--listen", h.address, "--data-dir", h.data, "--config", h.config())
}

// kill is kill -9.
func (h *host) kill() {
	h.tb.Helper()
	h.process.signal(syscall.SIGKILL)
	h.process.exitCode()
}

func (h *host) client() *client { return newClient(h.tb, "http://"+h.address) }

// freeAddress finds a port that nobody gets by asking for any: it must still be free when a killed server comes back.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 15000+rand.N(15000))
		if listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", address); err == nil {
			if err := listener.Close(); err != nil {
				tb.Fatal(err)
			}
			return address
		}
	}
	tb.Fatal("no free port")
	return ""
}
