package sessions

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// StateVersion is the version of the encoded form of State. A checkpoint of another version is ignored.
const StateVersion = 1

// State is what the facts of one session add up to: open work, registry and counters, never the bodies of messages.
//
// A State is immutable: Apply returns a new one. It does no I/O and knows no clock, so that every replica that folds the same
// facts decides alike. Its JSON form is a checkpoint.
type State struct {
	Version int       `json:"version"`
	Session uuid.UUID `json:"session"`
	// Seq is the position of the last fact, the base of the next one; N is its number.
	Seq Seq   `json:"seq"`
	N   int64 `json:"n"`
	// Time is the last fact's; facts never go back in time, whatever the replicas' clocks say.
	Time     time.Time         `json:"time"`
	Created  time.Time         `json:"created"`
	Updated  time.Time         `json:"updated"`
	Ended    time.Time         `json:"ended,omitzero"`
	Deleted  bool              `json:"deleted,omitempty"`
	Model    string            `json:"model"`
	Subject  string            `json:"subject,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Skills is the registry in force since RegistrySeq; shared and never changed.
	Skills      *api.Skills `json:"skills"`
	RegistrySeq Seq         `json:"registry_seq"`
	// Turns and Messages count what was started and said.
	Turns    int64      `json:"turns"`
	Messages int64      `json:"messages"`
	Turn     *TurnState `json:"turn,omitempty"`
	// Keys are the Idempotency-Keys of the latest turns, oldest first.
	Keys []TurnKey `json:"keys,omitempty"`
	// Marks index the log by turn, oldest first: one for every MarkEvery turns (0 means 1), which doubles whenever they get too many.
	Marks     []Mark `json:"marks,omitempty"`
	MarkEvery int64  `json:"mark_every,omitempty"`
	// CreatedBy is the Idempotency-Key of the session's creation.
	CreatedBy *Idempotency `json:"created_by,omitempty"`
}

// TurnKey remembers which turn a keyed request started.
type TurnKey struct {
	Idempotency
	Turn uuid.UUID `json:"turn"`
}

// Mark says where a turn begins: Messages and Turns count what was before it.
type Mark struct {
	Seq      Seq       `json:"seq"`
	Turn     uuid.UUID `json:"turn"`
	Messages int64     `json:"messages"`
	Turns    int64     `json:"turns"`
}

// TurnState is the running turn.
type TurnState struct {
	ID       uuid.UUID `json:"id"`
	Seq      Seq       `json:"seq"`
	Started  time.Time `json:"started"`
	Model    string    `json:"model"`
	MaxSteps int       `json:"max_steps"`
	// Term is the Seq of the owner's turn_owned fact; 0 while nobody owns the turn.
	Term Seq `json:"term,omitempty"`
	// Owners counts the owners so far, Stalled those since the last message or result.
	Owners  int `json:"owners,omitempty"`
	Stalled int `json:"stalled,omitempty"`
	// Step counts the model calls; StepSeq is where the last one was announced, Answered whether its message is there.
	Step     int  `json:"step"`
	StepSeq  Seq  `json:"step_seq,omitempty"`
	Answered bool `json:"answered,omitempty"`
	// Attempt is the number, from 1, that deltas of the current step carry.
	Attempt int `json:"attempt,omitempty"`
	// Failures counts the calls in a row that were refused before they ran.
	Failures int `json:"failures,omitempty"`
	// Calls are those of the last message, in call order.
	Calls []CallState `json:"calls,omitempty"`
	Usage *api.Usage  `json:"usage,omitempty"`
}

// CallState is a call of the last message. Once it is settled only its identity is kept.
type CallState struct {
	ID      uuid.UUID          `json:"id"`
	Tool    string             `json:"tool"`
	Source  api.ToolSource     `json:"source,omitempty"`
	Args    json.RawMessage    `json:"args,omitempty"`
	Made    time.Time          `json:"made"`
	Status  api.ToolCallStatus `json:"status"`
	Attempt int                `json:"attempt,omitempty"`
	// Position is that of the latest offer, for cursors.
	Position   Position  `json:"position,omitempty"`
	MayHaveRun bool      `json:"may_have_run,omitempty"`
	Offered    time.Time `json:"offered,omitzero"`
	Latest     time.Time `json:"latest,omitzero"` // time of the latest offer
	Deadline   time.Time `json:"deadline,omitzero"`
	Claim      *Claim    `json:"claim,omitempty"`
	Progress   int       `json:"progress,omitempty"`
}

// Claim is a client's hold on a call.
type Claim struct {
	ID       uuid.UUID `json:"id"`
	ClientID string    `json:"client_id"`
	LeaseMS  int64     `json:"lease_ms"`
	Expires  time.Time `json:"expires"`
}

// Status derives what the session is doing.
func (s *State) Status() api.SessionStatus {
	switch {
	case !s.Ended.IsZero():
		return api.StatusEnded
	case s.Turn == nil:
		return api.StatusIdle
	}
	for i := range s.Turn.Calls {
		if c := &s.Turn.Calls[i]; c.Status == api.ToolCallPending && c.Source == api.SourcePage {
			return api.StatusWaitingToolResult
		}
	}
	return api.StatusRunning
}

// open returns the calls that have no result yet.
func (t *TurnState) open() []CallState {
	var open []CallState
	for _, c := range t.Calls {
		if c.Status != api.ToolCallSettled {
			open = append(open, c)
		}
	}
	return open
}

// call returns a call of the running turn's last message, or nil.
func (s *State) call(id uuid.UUID) *CallState {
	if s.Turn == nil {
		return nil
	}
	for i := range s.Turn.Calls {
		if s.Turn.Calls[i].ID == id {
			return &s.Turn.Calls[i]
		}
	}
	return nil
}

// tool returns the declared tool of that name, or nil.
func (s *State) tool(name string) *api.Tool {
	for i := range s.Skills.Tools {
		if s.Skills.Tools[i].Name == name {
			return &s.Skills.Tools[i]
		}
	}
	return nil
}

// Apply returns the state after one more fact. Deltas and facts that are already part of s change nothing. An error
// means that this replica cannot go on with the session: a hole, or a fact of a newer version.
func (s *State) Apply(e Entry) (*State, error) {
	if e.N == 0 || e.Seq <= s.Seq || s.Deleted {
		return s, nil
	}
	events, err := e.decode()
	if err != nil {
		return nil, err
	}
	return s.apply(e, events)
}

// apply is Apply with the events decoded.
func (s *State) apply(e Entry, events []api.Event) (*State, error) {
	if e.N != s.N+1 {
		if end, ok := events[0].(*api.SessionEnded); !ok || !end.Deleted { // the tombstone is all that a purge leaves
			return nil, fmt.Errorf("hole in the log of session %s: fact %d follows %d at %d", s.Session, e.N, s.N, e.Seq)
		}
	}
	next := *s
	if s.Turn != nil {
		turn := *s.Turn
		turn.Calls = slices.Clone(turn.Calls)
		next.Turn = &turn
	}
	next.Seq, next.N = e.Seq, e.N
	for i, event := range events {
		next.Time = event.Header().Time
		next.fold(event, e, i)
	}
	return &next, nil
}

// fold takes one event into s, which is not shared yet.
func (s *State) fold(event api.Event, e Entry, index int) {
	switch ev := event.(type) {
	case *api.SessionCreated:
		s.Version, s.Session, s.Created, s.Updated = StateVersion, ev.SessionID, ev.Time, ev.Time
		s.Model, s.Subject, s.Metadata = ev.Model, ev.Subject, ev.Metadata
		s.Skills, s.RegistrySeq = &api.Skills{}, e.Seq
		if e.Private != nil {
			s.CreatedBy = e.Private.Idempotency
			if e.Private.Registry != nil {
				s.Skills = e.Private.Registry
			}
		}
	case *api.SessionUpdated:
		s.Updated, s.Model, s.Metadata = ev.Time, ev.Model, ev.Metadata
	case *api.ToolsReplaced:
		s.Skills, s.RegistrySeq = e.Private.Registry, e.Seq
	case *api.SessionEnded:
		s.Session, s.Ended, s.Updated, s.Deleted, s.Turn = ev.SessionID, ev.Time, ev.Time, ev.Deleted, nil
	case *api.TurnStarted:
		s.foldTurnStarted(ev, e)
	case *api.TurnCompleted, *api.TurnFailed, *api.TurnCanceled:
		s.Turn, s.Updated = nil, event.Header().Time
	default:
		if s.Turn != nil {
			s.foldTurn(event, e, index)
		}
	}
}

func (s *State) foldTurnStarted(ev *api.TurnStarted, e Entry) {
	s.mark(Mark{Seq: e.Seq, Turn: ev.TurnID, Messages: s.Messages, Turns: s.Turns})
	s.Turns++
	s.Messages++
	s.Turn = &TurnState{ID: ev.TurnID, Seq: e.Seq, Started: ev.Time, Model: ev.Model, MaxSteps: ev.MaxSteps}
	if e.Private != nil && e.Private.Idempotency != nil {
		keys := s.Keys
		if len(keys) >= maxTurnKeys {
			keys = keys[1:]
		}
		s.Keys = append(slices.Clip(keys), TurnKey{Idempotency: *e.Private.Idempotency, Turn: ev.TurnID})
	}
}

// mark adds a mark where one is due.
func (s *State) mark(m Mark) {
	if s.MarkEvery > 1 && m.Turns%s.MarkEvery != 0 {
		return
	}
	if len(s.Marks) < maxMarks {
		s.Marks = append(slices.Clip(s.Marks), m)
		return
	}
	thin := make([]Mark, 0, maxMarks)
	for i := 0; i < len(s.Marks); i += 2 {
		thin = append(thin, s.Marks[i])
	}
	s.MarkEvery = max(s.MarkEvery, 1) * 2
	s.Marks = append(thin, m)
}

func (s *State) foldTurn(event api.Event, e Entry, index int) {
	t := s.Turn
	switch ev := event.(type) {
	case *api.TurnOwned:
		t.Term = e.Seq
		t.Owners++
		// An owner that was lost while only the page was awaited had nothing to stumble over.
		if s.Status() != api.StatusWaitingToolResult {
			t.Stalled++
		}
	case *api.StepStarted:
		t.Step, t.StepSeq, t.Answered, t.Attempt, t.Calls = ev.Step, e.Seq, false, 1, nil
	case *api.AttemptVoided:
		t.Attempt = ev.Attempt + 1
	case *api.MessageEvent:
		s.Messages++
		t.Answered, t.Stalled = true, 0
		t.Usage = addUsage(t.Usage, ev.Usage)
		t.Calls = make([]CallState, len(ev.ToolCalls))
		for i, c := range ev.ToolCalls {
			t.Calls[i] = CallState{ID: c.ToolCallID, Tool: c.Tool, Args: c.Args, Made: ev.Time, Status: api.ToolCallQueued}
		}
	case *api.ToolResultEvent:
		s.Messages++
		t.Stalled = 0
		t.Failures++
		if ev.SettledBy != api.SettledByValidation {
			t.Failures = 0
		}
		if c := s.call(ev.ToolCallID); c != nil {
			*c = CallState{ID: c.ID, Tool: c.Tool, Source: c.Source, Made: c.Made, Status: api.ToolCallSettled}
		}
	default:
		s.foldOffer(event, e, index)
	}
}

// foldOffer takes what happens to an offered call.
func (s *State) foldOffer(event api.Event, e Entry, index int) {
	switch ev := event.(type) {
	case *api.ToolCallEvent:
		c := s.call(ev.ToolCallID)
		if c == nil {
			return
		}
		if c.Offered.IsZero() {
			c.Offered = ev.Time
		}
		c.Source, c.Status, c.Attempt, c.MayHaveRun, c.Deadline = ev.Source, api.ToolCallPending, ev.Attempt, ev.MayHaveRun, ev.Deadline
		c.Latest, c.Position, c.Claim = ev.Time, positionOf(e, index), nil
	case *api.ToolClaimed:
		s.foldClaim(ev.ToolCallID, ev.ClientID, ev.Time, ev.Expires, e)
	case *api.ClaimRenewed:
		s.foldClaim(ev.ToolCallID, ev.ClientID, ev.Time, ev.Expires, e)
	case *api.ToolProgress:
		c := s.call(ev.ToolCallID)
		if c == nil {
			return
		}
		c.Progress++
		c.Deadline = ev.Deadline
		if !c.claimed(ev.Time) {
			c.Claim = nil // somebody goes on with the call, but not the client whose lease ran out
			return
		}
		claim := *c.Claim
		claim.Expires = ev.Time.Add(time.Duration(claim.LeaseMS) * time.Millisecond)
		c.Claim = &claim
	}
}

func (s *State) foldClaim(call uuid.UUID, client string, from, until time.Time, e Entry) {
	if c := s.call(call); c != nil && e.Private != nil {
		c.Claim = &Claim{ID: e.Private.ClaimID, ClientID: client, LeaseMS: until.Sub(from).Milliseconds(), Expires: until}
	}
}

// markBefore returns where to begin to look for a turn, or for a call of it, by its UUIDv7: ids of a session carry the times of
// its facts, which never go back, so what began in an earlier millisecond lies before it. Messages may be 0 though some were.
func (s *State) markBefore(id uuid.UUID) Mark {
	if t := s.Turn; t != nil && (t.ID == id || unixMilli(t.ID) < unixMilli(id)) {
		return Mark{Seq: t.Seq, Turn: t.ID, Turns: s.Turns - 1}
	}
	return s.latestMark(func(m Mark) bool { return m.Turn == id || unixMilli(m.Turn) < unixMilli(id) })
}

// latestMark returns the latest mark of which ok is true, or the beginning.
func (s *State) latestMark(ok func(Mark) bool) Mark {
	for i := len(s.Marks) - 1; i >= 0; i-- {
		if ok(s.Marks[i]) {
			return s.Marks[i]
		}
	}
	return Mark{}
}

// addUsage sums what is known; unknown stays unknown only if it is so in both.
func addUsage(a, b *api.Usage) *api.Usage {
	if a == nil || b == nil {
		if a == nil {
			return b
		}
		return a
	}
	sum := func(x, y *int64) *int64 {
		if x == nil {
			return y
		}
		if y == nil {
			return x
		}
		z := *x + *y
		return &z
	}
	return &api.Usage{
		InputTokens:     sum(a.InputTokens, b.InputTokens),
		CachedTokens:    sum(a.CachedTokens, b.CachedTokens),
		OutputTokens:    sum(a.OutputTokens, b.OutputTokens),
		ReasoningTokens: sum(a.ReasoningTokens, b.ReasoningTokens),
	}
}
