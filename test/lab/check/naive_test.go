package check_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// naive judges V1, V2 and V3 from their definitions: it looks at each pair of events,
// keeps nothing between two questions, and knows of causes only retries, publishes that
// may be stored twice, and kills. That is enough for the histories of small.
type naive struct{ h []history.Event }

func (n naive) is(i int, op history.Op, id string) bool { return n.h[i].Op == op && n.h[i].ID == id }

func same2(a, b *history.Event) bool { return a.Proc == b.Proc && a.Gen == b.Gen }

// killed tells when the process of event i was killed before event to.
func (n naive) killed(i, to int) (at int, ok bool) {
	for k := range to {
		if e := &n.h[k]; e.Op == history.OpFault && e.Dest == n.h[i].Proc && e.N == n.h[i].Gen {
			return k, true
		}
	}
	return 0, false
}

// endOf is the index at which the run that started at i ends, len(h) = never.
func (n naive) endOf(i int) int {
	for k := i + 1; k < len(n.h); k++ {
		e := &n.h[k]
		mine := same2(e, &n.h[i]) && e.ID == n.h[i].ID
		if mine && (e.Op == history.OpEnd || e.Op == history.OpStart) {
			return k
		}
		if e.Op == history.OpFault && e.Dest == n.h[i].Proc && e.N == n.h[i].Gen {
			return k
		}
	}
	return len(n.h)
}

func (n naive) v1() check.Outcome {
	starts := 0
	for i := range n.h {
		if n.h[i].Op != history.OpStart {
			continue
		}
		starts++
		if _, dead := n.killed(i, i); dead {
			continue
		}
		for j := i + 1; j < len(n.h) && j <= n.endOf(i); j++ {
			if n.h[j].Op == history.OpStart && n.h[j].Key == n.h[i].Key {
				return check.Broken
			}
		}
	}
	return held(starts)
}

func held(trials int) check.Outcome {
	if trials == 0 {
		return check.Inconclusive
	}
	return check.Held
}

// before is the last start of id before event i, -1 = none.
func (n naive) before(i int, id string) int {
	for k := i - 1; k >= 0; k-- {
		if n.is(k, history.OpStart, id) {
			return k
		}
	}
	return -1
}

// sent tells what was known of the publishes of id before event i.
func (n naive) sent(i int, id string) (state string, more bool) {
	pubs := 0
	for k := range i {
		switch {
		case n.is(k, history.OpPub, id):
			if pubs++; state != history.OK {
				state = "pending"
			}
		case n.is(k, history.OpPubd, id) && state != history.OK:
			state = n.h[k].Outcome
			more = more || state == history.Unknown
		case n.is(k, history.OpPubd, id):
			more = more || n.h[k].Outcome == history.Unknown
		}
	}
	return state, more || pubs > 1
}

// over tells whether id is terminal just before event i: done by who started it last, or
// dead-lettered, and not started since.
func (n naive) over(i int, id string) bool {
	last := n.before(i, id)
	from := max(last, 0)
	for k := from; k < i; k++ {
		if state, _ := n.sent(k, id); n.is(k, history.OpDead, id) && state != "" ||
			last >= 0 && n.is(k, history.OpEnd, id) && n.h[k].Outcome == history.OK && same2(&n.h[k], &n.h[last]) {
			return true
		}
	}
	return false
}

// outcome of the run that started at i, as of event to.
func (n naive) outcome(i, to int) (out string) {
	for k := i + 1; k < to; k++ {
		if n.is(k, history.OpEnd, n.h[i].ID) && same2(&n.h[k], &n.h[i]) {
			out = n.h[k].Outcome
		}
	}
	return out
}

// owed: the message with that id had to come before any later one: it has started before
// event i, or was or might be stored when the first later one started.
func (n naive) owed(i int, id, key string, num int) bool {
	if n.before(i, id) >= 0 {
		return true
	}
	for k := range len(n.h) {
		if e := &n.h[k]; e.Op == history.OpStart && e.Key == key && e.N > num {
			state, _ := n.sent(k, id)
			return state == history.OK || state == "pending"
		}
	}
	return false
}

func (n naive) v2() check.Outcome {
	starts, many := 0, false
	for i := range n.h {
		e := &n.h[i]
		if e.Op != history.OpStart && e.Op != history.OpEnd {
			continue
		}
		if state, _ := n.sent(i, e.ID); e.Op == history.OpStart && state != "" {
			starts++
		}
		many = many || e.Op == history.OpStart && e.N > 1
		if n.passed(i) || n.rewound(i) {
			return check.Broken
		}
	}
	if !many {
		starts = 0
	}
	return held(starts)
}

// passed: event i shows a message alive that a later one has passed.
func (n naive) passed(i int) bool {
	e := &n.h[i]
	if state, _ := n.sent(len(n.h), e.ID); state != history.OK || n.over(i, e.ID) {
		return false
	}
	last := n.before(i, e.ID)
	if e.Op == history.OpEnd && (last < 0 || !same2(e, &n.h[last])) {
		return false // of an owner that lost it
	}
	if e.Op == history.OpEnd {
		if state, _ := n.sent(i, e.ID); state == "" {
			return false // it was not published yet: its end can't be placed
		}
	}
	if e.Op == history.OpStart && last >= 0 && n.outcome(last, i) == history.Fail {
		if _, dead := n.killed(last, i); dead {
			return false // it may have been dead-lettered before the crash
		}
	}
	for k := last + 1; k < i; k++ {
		if s := &n.h[k]; s.Op == history.OpStart && s.Key == e.Key && s.N > e.N && n.owed(k, e.ID, e.Key, e.N) && !n.over(k, e.ID) {
			return true
		}
	}
	return false
}

// rewound: event i starts a terminal message without a cause, or out of sequence.
func (n naive) rewound(i int) bool {
	e := &n.h[i]
	last := n.before(i, e.ID)
	if e.Op != history.OpStart || last < 0 || !n.over(i, e.ID) {
		return false
	}
	if out := n.outcome(last, i); out == history.Fail || out == history.Cancelled {
		return false
	}
	at, dead := n.killed(last, i)
	if !dead {
		_, more := n.sent(i, e.ID)
		return !more
	}
	for k := i - 1; k >= 0; k-- {
		if s := &n.h[k]; s.Op == history.OpStart && s.Key == e.Key { // the latest of the key
			return e.N < s.N && same2(s, e) && at < k && !same2(&n.h[last], s)
		}
	}
	return false
}

func (n naive) v3() check.Outcome {
	owed, missing, twice := 0, 0, 0
	drained := false
	for i := range n.h {
		drained = drained || n.h[i].Op == history.OpDrained && n.h[i].Outcome == history.OK
	}
	for _, id := range n.ids() {
		state, again := n.sent(len(n.h), id)
		if state != history.OK {
			continue
		}
		owed++
		done, dead := false, false
		var prev *history.Event
		for i := range n.h {
			switch e := &n.h[i]; {
			case n.is(i, history.OpStart, id):
				again = again || done || dead || prev != nil && !same2(prev, e)
				prev = e
			case n.is(i, history.OpEnd, id):
				done = done || e.Outcome == history.OK
			case n.is(i, history.OpDead, id):
				dead = true
			}
		}
		if !done && !dead {
			missing++
		}
		if done && dead && !again {
			twice++
		}
	}
	switch {
	case twice > 0, missing > 0 && drained:
		return check.Broken
	case missing > 0:
		return check.Inconclusive
	}
	return held(owed)
}

func (n naive) ids() (out []string) {
	seen := map[string]bool{}
	for i := range n.h {
		if id := n.h[i].ID; id != "" && !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}

// small makes a history of at most so many events: mostly sensible, often wrong.
func small(r *rand.Rand, most int) []history.Event {
	var h []history.Event
	type at struct {
		id, key string
		n       int
	}
	var all []at
	next := map[string]int{}
	gen := map[string]int{"a": 1, "b": 1}
	emit := func(e history.Event) {
		e.T = int64(len(h)+1) * 1000
		h = append(h, e)
	}
	about := func(m at, op history.Op, proc string) history.Event {
		return history.Event{Op: op, ID: m.id, Key: m.key, N: m.n, Proc: proc, Gen: max(gen[proc], 1)}
	}
	var running []history.Event
	for range 4 + r.IntN(most-4) {
		k := r.IntN(20)
		proc := string(rune('a' + r.IntN(2)))
		switch {
		case k < 5 || len(all) == 0:
			m := at{key: "k" + strconv.Itoa(r.IntN(2)), id: "p." + strconv.Itoa(len(all)+1)}
			next[m.key]++
			m.n = next[m.key]
			all = append(all, m)
			emit(about(m, history.OpPub, "p"))
			e := about(m, history.OpPubd, "p")
			if e.Outcome = history.OK; r.IntN(8) == 0 {
				e.Outcome = []string{history.Unknown, history.Rejected}[r.IntN(2)]
			}
			if r.IntN(10) > 0 {
				emit(e)
			}
		case k < 12:
			e := about(all[r.IntN(len(all))], history.OpStart, proc)
			emit(e)
			running = append(running, e)
		case k < 18 && len(running) > 0:
			i := r.IntN(len(running))
			e := running[i]
			if r.IntN(10) > 0 {
				running = append(running[:i:i], running[i+1:]...)
			}
			e.Op, e.Outcome = history.OpEnd, []string{history.OK, history.OK, history.OK, history.Fail, history.Cancelled}[r.IntN(5)]
			emit(e)
		case k == 18:
			emit(about(all[r.IntN(len(all))], history.OpDead, "dlq"))
		case k == 19 && r.IntN(2) == 0:
			emit(history.Event{Op: history.OpFault, Outcome: history.FaultKill, Proc: "lab", Gen: 1, Dest: proc, N: gen[proc]})
			running = slices.DeleteFunc(running, func(e history.Event) bool { return e.Proc == proc })
			gen[proc]++
		}
	}
	if r.IntN(3) > 0 {
		emit(history.Event{Op: history.OpDrained, Outcome: history.OK, Proc: "lab", Gen: 1})
	}
	return h
}

// The checks, which stream, and the definitions, which look at pairs, say the same of
// every small history.
func TestChecksAgreeWithTheirDefinitions(t *testing.T) {
	t.Parallel()
	tally := map[string]int{}
	for seed := range seeds(5_000) {
		events := small(rand.New(rand.NewPCG(seed, 9)), 24)
		h := history.New(events)
		n := naive{h.Events}
		for id, want := range map[string]check.Outcome{"V1": n.v1(), "V2": n.v2(), "V3": n.v3()} {
			got := check.Named(id)[0].Fn(h, check.Params{})
			tally[id+" "+want.String()]++
			if got.Outcome == want {
				continue
			}
			t.Errorf("seed %d: %s says %s (%s), its definition %s", seed, id, got.Outcome, got.Why, want)
			for i := range h.Events {
				t.Logf("  %2d %s", i, brief(&h.Events[i]))
			}
			return
		}
	}
	t.Log(tally)
	for _, id := range []string{"V1", "V2", "V3"} {
		for _, o := range []check.Outcome{check.Held, check.Broken} {
			if tally[id+" "+o.String()] < 50 {
				t.Errorf("%s was %s in %d histories only: the comparison shows little", id, o, tally[id+" "+o.String()])
			}
		}
	}
}

func brief(e *history.Event) string {
	return fmt.Sprintf("%s/%d %s %s %s#%d %s %s", e.Proc, e.Gen, e.Op, e.ID, e.Key, e.N, e.Outcome, e.Dest)
}
