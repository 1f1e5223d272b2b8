package core_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
)

func hash(id string) [32]byte { return sha256.Sum256([]byte(id)) }

// claims asks a store for an id and sums the answer up.
func claims(t *testing.T, s core.DedupStore, scope, id string, lease time.Duration) (token, state string) {
	t.Helper()
	token, held, err := s.Claim(t.Context(), scope, hash(id), lease)
	switch {
	case err != nil:
		t.Fatal(err)
	case token != "":
		return token, "ours"
	case held > 0:
		return "", "busy for " + held.String()
	}
	return "", "done"
}

func TestMemoryDedupHasTwoStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, ctx := core.NewMemoryDedup(0), t.Context()
		lost := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, core.ErrLeaseLost) {
				t.Errorf("%s: %v", what, err)
			}
		}
		want := func(what, want string) string {
			t.Helper()
			token, state := claims(t, s, "kitchen", "a", time.Minute)
			if state != want {
				t.Errorf("%s: %s, want %s", what, state, want)
			}
			return token
		}
		token := want("first claim", "ours")
		time.Sleep(20 * time.Second)
		want("claim while the first runs", "busy for 40s")
		lost("release with a wrong token", s.Release(ctx, "kitchen", hash("a"), "not the token"))
		lost("release without a token", s.Release(ctx, "kitchen", hash("a"), ""))
		lost("release in another scope", s.Release(ctx, "billing", hash("a"), token))
		if _, state := claims(t, s, "billing", "a", time.Minute); state != "ours" {
			t.Errorf("another scope: %s", state)
		}
		if err := s.Release(ctx, "kitchen", hash("a"), token); err != nil {
			t.Fatal(err)
		}
		token = want("claim after a failure", "ours") // a failed handler is no duplicate
		time.Sleep(50 * time.Second)
		if err := s.Extend(ctx, "kitchen", hash("a"), token, time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		want("claim of what was extended", "busy for 10s")
		time.Sleep(10 * time.Second)
		later := want("claim after the lease", "ours")
		lost("done with the old token", s.Done(ctx, "kitchen", hash("a"), token, time.Hour))
		lost("extend with the old token", s.Extend(ctx, "kitchen", hash("a"), token, time.Hour))
		if err := s.Done(ctx, "kitchen", hash("a"), later, time.Hour); err != nil {
			t.Fatal(err)
		}
		lost("release of what is done", s.Release(ctx, "kitchen", hash("a"), later))
		time.Sleep(time.Hour - time.Second)
		want("claim of what is done", "done")
		time.Sleep(time.Second)
		want("claim after the window", "ours")
	})
}

// A full store forgets the mark whose window ends first, and never a claim that runs.
func TestMemoryDedupIsBounded(t *testing.T) {
	t.Parallel()
	s, ctx := core.NewMemoryDedup(10), t.Context()
	running, _ := claims(t, s, "", "running", time.Minute) // its lease ends before all windows
	for i := range 100 {
		id := hash(fmt.Sprint(i))
		token, _, err := s.Claim(ctx, "", id, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Done(ctx, "", id, token, time.Duration(1000-i)*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Extend(ctx, "", hash("running"), running, time.Minute); err != nil {
		t.Errorf("the claim that ran is gone: %v", err)
	}
	for i := range 8 { // the first have the longest windows
		if _, state := claims(t, s, "", fmt.Sprint(i), time.Minute); state != "done" {
			t.Errorf("id %d: %s", i, state)
		}
	}
	full := core.NewMemoryDedup(3)
	for i := range 3 {
		claims(t, full, "", fmt.Sprint(i), time.Minute)
	}
	if token, held, err := full.Claim(ctx, "", hash("4"), time.Minute); token != "" || held != 0 || !errors.Is(err, core.ErrTransient) {
		t.Errorf("a store full of claims: %q %v %v", token, held, err)
	}
}

func TestMemoryDedupGivesAnIDToOne(t *testing.T) {
	t.Parallel()
	s := core.NewMemoryDedup(0)
	var won atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if token, _, _ := s.Claim(t.Context(), "", hash("a"), time.Hour); token != "" {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d claims won", won.Load())
	}
}
