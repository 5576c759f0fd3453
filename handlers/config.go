package handlers

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"treadle/sessions"
)

// The values that a zero Config stands for.
const (
	DefaultHeartbeat    = 15 * time.Second
	DefaultMaxBody      = 4 << 20
	DefaultBodyTimeout  = 30 * time.Second
	DefaultWriteTimeout = 10 * time.Second
	DefaultDrainSpread  = 2 * time.Second
)

// Config is what the handler is made of.
type Config struct {
	// Service is the domain. Mandatory.
	Service *sessions.Service
	// Authenticate says whose request it is. A [*sessions.Error], such as one with CodeUnauthenticated, is told to the client;
	// any other error is a 500. It must not read the body. Mandatory.
	Authenticate func(*http.Request) (Identity, error)
	// Development means that Authenticate asks for no key: only loopback hosts are answered, and pages of foreign origins are not.
	Development bool
	// AllowOrigins are the web origins, as browsers send them, whose pages may call the API besides its own.
	AllowOrigins []string

	// OpenAPI is served at /openapi.yaml.
	OpenAPI []byte
	// Mounts are further GET handlers by chi pattern, such as "/demo/*". They are guarded like everything else, but nobody is
	// asked for a key.
	Mounts map[string]http.Handler

	// Draining ends when the server begins to shut down: long polls are answered and streams end. Nil means never.
	Draining context.Context
	// DrainSpread is the time over which the ends of streams are spread, so that not all clients come back at once.
	DrainSpread time.Duration

	// Heartbeat is the longest silence on a stream.
	Heartbeat time.Duration
	// MaxBody is the largest request body, in bytes.
	MaxBody int64
	// BodyTimeout bounds the time that a request body may take to arrive.
	BodyTimeout time.Duration
	// WriteTimeout bounds the time that a client may take to read one batch of a stream.
	WriteTimeout time.Duration

	// Logger gets routes, statuses and internal errors; never a URL, header or body. Nil discards.
	Logger *slog.Logger
	// Observe is told of each request when it is over. Nil is skipped. It may be called concurrently.
	Observe func(Observation)
}

// Identity is who makes a request.
type Identity struct {
	Tenant string
}

// Observation is one finished request. Route, Method and Status have few values, whatever clients send.
type Observation struct {
	// Route is the pattern that matched, or "unmatched".
	Route string
	// Method is one of HTTP's own, or "other".
	Method string
	Status int
	// Duration is the time to the end of the answer; for a stream, how long it was open.
	Duration time.Duration
	// Stream is true if the answer was an event stream.
	Stream bool
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Service == nil:
		return c, errors.New("handlers: a service is needed")
	case c.Authenticate == nil:
		return c, errors.New("handlers: an authenticator is needed")
	}
	if c.Draining == nil {
		c.Draining = context.Background()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Observe == nil {
		c.Observe = func(Observation) {}
	}
	setDefault(&c.DrainSpread, DefaultDrainSpread)
	setDefault(&c.Heartbeat, DefaultHeartbeat)
	setDefault(&c.MaxBody, DefaultMaxBody)
	setDefault(&c.BodyTimeout, DefaultBodyTimeout)
	setDefault(&c.WriteTimeout, DefaultWriteTimeout)
	return c, nil
}

func setDefault[T time.Duration | int64](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}
