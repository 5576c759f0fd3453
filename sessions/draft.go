package sessions

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// draft collects the events of one record on top of a state. A decision is a function from a state to a draft or a refusal;
// it does no I/O, so it can be made again on a newer state when another fact came first.
type draft struct {
	base *State
	// next is base with the events so far, positions excepted.
	next    *State
	now     time.Time
	turn    uuid.UUID
	term    Seq
	events  []api.Event
	private *Private
}

// draft starts a record. Its time is now, but never before the session's last fact.
func (s *State) draft(now time.Time) *draft {
	now = now.UTC().Truncate(time.Millisecond)
	if now.Before(s.Time) {
		now = s.Time
	}
	next := *s
	d := &draft{base: s, next: &next, now: now}
	if s.Turn != nil {
		turn := *s.Turn
		turn.Calls = append([]CallState(nil), turn.Calls...)
		next.Turn = &turn
		d.turn = turn.ID
	}
	return d
}

// add appends an event and completes its header.
func (d *draft) add(event api.Event) {
	h := event.Header()
	h.Type, h.SessionID, h.Time = api.TypeOf(event), d.next.Session, d.now
	if d.ofTurn(event) {
		h.TurnID = d.turn
	}
	d.events = append(d.events, event)
	d.next.fold(event, Entry{Record: &Record{Private: d.private}}, 0)
}

func (d *draft) ofTurn(event api.Event) bool {
	switch event.(type) {
	case *api.SessionCreated, *api.SessionUpdated, *api.SessionEnded, *api.ToolsReplaced, *api.StatusChanged:
		return false
	}
	return true
}

// record closes the draft: it adds what follows from the events, and encodes them.
func (d *draft) record() (*Record, error) {
	// The end of a session is its last word: it has its status event before it.
	if status := d.next.Status(); status != d.base.Status() && status != api.StatusEnded {
		d.add(&api.StatusChanged{Status: status})
	}
	if len(d.events) > MaxRecordEvents {
		return nil, fmt.Errorf("a record of %d events, at most %d are counted by cursors", len(d.events), MaxRecordEvents)
	}
	rec := &Record{V: RecordVersion, CommandID: newID(d.now), N: d.base.N + 1, Term: d.term, Private: d.private}
	for _, event := range d.events {
		raw, err := api.Marshal(event)
		if err != nil {
			return nil, err
		}
		rec.Events = append(rec.Events, raw)
		switch event.(type) {
		case *api.SessionCreated, *api.SessionUpdated, *api.SessionEnded, *api.TurnCompleted, *api.TurnFailed, *api.TurnCanceled:
			rec.Summary = d.next.recordSummary()
		}
	}
	return rec, nil
}

// recordSummary is what a fact tells listings. That of a tombstone, which stays, holds nothing of the session but its id and times.
func (s *State) recordSummary() *Summary {
	sum := &Summary{SessionSummary: s.summary(), Deleted: s.Deleted}
	if s.Deleted {
		sum.Model, sum.Subject, sum.Metadata = "", "", nil
	}
	return sum
}

func (s *State) summary() api.SessionSummary {
	return api.SessionSummary{
		ID: s.Session, Status: s.Status(), Model: s.Model, Subject: s.Subject, Metadata: s.Metadata, Turns: s.Turns,
		CreatedAt: s.Created, UpdatedAt: s.Updated, EndedAt: s.Ended,
	}
}
