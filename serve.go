package treadle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Listen binds the configured addresses, so that their faults show before anything is served. It is called once.
func (s *Server) Listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	var err error
	if s.api, err = newEndpoint(s.live, "listen", s.config.Listen, s.handler, s.config.Logger); err != nil {
		return err
	}
	s.cleanups.push("listener", s.api.close)
	if err := s.checkBound(s.api); err != nil {
		return err
	}
	if s.config.AdminListen == "" {
		return nil
	}
	if s.admin, err = newEndpoint(s.live, "admin listen", s.config.AdminListen, adminHandler(s.registry, s.handler), s.config.Logger); err != nil {
		return err
	}
	s.cleanups.push("admin listener", s.admin.close)
	return s.checkBound(s.admin)
}

// checkBound repeats what validate promised for what a name such as localhost really stood for.
func (s *Server) checkBound(e *endpoint) error {
	address, ok := e.listener.Addr().(*net.TCPAddr)
	if s.config.development() && (!ok || !address.IP.IsLoopback()) {
		return fmt.Errorf("the %s address turned out to be %v, which other machines reach: listen on 127.0.0.1", e.name, e.listener.Addr())
	}
	return nil
}

// URL returns where the API is reached from this machine, with the real port, or "" before Listen.
func (s *Server) URL() string { return s.endpointURL(&s.api) }

// AdminURL is URL for the admin listener; "" if there is none.
func (s *Server) AdminURL() string { return s.endpointURL(&s.admin) }

func (s *Server) endpointURL(e **endpoint) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *e == nil {
		return ""
	}
	return (*e).url()
}

// Serve answers on what Listen bound. It returns nil at the end of Shutdown or Close, and an error if the server cannot go on; it
// must be closed then, too.
func (s *Server) Serve() error {
	endpoints := s.endpoints()
	if len(endpoints) == 0 {
		return errors.New("nothing to serve: call Listen first")
	}
	ended := make(chan error, len(endpoints))
	for _, e := range endpoints {
		go func() { ended <- e.serve() }()
	}
	ran := s.ran
	for left := len(endpoints); left > 0; {
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
			left--
		case <-ran:
			if s.runErr != nil {
				return s.runErr
			}
			ran = nil // the server is ending, and its listeners with it
		}
	}
	if s.ending.Load() {
		<-s.down
	}
	return nil
}

// ListenAndServe is Listen and Serve.
func (s *Server) ListenAndServe() error {
	if err := s.Listen(); err != nil {
		return err
	}
	return s.Serve()
}

func (s *Server) endpoints() []*endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	var endpoints []*endpoint
	for _, e := range []*endpoint{s.api, s.admin} {
		if e != nil {
			endpoints = append(endpoints, e)
		}
	}
	return endpoints
}

// Shutdown ends the server gently and then closes it. From its first moment it is not ready, refuses new sessions and turns,
// and ends event streams, spread over a short time; results and cancels are still taken. Turns get a few seconds to end;
// those that do not are resumed by the next start. What was accepted is answered as long as ctx allows. When ctx ends the
// rest is cut and its error returned. It may be called again, and waits then for the first call and returns what that did.
func (s *Server) Shutdown(ctx context.Context) error {
	s.ending.Store(true)
	s.once.Do(func() {
		defer close(s.down)
		s.downErr = s.shutdown(ctx)
	})
	return s.downErr
}

func (s *Server) shutdown(ctx context.Context) error {
	held := time.NewTimer(drainHold)
	defer held.Stop()
	if s.turns.idle() && s.streams.idle() {
		held.Reset(0)
	}
	s.service.Drain()
	s.drain()
	grace := time.NewTimer(turnGrace)
	defer grace.Stop()
	select {
	case <-s.turns.none():
	case <-grace.C:
	case <-ctx.Done():
	}
	select {
	case <-held.C:
	case <-ctx.Done():
	}
	s.stopTurns()
	select {
	case <-s.ran:
	case <-ctx.Done():
	}

	var errs []error
	var mu sync.Mutex
	var ending sync.WaitGroup
	for _, e := range s.endpoints() {
		ending.Go(func() {
			if err := e.server.Shutdown(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("requests were cut at the end of the grace: %w", err))
			}
		})
	}
	ending.Wait()
	return errors.Join(append(errs, s.Close())...)
}

// Close ends the server at once: connections are cut, and running turns are left to the next start. It waits until the engine
// has stored what it acknowledged. It may be called twice, and after Shutdown.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.drain()
	s.cut()
	return s.cleanups.run()
}
