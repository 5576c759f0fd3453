package sessions

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// Frame is one frame of an event stream.
type Frame struct {
	// ID is the cursor after this frame; empty on frames that do not carry one.
	ID string
	// Type is the SSE event field, and the "type" in Data.
	Type string
	// Data is one line of JSON. It may be shared: nobody changes it.
	Data []byte
}

// StreamQuery says where a stream begins.
type StreamQuery struct {
	// After is a cursor, "latest", or empty for the session's beginning. One that does not belong to the session leads to a reset.
	After string
	// LastEventID, if not empty, beats After.
	LastEventID string
	// Turn limits the stream to one turn, from its start to its end; After and LastEventID do not apply.
	Turn uuid.UUID
}

// Stream is one reader of one session's events. It belongs to one goroutine; Close must be called.
type Stream struct {
	service  *Service
	key      sessionKey
	tag      string
	view     view
	status   api.SessionStatus
	follower Follower
	pending  []Frame // to be given before anything else
	// opened is the last fact when the stream was opened; 0 once the reader has been told that it has everything up to it.
	opened Seq
	over   bool
	close  sync.Once
}

// ErrStreamOver tells a client that resumes at the very end of an ended session that nothing will ever follow.
var ErrStreamOver = errors.New("the session has ended and the reader has seen its end")

// StreamTurn starts a turn like StartTurn and opens its stream. When there is no room for a stream no turn is started.
func (s *Service) StreamTurn(ctx context.Context, tenant string, id uuid.UUID, req *api.TurnCreate, idempotencyKey string) (*api.Turn, *Stream, error) {
	key := sessionKey{tenant, id}
	if err := s.readers.add(key); err != nil {
		return nil, nil, err
	}
	turn, err := s.StartTurn(ctx, tenant, id, req, idempotencyKey)
	var stream *Stream
	if err == nil {
		stream, err = s.openStream(ctx, key, StreamQuery{Turn: turn.ID})
	}
	if err != nil {
		s.readers.remove(key)
		return nil, nil, err
	}
	return turn, stream, nil
}

// OpenStream opens a stream. The first frames are there at once: ready, or reset when the cursor is not of this history. It
// returns ErrStreamOver when there will never be anything to read.
func (s *Service) OpenStream(ctx context.Context, tenant string, id uuid.UUID, q StreamQuery) (*Stream, error) {
	key := sessionKey{tenant, id}
	if err := s.readers.add(key); err != nil {
		return nil, err
	}
	stream, err := s.openStream(ctx, key, q)
	if err != nil {
		s.readers.remove(key)
	}
	return stream, err
}

// openStream opens a stream for which there is room.
func (s *Service) openStream(ctx context.Context, key sessionKey, q StreamQuery) (*Stream, error) {
	st, err := s.state(ctx, key)
	if err != nil {
		return nil, err
	}
	stream := &Stream{service: s, key: key, tag: cursorTag(s.engine.Epoch(), key.id), status: st.Status()}
	after, reset, err := stream.start(ctx, st, q)
	if err != nil {
		return nil, err
	}
	if st.Status() == api.StatusEnded && after == positionAfter(st.Seq) {
		return nil, ErrStreamOver
	}
	if err := stream.open(ctx, st, q, after, reset); err != nil {
		return nil, err
	}
	s.metrics.Streams(1)
	return stream, nil
}

// start returns the position that a query names, and why it has to be the beginning after all.
func (st *Stream) start(ctx context.Context, state *State, q StreamQuery) (after Position, reset string, err error) {
	cursor := q.LastEventID
	if cursor == "" {
		cursor = q.After
	}
	switch {
	case q.Turn != uuid.Nil:
		seq, err := st.service.turnStart(ctx, st.key, state, q.Turn)
		return positionAfter(seq - 1), "", err
	case cursor == "":
		return 0, "", nil
	case cursor == "latest" && q.LastEventID == "":
		return positionAfter(state.Seq), "", nil
	}
	p, ok := parseCursor(st.tag, cursor)
	switch {
	case !ok:
		return 0, "unknown_cursor", nil
	case !state.Ended.IsZero() && p > positionAfter(state.Seq):
		return 0, "cursor_out_of_range", nil
	}
	return p, "", nil
}

// open starts following and queues the first frames.
func (st *Stream) open(ctx context.Context, state *State, q StreamQuery, after Position, reset string) error {
	seq := after.floor()
	follower, err := st.service.engine.Follow(ctx, st.key.tenant, st.key.id, seq)
	if errors.Is(err, ErrCursorAhead) || errors.Is(err, ErrPurged) {
		after, reset = 0, "cursor_out_of_range"
		follower, err = st.service.engine.Follow(ctx, st.key.tenant, st.key.id, 0)
	}
	if err != nil {
		return unavailable(err)
	}
	st.view = view{after: after, turn: q.Turn}
	if q.Turn == uuid.Nil { // nobody owns a turn before its start
		if st.view, err = st.service.newView(ctx, st.key, state, after); err != nil {
			follower.Close()
			return err
		}
	}
	st.follower = follower
	if reset != "" {
		st.pending = append(st.pending, st.control(&api.Reset{Reason: reset, Cursor: formatCursor(st.tag, 0)}, formatCursor(st.tag, 0)))
	}
	if q.After == "latest" && q.LastEventID == "" && q.Turn == uuid.Nil && state.Turn != nil {
		st.pending = append(st.pending, st.openCalls(state)...)
	}
	caughtUp := after >= positionAfter(state.Seq)
	if !caughtUp && q.Turn == uuid.Nil {
		st.opened = state.Seq
	}
	st.pending = append(st.pending, st.ready(caughtUp))
	return nil
}

func (st *Stream) ready(caughtUp bool) Frame {
	cursor := formatCursor(st.tag, st.view.after)
	return st.control(&api.Ready{Status: st.status, Cursor: cursor, CaughtUp: caughtUp}, cursor)
}

// catchUp ends a replay, once the reader has what came up to seq.
func (st *Stream) catchUp(frames []Frame, seq Seq) []Frame {
	if st.opened == 0 || seq < st.opened {
		return frames
	}
	st.opened = 0
	return append(frames, st.ready(true))
}

// openCalls offers the pending calls of the page once more to a reader that begins after their events, with the ids that these had.
func (st *Stream) openCalls(state *State) []Frame {
	var frames []Frame
	for _, c := range state.Turn.open() {
		if c.Status != api.ToolCallPending || c.Source != api.SourcePage {
			continue
		}
		event := &api.ToolCallEvent{
			ToolCallID: c.ID, Tool: c.Tool, Source: c.Source, Args: c.Args, Step: state.Turn.Step,
			Attempt: c.Attempt, MayHaveRun: c.MayHaveRun, Deadline: c.Deadline,
		}
		event.Type, event.SessionID, event.TurnID, event.Time = api.TypeToolCall, state.Session, state.Turn.ID, c.Latest
		if raw, err := api.Marshal(event); err == nil {
			frames = append(frames, Frame{ID: formatCursor(st.tag, c.Position), Type: api.TypeToolCall, Data: raw})
		}
	}
	return frames
}

// control makes a control frame.
func (st *Stream) control(event api.Event, id string) Frame {
	h := event.Header()
	h.Type, h.SessionID, h.Time = api.TypeOf(event), st.key.id, time.Now().UTC().Truncate(time.Millisecond)
	raw, err := api.Marshal(event)
	if err != nil {
		raw = []byte("{}") // control frames hold nothing that cannot be encoded
	}
	return Frame{ID: id, Type: h.Type, Data: raw}
}

// Next returns the next frames, at least one, or none and no error when wait has passed without any: time for a heartbeat.
// It returns io.EOF after the frame that tells the client not to come back, and an error when the stream cannot go on; the client
// then resumes from its cursor.
func (st *Stream) Next(ctx context.Context, wait time.Duration) ([]Frame, error) {
	if len(st.pending) > 0 {
		frames := st.pending
		st.pending = nil
		return frames, nil
	}
	if st.over {
		return nil, io.EOF
	}
	for until := time.Now().Add(wait); ; {
		left := time.Until(until)
		if left <= 0 {
			return nil, nil
		}
		entries, err := st.follower.Next(ctx, left)
		if errors.Is(err, ErrPurged) {
			st.over = true
			return []Frame{st.End("deleted")}, nil
		}
		if err != nil {
			return nil, err
		}
		var frames []Frame
		for _, e := range entries {
			for _, ev := range st.view.show(e) {
				frames = append(frames, Frame{ID: formatCursor(st.tag, ev.position), Type: ev.typ, Data: ev.raw})
				if frames = st.end(frames, ev.typ); st.over {
					return frames, nil
				}
			}
			frames = st.catchUp(frames, e.Seq)
		}
		if len(frames) > 0 {
			return frames, nil
		}
	}
}

// end adds the last frame after an event that nothing follows.
func (st *Stream) end(frames []Frame, typ string) []Frame {
	switch typ {
	case api.TypeSessionEnded:
		st.over = true
		return append(frames, st.End("session_ended"))
	case api.TypeTurnCompleted, api.TypeTurnFailed, api.TypeTurnCanceled:
		if st.view.turn != uuid.Nil {
			st.over = true
			return append(frames, st.End("turn_ended"))
		}
	}
	return frames
}

// End makes the stream_end frame with which a server closes the stream: reason shutdown when the client should come back.
func (st *Stream) End(reason string) Frame { return st.control(&api.StreamEnd{Reason: reason}, "") }

// Heartbeat makes the frame for clients that cannot see comments.
func (st *Stream) Heartbeat() Frame { return st.control(&api.Heartbeat{}, "") }

// Close releases the stream. It may be called twice.
func (st *Stream) Close() {
	st.close.Do(func() {
		st.follower.Close()
		st.service.readers.remove(st.key)
		st.service.metrics.Streams(-1)
	})
}

// turnStart returns the position of the record that started a turn.
func (s *Service) turnStart(ctx context.Context, key sessionKey, st *State, turn uuid.UUID) (Seq, error) {
	if st.Turn != nil && st.Turn.ID == turn {
		return st.Turn.Seq, nil
	}
	var start Seq
	err := s.scan(ctx, key, st.markBefore(turn).start(), func(e Entry, event api.Event) bool {
		if event.Header().TurnID == turn {
			start = e.Seq
		}
		return start == 0 && event.Header().Time.UnixMilli() <= unixMilli(turn)
	})
	if err != nil {
		return 0, err
	}
	if start == 0 {
		return 0, refuse(CodeTurnNotFound, "the session has no such turn")
	}
	return start, nil
}

// EventPage returns stored events after a cursor as a page; without any it waits for one, at most as long as wait. after is as in
// StreamQuery, but a cursor that does not belong to the session is refused with CURSOR_INVALID.
func (s *Service) EventPage(ctx context.Context, tenant string, id uuid.UUID, after string, limit int, wait time.Duration) (*api.EventPage, error) {
	key := sessionKey{tenant, id}
	st, err := s.state(ctx, key)
	if err != nil {
		return nil, err
	}
	stream := &Stream{service: s, key: key, tag: cursorTag(s.engine.Epoch(), id)}
	position, reset, err := stream.start(ctx, st, StreamQuery{After: after})
	if err != nil {
		return nil, err
	}
	if reset != "" {
		return nil, errCursor
	}
	view, err := s.newView(ctx, key, st, position)
	if err != nil {
		return nil, err
	}
	page := &pager{stream: stream, view: view, limit: pageSize(limit)}
	page.Events, page.Cursor = []api.EventItem{}, formatCursor(stream.tag, position)
	if err := page.stored(ctx, position); err != nil {
		return nil, err
	}
	if len(page.Events) == 0 {
		if st.Status() == api.StatusEnded {
			wait = 0 // nothing will come
		}
		if err := page.live(ctx, position, wait); err != nil {
			return nil, err
		}
	}
	return &page.EventPage, nil
}

var errCursor = refuse(CodeCursorInvalid, "the cursor does not belong to this session's history; read the session's state, and go on from the cursor in it")

// pager fills a page of events.
type pager struct {
	api.EventPage
	stream *Stream
	view   view
	limit  int
	size   int // of the events so far, in bytes
}

// add takes entries until the page is full.
func (p *pager) add(entries []Entry) {
	for _, e := range entries {
		for _, ev := range p.view.show(e) {
			p.size += len(ev.raw)
			if len(p.Events) == p.limit || p.size > maxPageBytes && len(p.Events) > 0 {
				p.More = true
				return
			}
			p.Cursor = formatCursor(p.stream.tag, ev.position)
			p.Events = append(p.Events, api.EventItem{ID: p.Cursor, Event: ev.raw})
		}
	}
}

// stored adds what the log has.
func (p *pager) stored(ctx context.Context, from Position) error {
	s, key := p.stream.service, p.stream.key
	for after := from.floor(); !p.More; {
		entries, err := s.engine.Read(ctx, key.tenant, key.id, after, readChunk, true)
		if errors.Is(err, ErrPurged) {
			return errCursor
		}
		if err != nil {
			return unavailable(err)
		}
		if len(entries) == 0 {
			return nil
		}
		p.add(entries)
		after = entries[len(entries)-1].Seq
	}
	return nil
}

// live waits for the first events that are shown.
func (p *pager) live(ctx context.Context, from Position, wait time.Duration) error {
	seq := from.floor()
	follower, err := p.stream.service.engine.Follow(ctx, p.stream.key.tenant, p.stream.key.id, seq)
	switch {
	case errors.Is(err, ErrCursorAhead) || errors.Is(err, ErrPurged):
		return errCursor
	case err != nil:
		return unavailable(err)
	}
	defer follower.Close()
	for until := time.Now().Add(wait); len(p.Events) == 0; {
		left := time.Until(until)
		if left <= 0 {
			return nil
		}
		entries, err := follower.Next(ctx, left)
		if err != nil {
			return unavailable(err)
		}
		p.add(entries)
	}
	return nil
}
