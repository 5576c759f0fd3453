package memlog

import (
	"bytes"
	"context"
	"time"
)

type valueKey struct{ tenant, key string }

type value struct {
	data []byte
	// vanishes is zero for what stays.
	vanishes time.Time
}

// Create implements [sessions.Store].
func (l *Log) Create(ctx context.Context, tenant, key string, data []byte, ttl time.Duration) ([]byte, bool, error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := valueKey{tenant, key}
	if v, ok := l.value(k); ok {
		return bytes.Clone(v.data), false, nil
	}
	v := value{data: append([]byte{}, data...)}
	if ttl > 0 {
		v.vanishes = time.Now().Add(ttl)
	}
	l.values[k] = v
	return bytes.Clone(v.data), true, nil
}

// Put implements [sessions.Store].
func (l *Log) Put(ctx context.Context, tenant, key string, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.values[valueKey{tenant, key}] = value{data: append([]byte{}, data...)}
	return nil
}

// Get implements [sessions.Store].
func (l *Log) Get(ctx context.Context, tenant, key string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	v, _ := l.value(valueKey{tenant, key})
	return bytes.Clone(v.data), nil
}

// Delete implements [sessions.Store].
func (l *Log) Delete(ctx context.Context, tenant, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.values, valueKey{tenant, key})
	return nil
}

func (l *Log) value(k valueKey) (value, bool) {
	v, ok := l.values[k]
	if ok && !v.vanishes.IsZero() && !time.Now().Before(v.vanishes) {
		delete(l.values, k)
		return value{}, false
	}
	return v, ok
}
