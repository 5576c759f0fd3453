package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"treadle"
)

// shutdownGrace is how long a signalled server may take, below the 30 s that Kubernetes gives by default.
const shutdownGrace = 20 * time.Second

type serveCmd struct {
	Listen       string   `env:"TREADLE_LISTEN" default:"${listen}" placeholder:"HOST:PORT" help:"Where the API listens. Beyond loopback it needs tenants with keys in --config. Port 0 takes a free one and prints it. Default: ${listen}."`
	DataDir      string   `env:"TREADLE_DATA_DIR" default:"${data_dir}" placeholder:"DIR" help:"Where the embedded engine stores everything; made if missing, used by one process at a time. Default: ./${data_dir}."`
	NATSURL      string   `name:"nats-url" env:"TREADLE_NATS_URL" placeholder:"URL" help:"Store in this NATS server or cluster with JetStream (nats://HOST:PORT, several with commas) and not in --data-dir."`
	NATSReplicas int      `name:"nats-replicas" env:"TREADLE_NATS_REPLICAS" default:"1" placeholder:"N" help:"How many servers of that cluster keep each record. Default: 1."`
	Config       string   `env:"TREADLE_CONFIG" placeholder:"FILE" help:"YAML file of tenants, models, allow_origins, heartbeat and limits. Without tenants the server is for development: no keys, loopback only."`
	AllowOrigin  []string `env:"TREADLE_ALLOW_ORIGIN" placeholder:"ORIGIN" help:"A web origin (scheme://host[:port]) whose pages may call the API, besides its own. Repeatable; commas in the variable."`
	AdminListen  string   `env:"TREADLE_ADMIN_LISTEN" placeholder:"HOST:PORT" help:"A second listener with /metrics, /healthz, /readyz and /debug/pprof/, without keys. In development /metrics is on --listen, too."`
	Durability   string   `env:"TREADLE_DURABILITY" default:"interval" enum:"interval,always" placeholder:"interval|always" help:"When the embedded engine syncs the disk: every 200 ms, or before each answer. Both survive a crash of the process; always also survives power loss. Default: interval."`
	ResetCursors bool     `env:"TREADLE_RESET_CURSORS" help:"Make every cursor that was given out before invalid. Needed once, at the first start on a data directory that was restored from a copy, or that lost its end in a power failure."`
	LogLevel     string   `env:"TREADLE_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" placeholder:"debug|info|warn|error" help:"The least level that is logged to stderr. Default: info."`
	LogFormat    string   `env:"TREADLE_LOG_FORMAT" default:"text" enum:"text,json" placeholder:"text|json" help:"How log lines look. Default: text."`
}

// config joins the flags and the config file.
func (c *serveCmd) config(logger *slog.Logger) (treadle.Config, error) {
	config := treadle.Config{
		Listen: c.Listen, AdminListen: c.AdminListen,
		DataDir: c.DataDir, NATSURL: c.NATSURL, NATSReplicas: c.NATSReplicas, Durability: treadle.Durability(c.Durability),
		AllowOrigins: c.AllowOrigin, ResetCursors: c.ResetCursors,
		Logger: logger,
	}
	if c.Config != "" {
		if err := loadConfig(c.Config, &config); err != nil {
			return config, err
		}
	}
	return config, nil
}

// errSecondSignal ends the process without waiting for anything.
var errSecondSignal = errors.New("ended by a second signal before everything was finished; nothing that was acknowledged is lost")

// Run serves until a signal asks it to end.
func (c *serveCmd) Run(std streams) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	config, err := c.config(newLogger(std.err, c.LogLevel, c.LogFormat))
	if err != nil {
		return err
	}
	server, err := treadle.New(context.Background(), config)
	if err != nil {
		return err
	}
	err = server.Listen()
	if err == nil {
		config.Logger.Info("Serving", "version", buildVersion(), "url", server.URL(), "admin_url", server.AdminURL(), "tenants", len(config.Tenants))
		c.greet(std.out, server, len(config.Tenants))
		err = c.serve(server, signals, config.Logger)
	}
	if errors.Is(err, errSecondSignal) {
		return err
	}
	return errors.Join(err, server.Close())
}

// serve obeys signals while the server runs.
func (c *serveCmd) serve(server *treadle.Server, signals <-chan os.Signal, logger *slog.Logger) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	for {
		select {
		case err := <-served:
			return err
		case s := <-signals:
			if s == syscall.SIGHUP {
				c.reload(server, logger)
				continue
			}
			logger.Info("Shutting down, a second signal ends at once", "grace", shutdownGrace)
			return shutdown(server, signals)
		}
	}
}

// greet tells a person what to do next. Programs read the first line.
func (c *serveCmd) greet(out io.Writer, server *treadle.Server, tenants int) {
	data := "data in " + c.DataDir
	if c.NATSURL != "" {
		data = "data in the NATS server of --nats-url"
	}
	mode, next := fmt.Sprintf("tenants: %d", tenants), `try: curl -H "Authorization: Bearer $KEY" `+server.URL()+"/v1/models"
	if tenants == 0 {
		mode, next = "development: no keys, loopback only", "open "+server.URL()+"/demo/"
	}
	fmt.Fprintf(out, "listening on %s\n%s (%s)\n", server.URL(), data, mode)
	if url := server.AdminURL(); url != "" {
		fmt.Fprintf(out, "admin on %s\n", url)
	}
	fmt.Fprintln(out, next)
}

// reload takes tenants and keys from the config file again. A fault leaves those in force that were.
func (c *serveCmd) reload(server *treadle.Server, logger *slog.Logger) {
	var config treadle.Config
	if c.Config == "" {
		logger.Warn("Nothing to reload: there is no config file")
		return
	}
	err := loadConfig(c.Config, &config)
	if err == nil {
		err = server.ReplaceTenants(config.Tenants)
	}
	if err != nil {
		logger.Error("Tenants not reloaded, the old ones stay in force", "err", err)
		return
	}
	logger.Info("Tenants reloaded", "tenants", len(config.Tenants))
}

// shutdown ends the server gently, unless a second signal comes.
func shutdown(server *treadle.Server, signals <-chan os.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- server.Shutdown(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case s := <-signals:
			if s != syscall.SIGHUP {
				return errSecondSignal
			}
		}
	}
}

func newLogger(w io.Writer, level, format string) *slog.Logger {
	var options slog.HandlerOptions
	// The flag's enumeration has only levels that slog knows.
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err == nil {
		options.Level = l
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, &options))
	}
	return slog.New(slog.NewTextHandler(w, &options))
}
