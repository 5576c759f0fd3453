package sessions

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/google/uuid"
)

// newID makes a UUIDv7 for the given time: ids of a session carry the times of its facts, so that they can be found by them.
// What this process makes for one millisecond rises, so that lists by id are lists by age.
func newID(t time.Time) uuid.UUID {
	var id uuid.UUID
	_, _ = rand.Read(id[:]) // never fails: see crypto/rand
	ms := t.UnixMilli()
	count := lastID.next(ms, binary.BigEndian.Uint16(id[6:8])&0x03ff)
	binary.BigEndian.PutUint64(id[:8], uint64(ms)<<16|0x7000|uint64(count))
	id[8] = id[8]&0x3f | 0x80
	return id
}

// unixMilli reads the time of a UUIDv7.
func unixMilli(id uuid.UUID) int64 { return int64(binary.BigEndian.Uint64(id[:8]) >> 16) }

// idCounter is the 12 bits behind the time of the latest id.
type idCounter struct {
	mu    sync.Mutex
	ms    int64
	count uint16
}

var lastID idCounter

// next counts on within a millisecond, from a random start. Times before the latest, and more ids than there are numbers, get
// any number: their order is not promised.
func (c *idCounter) next(ms int64, start uint16) uint16 {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case ms < c.ms || ms == c.ms && c.count == 0x0fff:
		return start
	case ms == c.ms:
		c.count++
	default:
		c.ms, c.count = ms, start
	}
	return c.count
}
