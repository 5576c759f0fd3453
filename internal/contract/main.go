package contract

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// Main runs a package's tests and returns the exit code for TestMain. After a complete and successful run it fails for
// everything that is documented and was never seen.
func Main(m *testing.M) int {
	code := m.Run()
	if code != 0 || partial() {
		return code
	}
	c, err := load()
	if err != nil {
		fmt.Fprintln(os.Stderr, "loading the contract:", err)
		return 1
	}
	unseen := c.Unseen()
	for _, what := range unseen {
		fmt.Fprintln(os.Stderr, "documented and never seen:", what)
	}
	if len(unseen) > 0 {
		return 1
	}
	return 0
}

// partial tells whether only some tests were asked for.
func partial() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.fuzz", "test.bench"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return true
		}
	}
	return testing.Short()
}
