package natslog

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"treadle/sessions"
)

const (
	minReserve = 2 << 20
	maxReserve = 1 << 30
	// A look at the disk is good for so many bytes and so much time.
	lookBytes = 1 << 20
	lookEvery = 100 * time.Millisecond
)

// disk keeps a reserve free. Appends stop before the disk is full, since the server, once it failed to write, takes nothing until it
// is restarted. Ending and deleting sessions, which is how room is made, may use half of the reserve; reading goes on.
type disk struct {
	dir     string
	reserve uint64

	mu     sync.Mutex
	free   uint64
	looked time.Time
	// since are the bytes that were admitted after the look.
	since uint64
}

func newDisk(dir string, reserve uint64) (*disk, error) {
	d := &disk{dir: dir, reserve: reserve}
	free, size, err := space(dir)
	if err != nil {
		return nil, err
	}
	if d.reserve == 0 {
		d.reserve = min(max(size/10, minReserve), maxReserve)
	}
	d.free = free
	return d, nil
}

// admit returns nil if size more bytes leave the reserve untouched, or half of it if they are spared.
func (d *disk) admit(size int, spared bool) error {
	reserve := d.reserve
	if spared {
		reserve /= 2
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.since += uint64(size)
	if now := time.Now(); d.since > lookBytes || now.Sub(d.looked) > lookEvery {
		free, _, err := space(d.dir)
		if err != nil {
			return fmt.Errorf("%w: %w", sessions.ErrUnavailable, err)
		}
		d.free, d.looked, d.since = free, now, uint64(size)
	}
	if d.free < reserve+d.since {
		return fmt.Errorf("%w: the disk of %s is full: %d bytes are free, %d are kept in reserve", sessions.ErrUnavailable, d.dir, d.free, reserve)
	}
	return nil
}

func space(dir string) (free, size uint64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, 0, fmt.Errorf("looking at the disk of %s: %w", dir, err)
	}
	return uint64(s.Bavail) * uint64(s.Bsize), uint64(s.Blocks) * uint64(s.Bsize), nil
}
