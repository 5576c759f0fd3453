package natslog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"treadle/sessions"
)

const (
	batchSize = 1000
	// batchBytes bounds one answer: longer ones were seen to lose messages in their middle.
	batchBytes = 1 << 20
)

// Read implements [sessions.Log].
func (l *Log) Read(ctx context.Context, tenant string, id uuid.UUID, after sessions.Seq, limit int, deltas bool) ([]sessions.Entry, error) {
	pl, err := l.place(tenant, id)
	if err != nil {
		return nil, fmt.Errorf("reading a session: %w", err)
	}
	r := newReader(l, pl, after, deltas)
	if err := r.aim(ctx); err != nil {
		return nil, fmt.Errorf("reading a session: %w", err)
	}
	var all []sessions.Entry
	for (limit == 0 || len(all) < limit) && r.size < sessions.MaxRead {
		left := 0
		if limit > 0 {
			left = limit - len(all)
		}
		entries, err := r.next(ctx, left)
		if err != nil {
			return nil, fmt.Errorf("reading a session: %w", err)
		}
		if len(entries) == 0 {
			break
		}
		if all == nil {
			all = entries
		} else {
			all = append(all, entries...)
		}
	}
	return all, nil
}

// reader walks over a session's stored entries up to a target that the leader named. Any replica may give the entries, and one that
// lags is asked again until it has the target.
type reader struct {
	log    *Log
	place  place
	filter string
	cursor uint64
	target uint64
	// size is that of the records so far.
	size int
}

func newReader(l *Log, pl place, after sessions.Seq, deltas bool) *reader {
	filter := pl.facts()
	if deltas {
		filter = pl.all()
	}
	return &reader{log: l, place: pl, filter: filter, cursor: uint64(after)}
}

// aim sets the target to the session's last entry.
func (r *reader) aim(ctx context.Context) error {
	last, _, err := r.log.last(ctx, r.place.stream(), r.filter)
	if err != nil {
		return err
	}
	r.target = last
	if last == 0 && r.cursor > 0 {
		return sessions.ErrPurged
	}
	return nil
}

// next returns some entries after the cursor, at most limit (0: as many as the answer holds), and none once the target is reached.
func (r *reader) next(ctx context.Context, limit int) ([]sessions.Entry, error) {
	limited, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	for r.cursor < r.target {
		entries, more, err := r.batch(limited, limit)
		if err != nil {
			return nil, explain(ctx, err)
		}
		if len(entries) > 0 {
			r.cursor = uint64(entries[len(entries)-1].Seq)
			return entries, nil
		}
		if !more {
			// The replica has not got the target yet, or the target was a delta that has vanished: the leader knows.
			before := r.target
			if err := r.aim(limited); err != nil {
				return nil, explain(ctx, err)
			}
			if r.target != before {
				continue
			}
		}
		if err := pause(limited, 2*time.Millisecond); err != nil {
			return nil, explain(ctx, err)
		}
	}
	return nil, nil
}

// batch makes one request. More is true when the answer was cut short, for whatever reason.
func (r *reader) batch(ctx context.Context, limit int) (entries []sessions.Entry, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	size := batchSize
	if limit > 0 {
		size = min(size, limit)
	}
	answer, err := jetstreamext.GetBatch(ctx, r.log.js, r.place.stream(), size,
		jetstreamext.GetBatchSubject(r.filter), jetstreamext.GetBatchSeq(r.cursor+1), jetstreamext.GetBatchMaxBytes(batchBytes))
	if err != nil {
		return nil, false, err
	}
	more = true
	previous := uint64(0)
	for m, err := range answer {
		if errors.Is(err, jetstreamext.ErrNoMessages) {
			return entries, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		// Each message names the one before it in this answer, so that a hole shows.
		if before, ok := headerNumber(m.Header, jetstream.LastSequenceHeader); !ok || before != previous {
			return entries, true, nil
		}
		e, err := decode(m.Sequence, m.Data)
		if err != nil {
			return nil, false, err
		}
		entries = append(entries, e)
		r.size += len(m.Data)
		previous = m.Sequence
		pending, ok := headerNumber(m.Header, "Nats-Num-Pending")
		more = !ok || pending > 0
	}
	return entries, more, nil
}

// headerNumber returns the last value of the header: earlier ones may have been stored with the message.
func headerNumber(h nats.Header, name string) (uint64, bool) {
	values := h[name]
	if len(values) == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(values[len(values)-1], 10, 64)
	return n, err == nil
}

func decode(seq uint64, data []byte) (sessions.Entry, error) {
	rec := new(sessions.Record)
	if err := json.Unmarshal(data, rec); err != nil {
		return sessions.Entry{}, fmt.Errorf("decoding the record at %d: %w", seq, err)
	}
	return sessions.Entry{Seq: sessions.Seq(seq), Record: rec}, nil
}
