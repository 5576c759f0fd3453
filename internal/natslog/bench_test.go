package natslog_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/internal/natslog"
	"treadle/sessions"
)

func benchLog(b *testing.B) *natslog.Log {
	l := open(b, natslog.Config{Dir: b.TempDir()})
	b.Cleanup(l.Close)
	return l
}

func mustAppend(b testing.TB, l *natslog.Log, id uuid.UUID, base sessions.Seq, rec *sessions.Record) sessions.Seq {
	seq, err := l.Append(b.Context(), "acme", id, base, rec)
	if err != nil {
		b.Fatal(err)
	}
	return seq
}

func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			l := benchLog(b)
			rec := fact("a text of the usual length, which is not long")
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var group sync.WaitGroup
			for range writers {
				group.Go(func() {
					id, base := uuid.New(), sessions.Seq(0)
					for left.Add(-1) >= 0 {
						base = mustAppend(b, l, id, base, rec)
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
		})
	}
}

func BenchmarkRead10k(b *testing.B) {
	l := benchLog(b)
	id, base := uuid.New(), sessions.Seq(0)
	for range 10_000 {
		base = mustAppend(b, l, id, base, fact("a text of the usual length, which is not long"))
	}
	for b.Loop() {
		entries, err := readAll(b.Context(), l, id, false)
		if err != nil || len(entries) != 10_000 {
			b.Fatal(len(entries), err)
		}
	}
}

func BenchmarkWake(b *testing.B) {
	l := benchLog(b)
	id, base := uuid.New(), sessions.Seq(0)
	f, err := l.Follow(b.Context(), "acme", id, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for b.Loop() {
		base = mustAppend(b, l, id, base, fact("wake"))
		if _, err := f.Next(b.Context(), time.Minute); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFanOut measures one writer and 100 followers that keep up: an operation is one append that everybody got.
func BenchmarkFanOut100(b *testing.B) {
	l := benchLog(b)
	id := uuid.New()
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var delivered atomic.Int64
	for range 100 {
		f, err := l.Follow(b.Context(), "acme", id, 0)
		if err != nil {
			b.Fatal(err)
		}
		group.Go(func() {
			defer f.Close()
			for n := 0; n < b.N; {
				entries, err := f.Next(ctx, time.Minute)
				if err != nil {
					return
				}
				n += len(entries)
				delivered.Add(int64(len(entries)))
			}
		})
	}
	b.ResetTimer()
	base := sessions.Seq(0)
	for range b.N {
		base = mustAppend(b, l, id, base, fact("to everybody"))
	}
	group.Wait()
	b.ReportMetric(float64(delivered.Load())/b.Elapsed().Seconds(), "deliveries/s")
}

// BenchmarkIdleFollower reports what a follower that waits costs in memory, with the goroutine that waits.
func BenchmarkIdleFollower(b *testing.B) {
	l := benchLog(b)
	before := inUse()
	ctx, cancel := context.WithCancel(b.Context())
	var group sync.WaitGroup
	for range b.N {
		f, err := l.Follow(b.Context(), "acme", uuid.New(), 0)
		if err != nil {
			b.Fatal(err)
		}
		group.Go(func() {
			defer f.Close()
			_, _ = f.Next(ctx, time.Hour)
		})
	}
	b.ReportMetric(float64(inUse()-before)/float64(b.N), "bytes/follower")
	cancel()
	group.Wait()
}

func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// BenchmarkOpen measures a restart up to the first append, with 1000 sessions to list.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	l := open(b, natslog.Config{Dir: dir})
	for range 1000 {
		id := uuid.New()
		mustAppend(b, l, id, 0, end(id))
	}
	l.Close()
	for b.Loop() {
		l := open(b, natslog.Config{Dir: dir})
		mustAppend(b, l, uuid.New(), 0, fact("first"))
		b.StopTimer()
		l.Close()
		b.StartTimer()
	}
}
