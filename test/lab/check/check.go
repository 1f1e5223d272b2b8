// Package check judges a history: pure functions from events to held, broken or
// inconclusive. The checks are those of the reliability invariants (I1 no loss …)
// and of the session oracle (V1–V7), and exist once: chaos tests, session tests,
// the lab and the soak all use these.
//
// Each check is a stream: it sees the events once, in the order of time, and keeps
// a few bytes per message and some hundred per key or running message, so that a
// soak of tens of millions of messages can be judged. Two events of different
// processes whose clock intervals touch are concurrent and accuse nobody
// ([history.Before]).
//
// A check that met none of its preconditions says inconclusive, never held. The
// causes that explain a second delivery are listed at [Cause].
package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/varal-go/varal/test/lab/history"
)

// Outcome of a check. The zero Outcome is Inconclusive.
type Outcome uint8

// The outcomes.
const (
	Inconclusive Outcome = iota // nothing may be concluded: Why tells
	Held                        // not broken in so many trials
	Broken                      // Witness shows it
)

// String returns the outcome in lower case.
func (o Outcome) String() string {
	return [...]string{"inconclusive", "held", "broken"}[min(o, Broken)]
}

// MarshalText writes the outcome's name.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Trials counts what a check put at risk.
type Trials struct {
	Unit   string // "messages", "keys", "kills" …
	N, Bad int
}

// Result of a check.
type Result struct {
	Outcome Outcome
	Trials  []Trials
	Counts  map[string]int // by the check's own names; zero counts are left out
	IDs     []string       // messages accused, at most MaxAccused
	Witness []int          // indices into History.Events, ascending: few events that show the first accusation
	Why     string         // one sentence for a Broken or Inconclusive
}

// MaxAccused bounds IDs; Trials counts them all.
const MaxAccused = 10

// Params of a run, as far as the events do not tell.
type Params struct {
	// Groups that each owe every message. Empty: any one handler settles the debt
	// (a queue).
	Groups []string
	// Attempts is the most attempts per message and group, 0 = not limited.
	Attempts int
	// ResetOnCrash: a crash may forget attempts (a log without commit state).
	ResetOnCrash bool
	// InFlight is the most messages received and unsettled per process and group,
	// 0 = not judged.
	InFlight int
	// BrokerInFlight is the most the broker may count as out, 0 = not judged.
	BrokerInFlight int
	// Grace past the deadline of a call. 0 = 500 ms (invariant 6).
	Grace time.Duration
	// Growth is how much a resource may grow from first to last sample (V7).
	Growth int
}

// Stream is a check at work. Observe wants events in the order of time, as
// history.New sorts them; Result may be asked once, at the end.
type Stream interface {
	Observe(e *history.Event)
	Result() Result
}

// Check is one rule. Fn judges a whole history; New is for one that does not fit
// memory. Both are pure and total. Fn also fills Witness from IDs where the stream
// knows no better.
type Check struct {
	ID   string // "I1" … "I12", "V1" … "V7"
	Rule string // one sentence, printed on failure
	New  func(Params) Stream
	Fn   func(*history.History, Params) Result
}

// All returns every check, in the order of their IDs as documented.
func All() []Check {
	return []Check{
		Loss, Invention, Truth, Duplicates, SettleOnce, Order, InFlight, Attempts, DeadLetter, Deadline,
		V1, V2, V3, V4, V5, V6, V7,
	}
}

// Named returns those of All with an ID among ids, in the order of All.
func Named(ids ...string) []Check {
	return slices.DeleteFunc(All(), func(c Check) bool { return !slices.Contains(ids, c.ID) })
}

func define(id, rule string, newStream func(Params) Stream) Check {
	return Check{ID: id, Rule: rule, New: newStream, Fn: func(h *history.History, p Params) Result {
		return judge(h, p, newStream)
	}}
}

// judge runs one check over a history. An unsound history proves nothing either
// way: a missing "start" line looks like a loss, a jumped clock like an overlap.
// A check that panics is inconclusive.
func judge(h *history.History, p Params, newStream func(Params) Stream) (r Result) {
	defer func() {
		if v := recover(); v != nil {
			r = Result{Why: fmt.Sprintf("the checker failed: %v", v)}
		}
	}()
	s := newStream(p)
	for i := range h.Events {
		s.Observe(&h.Events[i])
	}
	r = s.Result()
	if len(r.Witness) == 0 && len(r.IDs) > 0 {
		r.Witness = trace(h, r.IDs[0])
	}
	if len(h.Problems) > 0 {
		r.Outcome, r.Why = Inconclusive, "the history is not sound: "+h.Problems[0]
	}
	return r
}

// trace returns the first events about id.
func trace(h *history.History, id string) []int {
	var out []int
	for i := range h.Events {
		if h.Events[i].ID == id && len(out) < 2*MaxAccused {
			out = append(out, i)
		}
	}
	return out
}

// Run judges a history with each check, by ID.
func Run(h *history.History, p Params, checks ...Check) map[string]Result {
	out := make(map[string]Result, len(checks))
	for _, c := range checks {
		out[c.ID] = c.Fn(h, p)
	}
	return out
}

// verdict collects a Result. Every stream embeds one.
type verdict struct {
	i       int // index of the current event, from 0
	n       int // trials
	bad     int
	counts  map[string]int
	ids     []string
	witness []int
	why     string
}

func newVerdict() verdict { return verdict{i: -1, counts: map[string]int{}} }

// tick must be the first call of every Observe.
func (v *verdict) tick() { v.i++ }

func (v *verdict) accuse(id string, witness []int, why string, args ...any) {
	if v.bad++; v.bad == 1 {
		slices.Sort(witness)
		v.witness, v.why = slices.Compact(witness), fmt.Sprintf(why, args...)
	}
	if len(v.ids) < MaxAccused && id != "" && !slices.Contains(v.ids, id) {
		v.ids = append(v.ids, id)
	}
}

// result closes the verdict; need is what was missing when there was no trial.
func (v *verdict) result(unit, need string) Result {
	for k, c := range v.counts {
		if c == 0 {
			delete(v.counts, k)
		}
	}
	r := Result{
		Outcome: Held, Trials: []Trials{{Unit: unit, N: v.n, Bad: v.bad}},
		Counts: v.counts, IDs: v.ids, Witness: v.witness, Why: v.why,
	}
	switch {
	case v.bad > 0:
		r.Outcome = Broken
	case v.n == 0:
		r.Outcome, r.Why = Inconclusive, "never happened: "+need
	}
	return r
}
