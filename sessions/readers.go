package sessions

import "sync"

// readerCount counts the open streams: in all, by tenant and by session.
type readerCount struct {
	max, maxTenant int

	mu        sync.Mutex
	total     int
	byTenant  map[string]int
	bySession map[sessionKey]int
}

// add admits one more stream, or tells which bound is reached.
func (r *readerCount) add(key sessionKey) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byTenant == nil {
		r.byTenant, r.bySession = map[string]int{}, map[sessionKey]int{}
	}
	if r.total >= r.max {
		return refuse(CodeTooManyStreams, "this server has %d open streams, as many as it takes; poll GET …/events as JSON, or try again later", r.max).with("limit", r.max)
	}
	if r.byTenant[key.tenant] >= r.maxTenant {
		return refuse(CodeTooManyStreams, "the tenant has %d open streams, as many as it may; close some, or poll GET …/events as JSON", r.maxTenant).with("limit", r.maxTenant)
	}
	r.total++
	r.byTenant[key.tenant]++
	r.bySession[key]++
	return nil
}

func (r *readerCount) remove(key sessionKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total--
	if r.byTenant[key.tenant]--; r.byTenant[key.tenant] == 0 {
		delete(r.byTenant, key.tenant)
	}
	if r.bySession[key]--; r.bySession[key] == 0 {
		delete(r.bySession, key)
	}
}

// of returns how many streams of this process read the session.
func (r *readerCount) of(key sessionKey) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bySession[key]
}
