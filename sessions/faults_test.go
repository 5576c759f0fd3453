package sessions_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"treadle/api"
	"treadle/sessions"
)

// What the log could not take for a while is decided when it can: each change of status is told once, and a call is offered with
// all of its time.
func TestFaults_outage(t *testing.T) {
	for _, outage := range []time.Duration{2 * time.Second, 90 * time.Second, 5 * time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			bubble(t, "answers:\n- - delay: 1s\n  - call: {tool: a, args: {n: 1}}\n- - text: Done.\n", func(f *fixture) {
				id := f.create(tool("a"))
				turn := f.turn(id, "go")
				<-time.After(500 * time.Millisecond)
				f.engine.FailAppends(sessions.ErrUnavailable)
				<-time.After(outage)
				f.engine.FailAppends(nil)
				call := f.pending(id, 1)[0]
				if left := time.Until(call.Deadline); left < 59*time.Second {
					t.Errorf("the call was offered with %s left", left)
				}
				f.submit(id, call.ID, "1")
				f.ended(id, turn)
				var statuses []api.SessionStatus
				for _, item := range f.pages(id) {
					if event, err := api.DecodeEvent(item.Event); err == nil {
						if ev, ok := event.(*api.StatusChanged); ok {
							statuses = append(statuses, ev.Status)
						}
					}
				}
				if want := []api.SessionStatus{api.StatusRunning, api.StatusWaitingToolResult, api.StatusRunning, api.StatusIdle}; !slices.Equal(statuses, want) {
					t.Errorf("statuses: %v", statuses)
				}
			})
		})
	}
}

// A checkpoint of what the log has lost is as good as none.
func TestFaults_checkpointAhead(t *testing.T) {
	for name, lose := range map[string]func(*sessions.State){
		"position and number": func(st *sessions.State) { st.Seq += 5; st.N++ },
		"position":            func(st *sessions.State) { st.Seq += 5 },
		"number":              func(st *sessions.State) { st.N++ },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "answers:\n- - text: Done.\n", func(f *fixture) {
				id := f.create()
				st := &sessions.State{Session: id, Skills: &api.Skills{}}
				for _, e := range f.facts(id) {
					var err error
					if st, err = st.Apply(e); err != nil {
						t.Fatal(err)
					}
				}
				lose(st)
				raw, err := json.Marshal(map[string]any{"epoch": f.engine.Epoch(), "state": st})
				if err != nil {
					t.Fatal(err)
				}
				if err := f.engine.Put(f.ctx, tenant, "state."+id.String(), raw); err != nil {
					t.Fatal(err)
				}
				f.replicas[0].stop()
				f.Service = f.replica().Service
				f.ended(id, f.turn(id, "go"))
			})
		})
	}
}

// putGate lets values be stored only when it is told to.
type putGate struct {
	sessions.Engine
	came, let chan struct{}
}

func (p *putGate) Put(ctx context.Context, tenant, key string, value []byte) error {
	p.came <- struct{}{}
	<-p.let
	return p.Engine.Put(ctx, tenant, key, value)
}

// A delete leaves no checkpoint, nor does one that was under way when the session was deleted.
func TestFaults_checkpointOfDeleted(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		f.replicas[0].stop()
		gate := &putGate{f.engine, make(chan struct{}), make(chan struct{})}
		f.replicaOn(gate)
		id := f.create(tool("a"))
		f.turn(id, "go")
		call := f.pending(id, 1)[0].ID
		for range 300 {
			if _, err := f.ReportProgress(f.ctx, tenant, id, call, &api.ProgressRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		f.submit(id, call, "1")
		<-gate.came
		if err := f.DeleteSession(f.ctx, tenant, id); err != nil {
			t.Fatal(err)
		}
		close(gate.let)
		synctest.Wait()
		if raw, err := f.engine.Get(f.ctx, tenant, "state."+id.String()); raw != nil || err != nil {
			t.Errorf("after the delete there is %.200s, %v", raw, err)
		}
	})
}

// A run that meets a record of a newer version stops, and stores nothing more.
func TestFaults_newerRecord(t *testing.T) {
	for name, script := range map[string]string{
		"waiting": "answers:\n- - call: {tool: a}\n- - text: Done.\n",
		"talking": "answers:\n- - text: Half\n  - delay: 30s\n  - call: {tool: a}\n- - text: Done.\n",
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, script, func(f *fixture) {
				id := f.create(tool("a"))
				turn := f.turn(id, "go")
				<-time.After(time.Second)
				facts := f.facts(id)
				last := facts[len(facts)-1]
				raw, err := api.Marshal(&api.StatusChanged{EventHeader: api.EventHeader{Type: api.TypeStatusChanged, SessionID: id, TurnID: turn, Time: time.Now().UTC()}, Status: api.StatusRunning})
				if err != nil {
					t.Fatal(err)
				}
				newer := &sessions.Record{V: sessions.RecordVersion + 1, CommandID: uuid.New(), N: last.N + 1, Events: []json.RawMessage{raw}}
				if _, err := f.engine.Append(f.ctx, tenant, id, last.Seq, newer); err != nil {
					t.Fatal(err)
				}
				<-time.After(5 * time.Minute)
				if more := len(f.facts(id)) - len(facts); more != 1 {
					t.Errorf("%d facts follow a record of a newer version", more-1)
				}
				_, err = f.Session(f.ctx, tenant, id)
				f.refused(err, sessions.CodeSessionUnsupported)
			})
		})
	}
}

// An answer that is within the limits but, encoded, fits no record ends the turn at once.
func TestFaults_answerFitsNoRecord(t *testing.T) {
	bubble(t, "answers:\n- - text: \""+strings.Repeat(`\x01`, 900_000)+"\"\n", func(f *fixture) {
		id := f.create()
		result := f.ended(id, f.turn(id, "go"))
		if result.Failure == nil || result.Failure.Class != "output_limit" {
			t.Errorf("turn: %+v, %+v", *result.Outcome, result.Failure)
		}
		if n := len(f.model.Prompts()); n != 1 {
			t.Errorf("the model was called %d times", n)
		}
		most := f.engine.MaxRecord() / 4
		for bytes, limits := range map[int][]sessions.Limits{
			most:     {{MaxAnswerBytes: most}, {MaxInputBytes: most}},
			most + 1: {{MaxAnswerBytes: most + 1}, {MaxInputBytes: most + 1}},
		} {
			for _, l := range limits {
				if _, err := sessions.New(sessions.Config{Engine: f.engine, Limits: l}); (err == nil) != (bytes == most) {
					t.Errorf("%+v: %v", l, err)
				}
			}
		}
	})
}

// laggard gives what the log holds only a second later.
type laggard struct{ sessions.Engine }

func (l laggard) Follow(ctx context.Context, tenant string, id uuid.UUID, after sessions.Seq) (sessions.Follower, error) {
	f, err := l.Engine.Follow(ctx, tenant, id, after)
	return lateFollower{f}, err
}

type lateFollower struct{ sessions.Follower }

func (f lateFollower) Next(ctx context.Context, wait time.Duration) ([]sessions.Entry, error) {
	<-time.After(time.Second)
	return f.Follower.Next(ctx, wait)
}

// A run that has not heard yet of a delete stores nothing behind it.
func TestFaults_runOfDeleted(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		f.replicas[0].stop()
		f.Service = f.replicaOn(laggard{f.engine}).Service
		id := f.create(tool("a"))
		f.turn(id, "go")
		f.pending(id, 1)
		if err := f.DeleteSession(f.ctx, tenant, id); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Minute)
		if facts := f.facts(id); len(facts) != 1 {
			t.Errorf("%d facts are left, want the tombstone", len(facts))
		}
	})
}

// followHook calls before whenever somebody begins to follow.
type followHook struct {
	sessions.Engine
	before func()
}

func (h followHook) Follow(ctx context.Context, tenant string, id uuid.UUID, after sessions.Seq) (sessions.Follower, error) {
	h.before()
	return h.Engine.Follow(ctx, tenant, id, after)
}

// The stream of a turn ends with its session, wherever it had got to.
func TestFaults_turnStreamOfDeleted(t *testing.T) {
	bubble(t, "answers:\n- - text: Done.\n", func(f *fixture) {
		id := f.create()
		turn := f.turn(id, "go")
		f.ended(id, turn)
		f.Service = f.replicaOn(followHook{f.engine, sync.OnceFunc(func() {
			if err := f.DeleteSession(f.ctx, tenant, id); err != nil {
				t.Error(err)
			}
		})}).Service
		f.open(id, sessions.StreamQuery{Turn: turn}).until(api.TypeStreamEnd)
	})
}

// A cursor that an ended session cannot have given leads to its beginning.
func TestFaults_cursorAheadOfEnded(t *testing.T) {
	bubble(t, "answers:\n- - text: Done.\n", func(f *fixture) {
		id := f.create()
		ended, err := f.EndSession(f.ctx, tenant, id)
		if err != nil {
			t.Fatal(err)
		}
		other := f.create() // so that the log, unlike the session, has positions beyond that end
		f.ended(other, f.turn(other, "go"))
		tag, digits, _ := strings.Cut(ended.Cursor, "-")
		end, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, beyond := range []uint64{1, 1000, 1_000_000_000} {
			r := f.open(id, sessions.StreamQuery{After: fmt.Sprintf("%s-%d", tag, end+beyond)})
			if got := r.rest(); got[0] != api.TypeReset || !slices.Contains(got, api.TypeSessionCreated) {
				t.Errorf("%d beyond the end: %v", beyond, got)
			}
		}
	})
}

// Progress that somebody else reports does not give a call back to the client whose claim ran out.
func TestFaults_progressOfExpiredClaim(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0].ID
		f.replicas[0].stop() // nobody is there to offer the call again
		if _, err := f.ClaimToolCall(f.ctx, tenant, id, call, &api.ClaimRequest{ClientID: "dead", LeaseMS: 1000}); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		shown, err := f.ReportProgress(f.ctx, tenant, id, call, &api.ProgressRequest{Message: "half"})
		if err != nil || shown.Claim != nil {
			t.Errorf("after the report: %+v, %v", shown, err)
		}
		f.submit(id, call, "1")
		f.replica()
		f.ended(id, turn)
	})
}

// A keyed request that was accepted is answered alike, whatever became of its model.
func TestFaults_replayWithoutModel(t *testing.T) {
	bubble(t, "answers:\n- - text: Done.\n", func(f *fixture) {
		id := f.create()
		turn, err := f.StartTurn(f.ctx, tenant, id, input("go"), "key")
		if err != nil {
			t.Fatal(err)
		}
		ended := f.ended(id, turn.ID)
		other, err := sessions.New(sessions.Config{Engine: f.engine, DefaultModel: "new", Models: []sessions.ModelEntry{{Name: "new", Provider: "none"}}})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := other.StartTurn(f.ctx, tenant, id, input("go"), "key"); err != nil || !reflect.DeepEqual(again, ended) {
			t.Errorf("the replay: %+v, %v", again, err)
		}
	})
}

// A provider that asks for more time than the turn has left ends it, with its own failure.
func TestFaults_retryAfterTurnTime(t *testing.T) {
	bubble(t, "answers:\n- - attempts:\n    - - fail: {class: rate_limit, message: Later., retryable: true, retry_after: 90m}\n    - - text: Done.\n", func(f *fixture) {
		began := time.Now()
		id := f.create()
		result := f.ended(id, f.turn(id, "go"))
		if result.Failure == nil || result.Failure.Class != "rate_limit" || time.Since(began) > time.Minute {
			t.Errorf("turn: %+v after %s", result.Failure, time.Since(began))
		}
	})
}

// handOut gives a job to whoever receives, ready or not: as an engine may that selects between a job and the end of ctx.
type handOut struct {
	sessions.Engine
	jobs     chan *sessions.Job
	before   func(ctx context.Context)
	released chan struct{}
}

func (h *handOut) Receive(ctx context.Context) (*sessions.Job, error) {
	h.before(ctx)
	select {
	case job := <-h.jobs:
		release := job.Release
		job.Release = func() error { close(h.released); return release() }
		return job, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// From Drain on no job is taken, and one that is handed out all the same is given back.
func TestFaults_jobAfterDrain(t *testing.T) {
	for name, drain := range map[string]func(context.Context, *sessions.Service){
		"before Receive":    func(context.Context, *sessions.Service) {},
		"during Receive":    func(ctx context.Context, svc *sessions.Service) { svc.Drain(); <-ctx.Done() },
		"just before a job": func(_ context.Context, svc *sessions.Service) { svc.Drain() },
	} {
		t.Run(name, func(t *testing.T) {
			for round := 0; round < 20 && !t.Failed(); round++ { // a select that has two ways chooses either
				bubble(t, "answers:\n- - text: Done.\n", func(f *fixture) {
					f.replicas[0].stop()
					id := f.create()
					turn := f.turn(id, "go")
					job, err := f.engine.Receive(f.ctx)
					if err != nil {
						t.Fatal(err)
					}
					out := &handOut{Engine: f.engine, jobs: make(chan *sessions.Job, 1), released: make(chan struct{})}
					out.jobs <- job
					svc, err := sessions.New(sessions.Config{Engine: out})
					if err != nil {
						t.Fatal(err)
					}
					out.before = func(ctx context.Context) { drain(ctx, svc) }
					if strings.HasPrefix(name, "before") {
						svc.Drain()
					}
					ctx, cancel := context.WithCancel(f.ctx)
					var running sync.WaitGroup
					running.Go(func() { _ = svc.Run(ctx) })
					synctest.Wait()
					if len(out.jobs) == 0 {
						select {
						case <-out.released:
						default:
							t.Error("the job was neither left nor given back")
						}
					}
					if facts := f.facts(id); len(facts) != 2 {
						t.Errorf("the turn was run: there are %d facts", len(facts))
					}
					cancel()
					running.Wait()
					f.Service = f.replica().Service
					f.ended(id, turn)
				})
			}
		})
	}
}

// keepWatch measures how long the service leaves a job without Keep, while appends of the owner take their time.
type keepWatch struct {
	sessions.Engine
	mu   sync.Mutex
	last time.Time
	most time.Duration
}

func (k *keepWatch) Receive(ctx context.Context) (*sessions.Job, error) {
	job, err := k.Engine.Receive(ctx)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last = time.Now()
	keep := job.Keep
	job.Keep = func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.most, k.last = max(k.most, time.Since(k.last)), time.Now()
		return keep()
	}
	return job, nil
}

func (k *keepWatch) Append(ctx context.Context, tenant string, id uuid.UUID, base sessions.Seq, rec *sessions.Record) (sessions.Seq, error) {
	if rec.Term != 0 {
		<-time.After(4900 * time.Millisecond)
	}
	return k.Engine.Append(ctx, tenant, id, base, rec)
}

// A job is kept in time, whether facts come faster than that or appends take longer.
func TestFaults_keepInterval(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		f.replicas[0].stop()
		watch := &keepWatch{Engine: f.engine}
		f.Service = f.replicaOn(watch).Service
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0].ID
		every := f.engine.KeepInterval()
		for range 20 {
			<-time.After(every - time.Millisecond)
			if _, err := f.ReportProgress(f.ctx, tenant, id, call, &api.ProgressRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		f.submit(id, call, "1")
		f.ended(id, turn)
		watch.mu.Lock()
		defer watch.mu.Unlock()
		if watch.most == 0 || watch.most > every {
			t.Errorf("the longest time without Keep was %s, the interval is %s", watch.most, every)
		}
	})
}
