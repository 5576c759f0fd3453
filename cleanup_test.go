package treadle

import (
	"errors"
	"slices"
	"testing"
)

func TestCleanups(t *testing.T) {
	errFirst, errLast := errors.New("first"), errors.New("last")
	var order []string
	var c cleanups
	step := func(name string, err error) {
		c.push(name, func() error {
			order = append(order, name)
			return err
		})
	}
	step("engine", errFirst)
	step("turns", nil)
	step("listener", errLast)

	for range 2 {
		err := c.run()
		if !errors.Is(err, errFirst) || !errors.Is(err, errLast) {
			t.Errorf("err = %v, want both", err)
		}
		if want := "closing the listener: last\nclosing the engine: first"; err.Error() != want {
			t.Errorf("err = %q, want %q", err, want)
		}
	}
	if want := []string{"listener", "turns", "engine"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func TestCleanups_empty(t *testing.T) {
	if err := new(cleanups).run(); err != nil {
		t.Error(err)
	}
}
