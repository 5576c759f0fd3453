package treadle

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"treadle/handlers"
	"treadle/internal/auth"
	"treadle/internal/natslog"
	"treadle/internal/telemetry"
	"treadle/sessions"
)

// turnGrace is how long a Shutdown waits for running turns before it leaves them to the next start.
const turnGrace = 5 * time.Second

// drainHold is how long a Shutdown of a server that is in use goes on answering: results that are on their way still arrive,
// and load balancers learn that it is not ready.
const drainHold = 2 * time.Second

// Server is the whole of Treadle in one value. It is safe for concurrent use.
type Server struct {
	config   Config
	registry *prometheus.Registry
	keys     atomic.Pointer[auth.Keys]
	service  *sessions.Service
	handler  http.Handler

	// draining ends with the first moment of a Shutdown, live when nothing is waited for any more.
	draining, live context.Context
	drain, cut     context.CancelFunc

	// once runs the first Shutdown; ending is true from its beginning, down is closed at its end, and downErr is its outcome.
	once    sync.Once
	ending  atomic.Bool
	down    chan struct{}
	downErr error

	// turns and streams count what is going on; ran is closed when no turn will be taken any more, and runErr says why.
	turns, streams *gauge
	ran            chan struct{}
	runErr         error
	// stopTurns ends the taking of turns.
	stopTurns context.CancelFunc

	mu         sync.Mutex
	api, admin *endpoint
	closed     bool
	cleanups   cleanups
}

// ErrClosed is returned by the methods of a Server that was shut down or closed.
var ErrClosed = errors.New("the server is closed")

// New validates the configuration, opens the engine and starts working off turns. ctx bounds the opening, not the server:
// that runs until Shutdown or Close, one of which must be called.
func New(ctx context.Context, config Config) (*Server, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	keys, err := newKeys(config.Tenants)
	if err != nil {
		return nil, err
	}
	s := &Server{config: config, registry: config.Registry, turns: newGauge(), streams: newGauge(), ran: make(chan struct{}), down: make(chan struct{})}
	s.keys.Store(keys)
	s.draining, s.drain = context.WithCancel(context.Background())
	s.live, s.cut = context.WithCancel(context.Background())
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.cleanups.run())
	}
	return s, nil
}

// open builds everything from the engine up, and leaves in cleanups what must be undone.
func (s *Server) open(ctx context.Context) error {
	if s.registry == nil {
		s.registry = telemetry.NewRegistry()
	}
	metrics, err := telemetry.New(s.registry)
	if err != nil {
		return err
	}
	models, dflt, err := newModels(s.config.Models)
	if err != nil {
		return err
	}
	engine, err := s.openEngine(ctx)
	if err != nil {
		return err
	}
	s.cleanups.push("engine", func() error {
		engine.Close()
		return nil
	})

	hooks := metrics.Sessions
	hooks.TurnsRunning = func(delta int) {
		s.turns.add(delta)
		metrics.Sessions.TurnsRunning(delta)
	}
	hooks.Streams = func(delta int) {
		s.streams.add(delta)
		metrics.Sessions.Streams(delta)
	}
	s.service, err = sessions.New(sessions.Config{
		Engine: engine,
		Models: models, DefaultModel: dflt,
		Limits: s.config.Limits, Logger: s.config.Logger, Metrics: hooks,
	})
	if err != nil {
		return err
	}
	s.startTurns(ctx)
	s.cleanups.push("turns", func() error {
		s.stopTurns()
		<-s.ran
		return s.runErr
	})

	mounts := webMounts(s.config.development())
	if s.config.development() {
		mounts["/metrics"] = metricsHandler(s.registry)
	}
	s.handler, err = handlers.New(handlers.Config{
		Service:      s.service,
		Authenticate: s.authenticate, Development: s.config.development(), AllowOrigins: s.config.AllowOrigins,
		OpenAPI: openAPI, Mounts: mounts,
		Draining: s.draining, Heartbeat: s.config.Heartbeat,
		Logger: s.config.Logger,
		Observe: func(o handlers.Observation) {
			metrics.Request(o.Route, o.Method, o.Status, o.Duration, o.Stream)
		},
	})
	return err
}

func (s *Server) openEngine(ctx context.Context) (*natslog.Log, error) {
	config := natslog.Config{Logger: s.config.Logger, ResetCursors: s.config.ResetCursors}
	if s.config.NATSURL != "" {
		config.URL, config.Replicas = s.config.NATSURL, s.config.NATSReplicas
	} else {
		config.Dir, config.SyncAlways = s.config.DataDir, s.config.Durability == DurabilityAlways
	}
	return natslog.Open(ctx, config)
}

// startTurns works off turns until stopTurns; the end of ctx is nothing to it.
func (s *Server) startTurns(ctx context.Context) {
	ctx, s.stopTurns = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(s.ran)
		if err := s.service.Run(ctx); err != nil {
			s.runErr = fmt.Errorf("working off turns: %w", err)
		}
	}()
}

// authenticate says whose request it is. All faults look the same.
func (s *Server) authenticate(r *http.Request) (handlers.Identity, error) {
	if s.config.development() {
		return handlers.Identity{Tenant: DevelopmentTenant}, nil
	}
	if tenant, ok := s.keys.Load().Tenant(auth.Bearer(r.Header)); ok {
		return handlers.Identity{Tenant: tenant}, nil
	}
	return handlers.Identity{}, &sessions.Error{
		Code:   handlers.CodeUnauthenticated,
		Detail: `send a valid key as "Authorization: Bearer KEY"`,
	}
}

// Handler returns the API. It answers from the moment New returned. In development it must be reachable from this machine
// only: that is the caller's to see to, when it is not served by this Server.
func (s *Server) Handler() http.Handler { return s.handler }

// ReplaceTenants puts other tenants and keys in force. A request that has passed the check, and a stream that is open, is not
// cut. A development server takes no tenants, and another one must keep at least one.
func (s *Server) ReplaceTenants(tenants []Tenant) error {
	if s.config.development() {
		return errors.New("a development server has no tenants: start it again with some")
	}
	if len(tenants) == 0 {
		return errors.New("no tenants are left: nobody could use the server")
	}
	keys, err := newKeys(tenants)
	if err != nil {
		return err
	}
	s.keys.Store(keys)
	return nil
}
