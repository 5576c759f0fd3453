package sessions

import (
	"strings"
	"testing"
	"time"

	"treadle/api"
)

// The cache's bound counts whatever a client can make large.
func TestStateCache_bound(t *testing.T) {
	const size = 1 << 20
	large := strings.Repeat("x", size)
	for name, fill := range map[string]func(*State){
		"guidance":  func(st *State) { st.Skills = &api.Skills{Guidance: large} },
		"schemas":   func(st *State) { st.Skills = &api.Skills{Tools: []api.Tool{{ArgsSchema: []byte(large)}}} },
		"metadata":  func(st *State) { st.Metadata = map[string]string{"key": large} },
		"arguments": func(st *State) { st.Turn = &TurnState{Calls: []CallState{{Args: []byte(large)}}} },
	} {
		t.Run(name, func(t *testing.T) {
			c := newStateCache()
			for range 2 * maxCachedBytes / size {
				key := sessionKey{"acme", newID(time.Now())}
				entry := c.entry(key)
				small := &State{Session: key.id, Seq: 1, Skills: &api.Skills{}}
				c.advance(entry, small)
				st := *small
				st.Seq++
				fill(&st)
				c.advance(entry, &st)
			}
			if n := len(c.entries); n*size > maxCachedBytes || n < maxCachedBytes/size/2 || c.bytes > maxCachedBytes || c.recent.Len() != n {
				t.Errorf("%d entries are kept in %d places for %d bytes", n, c.recent.Len(), c.bytes)
			}
			for _, el := range c.entries {
				c.forget(el.Value.(*cacheEntry))
			}
			if c.bytes != 0 || c.recent.Len() != 0 {
				t.Errorf("%d bytes are left of nothing", c.bytes)
			}
		})
	}
}
