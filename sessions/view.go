package sessions

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"treadle/api"
)

// hidden holds the event types that no client is shown. Everything else is shown to whoever may read the session.
var hidden = map[string]bool{api.TypeTurnOwned: true, api.TypeClaimRenewed: true}

// shown is an event that a reader is given.
type shown struct {
	position Position
	typ      string
	raw      json.RawMessage
}

// view selects what one reader of a session's entries is shown. It drops what it was given before, and the deltas of an owner
// that has lost the turn: a frozen replica that wakes up may still write them, since deltas are not fenced.
type view struct {
	// after is where the reader stands: nothing up to it is shown.
	after Position
	// term is the owner whose deltas count: that of the last turn_owned fact before the reader's place; 0 for none.
	term Seq
	// turn, if set, limits the view to the events of one turn.
	turn uuid.UUID
}

// newView makes the view of a reader that stands at a position. st is any later state.
func (s *Service) newView(ctx context.Context, key sessionKey, st *State, after Position) (view, error) {
	v := view{after: after}
	t := st.Turn
	switch {
	case t != nil && t.Term != 0 && positionAfter(t.Term) <= after:
		v.term = t.Term
		return v, nil
	case after == 0 || after >= positionAfter(st.Seq):
		return v, nil
	}
	// The reader stands in a turn that is over, or before the present owner of this one: the log tells who owned it there.
	mark := st.latestMark(func(m Mark) bool { return positionAfter(m.Seq) <= after })
	err := s.scan(ctx, key, mark.start(), func(e Entry, event api.Event) bool {
		if positionAfter(e.Seq) > after {
			return false
		}
		v.turnover(api.TypeOf(event), e.Seq)
		return true
	})
	return v, err
}

// turnover notes who may write deltas after an event.
func (v *view) turnover(typ string, seq Seq) {
	switch typ {
	case api.TypeTurnOwned:
		v.term = seq
	case api.TypeTurnCompleted, api.TypeTurnFailed, api.TypeTurnCanceled:
		v.term = 0
	}
}

// show returns what is shown of an entry.
func (v *view) show(e Entry) []shown {
	if e.Kind() == KindDelta && (v.term == 0 || e.Term != v.term) {
		return nil
	}
	events := make([]shown, 0, len(e.Events))
	for i, raw := range e.Events {
		typ := api.EventType(raw)
		v.turnover(typ, e.Seq)
		p := positionOf(e, i)
		if p <= v.after || hidden[typ] || typ != api.TypeSessionEnded && !v.ofTurn(raw) {
			continue
		}
		v.after = p
		events = append(events, shown{p, typ, raw})
	}
	return events
}

func (v *view) ofTurn(raw json.RawMessage) bool {
	if v.turn == uuid.Nil {
		return true
	}
	var h api.EventHeader
	return json.Unmarshal(raw, &h) == nil && h.TurnID == v.turn
}
