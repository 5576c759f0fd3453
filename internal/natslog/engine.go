// Package natslog is the [sessions.Engine] on NATS JetStream: embedded in the process, or an existing cluster.
//
// Every session belongs to one of a fixed number of partitions, each a stream. A session's facts have the subjects
// s.<partition>.<tenant>.<session>.e.<kind> and are appended with an expected last sequence over e.*; its deltas have the subject ….d and no
// expectation. The server publishes everything that it stored again under live.s.>, which each replica hears with one subscription per partition.
package natslog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"treadle/sessions"
)

// headerRoom is what a stored message's headers and subject take beside the record, generously.
const headerRoom = 4 << 10

// Config says where the log is. Zero values mean the defaults given.
type Config struct {
	// Dir is the data directory of an embedded server; URL is that of an external one. Exactly one is set.
	Dir string
	URL string
	// ResetCursors begins a new epoch, for a store that was restored from a copy: positions after the copy will be used again,
	// for other records. Of several replicas only one may have it, and the others must start after it.
	ResetCursors bool
	// Replicas is how many servers of an external cluster keep each record (1).
	Replicas int
	// Partitions is fixed when the store is created (8). A store that has another number is refused; 0 takes what it has.
	Partitions int
	// SyncInterval is how often the embedded server brings files to the disk (200 ms): what a power loss may cost.
	// With SyncAlways it does so before each acknowledgement. A crash of the process alone costs nothing in either case.
	SyncInterval time.Duration
	SyncAlways   bool
	// MaxRecord is the largest encoded record (8 MiB less the room for headers). A server that takes less is refused.
	MaxRecord int
	// DeltaTTL is how long deltas are kept, in whole seconds (1 h).
	DeltaTTL time.Duration
	// DiskReserve is what is left free on the embedded server's disk (a tenth of it, between 2 MiB and 1 GiB): below it nothing
	// is taken, because a write that fails half-way costs a restart of the server inside this process.
	DiskReserve uint64
	// AckWait is how long a job stays with a replica that does not keep it, KeepInterval how often it is kept
	// (embedded 1.5 s and 0.5 s, external 5 s and 2 s).
	AckWait      time.Duration
	KeepInterval time.Duration
	// Logger takes this package's and the embedded server's log (none).
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if (c.Dir == "") == (c.URL == "") {
		return c, errors.New("either a data directory or the URL of a NATS server is needed")
	}
	if c.Dir != "" && c.Replicas > 1 {
		return c, fmt.Errorf("the embedded server keeps one copy: %d replicas need a NATS cluster and its URL", c.Replicas)
	}
	if c.Partitions < 0 || c.Partitions > 256 {
		return c, fmt.Errorf("%d partitions: there must be between 1 and 256", c.Partitions)
	}
	c.Replicas = max(c.Replicas, 1)
	setDefault(&c.SyncInterval, 200*time.Millisecond)
	setDefault(&c.MaxRecord, 8<<20-headerRoom)
	setDefault(&c.DeltaTTL, time.Hour)
	c.DeltaTTL = max(c.DeltaTTL.Round(time.Second), time.Second)
	if c.Dir != "" {
		setDefault(&c.AckWait, 1500*time.Millisecond)
		setDefault(&c.KeepInterval, 500*time.Millisecond)
	} else {
		setDefault(&c.AckWait, 5*time.Second)
		setDefault(&c.KeepInterval, 2*time.Second)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Log implements [sessions.Engine]. Make one with Open.
type Log struct {
	cfg    Config
	logger *slog.Logger
	// server is nil when the server is external.
	server *embedded
	// pub carries appends, deltas and requests, so that they keep their order; live carries what comes from the streams,
	// so that answers do not queue behind it.
	pub, live *nats.Conn
	js        jetstream.JetStream
	epoch     string
	hubs      atomic.Pointer[[]*hub] // set once all of them listen
	index     *index
	desk      *desk

	ctx      context.Context // ends with Close; the background work is the log's own, not a caller's
	stop     context.CancelFunc
	group    sync.WaitGroup
	pollFail atomic.Pointer[error]
	closing  sync.Once
}

var _ sessions.Engine = (*Log)(nil)

// Open starts or finds the server, creates what is missing there, builds the listing, and returns a log that takes appends.
// ctx bounds Open only.
func Open(ctx context.Context, cfg Config) (*Log, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	l := &Log{cfg: cfg, logger: cfg.Logger, index: newIndex(), desk: newDesk()}
	l.ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := l.open(ctx); err != nil {
		l.Close()
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	return l, nil
}

func (l *Log) open(ctx context.Context) error {
	if l.cfg.Dir != "" {
		server, err := startEmbedded(l.cfg)
		if err != nil {
			return err
		}
		l.server = server
	}
	if err := l.connect(); err != nil {
		return err
	}
	if err := l.prepare(ctx); err != nil {
		return err
	}
	hubs := make([]*hub, l.cfg.Partitions)
	for p := range hubs {
		hubs[p] = newHub(l, p)
		if err := hubs[p].begin(ctx); err != nil {
			return fmt.Errorf("listening to %s: %w", streamName(p), err)
		}
	}
	l.hubs.Store(&hubs)
	if err := l.buildIndex(ctx); err != nil {
		return err
	}
	l.startPullers()
	l.group.Go(l.watch)
	if l.server != nil {
		l.group.Go(func() { l.server.watch(l.ctx) })
	}
	return nil
}

func (l *Log) connect() error {
	options := []nats.Option{
		nats.Name("treadle"),
		// Each batch read makes a queue of this length, 65,536 by default, for at most batchSize messages.
		nats.SyncQueueLen(2 * batchSize),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(50 * time.Millisecond),
		// What cannot be sent now is refused, not sent later behind the caller's back.
		nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			l.logger.Warn("The connection to NATS has a fault", "err", err, "subscription", sub != nil)
		}),
	}
	if l.server != nil {
		options = append(options, nats.InProcessServer(l.server))
	}
	var err error
	if l.pub, err = nats.Connect(l.cfg.URL, options...); err != nil {
		return fmt.Errorf("connecting to NATS: %w", err)
	}
	if l.live, err = nats.Connect(l.cfg.URL, append(options, nats.ReconnectHandler(func(*nats.Conn) { l.missedSome() }))...); err != nil {
		return fmt.Errorf("connecting to NATS: %w", err)
	}
	if most, need := l.pub.MaxPayload(), int64(l.cfg.MaxRecord+headerRoom); most < need {
		return fmt.Errorf("the NATS server takes messages of at most %d bytes, and records may need %d: "+
			"set max_payload in the server's configuration to at least %d", most, need, need)
	}
	// Deltas are not awaited, so this bounds how many are on their way. Beyond it, AppendDelta waits.
	l.js, err = jetstream.New(l.pub,
		jetstream.WithPublishAsyncMaxPending(maxDeltasOnTheirWay),
		jetstream.WithPublishAsyncTimeout(patience))
	return err
}

// Close stops everything that Open started. Jobs that were handed out go to another replica when they are not kept.
func (l *Log) Close() {
	l.closing.Do(func() {
		l.stop()
		if l.pub != nil {
			l.pub.Close()
		}
		if l.live != nil {
			l.live.Close()
		}
		l.group.Wait()
		if l.server != nil {
			l.server.close()
		}
	})
}

// Epoch implements [sessions.Engine]. It was drawn at random when the store was created.
func (l *Log) Epoch() string { return l.epoch }

// MaxRecord implements [sessions.Engine].
func (l *Log) MaxRecord() int { return l.cfg.MaxRecord }

// Healthy implements [sessions.Engine]: it tells of a full disk, a server that failed or restarts, and a lost connection.
func (l *Log) Healthy() error {
	if l.ctx.Err() != nil {
		return fmt.Errorf("%w: it is closed", sessions.ErrUnavailable)
	}
	if l.server != nil {
		if err := l.server.admit(0, false); err != nil {
			return err
		}
	}
	if !l.pub.IsConnected() || !l.live.IsConnected() {
		return fmt.Errorf("%w: not connected to NATS", sessions.ErrUnavailable)
	}
	if fail := l.pollFail.Load(); fail != nil {
		return fmt.Errorf("%w: %w", sessions.ErrUnavailable, *fail)
	}
	return nil
}

// allHubs returns the hubs by partition, none before Open has got so far.
func (l *Log) allHubs() []*hub {
	if hubs := l.hubs.Load(); hubs != nil {
		return *hubs
	}
	return nil
}

// watch compares what the hubs heard with what the streams hold: a server that died may have stored a record and told nobody.
func (l *Log) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
		var fail *error
		for _, h := range l.allHubs() {
			if err := h.poll(l.ctx); err != nil && l.ctx.Err() == nil {
				fail = &err
				break
			}
		}
		l.pollFail.Store(fail)
	}
}

// missedSome tells all followers that the live connection was gone for a while.
func (l *Log) missedSome() {
	for _, h := range l.allHubs() {
		h.lost()
	}
}
