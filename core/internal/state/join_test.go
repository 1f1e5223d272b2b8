package state_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/varal-go/varal/core/internal/state"
)

// owner reads on from l.base with what known tells, as far as upTo, and completes some of
// what it has read. prefixes: in the order of each key.
func (l *log) owner(rnd *rand.Rand, known *state.Completed, upTo int64, prefixes bool) {
	blocked := map[string]bool{}
	stop := rnd.IntN(100)
	l.high = l.base - 1
	for i := range l.records {
		r := &l.records[i]
		if r.pos > upTo {
			break
		}
		l.high = r.pos
		if known.Done(r.pos, r.key, r.hasKey) {
			continue
		}
		free := !prefixes || !r.hasKey || !blocked[r.key]
		switch {
		case r.done: // and not told
		case free && rnd.IntN(100) >= stop:
			r.done, r.attempts, r.due = true, 0, 0
		case free && rnd.IntN(3) == 0:
			r.attempts++
			if rnd.IntN(2) == 0 {
				r.due = 1_800_000_000 + rnd.Int64N(1000)
			}
		}
		blocked[r.key] = blocked[r.key] || !r.done
	}
	l.commit()
}

// commit moves the position up to the first unfinished record.
func (l *log) commit() {
	for len(l.records) > 0 && l.records[0].pos <= l.high && l.records[0].done {
		l.base = l.records[0].pos + 1
		l.records = l.records[1:]
	}
	if len(l.records) > 0 && l.records[0].pos <= l.high {
		l.base = l.records[0].pos
	}
}

// seen is the log as its owner sees it: nothing behind what it has read.
func (l *log) seen(ordered bool, known *state.Completed) state.Snapshot {
	own := *l
	n, _ := slices.BinarySearchFunc(l.records, l.high+1, func(r record, p int64) int { return int(r.pos - p) })
	own.records = l.records[:n]
	s := own.snapshot(ordered)
	s.Known = known
	return s
}

// Each owner leaves before it has read as far as the one before, and what that one had
// told is told again, to the last record and attempt.
func TestWhatIsKnownFurtherUpIsToldAgain(t *testing.T) {
	t.Parallel()
	beyond, bodies := 0, map[byte]int{}
rounds:
	for round := range 1200 {
		rnd := rand.New(rand.NewPCG(uint64(round), 21))
		first := round%2 == 0
		second := first != (round%8 < 2) // an owner may keep another order than the one before
		l := randomLog(rnd, 2+rnd.IntN(300), true)
		end := l.high
		known, vector := &state.Completed{}, false
		if b := state.Encode(l.snapshot(first), noLimit); b != nil {
			known, vector = l.decode(t, b), b[2] == state.Vector
		}
		for range 3 {
			last := max(known.Last(), l.base)
			l.owner(rnd, known, l.base+rnd.Int64N(last-l.base+1), true)
			b := state.Encode(l.seen(second, known), noLimit)
			if l.high < known.Last() {
				beyond++
			}
			if vector && !second {
				continue rounds // see TestAnOwnerWithoutOrder
			}
			vector = len(b) > 2 && b[2] == state.Vector
			what := fmt.Sprintf("seed %d: base %d, read %d, known %d", round, l.base, l.high, known.Last())
			if b == nil {
				for _, r := range l.records {
					if a, _ := known.Attempts(r.pos); r.done || a > 0 {
						t.Fatalf("%s: nothing is told", what)
					}
				}
				known = &state.Completed{}
				continue
			}
			bodies[b[2]]++
			next, err := state.Decode(b, source, partition, l.base, end+1, keyFn)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for _, r := range l.records {
				if r.done != next.Done(r.pos, r.key, r.hasKey) {
					t.Fatalf("%s, body %d: record %d (%q, key %v) is done: %v", what, b[2], r.pos, r.key, r.hasKey, r.done)
				}
				if a, due := next.Attempts(r.pos); a != r.attempts || due != r.due {
					t.Fatalf("%s, body %d: record %d has %d attempts, due %d; want %d, %d", what, b[2], r.pos, a, due, r.attempts, r.due)
				}
			}
			known = next
		}
	}
	if beyond < 1500 || bodies[state.Vector] < 150 || bodies[state.Runs] < 150 {
		t.Errorf("%d states were of owners that had not read all, bodies %v", beyond, bodies)
	}
}

// An owner without order knows nothing of keys: what a vector tells further up is forgotten,
// which costs replays.
func TestAnOwnerWithoutOrder(t *testing.T) {
	t.Parallel()
	l := log{base: 10, high: 19}
	for i := range int64(10) {
		l.records = append(l.records, record{pos: 10 + i, hasKey: true, key: fmt.Sprint(i % 3), done: i%3 != 0})
	}
	known := l.decode(t, state.Build(l.snapshot(true), state.Vector, noLimit))
	for read := l.base - 1; read <= 19; read++ {
		l.high = read
		b := state.Encode(l.seen(false, known), noLimit)
		next, err := state.Decode(b, source, partition, l.base, 20, keyFn)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range l.records {
			if next.Done(r.pos, r.key, true) != (r.done && r.pos <= read) {
				t.Errorf("read up to %d: record %d is done: %v", read, r.pos, r.done)
			}
		}
	}
}

// A limit cuts, and what is left is true.
func TestAJoinedStateThatIsCutNeverLies(t *testing.T) {
	t.Parallel()
	cuts := 0
	for round := range 800 {
		rnd := rand.New(rand.NewPCG(uint64(round), 22))
		l := randomLog(rnd, 2+rnd.IntN(400), true)
		end := l.high
		b := state.Encode(l.snapshot(round%2 == 0), noLimit)
		if b == nil {
			continue
		}
		known := l.decode(t, b)
		l.owner(rnd, known, l.base+rnd.Int64N(known.Last()-l.base+1), true)
		s := l.seen(round%2 == 0, known)
		whole := state.Encode(s, noLimit)
		limit := 1 + rnd.IntN(len(whole)+20)
		b = state.Encode(s, limit)
		if len(b) > limit {
			t.Fatalf("seed %d: %d bytes, limit %d", round, len(b), limit)
		}
		if b == nil {
			continue
		}
		if len(b) < len(whole) {
			cuts++
		}
		next, err := state.Decode(b, source, partition, l.base, end+1, keyFn)
		if err != nil {
			t.Fatalf("seed %d: %v", round, err)
		}
		for _, r := range l.records {
			done := next.Done(r.pos, r.key, r.hasKey)
			if done && !r.done {
				t.Fatalf("seed %d: unfinished record %d would be skipped", round, r.pos)
			}
			if r.done && !done && r.pos <= next.High() {
				t.Fatalf("seed %d: record %d, below %d, is forgotten", round, r.pos, next.High())
			}
		}
	}
	if cuts < 120 {
		t.Errorf("only %d states were cut", cuts)
	}
}

// A forged run of any length costs no memory.
func TestAForgedRunIsNotTakenOverWhole(t *testing.T) {
	t.Parallel()
	forged := forge(state.Runs, byte(keyFn), uint64(1<<60), 1, 5<<1|1, uint64(1<<59), 0)
	known, err := state.Decode(forged, source, partition, 1000, 1<<61, keyFn)
	if err != nil {
		t.Fatal(err)
	}
	s := state.Snapshot{Source: source, Partition: partition, Base: 1000, High: 1002, KeyFn: keyFn, Known: known}
	next, err := state.Decode(state.Encode(s, noLimit), source, partition, 1000, 1<<61, keyFn)
	if err != nil || !next.Done(1004, "", false) || next.Done(1005, "", false) || next.High() > 1<<30 {
		t.Errorf("up to %d, %v", next.High(), err)
	}
}
