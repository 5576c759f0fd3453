package sessions

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// newID makes a UUIDv7 for the given time: ids of a session carry the times of its facts, so that they can be found by them.
// All 74 bits behind the time are random: within a millisecond, ids tell nothing of each other.
func newID(t time.Time) uuid.UUID {
	var id uuid.UUID
	_, _ = rand.Read(id[:]) // never fails: see crypto/rand
	binary.BigEndian.PutUint64(id[:8], uint64(t.UnixMilli())<<16|uint64(binary.BigEndian.Uint16(id[6:8])))
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

// unixMilli reads the time of a UUIDv7.
func unixMilli(id uuid.UUID) int64 { return int64(binary.BigEndian.Uint64(id[:8]) >> 16) }
