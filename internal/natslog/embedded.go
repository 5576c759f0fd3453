package natslog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"treadle/sessions"
)

const (
	startPatience = 60 * time.Second
	healthEvery   = 250 * time.Millisecond
	// maxStore is no limit in practice: the disk has its reserve.
	maxStore  = 1 << 50
	maxMemory = 64 << 20
)

// embedded is a NATS server inside this process, without a port. When it fails for good, which it does after a failed write, it is
// replaced by a new one on the same directory; the connections find that by themselves.
type embedded struct {
	cfg  Config
	lock *os.File
	disk *disk

	mu     sync.Mutex
	server *server.Server
	// failed says why nothing is taken now.
	failed error
}

func startEmbedded(cfg Config) (*embedded, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the data directory %s cannot be made: %w", cfg.Dir, err)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	e := &embedded{cfg: cfg, lock: lock}
	if e.disk, err = newDisk(cfg.Dir, cfg.DiskReserve); err == nil {
		err = probe(cfg.Dir)
	}
	if err == nil {
		e.server, err = e.start()
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return e, nil
}

// probe finds out whether the directory can be written to, by doing it.
func probe(dir string) error {
	file, err := os.CreateTemp(dir, "probe-*")
	if err == nil {
		_, err = file.Write(make([]byte, 4096))
		err = errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	if err != nil {
		return fmt.Errorf("the data directory %s is not writable: %w", dir, err)
	}
	return nil
}

func (e *embedded) start() (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName:         "treadle",
		DontListen:         true,
		NoSigs:             true,
		JetStream:          true,
		StoreDir:           e.cfg.Dir,
		JetStreamMaxMemory: maxMemory,
		JetStreamMaxStore:  maxStore,
		JetStreamLimits:    server.JSLimitOpts{DefaultMaxConsumers: -1},
		SyncInterval:       e.cfg.SyncInterval,
		SyncAlways:         e.cfg.SyncAlways,
		MaxPayload:         int32(e.cfg.MaxRecord + headerRoom),
		// The live connection receives everything that is stored, in bursts.
		MaxPending: 256 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("starting the embedded NATS server: %w", err)
	}
	s.SetLoggerV2(serverLog{e.cfg.Logger.With("component", "nats-server")}, false, false, false)
	s.Start()
	if !s.ReadyForConnections(startPatience) || !s.JetStreamEnabled() {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("the embedded NATS server did not start on %s", e.cfg.Dir)
	}
	return s, nil
}

// InProcessConn connects to the server that runs now.
func (e *embedded) InProcessConn() (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		return nil, errors.New("the embedded NATS server is not running")
	}
	return e.server.InProcessConn()
}

// admit returns nil if size more bytes can be taken now; spared as for disk.
func (e *embedded) admit(size int, spared bool) error {
	e.mu.Lock()
	failed := e.failed
	e.mu.Unlock()
	if failed != nil {
		return fmt.Errorf("%w: %w", sessions.ErrUnavailable, failed)
	}
	return e.disk.admit(size, spared)
}

// watch restarts the server when it has failed and its directory can be written to again.
func (e *embedded) watch(ctx context.Context) {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	strikes := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := e.health()
		if err == nil {
			strikes = 0
			e.setFailed(nil)
			continue
		}
		// A stream that is being made or removed at this moment looks like one that failed.
		if strikes++; strikes < 2 {
			continue
		}
		e.setFailed(err)
		if e.disk.admit(lookBytes, false) == nil && probe(e.cfg.Dir) == nil {
			e.restart()
		}
	}
}

// health returns what the server itself holds against its storage. It also tells of a server that is merely busy, which is no failure.
func (e *embedded) health() error {
	e.mu.Lock()
	s := e.server
	e.mu.Unlock()
	if s == nil {
		return errors.New("the embedded NATS server is not running")
	}
	for _, fault := range s.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if fault.Type != server.HealthzErrorConn {
			return errors.New(fault.Error)
		}
	}
	return nil
}

func (e *embedded) setFailed(err error) {
	e.mu.Lock()
	before := e.failed
	e.failed = err
	e.mu.Unlock()
	switch {
	case before == nil && err != nil:
		e.cfg.Logger.Error("The embedded NATS server failed and takes nothing", "err", err)
	case before != nil && err == nil:
		e.cfg.Logger.Info("The embedded NATS server works again")
	}
}

// restart replaces the server. That it is healthy again shows at the next look.
func (e *embedded) restart() {
	e.mu.Lock()
	old := e.server
	e.server = nil
	e.mu.Unlock()
	shutdown(old)
	s, err := e.start()
	if err != nil {
		e.cfg.Logger.Error("The embedded NATS server did not start again", "err", err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.server = s
}

func (e *embedded) close() {
	e.mu.Lock()
	s := e.server
	e.server = nil
	e.mu.Unlock()
	shutdown(s)
	_ = e.lock.Close()
}

func shutdown(s *server.Server) {
	if s != nil {
		s.Shutdown()
		s.WaitForShutdown()
	}
}

// serverLog brings the server's log into ours.
type serverLog struct{ *slog.Logger }

func (l serverLog) Noticef(format string, v ...any) { l.say(slog.LevelDebug, format, v) }
func (l serverLog) Warnf(format string, v ...any)   { l.say(slog.LevelWarn, format, v) }
func (l serverLog) Fatalf(format string, v ...any)  { l.say(slog.LevelError, format, v) }
func (l serverLog) Errorf(format string, v ...any)  { l.say(slog.LevelError, format, v) }
func (l serverLog) Debugf(format string, v ...any)  { l.say(slog.LevelDebug, format, v) }
func (l serverLog) Tracef(format string, v ...any)  { l.say(slog.LevelDebug, format, v) }

func (l serverLog) say(level slog.Level, format string, v []any) {
	l.Log(context.Background(), level, "The embedded NATS server says", "message", fmt.Sprintf(format, v...))
}
