package all_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/conformance"
	"github.com/varal-go/varal/test/conformance/mutant"
)

// trialHarness is memory with short waits: a mutant that loses messages costs the
// whole patience of each case that looks for them.
func trialHarness(wrap func(driver.Driver) driver.Driver) conformance.Harness {
	h := memoryHarness(wrap)
	h.Patience = 6 * time.Second
	h.Parallel = 24
	return h
}

// TestMutants runs cases against adapters that are broken on purpose: each must be
// caught, and a case that caught none is named. VARAL_MUTANTS selects mutants by id
// (comma-separated), VARAL_MUTANT_CASES=all tries every case on each.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("short: the mutants take minutes")
	}
	all := chosen(mutant.All())
	control := controlRun(t, all)
	caught := trials(t, all, control, 10)
	missed := slices.DeleteFunc(slices.Clone(all), func(m mutant.Mutant) bool { return len(caught[m.ID]) > 0 })
	// One that needs a moment of its own may find none beside nine others, and a case that
	// failed in the control run because the machine was busy may judge here.
	for id, by := range trials(t, missed, nil, 1) {
		caught[id] = by
	}
	for _, m := range missed {
		if len(caught[m.ID]) == 0 {
			t.Errorf("mutant %s (%s) was caught by none of %v", m.ID, m.What, tries(m))
		}
	}
	record(t, all, caught)
}

// trials runs the cases of each mutant, so many mutants beside each other, and returns
// which cases caught it.
func trials(t *testing.T, mutants []mutant.Mutant, control map[string]bool, parallel int) map[string][]string {
	var mu sync.Mutex
	caught := map[string][]string{}
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for _, m := range mutants {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var by []string
			for _, r := range conformance.Trial(t, trialHarness(m.Wrap), tries(m)...) {
				if r.Outcome == conformance.Fail && !control[r.ID] {
					by = append(by, r.ID)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			caught[m.ID] = by
			if testing.Verbose() {
				fmt.Printf("mutant %-26s tried %v, caught by %v\n", m.ID, tries(m), by)
			}
		})
	}
	wg.Wait()
	return caught
}

func chosen(all []mutant.Mutant) []mutant.Mutant {
	ids := os.Getenv("VARAL_MUTANTS")
	if ids == "" {
		return all
	}
	return slices.DeleteFunc(all, func(m mutant.Mutant) bool { return !slices.Contains(strings.Split(ids, ","), m.ID) })
}

func tries(m mutant.Mutant) []string {
	if os.Getenv("VARAL_MUTANT_CASES") != "all" {
		return m.Try
	}
	var ids []string
	for _, c := range conformance.Cases() {
		ids = append(ids, c.ID)
	}
	return ids
}

// controlRun tries the same cases on the adapter as it is: one that fails there, on a
// machine too slow for its waits, proves nothing about a mutant. So it gets a second try,
// by itself, and what fails then is a fault of the case or of the adapter.
func controlRun(t *testing.T, all []mutant.Mutant) map[string]bool {
	var ids []string
	for _, m := range all {
		ids = append(ids, tries(m)...)
	}
	out := map[string]bool{}
	for _, first := range conformance.Trial(t, trialHarness(nil), ids...) {
		if first.Outcome != conformance.Fail {
			continue
		}
		out[first.ID] = true // beside the mutants it may fail as well
		for _, r := range conformance.Trial(t, trialHarness(nil), first.ID) {
			if r.Outcome == conformance.Fail {
				t.Errorf("%s fails without a mutant:\n%s", r.ID, r.Log())
			}
		}
	}
	return out
}

// record prints mutant × case and stores it in the score card.
func record(t *testing.T, all []mutant.Mutant, caught map[string][]string) {
	proven := map[string]bool{}
	var results []conformance.MutantResult
	var b strings.Builder
	for _, m := range all {
		by := caught[m.ID]
		for _, id := range by {
			proven[id] = true
		}
		results = append(results, conformance.MutantResult{ID: m.ID, CaughtBy: by})
		fmt.Fprintf(&b, "  %-26s %-34s %s\n", m.ID, strings.Join(by, " "), m.What)
	}
	var unproven []string
	for _, c := range conformance.Cases() {
		if !proven[c.ID] {
			unproven = append(unproven, c.ID)
		}
	}
	t.Logf("\n%d mutants, caught by:\n%sunproven cases (caught no mutant): %v", len(all), b.String(), unproven)
	if os.Getenv("VARAL_MUTANTS") != "" || t.Failed() {
		return // a part, or a run that is wrong, is no record
	}
	if err := conformance.Update(func(s *conformance.Scorecard) { s.Mutants, s.Unproven = results, unproven }); err != nil {
		t.Error(err)
	}
}
