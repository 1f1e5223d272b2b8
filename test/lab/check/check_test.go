package check_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/plant"
)

var params = check.Params{
	Groups: []string{plant.Group}, Attempts: plant.MaxAttempts, InFlight: plant.InFlight, BrokerInFlight: 3 * plant.InFlight,
}

// seeds is how many seeds a test tries: all of them, fewer in a short run.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return n / 5
	}
	return n
}

func outcomes(rs map[string]check.Result, o check.Outcome) []string {
	var out []string
	for id, r := range rs {
		if r.Outcome == o {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func dump(t *testing.T, h *history.History, r check.Result) {
	t.Helper()
	for _, i := range r.Witness {
		t.Logf("  %d %+v", i, h.Events[i])
	}
}

// Legal but ugly histories: nothing is broken in any seed, and nothing is vacuous.
func TestCleanControlsStayHeld(t *testing.T) {
	t.Parallel()
	for seed := range seeds(200) {
		m := plant.Make(plant.Options{Seed: seed, Messages: 200, Calm: seed%10 == 9})
		results := check.Run(m.History, params, check.All()...)
		for _, id := range slices.Sorted(maps.Keys(results)) {
			r := results[id]
			if r.Outcome == check.Held || id == "V6" && r.Outcome == check.Inconclusive {
				continue
			}
			t.Errorf("seed %d: %s is %s: %s (problems %v)", seed, id, r.Outcome, r.Why, m.History.Problems)
			dump(t, m.History, r)
		}
		if t.Failed() {
			return
		}
	}
}

// caught names the checks that must catch a bug, and those that may as well.
var caught = []struct {
	bug       plant.Bug
	must, may []string
	calm      bool
}{
	// A slot that is free too early is filled too early, and what its holder still
	// runs after it was lost is passed by the next.
	{bug: plant.EarlyAck, must: []string{"I1", "V3", "V4"}, may: []string{"I4", "I9", "V2"}},
	{bug: plant.Lost, must: []string{"I1", "V3"}},
	{bug: plant.UnknownAsOK, must: []string{"I1", "V3"}},
	{bug: plant.RejectedStored, must: []string{"I3"}},
	{bug: plant.Phantom, must: []string{"I2"}},
	{bug: plant.Corrupted, must: []string{"I2"}},
	{bug: plant.OtherKey, must: []string{"I2"}, may: []string{"I7", "V2"}}, // under its own key it is missing
	{bug: plant.Swapped, must: []string{"I7", "V2"}, may: []string{"V6"}, calm: true},
	{bug: plant.Overtaken, must: []string{"V2"}, calm: true},
	{bug: plant.Overlapped, must: []string{"V1", "V2"}, may: []string{"I6"}, calm: true},                           // two owners, one settles
	{bug: plant.Stolen, must: []string{"I4", "V1"}, may: []string{"I10.dead", "I6", "V2", "V3", "V5"}, calm: true}, // done there, retried here
	{bug: plant.RewindScrambled, must: []string{"V2"}},
	{bug: plant.Repeated, must: []string{"I4", "V5"}, calm: true},
	{bug: plant.RevokeNoCommit, must: []string{"V5"}},
	{bug: plant.DoubleSettle, must: []string{"I6"}},
	{bug: plant.StaleSettle, must: []string{"I6"}},
	{bug: plant.AttemptsReset, must: []string{"I10"}},
	{bug: plant.AttemptsBeyond, must: []string{"I10"}},
	{bug: plant.DeadTwice, must: []string{"I10.dead"}},
	{bug: plant.DeadEarly, must: []string{"I10.dead"}, may: []string{"V2"}}, // a crash brings it back behind others
	{bug: plant.DeadSwapped, must: []string{"V6"}},
	{bug: plant.DoneAndDead, must: []string{"V3", "I10.dead"}},
	{bug: plant.OverLimit, must: []string{"I9"}},
	{bug: plant.CommitGap, must: []string{"V4"}},
	{bug: plant.CommitAhead, must: []string{"V4"}},
	{bug: plant.LateCommit, must: []string{"V4"}},
	{bug: plant.Leak, must: []string{"V7"}},
	{bug: plant.SlowCall, must: []string{"I12"}},
}

// Every planted bug is caught in 20 of 20 seeds, by the named checks and no other. The
// histories are short: one that gives a bug few occasions is the harder one to catch it
// in.
func TestPlantedBugsAreCaught(t *testing.T) {
	t.Parallel()
	named := map[string]bool{}
	for _, c := range caught {
		for _, id := range c.must {
			named[id] = true
		}
		t.Run(string(c.bug), func(t *testing.T) {
			t.Parallel()
			played := uint64(0)
			for seed := uint64(1000); played < seeds(20); seed++ {
				m := plant.Make(plant.Options{Seed: seed, Messages: 200, Bug: c.bug, Calm: c.calm})
				if m.Planted == 0 { // this walk gave the bug no occasion
					if seed > 1100 {
						t.Fatalf("only %d of 100 seeds gave the bug an occasion", played)
					}
					continue
				}
				played++
				rs := check.Run(m.History, params, check.All()...)
				broken := outcomes(rs, check.Broken)
				for _, id := range c.must {
					if !slices.Contains(broken, id) {
						t.Errorf("seed %d: planted %d times, %s says %s: %s", seed, m.Planted, id, rs[id].Outcome, rs[id].Why)
					} else if len(rs[id].Witness) == 0 {
						t.Errorf("seed %d: %s accuses without a witness", seed, id)
					}
				}
				for _, id := range broken {
					if !slices.Contains(c.must, id) && !slices.Contains(c.may, id) {
						t.Errorf("seed %d: %s also says broken: %s", seed, id, rs[id].Why)
						dump(t, m.History, rs[id])
					}
				}
			}
		})
	}
	for _, c := range check.All() {
		if !named[c.ID] {
			t.Errorf("no planted bug for %s: it proves nothing", c.ID)
		}
		if c.Rule == "" {
			t.Errorf("%s has no rule", c.ID)
		}
	}
}

// Bugs of the lab itself give inconclusive, never held or broken.
func TestUnsoundHistoriesAreInconclusive(t *testing.T) {
	t.Parallel()
	for _, bug := range []plant.Bug{plant.LinesMissing, plant.TailMissing, plant.ClockJumped} {
		for seed := range seeds(20) {
			m := plant.Make(plant.Options{Seed: seed, Messages: 200, Bug: bug})
			rs := check.Run(m.History, params, check.All()...)
			if got := len(outcomes(rs, check.Inconclusive)); got != len(rs) {
				t.Errorf("%s, seed %d: only %d of %d inconclusive", bug, seed, got, len(rs))
			}
		}
	}
	for seed := range seeds(20) {
		m := plant.Make(plant.Options{Seed: seed, Messages: 200, Bug: plant.DrainShort})
		rs := check.Run(m.History, params, check.All()...)
		if rs["I1"].Outcome != check.Inconclusive || rs["V3"].Outcome != check.Inconclusive {
			t.Errorf("drain ended early, seed %d: I1 %s, V3 %s", seed, rs["I1"].Outcome, rs["V3"].Outcome)
		}
		m = plant.Make(plant.Options{Seed: seed, Messages: 200, Bug: plant.Stalled})
		if rs = check.Run(m.History, params, check.All()...); rs["I12"].Outcome == check.Broken {
			t.Errorf("machine stalled, seed %d: I12 %s", seed, rs["I12"].Outcome)
		}
	}
}

func TestEmptyHistoryIsInconclusive(t *testing.T) {
	t.Parallel()
	for id, r := range check.Run(history.New(nil), params, check.All()...) {
		if r.Outcome != check.Inconclusive || r.Why == "" {
			t.Errorf("%s says %s (%q) of nothing", id, r.Outcome, r.Why)
		}
	}
}

func same(a, b map[string]check.Result) string {
	for id := range a {
		if fmt.Sprint(a[id]) != fmt.Sprint(b[id]) {
			return fmt.Sprintf("%s: %v, then %v", id, a[id], b[id])
		}
	}
	return ""
}
