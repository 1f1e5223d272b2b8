package core_test

import (
	"strings"
	"testing"

	"github.com/varal-go/varal/core/driver"
)

// TestEveryPlantedBugIsFound: a search that finds nothing may be one that cannot. Each of
// these is planted where it belongs, in the adapter, the broker or the policy, and is
// found by the check that it is about, or by one that comes before.
func TestEveryPlantedBugIsFound(t *testing.T) {
	log := scope{mode: driver.UpTo, stateBytes: 512, parts: twoKeys, disruptions: 2, fails: 1, window: 4, delays: 1}
	const unsaid = "a clean hand-over does not say so"
	bare := log
	bare.stateBytes = 0
	each := scope{mode: driver.Each, parts: twoKeys, disruptions: 2, fails: 1, window: 4, delays: 1}
	for _, c := range []struct {
		bug  string
		in   scope
		want string
	}{
		{"commit the highest", bare, "W1"},
		{"state claims too much", log, "the state beside"},
		{"state forgotten", log, "the commit said it was done"},
		{"order swapped", log, "O2"},
		{"order swapped", each, "O2"},
		{"no order", log, "O1"},
		{"no order", each, "O1"},
		{"revoke without drain", log, unsaid},
		{"revoke without drain", bare, "after its revoke"},
		{"revoke without drain", each, unsaid},
		{"revoke unheard", log, unsaid},
		{"revoke unheard", bare, "revoke had returned"},
		{"revoke unheard", each, "W3"},
		{"no fence", log, "W3"},
		{"no fence", each, "W3"},
		{"early ack", each, "never handled"},
	} {
		c.in.name, c.in.bug = c.bug, c.bug
		t.Run(c.bug+", "+c.in.mode.String(), func(t *testing.T) {
			s := newSearch(c.in)
			s.most, s.lanes = 20_000, 1 // one after the other: the first one found is always the same
			s.all(t)
			if len(s.found) == 0 {
				t.Fatalf("not found in %d schedules", s.schedules)
			}
			what, path, _ := strings.Cut(s.found[0], "\n")
			t.Logf("found after %d schedules, in %d steps: %s", s.schedules, strings.Count(path, "\n")+1, what)
			if !strings.Contains(what, c.want) {
				t.Errorf("found %q, want something about %q", what, c.want)
			}
		})
	}
}
