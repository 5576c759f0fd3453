package natslog_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"treadle/internal/natslog"
	"treadle/sessions"
)

// smallDisk mounts a tmpfs, or skips the test.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mounting a tmpfs needs more rights than this test has: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill takes all space that is left, and returns a function that frees it.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	block := make([]byte, 64<<10)
	for size := len(block); size > 0; size /= 2 {
		for {
			if _, err := file.Write(block[:size]); err != nil {
				break
			}
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// scribe appends to one session and remembers what was acknowledged.
type scribe struct {
	t     *testing.T
	log   *natslog.Log
	id    uuid.UUID
	base  sessions.Seq
	n     int64
	acked []sessions.Seq
}

func newScribe(t *testing.T, l *natslog.Log) *scribe {
	return &scribe{t: t, log: l, id: uuid.New()}
}

func (s *scribe) append(size int) error {
	rec := fact(strings.Repeat("x", size))
	rec.N = s.n + 1
	seq, err := s.log.Append(s.t.Context(), "acme", s.id, s.base, rec)
	if err != nil {
		return err
	}
	s.n++
	s.base = seq
	s.acked = append(s.acked, seq)
	return nil
}

// untilRefused appends until an append fails, and checks how.
func (s *scribe) untilRefused(size int) {
	s.t.Helper()
	for range 100_000 {
		if err := s.append(size); err != nil {
			if !errors.Is(err, sessions.ErrUnavailable) {
				s.t.Fatalf("append on a full disk: %v", err)
			}
			return
		}
	}
	s.t.Fatal("the disk never got full")
}

// stored checks that every acknowledged fact is there, and moves the base to the last that is.
func (s *scribe) stored() {
	s.t.Helper()
	entries, err := readAll(s.t.Context(), s.log, s.id, false)
	if err != nil {
		s.t.Fatal(err)
	}
	found := map[sessions.Seq]bool{}
	for i, e := range entries {
		if e.N != int64(i+1) {
			s.t.Fatalf("fact %d comes at place %d", e.N, i+1)
		}
		found[e.Seq] = true
		s.base, s.n = e.Seq, e.N
	}
	for _, seq := range s.acked {
		if !found[seq] {
			s.t.Fatalf("fact %d was acknowledged and is gone (%d of %d are there)", seq, len(entries), len(s.acked))
		}
	}
}

func (s *scribe) works() {
	s.t.Helper()
	eventually(s.t, "the log works again", func() bool { return s.log.Healthy() == nil })
	s.stored()
	eventually(s.t, "an append is taken again", func() bool { return s.append(100) == nil })
}

// heard follows the session from the beginning; the returned function checks that all that came is stored, and everything came.
func (s *scribe) heard() (check func()) {
	f, err := s.log.Follow(s.t.Context(), "acme", s.id, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(f.Close)
	var got []sessions.Seq
	return func() {
		s.t.Helper()
		ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
		defer cancel()
		for len(got) == 0 || got[len(got)-1] < s.base {
			entries, err := f.Next(ctx, 30*time.Second)
			if err != nil && !errors.Is(err, sessions.ErrUnavailable) {
				s.t.Fatalf("following: %v", err)
			}
			for _, e := range entries {
				got = append(got, e.Seq)
			}
		}
		entries, err := readAll(s.t.Context(), s.log, s.id, false)
		if err != nil || len(entries) != len(got) {
			s.t.Fatalf("%d facts are stored, %d were followed, %v", len(entries), len(got), err)
		}
		for i, e := range entries {
			if got[i] != e.Seq {
				s.t.Fatalf("followed %d, stored %d", got[i], e.Seq)
			}
		}
	}
}

// TestDiskReserve fills the disk by appending: the reserve stops that before a write fails.
func TestDiskReserve(t *testing.T) {
	dir := smallDisk(t, "10m")
	l := open(t, natslog.Config{Dir: dir})
	defer func() { l.Close() }()
	s := newScribe(t, l)
	check := s.heard()
	s.untilRefused(100_000)
	if err := l.Healthy(); !errors.Is(err, sessions.ErrUnavailable) || !strings.Contains(err.Error(), "full") {
		t.Fatalf("healthy on a full disk: %v", err)
	}
	if err := l.AppendDelta(t.Context(), "acme", s.id, delta(strings.Repeat("x", 100_000))); !errors.Is(err, sessions.ErrUnavailable) {
		t.Fatalf("delta on a full disk: %v", err)
	}
	s.stored()
	check()
	// What is deleted makes room, without a restart.
	other := newScribe(t, l)
	if err := l.Purge(t.Context(), "acme", s.id, s.base); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a purge makes room", func() bool { return other.append(100) == nil })
	l.Close()
	l = open(t, natslog.Config{Dir: dir})
	other.log = l
	other.works()
}

// TestDiskFull takes the space away under the server's feet, so that writes fail (nats-server then refuses all of them until it is restarted).
func TestDiskFull(t *testing.T) {
	dir := smallDisk(t, "20m")
	l := open(t, natslog.Config{Dir: dir, DiskReserve: 1})
	defer func() { l.Close() }()
	s := newScribe(t, l)
	check := s.heard()
	for range 20 {
		if err := s.append(10_000); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		free := fill(t, dir)
		s.untilRefused(3_000)
		eventually(t, "the log tells that it is unhealthy", func() bool { return errors.Is(l.Healthy(), sessions.ErrUnavailable) })
		free()
		s.works()
		check()
	}
	l.Close()
	l = open(t, natslog.Config{Dir: dir})
	s.log = l
	s.works()
}

// TestDiskShrinks takes away more than the reserve at once, with appends of 100 KB under way.
func TestDiskShrinks(t *testing.T) {
	dir := smallDisk(t, "20m")
	l := open(t, natslog.Config{Dir: dir})
	defer func() { l.Close() }()
	s := newScribe(t, l)
	if err := s.append(1000); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	s.untilRefused(100_000)
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, "size=20m"); err != nil {
		t.Fatal(err)
	}
	s.works()
}

func TestUnwritableDirectory(t *testing.T) {
	dir := smallDisk(t, "20m")
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err := natslog.Open(t.Context(), natslog.Config{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), dir+" is not writable") {
		t.Fatalf("open of a read-only directory: %v", err)
	}
	_, err = natslog.Open(t.Context(), natslog.Config{Dir: filepath.Join(dir, "below")})
	if err == nil || !strings.Contains(err.Error(), "cannot be made") {
		t.Fatalf("open below a read-only directory: %v", err)
	}
}

// A session can be ended and purged on a disk that takes nothing else.
func TestDiskFull_endsAreSpared(t *testing.T) {
	dir := smallDisk(t, "40m")
	l := open(t, natslog.Config{Dir: dir})
	defer l.Close()
	s := newScribe(t, l)
	s.untilRefused(64 << 10)
	s.stored()
	end := fact("")
	end.N = s.n + 1
	end.Summary = &sessions.Summary{Deleted: true}
	end.Summary.ID, end.Summary.EndedAt = s.id, time.Now()
	seq, err := l.Append(t.Context(), "acme", s.id, s.base, end)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Purge(t.Context(), "acme", s.id, seq); err != nil {
		t.Fatal(err)
	}
	other := newScribe(t, l)
	eventually(t, "there is room again", func() bool { return other.append(64<<10) == nil })
}
