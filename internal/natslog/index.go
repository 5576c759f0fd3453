package natslog

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

// index is the listing, in memory. It is built from the last facts that carry a summary and the last turns, and kept up by what the
// hubs hear and what this replica appends. Applying a fact twice, or late, changes nothing.
type index struct {
	mu      sync.RWMutex
	tenants map[string]*tenantIndex
}

type tenantIndex struct {
	sessions map[uuid.UUID]*listing
	// ids rise, and with them the times of creation that they begin with.
	ids []uuid.UUID
}

type listing struct {
	// summary is nil until the first fact that carries one.
	summary   *sessions.Summary
	end, turn sessions.Seq
}

func newIndex() *index { return &index{tenants: map[string]*tenantIndex{}} }

func (x *index) apply(session string, kind sessions.Kind, seq sessions.Seq, summary *sessions.Summary) {
	if kind != sessions.KindTurn && (kind != sessions.KindEnd || summary == nil) {
		return
	}
	tenant, id, err := owner(session)
	if err != nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.entry(tenant, id)
	switch {
	case kind == sessions.KindTurn:
		e.turn = max(e.turn, seq)
	case seq > e.end:
		e.end, e.summary = seq, summary
	}
}

func (x *index) entry(tenant string, id uuid.UUID) *listing {
	t := x.tenants[tenant]
	if t == nil {
		t = &tenantIndex{sessions: map[uuid.UUID]*listing{}}
		x.tenants[tenant] = t
	}
	e := t.sessions[id]
	if e == nil {
		e = &listing{}
		t.sessions[id] = e
		i, _ := slices.BinarySearchFunc(t.ids, id, compareIDs)
		t.ids = slices.Insert(t.ids, i, id)
	}
	return e
}

func compareIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// Sessions implements [sessions.Index]. Deleted sessions are left out.
func (l *Log) Sessions(ctx context.Context, tenant string, before uuid.UUID, limit int, match func(*sessions.Summary) bool) ([]sessions.Summary, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return l.index.list(tenant, before, limit, match), nil
}

func (x *index) list(tenant string, before uuid.UUID, limit int, match func(*sessions.Summary) bool) []sessions.Summary {
	x.mu.RLock()
	defer x.mu.RUnlock()
	t := x.tenants[tenant]
	if t == nil {
		return nil
	}
	i := len(t.ids)
	if before != uuid.Nil {
		i, _ = slices.BinarySearchFunc(t.ids, before, compareIDs)
	}
	var found []sessions.Summary
	for i--; i >= 0 && len(found) < limit; i-- {
		e := t.sessions[t.ids[i]]
		if e.summary == nil || e.summary.Deleted {
			continue
		}
		if sum := e.now(); match == nil || match(&sum) {
			found = append(found, sum)
		}
	}
	return found
}

// now returns the last summary, corrected by a turn that started after it.
func (e *listing) now() sessions.Summary {
	sum := *e.summary
	if e.turn > e.end {
		sum.Status = api.StatusRunning
		sum.Turns++
	} else if sum.Status == api.StatusWaitingToolResult {
		sum.Status = api.StatusRunning
	}
	return sum
}
