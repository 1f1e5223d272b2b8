package state_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/varal-go/varal/core/internal/state"
)

// record is what the model knows about one position that exists.
type record struct {
	pos      int64
	key      string
	hasKey   bool
	done     bool
	attempts int
	due      int64
}

// log is the naive model: every record with its truth.
type log struct {
	base, high int64
	records    []record
}

const (
	source    = "orders"
	partition = "7"
	keyFn     = 3
)

func (l log) snapshot(ordered bool) state.Snapshot {
	s := state.Snapshot{Source: source, Partition: partition, Base: l.base, High: l.high, KeyFn: keyFn, Ordered: ordered}
	for _, r := range l.records {
		if !r.done {
			s.Pending = append(s.Pending, state.Pending{Position: r.pos, Key: r.key, HasKey: r.hasKey, Attempts: r.attempts, Due: r.due})
		}
	}
	return s
}

// randomLog makes a log with gaps. prefixes: the completed records of a key come before
// its unfinished ones.
func randomLog(rnd *rand.Rand, n int, prefixes bool) log {
	l := log{base: rnd.Int64N(1 << uint(1+rnd.IntN(50)))}
	keys, unkeyed := 1+rnd.IntN(60), rnd.IntN(3)*rnd.IntN(40)
	gaps, stop, fail := rnd.IntN(40), rnd.IntN(100), rnd.IntN(60)
	blocked := map[string]bool{}
	pos := l.base
	for range n {
		r := record{pos: pos, done: rnd.IntN(100) >= stop}
		if rnd.IntN(100) >= unkeyed {
			r.hasKey, r.key = true, fmt.Sprint("k", rnd.IntN(keys))
			if prefixes && blocked[r.key] {
				r.done = false
			}
			blocked[r.key] = blocked[r.key] || !r.done
		}
		if !r.done && rnd.IntN(100) < fail {
			r.attempts = 1 + rnd.IntN(1<<uint(rnd.IntN(10)))
			if rnd.IntN(2) == 0 {
				r.due = 1_800_000_000 + rnd.Int64N(1000)
			}
		}
		l.records = append(l.records, r)
		l.high = pos
		pos++
		if rnd.IntN(100) < gaps {
			pos += rnd.Int64N(30)
		}
	}
	return l
}

// law fails the test where a record would be skipped that is not completed: the one
// thing a state must never do.
func (l log) law(t *testing.T, c *state.Completed) {
	t.Helper()
	for _, r := range l.records {
		if !r.done && c.Done(r.pos, r.key, r.hasKey) {
			t.Fatalf("unfinished record %d (base %d, high %d) would be skipped", r.pos, l.base, l.high)
		}
	}
	for i := range int64(5) {
		for _, pos := range []int64{l.base - 1 - i, l.high + 1 + i, c.High() + 1 + i} {
			if c.Done(pos, "k1", true) || c.Done(pos, "", false) {
				t.Fatalf("position %d, not spoken about, would be skipped (base %d, high %d)", pos, l.base, c.High())
			}
		}
	}
	if c.High() > l.high {
		t.Fatalf("High %d, nothing was admitted above %d", c.High(), l.high)
	}
}

// exact fails the test where the state forgot something up to its own High.
func (l log) exact(t *testing.T, c *state.Completed) {
	t.Helper()
	for _, r := range l.records {
		if r.pos > c.High() {
			return
		}
		if r.done && !c.Done(r.pos, r.key, r.hasKey) {
			t.Fatalf("completed record %d of [%d,%d] would be processed again", r.pos, l.base, c.High())
		}
		if a, due := c.Attempts(r.pos); a != r.attempts || due != r.due {
			t.Fatalf("record %d: %d attempts, due %d; want %d, %d", r.pos, a, due, r.attempts, r.due)
		}
	}
}

// lastDone is the last completed record, base-1 if there is none.
func (l log) lastDone() int64 {
	last := l.base - 1
	for _, r := range l.records {
		if r.done {
			last = r.pos
		}
	}
	return last
}

func (l log) anyFailed() bool {
	for _, r := range l.records {
		if r.attempts > 0 {
			return true
		}
	}
	return false
}

func (l log) decode(t *testing.T, b []byte) *state.Completed {
	t.Helper()
	c, err := state.Decode(b, source, partition, l.base, l.high+1, keyFn)
	if err != nil {
		t.Fatalf("decode of %x: %v", b, err)
	}
	return c
}

func reason(err error) state.Reason {
	var r state.Reason
	errors.As(err, &r)
	return r
}
