package logtest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"treadle/sessions"
)

// keys are hashes, ids and their combinations; an engine must take these bytes whatever its own syntax is.
var keys = []string{"k", "idempotency/0123abcd", "state/0190-aa.1", "a b*c>.d", strings.Repeat("f", 128)}

func storeValues(t *testing.T, fix Fixture) {
	e := fix.Open()
	get := func(tenant, key, want string) {
		t.Helper()
		got, err := e.Get(t.Context(), tenant, key)
		if err != nil || string(got) != want || (want == "") != (got == nil) {
			t.Fatalf("get %q of %q: %q, %v, want %q", key, tenant, got, err, want)
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys {
		get("acme", key, "")
		check(e.Delete(t.Context(), "acme", key))
		check(e.Put(t.Context(), "acme", key, []byte("one")))
		get("acme", key, "one")
		get("other", key, "")
		stored, created, err := e.Create(t.Context(), "acme", key, []byte("two"), 0)
		if err != nil || created || string(stored) != "one" {
			t.Fatalf("create over a value: %q, %t, %v", stored, created, err)
		}
		check(e.Put(t.Context(), "acme", key, []byte("three")))
		get("acme", key, "three")
		check(e.Delete(t.Context(), "acme", key))
		get("acme", key, "")
		stored, created, err = e.Create(t.Context(), "acme", key, []byte("four"), time.Hour)
		if err != nil || !created || string(stored) != "four" {
			t.Fatalf("create after a delete: %q, %t, %v", stored, created, err)
		}
	}
	e = fix.Open()
	for _, key := range keys {
		get("acme", key, "four")
	}
}

func storeOneCreator(t *testing.T, fix Fixture) {
	e := fix.Open()
	engines := []sessions.Engine{e, fix.peer(e)}
	for round := range 20 {
		var group sync.WaitGroup
		seen := make(chan string, 8)
		winners := make(chan string, 8)
		for racer := range 8 {
			group.Go(func() {
				mine := fmt.Sprint("racer ", racer)
				stored, created, err := engines[racer%2].Create(t.Context(), "acme", fmt.Sprint("key", round), []byte(mine), time.Minute)
				if err != nil || created != (string(stored) == mine) {
					t.Errorf("create: %q, %t, %v", stored, created, err)
				}
				seen <- string(stored)
				if created {
					winners <- mine
				}
			})
		}
		group.Wait()
		if len(winners) != 1 {
			t.Fatalf("%d racers created the value", len(winners))
		}
		winner := <-winners
		for range 8 {
			if got := <-seen; got != winner {
				t.Fatalf("a racer saw %q, the winner is %q", got, winner)
			}
		}
	}
}

func storeTTL(t *testing.T, fix Fixture) {
	e := fix.Open()
	if _, created, err := e.Create(t.Context(), "acme", "short", []byte("v"), time.Second); err != nil || !created {
		t.Fatalf("create: %t, %v", created, err)
	}
	if _, created, err := e.Create(t.Context(), "acme", "long", []byte("v"), time.Hour); err != nil || !created {
		t.Fatalf("create: %t, %v", created, err)
	}
	if got, err := e.Get(t.Context(), "acme", "short"); err != nil || string(got) != "v" {
		t.Fatalf("get before the end of the ttl: %q, %v", got, err)
	}
	eventually(t, "a value with a ttl vanishes", func() bool {
		got, err := e.Get(t.Context(), "acme", "short")
		return err == nil && got == nil
	})
	if _, created, err := e.Create(t.Context(), "acme", "short", []byte("w"), time.Second); err != nil || !created {
		t.Fatalf("create after the ttl: %t, %v", created, err)
	}
	if got, err := e.Get(t.Context(), "acme", "long"); err != nil || string(got) != "v" {
		t.Fatalf("the other value: %q, %v", got, err)
	}
}

func reopen(t *testing.T, fix Fixture) {
	e := fix.Open()
	epoch := e.Epoch()
	if epoch == "" || fix.peer(e).Epoch() != epoch {
		t.Fatalf("epochs %q and %q", epoch, fix.peer(e).Epoch())
	}
	w := newWriter(t, e)
	for range 3 {
		w.fact("before")
	}
	for round := range 3 {
		w.engine = fix.Open()
		if got := w.engine.Epoch(); got != epoch {
			t.Fatalf("after a restart the epoch is %q, it was %q", got, epoch)
		}
		if err := w.engine.Healthy(); err != nil {
			t.Fatalf("after a restart: %v", err)
		}
		w.fact("after")
		if got := len(seqs(t, w.read(0, true))); got != 4+round {
			t.Fatalf("%d entries after a restart, want %d", got, 4+round)
		}
	}
}
