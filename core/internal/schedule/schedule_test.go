package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/varal-go/varal/core/internal/schedule"
)

type item struct{ key, n int }

// TestKeysNeverOverlapAndKeepOrder drives the queue at random and checks, at each
// step, what a key may do: one started at a time, in the order of adding, and every
// delivery ends.
func TestKeysNeverOverlapAndKeepOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		drive(t, seed)
	}
}

type started struct {
	it   item
	lane *schedule.Lane[item]
}

func drive(t *testing.T, seed uint64) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 2))
	q := schedule.New[item]()
	added, ended := map[int]int{}, map[int]int{}
	var running, waiting []started
	next := func() {
		it, lane, ok := q.Next()
		if !ok {
			return
		}
		for _, r := range append(running, waiting...) {
			if r.it.key == it.key && r.it != it {
				t.Fatalf("seed %d: %v starts beside %v", seed, it, r.it)
			}
		}
		if it.n != ended[it.key]+1 {
			t.Fatalf("seed %d: key %d starts %d after %d", seed, it.key, it.n, ended[it.key])
		}
		running = append(running, started{it, lane})
	}
	for step := 0; step < 2000 || len(running)+len(waiting) > 0 || q.Len() > 0; step++ {
		switch op := rnd.IntN(10); {
		case op < 4 && step < 2000:
			key := rnd.IntN(7)
			added[key]++
			q.AddKeyed(fmt.Sprint(key), item{key, added[key]})
		case op < 7:
			next()
		case op < 9 && len(running) > 0:
			i := rnd.IntN(len(running))
			r := running[i]
			running = append(running[:i], running[i+1:]...)
			if rnd.IntN(4) == 0 {
				waiting = append(waiting, r) // failed: back-off
				break
			}
			ended[r.it.key]++
			q.Release(r.lane)
		case len(waiting) > 0:
			r := waiting[0]
			waiting = waiting[1:]
			q.Again(r.it, r.lane)
		}
	}
	for key, n := range added {
		if ended[key] != n {
			t.Fatalf("seed %d: key %d: %d of %d ended", seed, key, ended[key], n)
		}
	}
	if q.Lanes() != 0 {
		t.Fatalf("seed %d: %d lanes left with nothing in them", seed, q.Lanes())
	}
}

func TestUnorderedIsFIFO(t *testing.T) {
	t.Parallel()
	q := schedule.New[int]()
	for i := range 100 {
		q.Add(i)
	}
	for i := range 100 {
		if got, lane, ok := q.Next(); !ok || got != i || lane != nil {
			t.Fatalf("got %d %v %v, want %d", got, lane, ok, i)
		}
	}
	if _, _, ok := q.Next(); ok {
		t.Error("something started from an empty queue")
	}
}
