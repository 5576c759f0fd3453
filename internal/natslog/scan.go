package natslog

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"treadle/sessions"
)

const (
	scanBatch    = 1000
	scanPatience = 30 * time.Second
)

// buildIndex reads the listing of all partitions. The hubs hear already, so that nothing is missed in between.
func (l *Log) buildIndex(ctx context.Context) error {
	for p := range l.cfg.Partitions {
		if err := l.scan(ctx, p, 0); err != nil {
			return fmt.Errorf("building the listing: %w", err)
		}
	}
	return nil
}

// scan applies to the listing what is stored in the partition after the sequence.
func (l *Log) scan(ctx context.Context, p int, after uint64) error {
	for _, kind := range []sessions.Kind{sessions.KindEnd, sessions.KindTurn} {
		// A consumer was once seen to pause for ten seconds; a new one does not.
		var err error
		for range 3 {
			if err = l.scanKind(ctx, p, after, kind); err == nil || ctx.Err() != nil {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("scanning %s for %s: %w", streamName(p), kind, err)
		}
	}
	return nil
}

// scanKind makes a consumer with one filter, since one with two was seen to take half a minute.
func (l *Log) scanKind(ctx context.Context, p int, after uint64, kind sessions.Kind) error {
	ctx, cancel := context.WithTimeout(ctx, scanPatience)
	defer cancel()
	cfg := jetstream.ConsumerConfig{
		FilterSubject:     "s." + strconv.Itoa(p) + ".*.*.e." + string(kind),
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		InactiveThreshold: time.Minute,
		HeadersOnly:       kind == sessions.KindTurn,
	}
	if after > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, after+1
	}
	consumer, err := l.js.CreateConsumer(ctx, streamName(p), cfg)
	if err != nil {
		return err
	}
	info := consumer.CachedInfo()
	defer func() { _ = l.js.DeleteConsumer(context.WithoutCancel(ctx), streamName(p), info.Name) }()
	expected := uint64(0)
	for pending := info.NumPending; pending > 0; {
		batch, err := consumer.Fetch(int(min(pending, scanBatch)), jetstream.FetchMaxWait(patience))
		if err != nil {
			return err
		}
		before := expected
		for msg := range batch.Messages() {
			meta, err := msg.Metadata()
			if err != nil {
				return err
			}
			expected++
			if meta.Sequence.Consumer != expected {
				return fmt.Errorf("message %d came in place of %d", meta.Sequence.Consumer, expected)
			}
			if err := l.list(msg, kind, meta.Sequence.Stream); err != nil {
				return err
			}
			pending = meta.NumPending
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if expected == before {
			return fmt.Errorf("%d messages did not come", pending)
		}
	}
	return nil
}

func (l *Log) list(msg jetstream.Msg, kind sessions.Kind, seq uint64) error {
	session, _, ok := parseSubject(msg.Subject())
	if !ok {
		return nil
	}
	if kind == sessions.KindTurn {
		l.index.apply(session, kind, sessions.Seq(seq), nil)
		return nil
	}
	e, err := decode(seq, msg.Data())
	if err != nil {
		return err
	}
	l.index.apply(session, kind, e.Seq, e.Summary)
	return nil
}
