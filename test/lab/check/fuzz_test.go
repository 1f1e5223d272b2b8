package check_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/plant"
)

// The order in which lines are read changes nothing.
func TestShuffledLinesChangeNothing(t *testing.T) {
	t.Parallel()
	for seed, bug := range []plant.Bug{plant.None, plant.Lost, plant.Overlapped, plant.DeadTwice, plant.CommitGap, plant.SlowCall} {
		m := plant.Make(plant.Options{Seed: uint64(seed), Bug: bug}) //nolint:gosec // small
		want := check.Run(m.History, params, check.All()...)
		r := rand.New(rand.NewPCG(1, uint64(seed))) //nolint:gosec // a schedule
		for range 5 {
			events := slices.Clone(m.History.Events)
			r.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
			if diff := same(want, check.Run(history.New(events), params, check.All()...)); diff != "" {
				t.Fatalf("%q: %s", bug, diff)
			}
		}
	}
}

// Any history: no panic (a panic would say inconclusive, "the checker failed"),
// and the same answer for the same events in another order.
func FuzzChecks(f *testing.F) {
	for seed := range uint64(3) {
		m := plant.Make(plant.Options{Seed: seed, Messages: 8})
		events := slices.DeleteFunc(m.History.Events, func(e history.Event) bool { return e.Op == history.OpTick })
		var b bytes.Buffer
		if err := history.Write(&b, events[:min(len(events), 60)]); err != nil { // short inputs fuzz well
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add([]byte(`{"t":-9223372036854775808,"op":"start","n":9223372036854775807,"key":"k","eps":-1,"attempt":-5,"position":"-1"}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var events []history.Event
		if _, err := history.Read(bytes.NewReader(data), func(e history.Event) error {
			events = append(events, e)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		reversed := slices.Clone(events)
		slices.Reverse(reversed)
		h := history.New(events)
		h.Problems = nil // judge it all the same
		for _, c := range check.All() {
			s := c.New(params)
			for i := range h.Events {
				s.Observe(&h.Events[i])
			}
			s.Result()
		}
		a := check.Run(history.New(slices.Clone(h.Events)), params, check.All()...)
		if diff := same(a, check.Run(history.New(reversed), params, check.All()...)); diff != "" {
			t.Fatal(diff)
		}
	})
}
