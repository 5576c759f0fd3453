package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long anything may take before a test gives up; nothing that works comes near it.
const patience = 30 * time.Second

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "treadle-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "treadle")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", binary, ".")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building treadle:", err)
		return 1
	}
	// The tests wait for processes more than they compute. The command line can say otherwise.
	if err := flag.Set("test.parallel", "4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// process is a running treadle serve.
type process struct {
	tb  testing.TB
	cmd *exec.Cmd
	// url and adminURL are where it listens.
	url, adminURL string
	// exited is closed when the process has ended.
	exited chan struct{}
	stderr lockedBuffer
}

// startServer runs treadle serve on a free port and waits until it listens. The process is killed with the test.
func startServer(tb testing.TB, args ...string) *process {
	tb.Helper()
	p := &process{tb: tb, exited: make(chan struct{})}
	p.cmd = exec.Command(binary, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	p.cmd.Env = cleanEnviron()
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	lines := make(chan string, 16)
	go func() {
		defer close(p.exited)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			lines <- scanner.Text()
		}
		close(lines)
		p.cmd.Wait()
	}()
	tb.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.exited
		if tb.Failed() {
			tb.Logf("stderr of treadle %s:\n%s", strings.Join(args, " "), p.stderr.String())
		}
	})

	timeout := time.After(patience)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				tb.Fatalf("treadle ended early: %s", p.stderr.String())
			}
			if url, found := strings.CutPrefix(line, "listening on "); found {
				p.url = url
			}
			if url, found := strings.CutPrefix(line, "admin on "); found {
				p.adminURL = url
			}
			if strings.HasPrefix(line, "try: ") || strings.HasPrefix(line, "open ") {
				return p
			}
		case <-timeout:
			tb.Fatalf("treadle does not listen: %s", p.stderr.String())
		}
	}
}

// signal sends a signal to the process.
func (p *process) signal(s os.Signal) {
	p.tb.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.tb.Fatal(err)
	}
}

// exitCode waits for the end of the process.
func (p *process) exitCode() int {
	p.tb.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.tb.Fatalf("treadle does not end: %s", p.stderr.String())
		return 0
	}
}

// runBinary runs treadle to its end.
func runBinary(tb testing.TB, args ...string) (stdout, stderr string, code int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = cleanEnviron(), &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		tb.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// cleanEnviron keeps the developer's own settings out of the tests.
func cleanEnviron() []string {
	var environ []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TREADLE_") {
			environ = append(environ, v)
		}
	}
	return environ
}

// call makes a request and decodes the JSON answer into out, unless that is nil. It returns the status.
func call(tb testing.TB, method, url, key, body string, out any) int {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := new(http.Client).Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			tb.Fatalf("%s %s: %d %s: %v", method, url, res.StatusCode, answer, err)
		}
	}
	return res.StatusCode
}

// eventually polls until ok returns true.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline, tick := time.After(patience), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			tb.Fatalf("never happened: %s", what)
		}
	}
}

// lockedBuffer takes what the process writes while a test reads it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
