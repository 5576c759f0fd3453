package sessions

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// The decisions about a session as a whole. Each returns the draft of one record, nil when there is nothing to change, or a refusal.

// createSession decides on the state of a session that has no facts.
func createSession(id uuid.UUID, now time.Time, req *api.SessionCreate, key *Idempotency) *draft {
	d := (&State{Session: id}).draft(now)
	skills := req.Skills
	d.private = &Private{Registry: &skills, Idempotency: key}
	d.add(&api.SessionCreated{Model: req.Model, Subject: req.Subject, Metadata: req.Metadata, Tools: toolNames(&skills)})
	return d
}

func (s *State) update(now time.Time, req *api.SessionPatch) (*draft, error) {
	if err := s.refuseEnded(); err != nil {
		return nil, err
	}
	updated := &api.SessionUpdated{Model: s.Model, Metadata: s.Metadata}
	if req.Model != nil {
		updated.Model = *req.Model
	}
	if req.Metadata != nil {
		updated.Metadata = *req.Metadata
	}
	d := s.draft(now)
	d.add(updated)
	return d, nil
}

// replaceTools puts a new registry in force if the one in force has the entity tag ifMatch, or ifMatch is empty or "*".
func (s *State) replaceTools(now time.Time, ifMatch string, skills *api.Skills) (*draft, error) {
	if err := s.refuseEnded(); err != nil {
		return nil, err
	}
	if etag := s.registryTag(); ifMatch != "" && ifMatch != "*" && ifMatch != etag {
		return nil, refuse(CodePreconditionFailed, "the tools were replaced meanwhile; read them again and repeat with If-Match: %s", etag).with("etag", etag)
	}
	d := s.draft(now)
	d.private = &Private{Registry: skills}
	d.add(&api.ToolsReplaced{Tools: toolNames(skills)})
	return d, nil
}

// end cancels the running turn, if any, and ends the session in one record. partial is what the model has said so far.
func (s *State) end(now time.Time, partial string) (*draft, error) {
	if !s.Ended.IsZero() {
		return nil, nil
	}
	d := s.draft(now)
	if s.Turn != nil {
		d.cancelTurn("session_ended", partial)
	}
	d.add(&api.StatusChanged{Status: api.StatusEnded})
	d.add(&api.SessionEnded{})
	return d, nil
}

// delete writes the tombstone of an ended session, alone in its record since it outlives the purge.
func (s *State) delete(now time.Time) *draft {
	d := s.draft(now)
	d.add(&api.SessionEnded{Deleted: true})
	return d
}

func (s *State) refuseEnded() error {
	if !s.Ended.IsZero() {
		return refuse(CodeSessionEnded, "the session ended at %s; create a new one", s.Ended.Format(time.RFC3339))
	}
	return nil
}

// registryTag is the entity tag of the registry in force.
func (s *State) registryTag() string { return fmt.Sprintf(`"registry-%d"`, s.RegistrySeq) }

func toolNames(skills *api.Skills) []string {
	names := make([]string, len(skills.Tools))
	for i, t := range skills.Tools {
		names[i] = t.Name
	}
	return names
}
