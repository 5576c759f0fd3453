package natslog

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"treadle/sessions"
)

// valueSubject encodes the key, which may hold what a subject may not.
func (l *Log) valueSubject(tenant, key string) (string, error) {
	if !tenantSyntax.MatchString(tenant) {
		return "", fmt.Errorf("the tenant's name %q is not of lower-case letters, digits, _ and -", tenant)
	}
	return "v." + tenant + "." + base64.RawURLEncoding.EncodeToString([]byte(key)), nil
}

// Create implements [sessions.Store].
func (l *Log) Create(ctx context.Context, tenant, key string, value []byte, ttl time.Duration) ([]byte, bool, error) {
	subject, err := l.valueSubject(tenant, key)
	if err == nil {
		err = l.admit(ctx, len(value))
	}
	if err != nil {
		return nil, false, fmt.Errorf("creating a value: %w", err)
	}
	stored, created, err := l.create(ctx, subject, value, ttl)
	if err != nil {
		return nil, false, fmt.Errorf("creating a value: %w", explain(ctx, err))
	}
	return stored, created, nil
}

func (l *Log) create(ctx context.Context, subject string, value []byte, ttl time.Duration) ([]byte, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	options := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(0), jetstream.WithRetryAttempts(0)}
	if ttl > 0 {
		options = append(options, jetstream.WithMsgTTL(max(ttl.Round(time.Second), time.Second)))
	}
	for {
		err := l.publishValue(ctx, subject, value, options)
		if err == nil {
			return value, true, nil
		}
		code := apiCode(err)
		if code != 0 && code != codeUndecided && code != jetstream.JSErrCodeStreamWrongLastSequence {
			return nil, false, err
		}
		seq, stored, lastErr := l.last(ctx, valuesStream, subject)
		if lastErr != nil {
			return nil, false, lastErr
		}
		// After a lost answer the value may be one's own. The caller's bytes name the winner, so that it makes no difference.
		if seq > 0 {
			return stored, false, nil
		}
		if err := pause(ctx, time.Millisecond+rand.N(4*time.Millisecond)); err != nil {
			return nil, false, err
		}
	}
}

func (l *Log) publishValue(ctx context.Context, subject string, value []byte, options []jetstream.PublishOpt) error {
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	_, err := l.js.Publish(ctx, subject, value, options...)
	return err
}

// Put implements [sessions.Store].
func (l *Log) Put(ctx context.Context, tenant, key string, value []byte) error {
	subject, err := l.valueSubject(tenant, key)
	if err == nil {
		err = l.admit(ctx, len(value))
	}
	if err == nil {
		err = l.publishValue(ctx, subject, value, []jetstream.PublishOpt{jetstream.WithRetryAttempts(0)})
	}
	if err != nil {
		return fmt.Errorf("storing a value: %w", explain(ctx, err))
	}
	return nil
}

// Get implements [sessions.Store].
func (l *Log) Get(ctx context.Context, tenant, key string) ([]byte, error) {
	subject, err := l.valueSubject(tenant, key)
	if err != nil {
		return nil, fmt.Errorf("reading a value: %w", err)
	}
	seq, value, err := l.last(ctx, valuesStream, subject)
	if err != nil {
		return nil, fmt.Errorf("reading a value: %w", err)
	}
	if seq > 0 && value == nil {
		value = []byte{}
	}
	return value, nil
}

// Delete implements [sessions.Store].
func (l *Log) Delete(ctx context.Context, tenant, key string) error {
	subject, err := l.valueSubject(tenant, key)
	if err == nil {
		err = l.ask(ctx, "STREAM.PURGE."+valuesStream, map[string]string{"filter": subject}, nil)
	}
	if err != nil {
		return fmt.Errorf("deleting a value: %w", err)
	}
	return nil
}

// admit refuses what the embedded server's disk has no room for.
func (l *Log) admit(ctx context.Context, size int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.server == nil {
		return nil
	}
	return l.server.admit(size, false)
}

var _ sessions.Store = (*Log)(nil)
