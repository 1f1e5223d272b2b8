//go:build unix

package faults

import (
	"testing"
	"time"

	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/internal/brokers"
	"github.com/varal-go/varal/test/lab/history"
)

const slots = 8

// testTerm: SIGTERM while every slot is inside a handler of 1.5 s. All of them finish
// and settle, the rest goes to the other process, nothing runs twice.
func testTerm(t *testing.T, r brokers.Report, keyed bool) {
	s := newScene(t, r, keyed)
	const drain = 5 * time.Second
	// Enough in flight that the slots fill whatever the keys: a shard gets its share of the
	// prefetch, and messages of one key wait for each other.
	a := consumerArgs{Hold: 1500 * time.Millisecond, Concurrency: slots, Prefetch: 8 * slots, Drain: drain}
	c1 := s.consumer("c1", a)
	s.consumer("c2", a)
	s.publisher("p1", publisherArgs{Keys: 32, Rate: 100, Count: 64})
	s.full("c1", slots)
	began := time.Now()
	if err := c1.Term(); err != nil {
		t.Fatal(err)
	}
	code, err := c1.Wait(drain + 10*time.Second)
	took := time.Since(began)
	if err != nil || code != chaos.ExitOK {
		t.Errorf("exit code %d, %v", code, err)
	}
	s.within("exit after SIGTERM with full slots", took, drain+time.Second)
	s.drain(40 * time.Second)
	s.once(s.judge("V5"))
}

// full waits until so many handlers run at one process.
func (s *scene) full(name string, n int) {
	s.t.Helper()
	running := 0
	s.await("full slots at "+name, 30*time.Second, func(e *history.Event) bool {
		if e.Proc == name && e.Op == history.OpStart {
			running++
		}
		if e.Proc == name && e.Op == history.OpEnd {
			running--
		}
		return running == n
	})
}

// once fails if a message was started twice, whatever explains it.
func (s *scene) once(h *history.History) {
	s.t.Helper()
	starts := map[string]int{}
	twice := 0
	for i := range h.Events {
		if e := &h.Events[i]; e.Op == history.OpStart {
			if starts[e.ID]++; starts[e.ID] == 2 {
				twice++
				s.t.Errorf("%s was handled twice; the second time by %s", e.ID, e.Proc)
			}
		}
	}
	s.t.Logf("measured: %d messages handled, %d twice", len(starts), twice)
}
