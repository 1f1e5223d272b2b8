package history

import (
	"cmp"
	"fmt"
	"slices"
)

// History is a whole run on one clock, sorted by time.
type History struct {
	Events []Event
	// Problems are the reasons why nothing may be concluded from it: missing
	// lines, a clock that jumped, a log without its end. Empty = sound.
	Problems []string
}

// Before is the package's Before for events a and b of h by index. An index out of
// range is before nothing.
func (h *History) Before(a, b int) bool {
	if a < 0 || b < 0 || a >= len(h.Events) || b >= len(h.Events) {
		return false
	}
	return Before(&h.Events[a], &h.Events[b])
}

// Ping is one exchange that compares a worker's clock with the lab's. All in ns.
type Ping struct {
	Sent, Received int64 // lab's clock
	Stamp          int64 // worker's clock, between the two
}

// Offset returns what to add to a worker's clock to get the lab's, and the error
// of that: the ping with the least round trip decides, half of it is the error.
// jumped tells that two pings contradict each other by more than a clock may drift
// (500 ppm and 1 ms): the worker's clock, or the machine, stood still or leapt.
func Offset(pings []Ping) (offset, eps int64, jumped bool) {
	if len(pings) == 0 {
		return 0, 0, false
	}
	best := pings[0]
	for _, p := range pings[1:] {
		if sub(p.Received, max(p.Sent, 0)) < sub(best.Received, max(best.Sent, 0)) {
			best = p
		}
	}
	eps = (best.Received-best.Sent)/2 + 1
	offset = best.Sent + (best.Received-best.Sent)/2 - best.Stamp
	for _, p := range pings {
		apart := p.Stamp - best.Stamp
		slack := eps + max(apart, -apart)/2000 + 1e6
		if offset+slack < p.Sent-p.Stamp || offset-slack > p.Received-p.Stamp {
			jumped = true
		}
	}
	return offset, eps, jumped
}

// Log is what one incarnation of one process wrote.
type Log struct {
	Proc   string
	Gen    int
	Events []Event
	Report Report
	// Pings compare its clock with the lab's; none: it is the lab's clock.
	Pings []Ping
}

// Merge puts logs on the lab's clock and checks them.
func Merge(logs ...Log) *History {
	var all []Event
	var problems []string
	for _, l := range logs {
		offset, eps, jumped := Offset(l.Pings)
		if jumped {
			problems = append(problems, fmt.Sprintf("the clock of %s/%d jumped", l.Proc, l.Gen))
		}
		if l.Report.Bad > 0 {
			problems = append(problems, fmt.Sprintf("%d unreadable lines from %s/%d, first: line %d",
				l.Report.Bad, l.Proc, l.Gen, l.Report.First))
		}
		for _, e := range l.Events {
			e.T, e.Eps = e.T+offset, e.Eps+eps
			if len(l.Pings) == 0 {
				e.Eps -= eps
			}
			all = append(all, e)
		}
	}
	h := New(all)
	h.Problems = append(problems, h.Problems...)
	return h
}

// New sorts events that are already on one clock and looks for missing lines. It
// takes over the slice. The order in which the events are given does not matter.
func New(events []Event) *History {
	arrange(events)
	h := &History{Events: events}
	h.Problems = gaps(events)
	return h
}

// arrange sorts in place. It sorts numbers first and moves each event once: an event
// is two hundred bytes, and a sort moves what it sorts many times.
func arrange(events []Event) {
	from := make([]int, len(events))
	for i := range from {
		from[i] = i
	}
	slices.SortFunc(from, func(i, j int) int { return compare(&events[i], &events[j]) })
	for i := range from {
		if from[i] == i {
			continue
		}
		first := events[i]
		to := i
		for from[to] != i { // around the circle of those that take each other's places
			next := from[to]
			events[to] = events[next]
			from[to] = to
			to = next
		}
		events[to], from[to] = first, to
	}
}

// compare is a total order up to equality of all that is compared; two events that
// are equal in it are told apart by nothing a check reads except by content, so the
// last fields only make the result independent of the input's order.
func compare(a, b *Event) int {
	if a.T != b.T { // nearly always: the rest costs more than the sorting
		return cmp.Compare(a.T, b.T)
	}
	return cmp.Or(
		cmp.Compare(a.Proc, b.Proc), cmp.Compare(a.Gen, b.Gen), cmp.Compare(a.Seq, b.Seq),
		cmp.Compare(a.Op, b.Op), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Outcome, b.Outcome),
		cmp.Compare(a.Key, b.Key), cmp.Compare(a.N, b.N), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Dest, b.Dest),
		cmp.Compare(a.Class, b.Class), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Position, b.Position),
		cmp.Compare(a.Fence, b.Fence), cmp.Compare(a.Eps, b.Eps),
	)
}

type incarnation struct {
	proc string
	gen  int
}

// source is what gaps knows of one incarnation.
type source struct {
	count, high, order int
	last               Op
	hello, dead        bool
}

// gaps reports incarnations whose numbering has a hole or a repeat, whose clock
// went back, or whose log says hello and then neither ends in bye nor was killed.
func gaps(events []Event) []string {
	from := map[incarnation]*source{}
	at := func(proc string, gen int) *source {
		k := incarnation{proc, gen}
		if from[k] == nil {
			from[k] = &source{}
		}
		return from[k]
	}
	for i := range events {
		e := &events[i]
		if e.Op == OpFault && e.Outcome == FaultKill {
			at(e.Dest, e.N).dead = true
		}
		s := at(e.Proc, e.Gen)
		s.hello = s.hello || e.Op == OpHello
		if e.Seq != 0 {
			if s.count++; e.Seq < s.high {
				s.order++
			}
			if e.Seq >= s.high {
				s.high, s.last = e.Seq, e.Op
			}
		}
	}
	return complaints(from)
}

func complaints(from map[incarnation]*source) []string {
	var out []string
	for k, s := range from {
		switch {
		case s.count != s.high:
			out = append(out, fmt.Sprintf("%s/%d wrote lines up to %d, %d are here", k.proc, k.gen, s.high, s.count))
		case s.order > 0:
			out = append(out, fmt.Sprintf("the clock of %s/%d went back %d times", k.proc, k.gen, s.order))
		case s.hello && s.last != OpBye && !s.dead:
			out = append(out, fmt.Sprintf("the log of %s/%d ends without bye and it was not killed", k.proc, k.gen))
		}
	}
	slices.Sort(out)
	return out
}
