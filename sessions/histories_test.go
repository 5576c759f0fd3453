package sessions_test

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"treadle/sessions"
)

// readCounter counts the facts that are read.
type readCounter struct {
	sessions.Engine
	facts atomic.Int64
}

func (c *readCounter) Read(ctx context.Context, tenant string, id uuid.UUID, after sessions.Seq, limit int, deltas bool) ([]sessions.Entry, error) {
	entries, err := c.Engine.Read(ctx, tenant, id, after, limit, deltas)
	c.facts.Add(int64(len(entries)))
	return entries, err
}

// C85: a turn does not read the whole past again, and its prompt has it all the same, whoever ran the turns before.
func TestHistoryKept(t *testing.T) {
	bubble(t, "rules: [{match: two, answers: [[{call: {tool: none}}], [{text: Two.}]]}, {answers: [[{text: One.}]]}]", func(f *fixture) {
		counter := &readCounter{Engine: f.engine}
		a, b, c := f.replicaOn(counter), f.replicaOn(f.engine), f.replicaOn(f.engine)
		for _, r := range f.replicas {
			r.stop()
		}
		session := f.create()
		turn := func(on *replica, text string) []sessions.Message {
			ctx, cancel := context.WithCancel(f.ctx)
			var running sync.WaitGroup
			running.Go(func() { _ = on.Run(ctx) })
			f.ended(session, f.turn(session, text))
			cancel()
			running.Wait()
			prompts := f.model.Prompts()
			return prompts[len(prompts)-1].Messages
		}
		for n := range 20 {
			turn(a, fmt.Sprint("one ", n))
		}
		before := counter.facts.Load()
		if told := turn(a, "one more"); len(told) != 41 {
			t.Errorf("the model is told %d messages, want 41", len(told))
		}
		if read := counter.facts.Load() - before; read > 20 {
			t.Errorf("a turn on a replica that knows the session read %d facts", read)
		}
		turn(b, "two")
		told := turn(a, "one last")
		if len(told) != 47 { // "two" came with an answer that calls, a result and an answer
			t.Errorf("after a turn elsewhere the model is told %d messages, want 47", len(told))
		}
		if fresh := turn(c, "one"); !reflect.DeepEqual(fresh[:47], told) {
			t.Error("a replica that reads everything tells the model something else")
		}
	})
}
