package natslog

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"treadle/sessions"
)

// pullWait is how long a request for a job stays with the server.
const pullWait = 20 * time.Second

// desk is where the pullers, one for each partition, meet those who want a job. Nothing is pulled unless somebody waits, so that a
// replica that takes no more jobs keeps none from the others.
type desk struct {
	jobs chan *sessions.Job

	mu      sync.Mutex
	waiting int
	// wanted is closed while somebody waits.
	wanted chan struct{}
}

func newDesk() *desk {
	return &desk{jobs: make(chan *sessions.Job), wanted: make(chan struct{})}
}

func (d *desk) enter() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting++
	if d.waiting == 1 {
		close(d.wanted)
	}
}

func (d *desk) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting--
	if d.waiting == 0 {
		d.wanted = make(chan struct{})
	}
}

func (d *desk) want() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wanted
}

// KeepInterval implements [sessions.Jobs].
func (l *Log) KeepInterval() time.Duration { return l.cfg.KeepInterval }

// Receive implements [sessions.Jobs].
func (l *Log) Receive(ctx context.Context) (*sessions.Job, error) {
	l.desk.enter()
	defer l.desk.leave()
	select {
	case job := <-l.desk.jobs:
		return job, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ctx.Done():
		return nil, errors.Join(sessions.ErrUnavailable, context.Cause(l.ctx))
	}
}

func (l *Log) startPullers() {
	for p := range l.cfg.Partitions {
		l.group.Go(func() { l.pullJobs(p) })
	}
}

func (l *Log) pullJobs(p int) {
	for l.ctx.Err() == nil {
		select {
		case <-l.desk.want():
		case <-l.ctx.Done():
			return
		}
		if err := l.pullJob(p); err != nil && l.ctx.Err() == nil {
			l.logger.Warn("Asking for a job did not work", "stream", streamName(p), "err", err)
			_ = pause(l.ctx, 200*time.Millisecond)
		}
	}
}

func (l *Log) pullJob(p int) error {
	js, err := jetstream.New(l.live)
	if err != nil {
		return err
	}
	consumer, err := js.Consumer(l.ctx, streamName(p), jobsConsumer)
	if err != nil {
		return err
	}
	for l.ctx.Err() == nil {
		select {
		case <-l.desk.want():
		case <-l.ctx.Done():
			return nil
		}
		ctx, cancel := context.WithTimeout(l.ctx, pullWait)
		batch, err := consumer.Fetch(1, jetstream.FetchContext(ctx))
		if err != nil {
			cancel()
			return err
		}
		for msg := range batch.Messages() {
			l.offer(msg)
		}
		cancel()
		if err := batch.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return nil
}

// offer hands the job to whoever waits, or gives it back if nobody does any more.
func (l *Log) offer(msg jetstream.Msg) {
	job, err := newJob(msg)
	if err != nil {
		l.logger.Error("A job that is not understood is dropped", "subject", msg.Subject(), "err", err)
		_ = msg.Term()
		return
	}
	// Within this time the job is still safely held.
	patience := time.NewTimer(l.cfg.KeepInterval)
	defer patience.Stop()
	select {
	case l.desk.jobs <- job:
	case <-patience.C:
		_ = msg.Nak()
	case <-l.ctx.Done():
		_ = msg.Nak()
	}
}

// newJob makes a job of a message. Its answers are not fenced by the server: a stale replica's Done would remove the job of the new one.
func newJob(msg jetstream.Msg) (*sessions.Job, error) {
	session, kind, ok := parseSubject(msg.Subject())
	if !ok || kind != sessions.KindTurn {
		return nil, errors.New("not the subject of a turn")
	}
	tenant, id, err := owner(session)
	if err != nil {
		return nil, err
	}
	meta, err := msg.Metadata()
	if err != nil {
		return nil, err
	}
	return &sessions.Job{
		Tenant:      tenant,
		Session:     id,
		Turn:        sessions.Seq(meta.Sequence.Stream),
		Redelivered: meta.NumDelivered > 1,
		Keep:        msg.InProgress,
		Done:        msg.DoubleAck,
		Release:     msg.Nak,
	}, nil
}
