package memlog

import (
	"bytes"
	"context"
	"slices"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

// Sessions implements [sessions.Index]. Deleted sessions are left out; the order is that of the ids, which begin with their time.
func (l *Log) Sessions(ctx context.Context, tenant string, before uuid.UUID, limit int, match func(*sessions.Summary) bool) ([]sessions.Summary, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []sessions.Summary
	for k, s := range l.sessions {
		if k.tenant != tenant || s.summary == nil || s.summary.Deleted {
			continue
		}
		if before != uuid.Nil && bytes.Compare(k.id[:], before[:]) >= 0 {
			continue
		}
		if sum := s.listed(); match == nil || match(&sum) {
			found = append(found, sum)
		}
	}
	slices.SortFunc(found, func(a, b sessions.Summary) int { return bytes.Compare(b.ID[:], a.ID[:]) })
	return found[:min(limit, len(found))], nil
}

// listed returns the last summary, corrected by a turn that started after it.
func (s *session) listed() sessions.Summary {
	sum := *s.summary
	if s.turn > s.end {
		sum.Status = api.StatusRunning
		sum.Turns++
	} else if sum.Status == api.StatusWaitingToolResult {
		sum.Status = api.StatusRunning
	}
	return sum
}
