package sessions

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Position orders the events of a session: Seq*1000 for the last event of the record at Seq, one less for each event
// that follows it in the record. So a position that is a multiple of 1000 lies between records.
type Position uint64

func positionOf(e Entry, index int) Position {
	return Position(uint64(e.Seq)*MaxRecordEvents - uint64(len(e.Events)-1-index))
}

func positionAfter(seq Seq) Position { return Position(uint64(seq) * MaxRecordEvents) }

// floor returns where to follow from to get everything behind p: the last record that lies wholly before it. Of the next one, events
// up to p may have to be skipped.
func (p Position) floor() Seq { return Seq(p / MaxRecordEvents) }

// cursorTag names a session's history in cursors, so that a cursor of another session or of another store is recognised.
func cursorTag(epoch string, session uuid.UUID) string {
	sum := sha256.Sum256([]byte(epoch + "/" + session.String()))
	return hex.EncodeToString(sum[:4])
}

func formatCursor(tag string, p Position) string {
	return tag + "-" + strconv.FormatUint(uint64(p), 10)
}

// parseCursor returns ok false for anything that formatCursor did not make with this tag.
func parseCursor(tag, cursor string) (p Position, ok bool) {
	digits, found := strings.CutPrefix(cursor, tag+"-")
	if !found || len(digits) > 19 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, false
	}
	return Position(n), true
}
