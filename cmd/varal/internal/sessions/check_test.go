package sessions_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/cmd/varal/internal/sessions"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type event = sessions.Event

// once is a message that succeeds at the first attempt, for each number.
func once(numbers ...uint32) (out []event) {
	for _, n := range numbers {
		out = append(out, event{"start", n}, event{"end", n})
	}
	return out
}

func TestPlantedViolationsAreCaught(t *testing.T) {
	t.Parallel()
	start := func(n uint32) event { return event{"start", n} }
	fail := func(n uint32) event { return event{"fail", n} }
	end := func(n uint32) event { return event{"end", n} }
	revoke := event{Kind: "revoke"}
	for _, c := range []struct {
		name                         string
		handed                       uint32
		events                       []event
		violations, lost, duplicates int64
	}{
		{"in order", 3, once(1, 2, 3), 0, 0, 0},
		{"retries in order", 2, []event{start(1), fail(1), start(1), fail(1), start(1), end(1), start(2), end(2)}, 0, 0, 0},
		{"nothing", 0, nil, 0, 0, 0},
		{"swap", 4, once(1, 3, 2, 4), 1, 0, 0},
		{"swap of the first", 2, once(2, 1), 1, 0, 0},
		{"two swaps", 6, once(2, 1, 3, 5, 4, 6), 2, 0, 0},
		{"one from far behind", 5, once(1, 5, 2, 3, 4), 3, 0, 0},
		{"skip", 4, once(1, 3, 4), 1, 1, 0},
		{"the last is missing", 4, once(1, 2, 3), 0, 1, 0},
		{"nothing came", 3, nil, 0, 3, 0},
		{"failed and never tried again", 2, []event{start(1), end(1), start(2), fail(2)}, 0, 1, 0},
		{"overtaken in its back-off", 2, []event{start(1), fail(1), start(2), end(2), start(1), end(1)}, 1, 0, 0},
		{"overlap of neighbours", 2, []event{start(1), start(2), end(1), end(2)}, 2, 0, 0}, // overlap, and 1 was overtaken
		{"overlap of one message", 1, []event{start(1), start(1), end(1), end(1)}, 1, 0, 1},
		{"duplicate", 2, once(1, 1, 2), 1, 0, 1},
		{"late duplicate", 3, once(1, 2, 3, 1), 1, 0, 1},
		{"duplicates", 2, once(1, 1, 1, 2), 2, 0, 2},
		{"rewind after a revoke", 3, slices.Concat(once(1, 2), []event{revoke}, once(1, 2, 3)), 0, 0, 2},
		{"rewind with a retry", 3, slices.Concat(once(1, 2), []event{revoke, start(1), fail(1)}, once(1, 2, 3)), 0, 0, 2},
		{"rewind that jumps", 4, slices.Concat(once(1, 2, 3), []event{revoke}, once(1, 3, 4)), 1, 0, 2},
		{"two rewinds for one revoke", 3, slices.Concat(once(1, 2, 3), []event{revoke}, once(2, 3), once(2, 3)), 1, 0, 4},
		{"two revokes", 3, slices.Concat(once(1, 2, 3), []event{revoke}, once(2, 3), []event{revoke}, once(2, 3)), 0, 0, 4},
		{"a revoke excuses no overtaking", 3, slices.Concat(once(1), []event{revoke}, once(3, 2)), 1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v, l, d := sessions.Examine(c.handed, c.events...)
			if v != c.violations || l != c.lost || d != c.duplicates {
				t.Errorf("violations %d, lost %d, duplicates %d; want %d, %d, %d", v, l, d, c.violations, c.lost, c.duplicates)
			}
		})
	}
}

// TestTheTwoChecksAgree: what one finds while a random history happens, the other finds
// in its log, and a history in order is clean for both.
func TestTheTwoChecksAgree(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var order []uint32
		for n := uint32(1); n <= 12; n++ {
			order = append(order, n)
		}
		swaps := r.IntN(3)
		for range swaps {
			i := r.IntN(len(order) - 1)
			order[i], order[i+1] = order[i+1], order[i]
		}
		var events []event
		for _, n := range order {
			for r.IntN(4) == 0 {
				events = append(events, event{"start", n}, event{"fail", n})
			}
			events = append(events, event{"start", n}, event{"end", n})
		}
		v, lost, dup := sessions.Examine(12, events...)
		overlaps, overtaken := sessions.Judged(12, events...)
		if v != overtaken || overlaps != 0 || lost != 0 || dup != 0 || slices.IsSorted(order) != (v == 0) {
			t.Fatalf("seed %d, %v: %d violations, %d overtaken, %d overlaps, %d lost, %d duplicates", seed, order, v, overtaken, overlaps, lost, dup)
		}
	}
}
