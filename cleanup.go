package treadle

import (
	"errors"
	"fmt"
	"sync"
)

// cleanups is a stack of what must be undone. The zero value is empty.
type cleanups struct {
	once sync.Once
	todo []cleanup
	err  error
}

type cleanup struct {
	name string
	run  func() error
}

// push adds a step, which runs before those that were pushed earlier. It must not come after run.
func (c *cleanups) push(name string, run func() error) {
	c.todo = append(c.todo, cleanup{name, run})
}

// run runs every step, the latest first, whatever becomes of the others, and returns their errors joined. Further calls
// wait for the first one and return the same.
func (c *cleanups) run() error {
	c.once.Do(func() {
		var errs []error
		for i := len(c.todo) - 1; i >= 0; i-- {
			if err := c.todo[i].run(); err != nil {
				errs = append(errs, fmt.Errorf("closing the %s: %w", c.todo[i].name, err))
			}
		}
		c.err = errors.Join(errs...)
	})
	return c.err
}
