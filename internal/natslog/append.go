package natslog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"treadle/api"
	"treadle/sessions"
)

const (
	// patience bounds one operation, including its repetitions.
	patience = 5 * time.Second
	// tryPatience bounds the wait for one answer.
	tryPatience         = 2 * time.Second
	maxDeltasOnTheirWay = 1024

	// codeUndecided is the server's answer while another append with the same fence is under way. nats.go has no name for it.
	codeUndecided jetstream.ErrorCode = 10164
)

// Append implements [sessions.Log].
func (l *Log) Append(ctx context.Context, tenant string, id uuid.UUID, base sessions.Seq, rec *sessions.Record) (sessions.Seq, error) {
	kind := rec.Kind()
	if kind == sessions.KindDelta {
		return 0, errors.New("appending a fact: the record has no number")
	}
	pl, data, err := l.prepareRecord(ctx, tenant, id, rec)
	if err != nil {
		return 0, fmt.Errorf("appending a fact: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	seq, err := l.settle(limited, pl, tenant, id, base, rec, data)
	if err != nil {
		return 0, fmt.Errorf("appending a fact: %w", explain(ctx, err))
	}
	l.index.apply(pl.session, kind, seq, rec.Summary)
	return seq, nil
}

// settle publishes until it knows what became of the record.
func (l *Log) settle(ctx context.Context, pl place, tenant string, id uuid.UUID, base sessions.Seq, rec *sessions.Record, data []byte) (sessions.Seq, error) {
	subject := pl.subject(rec.Kind())
	for {
		seq, err := l.publish(ctx, subject, pl.facts(), uint64(base), data)
		if err == nil {
			return seq, nil
		}
		code := apiCode(err)
		switch {
		case errors.Is(err, nats.ErrMaxPayload):
			return 0, fmt.Errorf("%w: %w", sessions.ErrTooLarge, err)
		case ctx.Err() != nil:
			return 0, err
		case code == codeUndecided:
			if err := pause(ctx, time.Millisecond+rand.N(4*time.Millisecond)); err != nil {
				return 0, err
			}
			continue
		case code != 0 && code != jetstream.JSErrCodeStreamWrongLastSequence:
			return 0, err
		}
		// Refused, or without an answer. If the record was stored, now or by an earlier call, then directly after its base.
		next, readErr := l.Read(ctx, tenant, id, base, 1, false)
		switch {
		case errors.Is(readErr, sessions.ErrPurged):
			return 0, sessions.ErrConflict
		case readErr != nil:
			return 0, errors.Join(err, readErr)
		case len(next) > 0 && next[0].CommandID == rec.CommandID:
			return next[0].Seq, nil
		case len(next) > 0 || code != 0:
			return 0, sessions.ErrConflict
		}
		if l.server != nil {
			if down := l.server.admit(0, ends(rec)); down != nil {
				return 0, down
			}
		}
		if pauseErr := pause(ctx, 20*time.Millisecond); pauseErr != nil {
			return 0, err
		}
	}
}

func (l *Log) publish(ctx context.Context, subject, fence string, last uint64, data []byte) (sessions.Seq, error) {
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	ack, err := l.js.Publish(ctx, subject, data,
		jetstream.WithExpectLastSequenceForSubject(last, fence), jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, err
	}
	return sessions.Seq(ack.Sequence), nil
}

// AppendDelta implements [sessions.Log]. It uses the connection of Append, which is what keeps their order, and never the fence of the
// facts: in a cluster that would make concurrent facts fail.
func (l *Log) AppendDelta(ctx context.Context, tenant string, id uuid.UUID, rec *sessions.Record) error {
	if rec.Kind() != sessions.KindDelta {
		return errors.New("appending a delta: the record is a fact")
	}
	pl, data, err := l.prepareRecord(ctx, tenant, id, rec)
	if err != nil {
		return fmt.Errorf("appending a delta: %w", err)
	}
	_, err = l.js.PublishAsync(pl.subject(sessions.KindDelta), data,
		jetstream.WithMsgTTL(l.cfg.DeltaTTL), jetstream.WithRetryAttempts(0), jetstream.WithStallWait(tryPatience))
	if err != nil {
		return fmt.Errorf("appending a delta: %w", explain(ctx, err))
	}
	return nil
}

// prepareRecord checks what can be checked before anything is sent.
func (l *Log) prepareRecord(ctx context.Context, tenant string, id uuid.UUID, rec *sessions.Record) (place, []byte, error) {
	if err := ctx.Err(); err != nil {
		return place{}, nil, err
	}
	pl, err := l.place(tenant, id)
	if err != nil {
		return place{}, nil, err
	}
	data, err := api.Marshal(rec)
	if err != nil {
		return place{}, nil, err
	}
	if len(data) > l.cfg.MaxRecord {
		return place{}, nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", sessions.ErrTooLarge, len(data), l.cfg.MaxRecord)
	}
	if l.server != nil {
		if err := l.server.admit(len(data), ends(rec)); err != nil {
			return place{}, nil, err
		}
	}
	return pl, data, nil
}

// Purge implements [sessions.Engine]. The server tells nobody of it, and drops the session's waiting jobs too.
func (l *Log) Purge(ctx context.Context, tenant string, id uuid.UUID, end sessions.Seq) error {
	pl, err := l.place(tenant, id)
	if err != nil {
		return fmt.Errorf("purging a session: %w", err)
	}
	request := struct {
		Filter string `json:"filter"`
		Seq    uint64 `json:"seq"`
	}{pl.all(), uint64(end)}
	if err := l.ask(ctx, "STREAM.PURGE."+pl.stream(), request, nil); err != nil {
		return fmt.Errorf("purging a session: %w", err)
	}
	return nil
}

// ends tells whether a record makes room, sooner or later.
func ends(rec *sessions.Record) bool { return rec.Summary != nil && !rec.Summary.EndedAt.IsZero() }

func apiCode(err error) jetstream.ErrorCode {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode
	}
	return 0
}

// explain turns a fault of NATS into ErrUnavailable, unless the caller's context ended or the error is one of the contract's.
func explain(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	for _, known := range []error{sessions.ErrConflict, sessions.ErrPurged, sessions.ErrTooLarge, sessions.ErrUnavailable, sessions.ErrCursorAhead} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", sessions.ErrUnavailable, err)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
