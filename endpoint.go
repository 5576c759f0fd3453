package treadle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"
)

// The limits of every connection. There is no write timeout: event streams set a deadline for each write instead.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
)

// endpoint is one listener and the http.Server on it.
type endpoint struct {
	name     string
	listener net.Listener
	server   *http.Server
}

// newEndpoint binds the address. Requests live in ctx, so that its end cuts those that outlive the grace.
func newEndpoint(ctx context.Context, name, address string, handler http.Handler, logger *slog.Logger) (*endpoint, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, listenError(name, address, err)
	}
	return &endpoint{name: name, listener: listener, server: &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}}, nil
}

func listenError(name, address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s address %s is in use by another process: end it, or choose another port (port 0 takes a free one)", name, address)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s address %s is not allowed for this user: choose a port above 1023", name, address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s address %s is not an address of this machine", name, address)
	default:
		return fmt.Errorf("%s address %s: %w", name, address, err)
	}
}

// serve answers until the server is shut down or closed.
func (e *endpoint) serve() error {
	if err := e.server.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the %s: %w", e.name, err)
	}
	return nil
}

// close ends the endpoint hard, also if it never served.
func (e *endpoint) close() error {
	err := e.server.Close()
	if closeErr := e.listener.Close(); !errors.Is(closeErr, net.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	return err
}

// url is where this machine reaches the endpoint.
func (e *endpoint) url() string {
	host, port, err := net.SplitHostPort(e.listener.Addr().String())
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}
