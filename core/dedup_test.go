package core_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
)

func TestMemoryDedupHasTwoStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, ctx := core.NewMemoryDedup(0), t.Context()
		claim := func(id string) (string, core.ClaimState) {
			token, state, err := s.Claim(ctx, id, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			return token, state
		}
		token, state := claim("a")
		if state != core.Claimed {
			t.Fatalf("first claim: %d", state)
		}
		if _, state := claim("a"); state != core.Busy {
			t.Errorf("second claim while the first runs: %d", state)
		}
		if err := s.Release(ctx, "a", "not the token"); !errors.Is(err, core.ErrLeaseLost) {
			t.Errorf("release with a wrong token: %v", err)
		}
		if err := s.Release(ctx, "a", token); err != nil {
			t.Fatal(err)
		}
		// A failed handler is no duplicate: the id can be claimed again.
		token, state = claim("a")
		if state != core.Claimed {
			t.Fatalf("claim after a failure: %d", state)
		}
		time.Sleep(2 * time.Minute)
		later, state := claim("a") // the lease ran out
		if state != core.Claimed {
			t.Fatalf("claim after the lease: %d", state)
		}
		if err := s.Done(ctx, "a", token, time.Hour); !errors.Is(err, core.ErrLeaseLost) {
			t.Errorf("done with the old token: %v", err)
		}
		if err := s.Done(ctx, "a", later, time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, state := claim("a"); state != core.Handled {
			t.Errorf("claim of what is done: %d", state)
		}
		if err := s.Release(ctx, "a", later); !errors.Is(err, core.ErrLeaseLost) {
			t.Errorf("release of what is done: %v", err)
		}
		time.Sleep(2 * time.Hour)
		if _, state := claim("a"); state != core.Claimed {
			t.Errorf("claim after the window: %d", state)
		}
	})
}

func TestMemoryDedupIsBounded(t *testing.T) {
	t.Parallel()
	s := core.NewMemoryDedup(10)
	for i := range 100 {
		token, _, _ := s.Claim(t.Context(), fmt.Sprint(i), time.Hour)
		if err := s.Done(t.Context(), fmt.Sprint(i), token, time.Duration(i+1)*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	handled := 0
	for i := range 100 {
		if _, state, _ := s.Claim(t.Context(), fmt.Sprint(i), time.Nanosecond); state == core.Handled {
			handled++
		}
	}
	if handled > 10 {
		t.Errorf("%d ids kept, the limit is 10", handled)
	}
}

func TestMemoryDedupGivesAnIDToOne(t *testing.T) {
	t.Parallel()
	s := core.NewMemoryDedup(0)
	var won atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, state, _ := s.Claim(t.Context(), "a", time.Hour); state == core.Claimed {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d claims won", won.Load())
	}
}
