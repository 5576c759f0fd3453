package natslog

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"treadle/sessions"
)

// hub hears all that is stored in one partition, and hands each record, decoded once, to the followers of its session.
//
// Every stored message has one sequence and is published again, so that the sequences rise by one. If they do not, something was missed, and
// all followers of the partition read the log from their cursors before they get anything later. One subscription for good, since a new one
// may, in a cluster, begin later than a read that follows it.
type hub struct {
	log       *Log
	partition int
	sub       *nats.Subscription

	mu sync.Mutex
	// heard is the last sequence that came, 0 when nothing is known.
	heard uint64
	// polled is the stream's last sequence at the previous poll.
	polled uint64
	// followers are by session. The slices are never changed, only replaced.
	followers map[string][]*follower
	// The listing has to look at everything after rescanFrom again, rescans times. A replica that answers a scan may lag,
	// so that one is not enough.
	rescanFrom uint64
	rescans    int
}

func newHub(l *Log, partition int) *hub {
	h := &hub{log: l, partition: partition, followers: map[string][]*follower{}}
	if l.cfg.Replicas > 1 {
		h.rescans = 1
	}
	return h
}

// begin subscribes. Nobody follows yet and the listing is built afterwards, so that what is stored by now need not be heard.
func (h *hub) begin(ctx context.Context) error {
	if err := h.subscribe(); err != nil {
		return err
	}
	// The question goes over another connection: the server must know of the subscription first.
	if err := h.log.live.FlushTimeout(patience); err != nil {
		return err
	}
	last, err := h.log.lastOfAll(ctx, streamName(h.partition))
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = max(h.heard, last)
	return nil
}

func (h *hub) subscribe() error {
	sub, err := h.log.live.Subscribe("live.s."+strconv.Itoa(h.partition)+".>", h.receive)
	if err != nil {
		return err
	}
	h.sub = sub
	// What does not fit is dropped, and noticed as a gap.
	return sub.SetPendingLimits(1<<17, 64<<20)
}

func (h *hub) receive(m *nats.Msg) {
	seq, ok := headerNumber(m.Header, jetstream.SequenceHeader)
	session, kind, known := parseSubject(strings.TrimPrefix(m.Subject, "live."))
	if !ok || !known {
		h.lost()
		return
	}
	h.mu.Lock()
	if seq <= h.heard {
		h.mu.Unlock()
		return
	}
	if seq != h.heard+1 {
		h.gap()
	}
	h.heard = seq
	followers := h.followers[session]
	h.mu.Unlock()

	listed := kind == sessions.KindTurn || kind == sessions.KindEnd
	if len(followers) == 0 && !listed {
		return
	}
	e, err := decode(seq, m.Data)
	if err != nil {
		h.log.logger.Error("A record that came live is unreadable", "stream", streamName(h.partition), "err", err)
		h.lost()
		return
	}
	if listed {
		h.log.index.apply(session, kind, e.Seq, e.Summary)
	}
	for _, f := range followers {
		f.push(e)
	}
}

// gap makes all followers read the log before they take anything later. h.mu is held.
func (h *hub) gap() {
	if h.rescans == 0 {
		h.rescanFrom = h.heard
	}
	h.rescans = 2
	for _, followers := range h.followers {
		for _, f := range followers {
			f.refill()
		}
	}
}

// lost tells that messages may be missing after those that were heard.
func (h *hub) lost() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gap()
	h.heard = 0
}

// poll notices what was stored and never heard of, and brings the listing up to date after a gap.
func (h *hub) poll(ctx context.Context) error {
	last, err := h.log.lastOfAll(ctx, streamName(h.partition))
	if err != nil {
		return err
	}
	h.mu.Lock()
	// What was there at the previous poll has had its time to arrive.
	if h.heard < h.polled {
		h.gap()
		h.heard = h.polled
	}
	h.polled = last
	rescans, from := h.rescans, h.rescanFrom
	h.mu.Unlock()
	if rescans == 0 {
		return nil
	}
	if err := h.log.scan(ctx, h.partition, from); err != nil {
		return err
	}
	h.mu.Lock()
	if h.rescans == rescans {
		h.rescans--
	}
	h.mu.Unlock()
	return nil
}

func (h *hub) add(f *follower) {
	h.mu.Lock()
	defer h.mu.Unlock()
	session := f.reader.place.session
	h.followers[session] = append(slices.Clip(h.followers[session]), f)
}

func (h *hub) remove(f *follower) {
	h.mu.Lock()
	defer h.mu.Unlock()
	session := f.reader.place.session
	rest := slices.DeleteFunc(slices.Clone(h.followers[session]), func(other *follower) bool { return other == f })
	if len(rest) == 0 {
		delete(h.followers, session)
		return
	}
	h.followers[session] = rest
}
