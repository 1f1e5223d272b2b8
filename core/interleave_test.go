package core_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/varal-go/varal/core/driver"
)

// search goes depth first through all schedules of a scope. Consumers cannot be copied,
// so each schedule begins anew: it repeats the prefix where it branches off, and goes on
// to its end or to a state that another one has been in.
type search struct {
	scope
	mu        sync.Mutex
	more      sync.Cond
	todo      [][]string // prefixes to go on from
	busy      int
	seen      map[uint64]struct{}
	schedules int
	steps     int
	overlaps  int
	strayed   map[string]int // prefixes that went another way
	found     []string       // violations, each with its schedule
	most      int            // schedules; 0 = all
	lanes     int            // schedules under way at once
}

func newSearch(sc scope) *search {
	s := &search{scope: sc, lanes: 2, seen: map[uint64]struct{}{}, strayed: map[string]int{}, todo: [][]string{nil}}
	s.more.L = &s.mu
	return s
}

// all runs the search to its end, or to the first violation.
func (s *search) all(t *testing.T) {
	var wg sync.WaitGroup
	for range s.lanes {
		wg.Go(func() {
			for prefix, ok := s.pop(); ok; prefix, ok = s.pop() {
				s.run(t, prefix)
				s.mu.Lock()
				s.busy--
				s.more.Broadcast()
				s.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func (s *search) pop() (prefix []string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.todo) == 0 && s.busy > 0 {
		s.more.Wait()
	}
	if len(s.todo) == 0 || len(s.found) > 0 || s.most > 0 && s.schedules >= s.most {
		return nil, false
	}
	last := len(s.todo) - 1
	prefix, s.todo = s.todo[last], s.todo[:last]
	s.busy++
	s.schedules++
	return prefix, true
}

// run goes through one schedule.
func (s *search) run(t *testing.T, prefix []string) {
	synctest.Test(t, func(t *testing.T) {
		w := newIlWorld(&s.scope)
		defer w.close()
		synctest.Wait()
		var path []string
		for {
			steps := w.steps()
			next := s.choose(w, steps, prefix, path)
			if next == nil {
				break
			}
			w.take(next)
			path = append(path, next.name)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.steps += len(path)
		s.overlaps += w.overlaps
		for _, bad := range w.bad {
			s.found = append(s.found, bad+"\n\t"+strings.Join(path, "\n\t"))
		}
	})
}

// choose returns the next step, nil at the end of the schedule.
func (s *search) choose(w *ilWorld, steps []step, prefix, path []string) *step {
	if len(w.bad) > 0 {
		return nil
	}
	if n := len(path); n < len(prefix) {
		for i := range steps {
			if steps[i].name == prefix[n] {
				return &steps[i]
			}
		}
		s.again(prefix)
		return nil
	}
	if w.complete() {
		return nil
	}
	if s.movable(steps) {
		w.idle = 0
	} else if w.idle >= 2 {
		w.violation("stuck: nothing can happen any more, and not all is done")
		return nil
	}
	key := w.fingerprint()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.seen[key]; ok || len(steps) == 0 {
		return nil
	}
	s.seen[key] = struct{}{}
	for i := len(steps) - 1; i > 0; i-- {
		s.todo = append(s.todo, append(path[:len(path):len(path)], steps[i].name))
	}
	return &steps[0]
}

// again puts a prefix back that this time went another way: two timers of the engine that
// end in the same instant race for what a commit holds.
func (s *search) again(prefix []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.schedules--
	key := strings.Join(prefix, "\n")
	if s.strayed[key]++; s.strayed[key] > maxStrayed {
		s.found = append(s.found, "the schedule does not repeat\n\t"+strings.Join(prefix, "\n\t"))
		return
	}
	s.todo = append(s.todo, prefix)
}

// maxStrayed is how often a prefix is tried.
const maxStrayed = 100

// movable: there is a step that is neither a disruption nor only time that passes.
func (s *search) movable(steps []step) bool {
	for i := range steps {
		if !steps[i].disrupts && steps[i].name != "tick" {
			return true
		}
	}
	return false
}

var (
	twoKeys  = [][]string{{"a", "b", "a", "b", "a", "b"}}
	twoParts = [][]string{{"a", "b", "a"}, {"c", "d", "c"}}
)

// TestEveryInterleaving goes through all schedules of small scopes: two keys with three
// messages each (or two partitions), two members, and so many disruptions, each wherever it
// may be. How far the other steps may come in another order than the usual one is bounded
// by delays. least is a little under what is there: which schedules end in a state that
// another has been in depends on which came first.
func TestEveryInterleaving(t *testing.T) {
	log := scope{mode: driver.UpTo, stateBytes: 512, parts: twoKeys, window: 4}
	bare, each, two := log, log, log
	bare.stateBytes, each.mode, two.parts = 0, driver.Each, twoParts
	for _, c := range []struct {
		name        string
		in          scope
		disruptions int
		fails       int
		delays      int
		short       bool // also with -short and -race
		least       int
	}{
		{"log with state, one disruption", log, 1, 1, 0, true, 700},
		{"log with state, two disruptions", log, 2, 1, 0, false, 16_000},
		{"log with state, two disruptions, other orders", log, 2, 0, 1, false, 22_000},
		{"log with state, one disruption, other orders", log, 1, 1, 1, false, 10_000},
		{"log with state, any order", log, 0, 0, anyOrder, false, 11_000},
		{"log, two disruptions", bare, 2, 0, 0, true, 950},
		{"log, two disruptions, other orders", bare, 2, 0, 1, false, 20_000},
		{"log, any order", bare, 0, 0, anyOrder, true, 1_400},
		{"each, two disruptions", each, 2, 0, 0, true, 1_600},
		{"each, two disruptions and a failure", each, 2, 1, 0, false, 18_000},
		{"each, two disruptions, other orders", each, 2, 0, 1, false, 28_000},
		{"each, any order", each, 0, 0, anyOrder, true, 2_000},
		{"two partitions, one disruption", two, 1, 1, 0, true, 900},
		{"two partitions, one disruption, other orders", two, 1, 1, 1, false, 16_000},
	} {
		if (raceEnabled || testing.Short()) && !c.short {
			continue
		}
		c.in.name, c.in.disruptions, c.in.fails, c.in.delays = c.name, c.disruptions, c.fails, c.delays
		t.Run(c.name, func(t *testing.T) {
			s := newSearch(c.in)
			s.all(t)
			for _, v := range s.found {
				t.Errorf("%s", v)
			}
			t.Logf("%d schedules, %d steps, %d states; %d lawful overlaps",
				s.schedules, s.steps, len(s.seen), s.overlaps)
			if s.schedules < c.least {
				t.Errorf("%d schedules; at least %d are in this scope", s.schedules, c.least)
			}
		})
	}
}
