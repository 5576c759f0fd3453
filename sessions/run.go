package sessions

import (
	"context"
	"errors"
	"sync"
	"time"

	"treadle/api"
)

// Run works off started turns until ctx ends; then it gives them back, for another replica or the next start, and returns. From
// Drain on it takes no more, and gives back at once those that only wait for their page.
func (s *Service) Run(ctx context.Context) error {
	var turns sync.WaitGroup
	defer turns.Wait()
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	turns.Go(func() {
		select {
		case <-s.drained:
			stop()
		case <-receiving.Done():
		}
	})
	slots := make(chan struct{}, s.limits.MaxTurns)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		job, err := s.receive(receiving)
		if err != nil {
			if receiving.Err() != nil {
				<-ctx.Done()
				return nil
			}
			return err
		}
		turns.Go(func() {
			defer func() { <-slots }()
			s.work(ctx, job)
		})
	}
}

// receive waits for a job, and takes none once ctx has ended or the service drains.
func (s *Service) receive(ctx context.Context) (*Job, error) {
	if err := ctx.Err(); err != nil || s.refuseDraining() != nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	job, err := s.engine.Receive(ctx)
	if err == nil && (ctx.Err() != nil || s.refuseDraining() != nil) {
		if err := job.Release(); err != nil {
			s.log.Warn("Giving a turn back did not work; it will be taken over when its hold runs out", "session_id", job.Session, "err", err)
		}
		<-ctx.Done() // Run ends it when the service drains
		return nil, ctx.Err()
	}
	return job, err
}

// run is one turn in the hands of this replica. Its goroutine owns everything but job; a second one follows the log for it.
type run struct {
	service *Service
	key     sessionKey
	turn    Seq
	term    Seq
	// state and history are what the log says up to state.Seq.
	state   *State
	history *history
	// facts brings what others and this run itself append, in order.
	facts chan []Entry
	// openedN is the number of the last fact when the run began.
	openedN int64
	// tools is the registry, compiled from skills.
	tools  *toolset
	skills *api.Skills
	// modelTime is what model calls have taken so far.
	modelTime time.Duration

	mu  sync.Mutex
	job *Job
}

var (
	// errLost is why a run stops when another replica owns its turn.
	errLost = errors.New("another replica took the turn")
	// errDrained is why a run stops that has nothing to do but wait, when the service drains.
	errDrained = errors.New("the service drains")
)

// work drives one job to the end of its turn, or until the turn is lost.
func (s *Service) work(ctx context.Context, job *Job) {
	r := &run{
		service: s, key: sessionKey{job.Tenant, job.Session}, turn: job.Turn, job: job,
		facts: make(chan []Entry), history: new(history),
	}
	key := turnKey{r.key, job.Turn}
	s.mu.Lock()
	if live := s.running[key]; live != nil {
		s.mu.Unlock()
		live.replaceJob(job)
		return
	}
	s.running[key] = r
	s.mu.Unlock()
	if job.Redelivered {
		s.log.Info("A turn is taken up again", "session_id", job.Session, "turn_seq", job.Turn)
	}
	s.metrics.TurnsRunning(1)
	defer func() {
		s.mu.Lock()
		delete(s.running, key)
		s.mu.Unlock()
		s.metrics.TurnsRunning(-1)
	}()

	err := r.drive(ctx)
	log := s.log.With("session_id", r.key.id, "turn_seq", r.turn)
	switch {
	case err == nil:
		if err := r.currentJob().Done(context.WithoutCancel(ctx)); err != nil {
			log.Warn("Removing the job of an ended turn did not work; it will be handed out once more", "err", err)
		}
	case errors.Is(err, errLost):
		log.Info("Another replica took the turn")
	case ctx.Err() != nil || errors.Is(err, errDrained):
		if err := r.currentJob().Release(); err != nil {
			log.Warn("Giving a turn back did not work; it will be taken over when its hold runs out", "err", err)
		}
	default:
		// Not kept any more, the job comes back after a while: to this replica or to another.
		log.Error("Driving a turn did not work; it will be tried again", "err", err)
	}
}

// replaceJob takes a redelivery of the job that this run already has: only the latest delivery can be kept and removed.
func (r *run) replaceJob(job *Job) {
	r.mu.Lock()
	r.job = job
	r.mu.Unlock()
}

func (r *run) currentJob() *Job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.job
}

// drive returns nil when the turn has ended, errLost when it belongs to another replica, and any other error when it cannot go on here.
func (r *run) drive(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	helpers.Go(func() { r.keep(ctx) })
	if err := r.open(ctx); err != nil {
		return err
	}
	if r.state.Turn == nil || r.state.Turn.Seq != r.turn {
		return nil
	}
	from := r.state.Seq
	helpers.Go(func() { r.follow(ctx, from) })
	if err := r.own(ctx); err != nil {
		return err
	}
	for {
		act := r.state.nextAction(time.Now(), r.turn, r.term, r.service.readers.of(r.key), &r.service.limits)
		var err error
		switch {
		case act.over:
			if r.state.Ended.IsZero() {
				r.service.histories.put(r.key, r.history, r.state.Seq)
				r.checkpoint(ctx)
			}
			return nil
		case act.lost:
			return errLost
		case act.model:
			err = r.step(ctx)
		case act.draft != nil:
			err = r.append(ctx, act.draft)
		default:
			err = r.await(ctx, act.wait, r.service.drained)
		}
		if err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
}

// open reads the session.
func (r *run) open(ctx context.Context) error {
	st, err := r.service.state(ctx, r.key)
	if errors.Is(err, errNoSession) {
		st = &State{Session: r.key.id} // deleted meanwhile: nothing is left to do
		err = nil
	}
	if err != nil {
		return err
	}
	r.state, r.openedN = st, st.N
	if st.Turn == nil || st.Turn.Seq != r.turn {
		return nil
	}
	r.history, err = r.service.readHistory(ctx, r.key, st.Seq)
	return err
}

// own makes this run the owner of its turn.
func (r *run) own(ctx context.Context) error {
	for {
		if r.state.Turn == nil || r.state.Turn.Seq != r.turn {
			return nil
		}
		d := r.state.own(time.Now())
		err := r.append(ctx, d)
		if err == nil {
			r.term = r.state.Seq
			return nil
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
}

// keep holds on to the job until ctx ends.
func (r *run) keep(ctx context.Context) {
	tick := time.NewTicker(r.service.engine.KeepInterval())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := r.currentJob().Keep(); err != nil {
				r.service.log.Warn("Keeping a turn did not work; it may be taken over", "session_id", r.key.id, "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// follow hands on the facts after a position, until ctx ends or the session is gone. While the engine has a fault it tries again.
func (r *run) follow(ctx context.Context, after Seq) {
	defer close(r.facts)
	for {
		follower, err := r.service.engine.Follow(ctx, r.key.tenant, r.key.id, after)
		if err == nil {
			after, err = r.handOn(ctx, follower, after)
			follower.Close()
		}
		if ctx.Err() != nil || errors.Is(err, ErrPurged) || errors.Is(err, ErrCursorAhead) {
			return
		}
		r.service.log.Warn("Following a session's log did not work; trying again", "session_id", r.key.id, "err", err)
		pause(ctx, retryEvery)
	}
}

// handOn passes facts to the run until the follower fails, and returns the position up to which it has.
func (r *run) handOn(ctx context.Context, follower Follower, after Seq) (Seq, error) {
	for {
		entries, err := follower.Next(ctx, time.Hour)
		if err != nil {
			return after, err
		}
		var facts []Entry
		for _, e := range entries {
			after = e.Seq
			if e.Kind() != KindDelta {
				facts = append(facts, e)
			}
		}
		if len(facts) == 0 {
			continue
		}
		select {
		case r.facts <- facts:
		case <-ctx.Done():
			return after, ctx.Err()
		}
	}
}

// take folds facts; those that the run has already are passed over.
func (r *run) take(facts []Entry) error {
	for _, e := range facts {
		if e.Seq <= r.state.Seq {
			continue
		}
		events, err := e.decode()
		if err != nil {
			return err
		}
		next, err := r.state.apply(e, events)
		if err != nil {
			return err
		}
		r.advance(next, e, events)
	}
	return nil
}

func (r *run) advance(next *State, e Entry, events []api.Event) {
	r.state = next
	for _, event := range events {
		r.history.add(e, event)
	}
	r.service.cache.advance(r.service.cache.entry(r.key), next)
}

// await waits for facts and takes them in, at most for wait, or until drained is closed; nil never is.
func (r *run) await(ctx context.Context, wait time.Duration, drained <-chan struct{}) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case facts, ok := <-r.facts:
		return r.taken(ctx, facts, ok)
	case <-timer.C:
		return nil
	case <-drained:
		return errDrained
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// taken takes in what came from r.facts.
func (r *run) taken(ctx context.Context, facts []Entry, ok bool) error {
	if !ok {
		if err := ctx.Err(); err != nil {
			return err
		}
		return errFollowEnded
	}
	return r.take(facts)
}

var errFollowEnded = errors.New("the log gives no more facts")

// retryEvery is the pause between tries while the log takes nothing.
const retryEvery = 250 * time.Millisecond

// append appends a draft as the owner. When another fact came first it takes that in and returns ErrConflict, for the caller to
// decide again. It does so, too, after a while, when the log is unavailable: what a model said is not thrown away for a full disk,
// but what it leads to, deadlines above all, is decided when it can be stored.
func (r *run) append(ctx context.Context, d *draft) error {
	d.term = r.term
	next, rec, err := r.service.append(ctx, r.key, d)
	switch {
	case err == nil:
		r.advance(next, Entry{Seq: next.Seq, Record: rec}, d.events)
		return nil
	case errors.Is(err, ErrConflict):
		// The fact that came first is stored, so it is on its way.
		for r.state.Seq == d.base.Seq {
			if err := r.await(ctx, time.Second, nil); err != nil {
				return err
			}
		}
		return ErrConflict
	case isUnavailable(err):
		if err := r.await(ctx, retryEvery, nil); err != nil {
			return err
		}
		return ErrConflict
	}
	return err
}

// checkpoint saves the state when enough facts came since this run began, so that opening the session stays cheap.
func (r *run) checkpoint(ctx context.Context) {
	if r.state.N/checkpointEvery != r.openedN/checkpointEvery {
		r.service.saveCheckpoint(ctx, r.key, r.state)
	}
}
