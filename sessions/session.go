package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"treadle/api"
)

// createKeyTTL is how long the Idempotency-Key of a session's creation is remembered.
const createKeyTTL = 24 * time.Hour

// CreateSession creates a session. A repeated request with the same idempotencyKey returns the session that the first one
// created; with another body it is refused as IDEMPOTENCY_KEY_REUSED.
func (s *Service) CreateSession(ctx context.Context, tenant string, req *api.SessionCreate, idempotencyKey string) (*api.Session, error) {
	if err := s.refuseDraining(); err != nil {
		return nil, err
	}
	if err := checkMetadata(req.Metadata); err != nil {
		return nil, err
	}
	if err := checkText("subject", req.Subject, 256); err != nil {
		return nil, err
	}
	if err := checkSkills(&req.Skills, "/skills"); err != nil {
		return nil, err
	}
	idem := idempotency(idempotencyKey, req)
	id, err := uuid.NewV7() // its time is finer than newID's, so that lists by id are lists by age
	if err != nil {
		return nil, fmt.Errorf("making an id: %w", err)
	}
	reserved := true
	if idem != nil {
		if id, reserved, err = s.reserveSession(ctx, tenant, id, idem); err != nil {
			return nil, err
		}
	}
	key := sessionKey{tenant, id}
	if !reserved { // the same request came before, but may have got no further
		if st, err := s.state(ctx, key); !errors.Is(err, errNoSession) {
			if err != nil {
				return nil, err
			}
			return s.show(st), nil
		}
	}
	if req.Model, err = s.chooseModel(req.Model); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), appendTimeout)
	defer cancel()
	st, _, err := s.append(ctx, key, createSession(id, time.Now(), req, idem))
	if errors.Is(err, ErrConflict) { // the same request came at the same time, or the session was deleted
		st, err = s.state(ctx, key)
		if errors.Is(err, errNoSession) {
			err = refuse(CodeIdempotencyKeyReused, "the session that this Idempotency-Key created was deleted; use a new key")
		}
	}
	if err != nil {
		return nil, err
	}
	s.cache.advance(s.cache.entry(key), st)
	return s.show(st), nil
}

// reserveSession ties a key to the id of the session that it creates, and returns the id that it is tied to and whether that is new.
func (s *Service) reserveSession(ctx context.Context, tenant string, id uuid.UUID, idem *Idempotency) (uuid.UUID, bool, error) {
	type reservation struct {
		Session uuid.UUID `json:"session"`
		Body    string    `json:"body"`
	}
	mine, err := json.Marshal(reservation{id, idem.Body})
	if err != nil {
		return id, false, err
	}
	stored, created, err := s.engine.Create(ctx, tenant, "create."+idem.Key, mine, createKeyTTL)
	if err != nil {
		return id, false, unavailable(err)
	}
	var there reservation
	if err := json.Unmarshal(stored, &there); err != nil {
		return id, false, fmt.Errorf("reading the reservation of an idempotency key: %w", err)
	}
	if there.Body != idem.Body {
		return id, false, refuse(CodeIdempotencyKeyReused, "this Idempotency-Key came with another body before; use a new key for a new request").with("session_id", there.Session)
	}
	return there.Session, created, nil
}

// idempotency hashes a keyed request; without a key there is nothing to remember.
func idempotency(key string, req any) *Idempotency {
	if key == "" {
		return nil
	}
	body, err := api.Marshal(req)
	if err != nil {
		return nil // a decoded request always encodes
	}
	hash := func(b []byte) string { sum := sha256.Sum256(b); return hex.EncodeToString(sum[:16]) }
	return &Idempotency{Key: hash([]byte(key)), Body: hash(body)}
}

// Session returns the state of a session.
func (s *Service) Session(ctx context.Context, tenant string, id uuid.UUID) (*api.Session, error) {
	st, err := s.state(ctx, sessionKey{tenant, id})
	if err != nil {
		return nil, err
	}
	return s.show(st), nil
}

func (s *Service) show(st *State) *api.Session {
	v := &api.Session{
		SessionSummary: st.summary(), Skills: *st.Skills, PendingToolCalls: []api.ToolCall{},
		Cursor: formatCursor(cursorTag(s.engine.Epoch(), st.Session), positionAfter(st.Seq)),
	}
	if v.Skills.Tools == nil {
		v.Skills.Tools = []api.Tool{}
	}
	if st.Turn != nil {
		v.TurnID = st.Turn.ID
		now := time.Now()
		for _, c := range st.Turn.open() {
			if c.Status == api.ToolCallPending && c.Source == api.SourcePage {
				v.PendingToolCalls = append(v.PendingToolCalls, st.view(&c, now))
			}
		}
	}
	return v
}

// SessionQuery selects sessions. Zero fields do not restrict.
type SessionQuery struct {
	// Before continues a list after its last session.
	Before uuid.UUID
	// Limit is the page size, 1 to 200; 0 means 50.
	Limit   int
	Status  api.SessionStatus
	Subject string
}

// Sessions lists a tenant's sessions, newest first. The status running includes waiting_tool_result.
func (s *Service) Sessions(ctx context.Context, tenant string, q SessionQuery) (*api.SessionList, error) {
	limit := pageSize(q.Limit)
	found, err := s.engine.Sessions(ctx, tenant, q.Before, limit+1, func(sum *Summary) bool {
		return (q.Status == "" || q.Status == sum.Status) && (q.Subject == "" || q.Subject == sum.Subject)
	})
	if err != nil {
		return nil, unavailable(err)
	}
	list := &api.SessionList{Sessions: make([]api.SessionSummary, 0, len(found))}
	for i, sum := range found {
		if i == limit {
			list.Next = found[i-1].ID.String()
			break
		}
		list.Sessions = append(list.Sessions, sum.SessionSummary)
	}
	return list, nil
}

func pageSize(limit int) int {
	if limit <= 0 {
		return 50
	}
	return min(limit, 200)
}

// UpdateSession changes the metadata or the model of later turns.
func (s *Service) UpdateSession(ctx context.Context, tenant string, id uuid.UUID, req *api.SessionPatch) (*api.Session, error) {
	if req.Metadata != nil {
		if err := checkMetadata(*req.Metadata); err != nil {
			return nil, err
		}
	}
	if req.Model != nil {
		name, err := s.chooseModel(*req.Model)
		if err != nil {
			return nil, err
		}
		req.Model = &name
	}
	st, err := s.commit(ctx, sessionKey{tenant, id}, func(st *State) (*draft, error) { return st.update(time.Now(), req) })
	if err != nil {
		return nil, err
	}
	return s.show(st), nil
}

// EndSession cancels the running turn, if any, and ends the session; its transcript stays. Repeating it changes nothing.
func (s *Service) EndSession(ctx context.Context, tenant string, id uuid.UUID) (*api.Session, error) {
	key := sessionKey{tenant, id}
	st, err := s.commit(ctx, key, func(st *State) (*draft, error) { return st.end(time.Now(), s.partialText(ctx, key, st)) })
	if err != nil {
		return nil, err
	}
	return s.show(st), nil
}

// DeleteSession ends the session and removes everything that it stored.
func (s *Service) DeleteSession(ctx context.Context, tenant string, id uuid.UUID) error {
	key := sessionKey{tenant, id}
	if _, err := s.commit(ctx, key, func(st *State) (*draft, error) { return st.end(time.Now(), "") }); err != nil {
		return err
	}
	st, err := s.commit(ctx, key, func(st *State) (*draft, error) { return st.delete(time.Now()), nil })
	if err != nil {
		return err
	}
	s.cache.forget(s.cache.entry(key))
	s.histories.take(key)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), appendTimeout)
	defer cancel()
	if err := s.remove(ctx, key, st.Seq); err != nil {
		return unavailable(fmt.Errorf("removing session %s: %w", id, err))
	}
	return nil
}

// Tools returns the registry and its entity tag.
func (s *Service) Tools(ctx context.Context, tenant string, id uuid.UUID) (*api.Skills, string, error) {
	st, err := s.state(ctx, sessionKey{tenant, id})
	if err != nil {
		return nil, "", err
	}
	return &s.show(st).Skills, st.registryTag(), nil
}

// Tool returns one declared tool.
func (s *Service) Tool(ctx context.Context, tenant string, id uuid.UUID, name string) (*api.Tool, error) {
	st, err := s.state(ctx, sessionKey{tenant, id})
	if err != nil {
		return nil, err
	}
	if tool := st.tool(name); tool != nil {
		return tool, nil
	}
	return nil, refuse(CodeToolNotFound, "the session declares no tool %s", quoteShort(name))
}

// ReplaceTools replaces the registry, effective from the next model call. With ifMatch it does so only if the registry still has that tag.
func (s *Service) ReplaceTools(ctx context.Context, tenant string, id uuid.UUID, ifMatch string, req *api.ToolsReplace) (*api.Skills, string, error) {
	checked := api.Skills{Tools: req.Tools}
	if req.Guidance != nil {
		checked.Guidance = *req.Guidance
	}
	if err := checkSkills(&checked, ""); err != nil {
		return nil, "", err
	}
	st, err := s.commit(ctx, sessionKey{tenant, id}, func(st *State) (*draft, error) {
		skills := checked
		if req.Guidance == nil {
			skills.Guidance = st.Skills.Guidance
		}
		return st.replaceTools(time.Now(), ifMatch, &skills)
	})
	if err != nil {
		return nil, "", err
	}
	return &s.show(st).Skills, st.registryTag(), nil
}

func checkMetadata(m map[string]string) error {
	if len(m) > 32 {
		return refuse(CodeInvalidInput, "metadata has %d entries, at most 32 are taken", len(m)).with("pointer", "/metadata").with("limit", 32)
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if n := utf8.RuneCountInString(k); n == 0 || n > 64 {
			return refuse(CodeInvalidInput, "metadata keys have 1 to 64 characters, not %d", n).with("pointer", "/metadata").with("limit", 64)
		}
		if err := checkText("metadata/"+pointerToken(k), m[k], 512); err != nil {
			return err
		}
	}
	return nil
}

func checkText(field, text string, limit int) error {
	if n := utf8.RuneCountInString(text); n > limit {
		return refuse(CodeInvalidInput, "%s has %d characters, at most %d are taken", field, n, limit).with("pointer", "/"+field).with("limit", limit)
	}
	return nil
}
