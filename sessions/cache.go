package sessions

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"

	"treadle/api"
)

// maxCachedBytes bounds what the cached states may take, by estimate.
const maxCachedBytes = 128 << 20

// stateCache keeps the states of the sessions that were used last. A cached state may be behind the log: another replica writes
// too. So it is good for proposing an append, which the log checks, and as a place to fold on from; never for refusing.
type stateCache struct {
	mu      sync.Mutex
	entries map[sessionKey]*list.Element
	recent  list.List // of *cacheEntry, latest first
	bytes   int
}

// cacheEntry is one session's place. The lock is held over decide and append, so that commands on this replica do not race each other.
type cacheEntry struct {
	key   sessionKey
	sem   chan struct{}
	state atomic.Pointer[State]
	// cost is the entry's estimate, of which registry is for weighed. The cache's lock guards them.
	cost, registry int
	weighed        *api.Skills
}

func newStateCache() *stateCache { return &stateCache{entries: map[sessionKey]*list.Element{}} }

// entry returns the session's place, making it if need be. An entry that was evicted while in use stays usable; two entries of one
// session only cost a conflict.
func (c *stateCache) entry(key sessionKey) *cacheEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[key]; ok {
		c.recent.MoveToFront(el)
		return el.Value.(*cacheEntry)
	}
	e := &cacheEntry{key: key, sem: make(chan struct{}, 1)}
	c.entries[key] = c.recent.PushFront(e)
	c.weigh(e)
	return e
}

// weigh updates what an entry is estimated to cost and evicts the oldest beyond the bound. c.mu is held.
func (c *stateCache) weigh(e *cacheEntry) {
	if el, ok := c.entries[e.key]; !ok || el.Value != any(e) {
		return // evicted meanwhile
	}
	cost := 1 << 10
	if st := e.state.Load(); st != nil {
		if e.weighed != st.Skills {
			e.weighed, e.registry = st.Skills, len(st.Skills.Guidance)
			for i := range st.Skills.Tools {
				t := &st.Skills.Tools[i]
				e.registry += 256 + len(t.Description) + len(t.ArgsSchema) + len(t.ResultSchema)
			}
		}
		cost += e.registry + len(st.Marks)*64 + len(st.Keys)*160
		for k, v := range st.Metadata {
			cost += 64 + len(k) + len(v)
		}
		if st.Turn != nil {
			for i := range st.Turn.Calls {
				cost += 256 + len(st.Turn.Calls[i].Args)
			}
		}
	}
	c.bytes += cost - e.cost
	e.cost = cost
	for c.bytes > maxCachedBytes && c.recent.Len() > 1 {
		c.drop(c.recent.Back())
	}
}

func (c *stateCache) drop(el *list.Element) {
	e := c.recent.Remove(el).(*cacheEntry)
	delete(c.entries, e.key)
	c.bytes -= e.cost
}

// forget drops a session that does not exist.
func (c *stateCache) forget(e *cacheEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[e.key]; ok && el.Value == any(e) {
		c.drop(el)
	}
}

func (e *cacheEntry) lock(ctx context.Context) error {
	select {
	case e.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}
}

func (e *cacheEntry) unlock() { <-e.sem }

// advance keeps the newer of the two states.
func (c *stateCache) advance(e *cacheEntry, st *State) {
	for {
		old := e.state.Load()
		if old != nil && old.Seq >= st.Seq {
			return
		}
		if !e.state.CompareAndSwap(old, st) {
			continue
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.weigh(e)
		return
	}
}

// state returns the session's state with everything that was acknowledged before the call.
func (s *Service) state(ctx context.Context, key sessionKey) (*State, error) {
	return s.refresh(ctx, key, s.cache.entry(key))
}

// refresh folds what the entry lacks.
func (s *Service) refresh(ctx context.Context, key sessionKey, entry *cacheEntry) (*State, error) {
	st := entry.state.Load()
	if st == nil {
		st = s.loadCheckpoint(ctx, key)
	}
	folded := st.N
	st, err := s.foldOn(ctx, key, st)
	switch {
	case errors.Is(err, ErrPurged) || err == nil && st.Seq == 0:
		s.cache.forget(entry)
		return nil, errNoSession
	case err != nil:
		if st != nil && st.Seq > 0 {
			s.cache.advance(entry, st) // the next try begins here
		}
		return nil, err
	case st.Deleted:
		s.finishDelete(ctx, key, st, st.N-folded)
		s.cache.forget(entry)
		return nil, errNoSession
	}
	s.cache.advance(entry, st)
	if st.N-folded >= 2*checkpointEvery {
		s.saveCheckpoint(ctx, key, st)
	}
	return st, nil
}

// foldOn returns the state with everything that came after it, or with what it got to when the engine has a fault.
func (s *Service) foldOn(ctx context.Context, key sessionKey, st *State) (*State, error) {
	for {
		entries, err := s.engine.Read(ctx, key.tenant, key.id, st.Seq, 0, false)
		switch {
		case errors.Is(err, ErrPurged):
			return nil, err
		case err != nil:
			return st, unavailable(err)
		case len(entries) == 0:
			return st, nil
		}
		for _, e := range entries {
			if st, err = st.Apply(e); err != nil {
				return nil, err
			}
		}
	}
}

var errNoSession = refuse(CodeSessionNotFound, "there is no such session; check the id, or create one with POST /v1/sessions")

// finishDelete removes what a delete left behind when its process died between the tombstone and the purge.
func (s *Service) finishDelete(ctx context.Context, key sessionKey, st *State, facts int64) {
	if facts <= 1 {
		return
	}
	if err := s.remove(ctx, key, st.Seq); err != nil {
		s.log.Warn("Removing a deleted session did not work; the next access tries again", "session_id", key.id, "err", err)
	}
}

// remove takes away everything that a session stored but its tombstone.
func (s *Service) remove(ctx context.Context, key sessionKey, tombstone Seq) error {
	return errors.Join(
		s.engine.Purge(ctx, key.tenant, key.id, tombstone),
		s.engine.Delete(ctx, key.tenant, checkpointKey(key)),
	)
}

// checkpoint is what is stored: the positions in State mean nothing in another history.
type checkpoint struct {
	Epoch string `json:"epoch"`
	State *State `json:"state"`
}

func checkpointKey(key sessionKey) string { return "state." + key.id.String() }

// loadCheckpoint returns the last checkpoint, or the empty state when there is none that this version understands.
func (s *Service) loadCheckpoint(ctx context.Context, key sessionKey) *State {
	empty := &State{Session: key.id, Skills: &api.Skills{}}
	raw, err := s.engine.Get(ctx, key.tenant, checkpointKey(key))
	if err != nil || raw == nil {
		return empty
	}
	var cp checkpoint
	if json.Unmarshal(raw, &cp) != nil || cp.Epoch != s.engine.Epoch() || cp.State == nil || cp.State.Version != StateVersion ||
		cp.State.Skills == nil || cp.State.Seq == 0 {
		return empty
	}
	// A loss of power may take the end of the log and leave a checkpoint of it.
	facts, err := s.engine.Read(ctx, key.tenant, key.id, cp.State.Seq-1, 1, false)
	if err != nil || len(facts) == 0 || facts[0].Seq != cp.State.Seq || facts[0].N != cp.State.N {
		return empty
	}
	return cp.State
}

// saveCheckpoint is an optimisation: when it does not work, more is folded next time.
func (s *Service) saveCheckpoint(ctx context.Context, key sessionKey, st *State) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), appendTimeout)
	defer cancel()
	if !st.Ended.IsZero() {
		return
	}
	raw, err := api.Marshal(checkpoint{Epoch: s.engine.Epoch(), State: st})
	if err == nil && len(raw) < s.engine.MaxRecord() {
		err = s.engine.Put(ctx, key.tenant, checkpointKey(key), raw)
	}
	if err == nil {
		// If the session was deleted meanwhile, its checkpoint may have been removed before this one came. A delete that comes
		// after this look removes it itself.
		var now *State
		if now, err = s.foldOn(ctx, key, st); errors.Is(err, ErrPurged) || err == nil && now.Deleted {
			err = s.engine.Delete(ctx, key.tenant, checkpointKey(key))
		}
	}
	if err != nil {
		s.log.Warn("Saving a checkpoint did not work", "session_id", key.id, "err", err)
	}
}
