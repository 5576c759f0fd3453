package sessions

import (
	"container/list"
	"sync"
)

// maxKeptHistory bounds what the kept histories may take, by estimate, and maxOneHistory what one of them may.
const (
	maxKeptHistory = 64 << 20
	maxOneHistory  = maxKeptHistory / 4
)

// historyCache keeps histories from one turn of a session to the next, which then reads only what came since. The zero value is
// empty. A history that was taken belongs to the taker alone, since it grows in place.
type historyCache struct {
	mu     sync.Mutex
	kept   map[sessionKey]*list.Element
	recent list.List // of *keptHistory, latest first
	bytes  int
}

type keptHistory struct {
	key     sessionKey
	history *history
	// upTo is the position of the last fact that is part of the history.
	upTo Seq
	cost int
}

// take removes a session's history and returns it with the position that it reaches, or an empty one.
func (c *historyCache) take(key sessionKey) (h *history, upTo Seq) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.kept[key]
	if !ok {
		return new(history), 0
	}
	k := c.drop(el)
	return k.history, k.upTo
}

// put keeps a history that the caller does not use any more.
func (c *historyCache) put(key sessionKey, h *history, upTo Seq) {
	k := &keptHistory{key: key, history: h, upTo: upTo, cost: 1<<10 + h.bytes}
	if k.cost > maxOneHistory {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.kept[key]; ok {
		c.drop(el)
	}
	if c.kept == nil {
		c.kept = map[sessionKey]*list.Element{}
	}
	c.kept[key] = c.recent.PushFront(k)
	for c.bytes += k.cost; c.bytes > maxKeptHistory; {
		c.drop(c.recent.Back())
	}
}

// drop removes an element. c.mu is held.
func (c *historyCache) drop(el *list.Element) *keptHistory {
	k := c.recent.Remove(el).(*keptHistory)
	delete(c.kept, k.key)
	c.bytes -= k.cost
	return k
}
