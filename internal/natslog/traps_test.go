package natslog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"treadle/api"
	"treadle/internal/natslog"
	"treadle/sessions"
)

// The traps are numbered as in the list that the engine was chosen with. Those not here are in the conformance suite: 2 and 4 (AppendOneWinner
// and ReadBarrier in TestCluster), 3 (AppendAgain), 5 (ReadLarge), 8 (StoreTTL), 9 (PurgeTombstone, ReadExpiredDeltas), 17 (DeltasLeaveBase).

func newLog(t testing.TB) *natslog.Log {
	t.Helper()
	l := open(t, natslog.Config{Dir: t.TempDir(), Partitions: 2})
	t.Cleanup(l.Close)
	return l
}

func followed(t testing.TB, f sessions.Follower, count int) []sessions.Seq {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var got []sessions.Seq
	for len(got) < count {
		entries, err := f.Next(ctx, 30*time.Second)
		if err != nil {
			t.Fatalf("with %v of %d: %v", got, count, err)
		}
		for _, e := range entries {
			got = append(got, e.Seq)
		}
	}
	return got
}

func startFollower(t testing.TB, l *natslog.Log, id uuid.UUID, after sessions.Seq) sessions.Follower {
	t.Helper()
	f, err := l.Follow(t.Context(), "acme", id, after)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// Trap 1: a subscription to the stream's own subjects hears what is rejected.
func TestFollowerHearsNothingRejected(t *testing.T) {
	l := newLog(t)
	id := uuid.New()
	f := startFollower(t, l, id, 0)
	base := mustAppend(t, l, id, 0, fact("first"))
	for range 20 {
		if _, err := l.Append(t.Context(), "acme", id, 0, fact("rejected")); !errors.Is(err, sessions.ErrConflict) {
			t.Fatal(err)
		}
	}
	last := mustAppend(t, l, id, base, fact("last"))
	if got := followed(t, f, 2); !slices.Equal(got, []sessions.Seq{base, last}) {
		t.Fatalf("followed %v, want %v", got, []sessions.Seq{base, last})
	}
}

// Trap 6: the server's default is to bring files to the disk every two minutes.
func TestSyncInterval(t *testing.T) {
	if interval, always := newLog(t).ServerConfig(); interval != "200ms" || always {
		t.Fatalf("the server syncs every %s, always %t", interval, always)
	}
	l := open(t, natslog.Config{Dir: t.TempDir(), SyncAlways: true})
	defer l.Close()
	if _, always := l.ServerConfig(); !always {
		t.Fatal("the server does not sync before each acknowledgement")
	}
	mustAppend(t, l, uuid.New(), 0, fact("durable"))
}

// Traps 9 and 10: streams must refuse rather than drop, and keep facts for ever; markers for vanished deltas would take positions.
func TestStreamsKeepFacts(t *testing.T) {
	l := newLog(t)
	for _, name := range []string{"EVT_0", "EVT_1"} {
		stream, err := l.JetStream().Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		c := stream.CachedInfo().Config
		if c.Discard != jetstream.DiscardNew || !c.DiscardNewPerSubject || c.MaxMsgsPerSubject != 1_000_000 || c.MaxAge != 0 ||
			c.SubjectDeleteMarkerTTL != 0 || !c.AllowMsgTTL || !c.AllowDirect || c.Storage != jetstream.FileStorage {
			t.Fatalf("%s is configured as %+v", name, c)
		}
	}
}

// Trap 7: a server takes 1000 consumers per stream unless told otherwise.
func TestManyConsumers(t *testing.T) {
	l := newLog(t)
	for i := range 1100 {
		_, err := l.JetStream().CreateConsumer(t.Context(), "EVT_0", jetstream.ConsumerConfig{
			Name: fmt.Sprint("c", i), MemoryStorage: true, AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Minute,
		})
		if err != nil {
			t.Fatalf("consumer %d: %v", i, err)
		}
	}
}

// Trap 11: a consumer hands out 1000 unacknowledged messages unless told otherwise, which would cap the running turns.
func TestManyRunningTurns(t *testing.T) {
	l := open(t, natslog.Config{Dir: t.TempDir(), Partitions: 1, AckWait: time.Minute})
	defer l.Close()
	for range 1050 {
		mustAppend(t, l, uuid.New(), 0, turn())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	seen := map[uuid.UUID]bool{}
	for range 1050 {
		job, err := l.Receive(ctx)
		if err != nil {
			t.Fatalf("after %d jobs: %v", len(seen), err)
		}
		seen[job.Session] = true
	}
	if len(seen) != 1050 {
		t.Fatalf("%d jobs came, some twice", len(seen))
	}
}

// Trap 12: some characters in a subject match what they should not, or nothing.
func TestTenantNames(t *testing.T) {
	l := newLog(t)
	for _, tenant := range []string{"", "*", ">", "a*b", "a>b", "a.b", "a b", "A", "é", "-a", "_", strings.Repeat("a", 64)} {
		if _, err := l.Append(t.Context(), tenant, uuid.New(), 0, fact("x")); err == nil {
			t.Errorf("append for tenant %q is taken", tenant)
		}
		if _, err := l.Read(t.Context(), tenant, uuid.New(), 0, 0, true); err == nil {
			t.Errorf("read of tenant %q", tenant)
		}
		if err := l.Put(t.Context(), tenant, "k", nil); err == nil {
			t.Errorf("put for tenant %q is taken", tenant)
		}
		if err := l.Purge(t.Context(), tenant, uuid.New(), 1); err == nil {
			t.Errorf("purge of tenant %q is taken", tenant)
		}
	}
}

// Trap 13: a NATS server takes messages of 1 MiB unless told otherwise, and the client finds out only when it sends one.
func TestExternalServerTakesTooLittle(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server did not start")
	}
	_, err = natslog.Open(t.Context(), natslog.Config{URL: s.ClientURL()})
	if err == nil || !strings.Contains(err.Error(), "set max_payload in the server's configuration to at least 8388608") {
		t.Fatalf("open on a server with the default max_payload: %v", err)
	}
	l := open(t, natslog.Config{URL: s.ClientURL(), MaxRecord: 512 << 10, Partitions: 1})
	defer l.Close()
	mustAppend(t, l, uuid.New(), 0, fact(strings.Repeat("x", 500<<10)))
}

// Trap 15: what was missed shows by the next message of the partition, even one of another session, and is delivered before it.
func TestGapIsFilled(t *testing.T) {
	l := open(t, natslog.Config{Dir: t.TempDir(), Partitions: 1})
	defer l.Close()
	id := uuid.New()
	f := startFollower(t, l, id, 0)
	want := []sessions.Seq{mustAppend(t, l, id, 0, fact("heard"))}
	followed(t, f, 1)
	hear, err := l.Deafen()
	if err != nil {
		t.Fatal(err)
	}
	want = append(want[:0], mustAppend(t, l, id, want[0], fact("missed")))
	want = append(want, mustAppend(t, l, id, want[0], fact("missed too")))
	if err := hear(); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, uuid.New(), 0, fact("of another session"))
	want = append(want, mustAppend(t, l, id, want[1], fact("heard again")))
	if got := followed(t, f, 3); !slices.Equal(got, want) {
		t.Fatalf("followed %v, want %v", got, want)
	}
}

// Trap 16: a server that dies after storing tells nobody, and if nothing follows, only a poll finds out. The listing is told too.
func TestSilenceIsPolled(t *testing.T) {
	l := newLog(t)
	id := uuid.New()
	base := mustAppend(t, l, id, 0, fact("heard"))
	f := startFollower(t, l, id, base)
	hear, err := l.Deafen()
	if err != nil {
		t.Fatal(err)
	}
	missed := mustAppend(t, l, id, base, fact("missed"))
	listed := uuid.New()
	// Around the log, as if another replica had done it.
	if err := appendElsewhere(t, l, listed); err != nil {
		t.Fatal(err)
	}
	if got := followed(t, f, 1); got[0] != missed {
		t.Fatalf("followed %v, want %d", got, missed)
	}
	eventually(t, "the session is listed", func() bool {
		found, err := l.Sessions(t.Context(), "acme", uuid.Nil, 10, nil)
		return err == nil && len(found) == 1 && found[0].ID == listed
	})
	if err := hear(); err != nil {
		t.Fatal(err)
	}
}

func appendElsewhere(t *testing.T, l *natslog.Log, id uuid.UUID) error {
	t.Helper()
	subject, err := l.FactSubject("acme", id, sessions.KindEnd)
	if err != nil {
		return err
	}
	data, err := api.Marshal(end(id))
	if err != nil {
		return err
	}
	_, err = l.JetStream().Publish(t.Context(), subject, data)
	return err
}

// A connection that was lost may have missed something as well.
func TestServerRestartsUnderFollowers(t *testing.T) {
	l := newLog(t)
	id := uuid.New()
	f := startFollower(t, l, id, 0)
	base := mustAppend(t, l, id, 0, fact("before"))
	followed(t, f, 1)
	l.RestartServer()
	seq := sessions.Seq(0)
	eventually(t, "an append is taken after the restart", func() bool {
		var err error
		seq, err = l.Append(t.Context(), "acme", id, base, fact("after"))
		return err == nil
	})
	if got := followed(t, f, 1); got[0] != seq {
		t.Fatalf("followed %v, want %d", got, seq)
	}
	if err := l.Healthy(); err != nil {
		t.Fatal(err)
	}
}
