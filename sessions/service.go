package sessions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"treadle/api"
)

// Config is what a Service is made of.
type Config struct {
	// Engine stores everything. Mandatory. The Service does not close it.
	Engine Engine
	// Models are the entries that sessions can choose from; at least one.
	Models []ModelEntry
	// DefaultModel is the name of the entry for sessions that name none; empty: such sessions are refused with MODEL_REQUIRED.
	DefaultModel string
	Limits       Limits
	// Logger gets ids and errors, never arguments, results or what a user said. Nil discards.
	Logger *slog.Logger
	// Metrics may be partly or wholly empty.
	Metrics Metrics
}

// Metrics are told what happens. Nil fields are skipped; all may be called concurrently. Their arguments are enumerations.
type Metrics struct {
	TurnEnded    func(api.Outcome)
	CallSettled  func(api.SettledBy)
	Appended     func(result string) // ok, conflict, unavailable or too_large
	TakenOver    func()
	TurnsRunning func(delta int)
	Streams      func(delta int)
}

// Service is the domain: every command and query of the API, and the loop that drives turns. Safe for concurrent use.
//
// Tenant is a parameter of each method, and a session of another tenant is a session that does not exist.
type Service struct {
	engine  Engine
	models  map[string]ModelEntry
	names   []string // of models, in configured order
	dflt    string
	limits  Limits
	log     *slog.Logger
	metrics Metrics
	cache   *stateCache
	readers readerCount
	// histories are those of sessions whose turns ended here.
	histories historyCache

	mu      sync.Mutex
	running map[turnKey]*run

	drain   sync.Once
	drained chan struct{} // closed by Drain
}

type turnKey struct {
	session sessionKey
	turn    Seq
}

type sessionKey struct {
	tenant string
	id     uuid.UUID
}

// New checks the configuration. Nothing runs before Run.
func New(cfg Config) (*Service, error) {
	s := &Service{
		engine: cfg.Engine, dflt: cfg.DefaultModel, limits: cfg.Limits.withDefaults(), log: cfg.Logger, metrics: cfg.Metrics,
		models: map[string]ModelEntry{}, cache: newStateCache(), running: map[turnKey]*run{}, drained: make(chan struct{}),
	}
	s.readers.max, s.readers.maxTenant = s.limits.MaxStreams, s.limits.MaxTenantStreams
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.engine == nil {
		return nil, errors.New("sessions: an engine is needed")
	}
	// A message stands in one record with its calls' offers, or with the turn's end, which repeat what it holds.
	if most := s.engine.MaxRecord() / 4; s.limits.MaxAnswerBytes > most || s.limits.MaxInputBytes > most {
		return nil, fmt.Errorf("sessions: max_answer_bytes and max_input_bytes can be at most %d with this log", most)
	}
	for _, m := range cfg.Models {
		if _, double := s.models[m.Name]; double || m.Name == "" {
			return nil, errors.New("sessions: model names must be unique and not empty: " + m.Name)
		}
		s.models[m.Name] = m
		s.names = append(s.names, m.Name)
	}
	if _, ok := s.models[s.dflt]; !ok && s.dflt != "" {
		return nil, errors.New("sessions: the default model is not among the models: " + s.dflt)
	}
	s.metrics.fill()
	return s, nil
}

func (m *Metrics) fill() {
	if m.TurnEnded == nil {
		m.TurnEnded = func(api.Outcome) {}
	}
	if m.CallSettled == nil {
		m.CallSettled = func(api.SettledBy) {}
	}
	if m.Appended == nil {
		m.Appended = func(string) {}
	}
	if m.TakenOver == nil {
		m.TakenOver = func() {}
	}
	if m.TurnsRunning == nil {
		m.TurnsRunning = func(int) {}
	}
	if m.Streams == nil {
		m.Streams = func(int) {}
	}
}

// Healthy returns nil, or why the service cannot take commands now.
func (s *Service) Healthy() error { return s.engine.Healthy() }

// Drain makes the service refuse new sessions and turns with SHUTTING_DOWN and take no more turns to run; see Run. Results,
// cancels and reads go on.
func (s *Service) Drain() { s.drain.Do(func() { close(s.drained) }) }

func (s *Service) refuseDraining() error {
	select {
	case <-s.drained:
		return refuse(CodeShuttingDown, "this server is shutting down; try again in a moment")
	default:
		return nil
	}
}

// Models lists the models that sessions can choose.
func (s *Service) Models(_ context.Context, _ string) *api.ModelList {
	list := &api.ModelList{Models: make([]api.ModelInfo, len(s.names))}
	for i, name := range s.names {
		m := s.models[name]
		list.Models[i] = api.ModelInfo{
			Name: m.Name, Provider: m.Provider, Description: m.Description, Default: name == s.dflt,
			Available: m.Unavailable == "", Reason: m.Unavailable,
		}
	}
	return list
}

// chooseModel resolves a model name, in the order turn, session, default.
func (s *Service) chooseModel(names ...string) (string, error) {
	for _, name := range append(names, s.dflt) {
		if name == "" {
			continue
		}
		m, ok := s.models[name]
		switch {
		case !ok:
			return "", refuse(CodeModelUnavailable, "there is no model %s; GET /v1/models lists those that there are", quoteShort(name))
		case m.Unavailable != "":
			return "", refuse(CodeModelUnavailable, "model %s is not available: %s", quoteShort(name), m.Unavailable)
		}
		return name, nil
	}
	return "", refuse(CodeModelRequired, "this server has no default model; name one in \"model\" (GET /v1/models lists them)")
}

// appendTimeout bounds one append. It is not the client's to cut short: whether a command happened must be known.
const appendTimeout = 10 * time.Second

// commit makes a decision and appends its record, again and again until no other fact comes first. decide returns nil for a
// decision that changes nothing. The state returned has at least everything that the decision saw.
func (s *Service) commit(ctx context.Context, key sessionKey, decide func(*State) (*draft, error)) (*State, error) {
	entry := s.cache.entry(key)
	if err := entry.lock(ctx); err != nil {
		return nil, err
	}
	defer entry.unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), appendTimeout)
	defer cancel()
	st, fresh := entry.state.Load(), false
	for conflicts := 0; ; conflicts++ {
		if st == nil {
			var err error
			if st, err = s.refresh(ctx, key, entry); err != nil {
				return nil, err
			}
			fresh = true
		}
		d, err := decide(st)
		if err != nil || d == nil {
			if fresh {
				return st, err
			}
			st = nil
			continue
		}
		next, _, err := s.append(ctx, key, d)
		switch {
		case err == nil:
			s.cache.advance(entry, next)
			return next, nil
		case !errors.Is(err, ErrConflict):
			return nil, err
		case ctx.Err() != nil:
			return nil, unavailable(ctx.Err())
		}
		st = nil
		if conflicts > 2 {
			pause(ctx, rand.N(5*time.Millisecond))
		}
	}
}

// pause waits, or less if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// append appends a draft's record and returns the state with it.
func (s *Service) append(ctx context.Context, key sessionKey, d *draft) (*State, *Record, error) {
	rec, err := d.record()
	if err != nil {
		return nil, nil, err
	}
	seq, err := s.engine.Append(ctx, key.tenant, key.id, d.base.Seq, rec)
	switch {
	case errors.Is(err, ErrConflict):
		s.metrics.Appended("conflict")
		return nil, nil, err
	case errors.Is(err, ErrTooLarge):
		s.metrics.Appended("too_large")
		return nil, nil, &Error{Code: CodeBodyTooLarge, Detail: "this is more than the server's log can store in one piece", Facts: map[string]any{"limit": s.engine.MaxRecord()}, Err: err}
	case err != nil:
		s.metrics.Appended("unavailable")
		return nil, nil, unavailable(err)
	}
	s.metrics.Appended("ok")
	s.count(d)
	next, err := d.base.apply(Entry{Seq: seq, Record: rec}, d.events)
	return next, rec, err
}

// count reports what became true.
func (s *Service) count(d *draft) {
	for _, event := range d.events {
		switch ev := event.(type) {
		case *api.ToolResultEvent:
			s.metrics.CallSettled(ev.SettledBy)
		case *api.TurnCompleted:
			s.metrics.TurnEnded(api.OutcomeCompleted)
		case *api.TurnFailed:
			s.metrics.TurnEnded(api.OutcomeFailed)
		case *api.TurnCanceled:
			s.metrics.TurnEnded(api.OutcomeCanceled)
		case *api.TurnOwned:
			if ev.Takeover > 0 {
				s.metrics.TakenOver()
			}
		}
	}
}

// unavailable is how a fault of the engine reaches a client: nothing was acknowledged, so the request may be repeated.
func unavailable(err error) error {
	return &Error{Code: CodeStorageUnavailable, Detail: "the server cannot store anything right now; nothing was lost, try again in a moment", Err: err}
}

func isUnavailable(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.Code == CodeStorageUnavailable
}
