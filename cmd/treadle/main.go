// Command treadle runs the Treadle server and makes its API keys. `treadle -h` is the reference.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/alecthomas/kong"

	"treadle"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

const description = `Treadle is the server between an agent and the page it works in: REST creates sessions and starts turns, ` +
	`tool calls stream out over SSE, and the page posts each result back to the waiting turn.`

// cli is the command line. Its tags are the reference that -h prints.
type cli struct {
	Serve   serveCmd   `cmd:"" help:"Run the server until SIGTERM or SIGINT. SIGHUP reads the tenants and their keys again."`
	Key     keyCmd     `cmd:"" help:"Make API keys."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

// streams are where commands print: results to out, everything else to err.
type streams struct{ out, err io.Writer }

// usageError is a fault in what the user typed.
type usageError struct{ error }

func main() { os.Exit(run(os.Args[1:], streams{os.Stdout, os.Stderr})) }

// run is the whole program. It returns the exit code.
func run(args []string, std streams) int {
	err := dispatch(args, std)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(std.err, "treadle: %v; see treadle -h\n", err)
		return exitUsage
	default:
		fmt.Fprintf(std.err, "treadle: %v\n", err)
		return exitFailure
	}
}

func dispatch(args []string, std streams) error {
	// Kong goes on parsing after it printed the help; what it then misses is of no interest.
	helped := false
	parser, err := kong.New(new(cli),
		kong.Name("treadle"),
		kong.Description(description),
		kong.Writers(std.out, std.err),
		kong.Exit(func(int) { helped = true }),
		kong.Vars{"listen": treadle.DefaultListen, "data_dir": treadle.DefaultDataDir},
	)
	if err != nil {
		return fmt.Errorf("building the command line: %w", err)
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if helped {
		return nil
	}
	if err != nil {
		return usageError{err}
	}
	return command.Run(std)
}

// version is set by the linker for releases.
var version = ""

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run(std streams) error {
	_, err := fmt.Fprintln(std.out, "treadle", buildVersion())
	return err
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
