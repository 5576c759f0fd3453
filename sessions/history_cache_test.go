package sessions

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"treadle/api"
)

func TestHistoryCache(t *testing.T) {
	var c historyCache
	long := strings.Repeat("x", maxOneHistory/2)
	said := func(text string) *history {
		h := new(history)
		h.add(Entry{}, &api.TurnStarted{Input: api.Input{{Type: "text", Text: text}}})
		return h
	}
	keys := make([]sessionKey, 10)
	for i := range keys {
		keys[i] = sessionKey{"acme", uuid.New()}
		c.put(keys[i], said(long), Seq(i))
	}
	if c.bytes > maxKeptHistory || len(c.kept) != c.recent.Len() {
		t.Errorf("%d bytes are kept in %d and %d places", c.bytes, len(c.kept), c.recent.Len())
	}
	if h, upTo := c.take(keys[0]); len(h.messages) != 0 || upTo != 0 {
		t.Errorf("the oldest history was not evicted: %d messages up to %d", len(h.messages), upTo)
	}
	if h, upTo := c.take(keys[9]); len(h.messages) != 1 || upTo != 9 {
		t.Errorf("the latest history has %d messages up to %d", len(h.messages), upTo)
	}
	if h, _ := c.take(keys[9]); len(h.messages) != 0 {
		t.Error("a history was taken twice")
	}
	c.put(keys[8], said("again"), 10)
	if h, upTo := c.take(keys[8]); h.messages[0].Text != "again" || upTo != 10 {
		t.Errorf("the later history was not kept: up to %d", upTo)
	}
	c.put(keys[0], said(long+long+long), 1)
	if h, _ := c.take(keys[0]); len(h.messages) != 0 {
		t.Error("a history beyond the bound is kept")
	}
	for _, key := range keys {
		c.take(key)
	}
	if c.bytes != 0 || c.recent.Len() != 0 || len(c.kept) != 0 {
		t.Errorf("%d bytes are left of nothing", c.bytes)
	}
}
