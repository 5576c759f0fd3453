package natslog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"treadle/sessions"
)

const (
	defaultPartitions = 8
	jobsConsumer      = "jobs"
	valuesStream      = "VALUES"
	// metaSubject lies where no tenant's values can.
	metaSubject = "v._.meta"
	// preparePatience bounds the wait for a cluster that has no leader yet.
	preparePatience = 30 * time.Second
)

// meta is what was decided when the store was created.
type meta struct {
	Epoch      string `json:"epoch"`
	Partitions int    `json:"partitions"`
}

// prepare creates the streams and consumers that are missing. Several replicas may do so at once.
func (l *Log) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, preparePatience)
	defer cancel()
	if err := l.ensureStream(ctx, l.valuesConfig()); err != nil {
		return err
	}
	if err := l.settleMeta(ctx); err != nil {
		return err
	}
	for p := range l.cfg.Partitions {
		if err := l.ensureStream(ctx, l.partitionConfig(p)); err != nil {
			return err
		}
		err := untilReady(ctx, func() error {
			_, err := l.js.CreateOrUpdateConsumer(ctx, streamName(p), l.jobsConfig(p))
			return err
		})
		if err != nil {
			return fmt.Errorf("creating the job queue of %s: %w", streamName(p), err)
		}
	}
	return nil
}

func (l *Log) ensureStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	err := untilReady(ctx, func() error {
		_, err := l.js.CreateOrUpdateStream(ctx, cfg)
		return err
	})
	if err != nil {
		return fmt.Errorf("creating the stream %s: %w", cfg.Name, err)
	}
	return nil
}

// untilReady repeats what fails only because a cluster has not found its leader.
func untilReady(ctx context.Context, try func() error) error {
	for {
		err := try()
		var api *jetstream.APIError
		if err == nil || ctx.Err() != nil || errors.As(err, &api) && api.Code < 500 {
			return err
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// settleMeta reads the store's meta, or decides it if this is the first replica ever.
func (l *Log) settleMeta(ctx context.Context) error {
	mine := meta{Epoch: uuid.NewString(), Partitions: l.cfg.Partitions}
	setDefault(&mine.Partitions, defaultPartitions)
	b, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	stored, _, err := l.create(ctx, metaSubject, b, 0)
	if err != nil {
		return fmt.Errorf("reading what the store was created with: %w", err)
	}
	var found meta
	if err := json.Unmarshal(stored, &found); err != nil {
		return fmt.Errorf("reading what the store was created with: %w", err)
	}
	if l.cfg.Partitions != 0 && l.cfg.Partitions != found.Partitions {
		return fmt.Errorf("the store was created with %d partitions, which cannot be changed to %d", found.Partitions, l.cfg.Partitions)
	}
	if l.cfg.ResetCursors && found.Epoch != mine.Epoch {
		found.Epoch = mine.Epoch
		if b, err = json.Marshal(found); err != nil {
			return err
		}
		if err := l.publishValue(ctx, metaSubject, b, nil); err != nil {
			return fmt.Errorf("beginning a new history: %w", err)
		}
	}
	l.epoch, l.cfg.Partitions = found.Epoch, found.Partitions
	return nil
}

// partitionConfig returns a stream that refuses rather than drops, and never loses a fact by age: a session's last fact is the
// base of the next one, and without it the session could begin again.
func (l *Log) partitionConfig(p int) jetstream.StreamConfig {
	subjects := "s." + strconv.Itoa(p) + ".>"
	return jetstream.StreamConfig{
		Name:                 streamName(p),
		Subjects:             []string{subjects},
		Storage:              jetstream.FileStorage,
		Replicas:             l.cfg.Replicas,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		MaxMsgsPerSubject:    1_000_000,
		MaxBytes:             -1,
		MaxMsgs:              -1,
		MaxConsumers:         -1,
		AllowDirect:          true,
		AllowMsgTTL:          true,
		RePublish:            &jetstream.RePublish{Source: subjects, Destination: "live." + subjects},
	}
}

func (l *Log) valuesConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              valuesStream,
		Subjects:          []string{"v.>"},
		Storage:           jetstream.FileStorage,
		Replicas:          l.cfg.Replicas,
		MaxMsgsPerSubject: 1,
		AllowDirect:       true,
		AllowMsgTTL:       true,
	}
}

func (l *Log) jobsConfig(p int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       jobsConsumer,
		FilterSubject: "s." + strconv.Itoa(p) + ".*.*.e." + string(sessions.KindTurn),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       l.cfg.AckWait,
		MaxDeliver:    -1,
		// Each running turn is an unacknowledged job: the default of 1000 would cap them.
		MaxAckPending: 1_000_000,
		Replicas:      l.cfg.Replicas,
	}
}
