package treadle

import "sync"

// gauge counts what is going on, so that a shutdown can wait until nothing is. Safe for concurrent use.
type gauge struct {
	mu sync.Mutex
	n  int
	// zero is closed while n is 0.
	zero chan struct{}
}

func newGauge() *gauge {
	g := &gauge{zero: make(chan struct{})}
	close(g.zero)
	return g
}

func (g *gauge) add(delta int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.n
	g.n += delta
	switch {
	case before == 0 && g.n != 0:
		g.zero = make(chan struct{})
	case before != 0 && g.n == 0:
		close(g.zero)
	}
}

// none returns a channel that is closed when nothing is going on, or has been since the call.
func (g *gauge) none() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.zero
}

// idle tells whether nothing is going on now.
func (g *gauge) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n == 0
}
