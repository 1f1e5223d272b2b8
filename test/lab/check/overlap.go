package check

import (
	"maps"
	"slices"

	"github.com/varal-go/varal/test/lab/history"
)

// V1 is exclusivity. An interval ends with its end, or with the kill of its
// process. Overlap with a holder that was frozen, or had reported its loss before
// the other started, is counted ("after loss") and not judged: it is possible and
// fenceable (ordering.md §4.8).
var V1 = define("V1", "at most one handler of a key runs at a time, over all processes of a group",
	func(p Params) Stream {
		return &overlap{verdict: newVerdict(), open: map[string][]*run{}, where: map[string]string{}, holders: newTracker(p)}
	})

// run is one handler at work.
type run struct {
	start history.Event
	index int
	met   []meeting // starts of others while it was open
}

type meeting struct {
	start history.Event
	index int
}

type overlap struct {
	verdict
	open    map[string][]*run // by lane
	where   map[string]string // process, group and ID → lane of its open run
	holders *tracker          // only for what happened to processes
}

func runKey(e *history.Event) string { return oldKey(incarnation{e.Proc, e.Gen}, groupID(e)) }

func (o *overlap) Observe(e *history.Event) {
	o.tick()
	switch e.Op {
	case history.OpStart:
		if e.Key != "" {
			o.start(e)
		}
	case history.OpEnd:
		k := runKey(e)
		if lane, ok := o.where[k]; ok {
			delete(o.where, k)
			o.close(lane, func(r *run) bool { return runKey(&r.start) == k }, e)
		}
	case history.OpFault:
		o.holders.observe(o.i, e)
		if e.Outcome == history.FaultKill {
			o.killed(e)
		}
	case history.OpSettled:
		if e.Class == history.LeaseLost {
			o.holders.lost(&history.Event{Proc: e.Proc, Gen: e.Gen, T: e.T, Partition: e.Partition}, incarnation{e.Proc, e.Gen})
		}
	case history.OpLost, history.OpRevoke, history.OpAssign, history.OpHeal:
		if e.Op == history.OpLost && e.ID != "" {
			c := *e
			c.ID = "" // one lease or the partition: either way the holder knew
			e = &c
		}
		o.holders.observe(o.i, e)
	}
}

func (o *overlap) start(e *history.Event) {
	o.n++
	if o.holders.holder(incarnation{e.Proc, e.Gen}).killed {
		// The kill is recorded before the signal, so a victim may speak once more. It is
		// dead before its work can go to another, and will never say when this run ended:
		// the run may meet what is open now, and nothing that starts later.
		o.counts["after the kill"]++
		o.meet(e)
		return
	}
	lane := o.meet(e)
	k := runKey(e)
	if old, ok := o.where[k]; ok { // the same message twice in one process
		o.close(old, func(r *run) bool { return runKey(&r.start) == k }, nil)
	}
	o.open[lane] = append(o.open[lane], &run{start: *e, index: o.i})
	o.where[k] = lane
}

// meet notes a start with every run of its lane that is open.
func (o *overlap) meet(e *history.Event) (lane string) {
	lane = laneKey(e.Group, e.Dest, e.Key)
	for _, r := range o.open[lane] {
		if len(r.met) < MaxAccused {
			r.met = append(r.met, meeting{*e, o.i})
		}
	}
	return lane
}

// close ends the runs of a lane that match. end nil: the end is unknown and later
// than everything so far.
func (o *overlap) close(lane string, match func(*run) bool, end *history.Event) {
	rest := o.open[lane][:0]
	for _, r := range o.open[lane] {
		if match(r) {
			o.judge(r, end)
		} else {
			rest = append(rest, r)
		}
	}
	if len(rest) == 0 {
		delete(o.open, lane)
		return
	}
	o.open[lane] = rest
}

func (o *overlap) judge(r *run, end *history.Event) {
	for _, m := range r.met {
		if end != nil && !history.Before(&m.start, end) {
			continue
		}
		if o.lost(r, m.start.T) {
			o.counts["after loss"]++
			continue
		}
		w := []int{r.index, m.index}
		if end != nil {
			w = append(w, o.i)
		}
		o.accuse(m.start.ID, w, "key %q: %s started at %s while %s ran at %s",
			m.start.Key, m.start.ID, m.start.Proc, r.start.ID, r.start.Proc)
	}
}

// lost reports whether r's process had lost its claim, or stood still, before t.
func (o *overlap) lost(r *run, t int64) bool {
	h := o.holders.holder(incarnation{r.start.Proc, r.start.Gen})
	from := r.start.T - max(r.start.Eps, 0)
	if h.frozen.touches(from) && h.frozen.from <= t {
		return true
	}
	for p, at := range h.lostAt {
		if at >= from && at <= t && samePartition(p, r.start.Partition) {
			return true
		}
	}
	return false
}

// killed closes what the victim ran, at the moment of the kill. A start that comes
// after that moment is no overlap; the moment is taken before the signal, so that
// the time the system takes to kill accuses nobody.
func (o *overlap) killed(e *history.Event) {
	var victims []string // sorted, so that the same history gives the same witness
	for k, lane := range o.where {
		for _, r := range o.open[lane] {
			if r.start.Proc == e.Dest && r.start.Gen == e.N && runKey(&r.start) == k {
				victims = append(victims, k)
			}
		}
	}
	slices.Sort(victims)
	for _, k := range victims {
		lane := o.where[k]
		delete(o.where, k)
		o.close(lane, func(r *run) bool { return runKey(&r.start) == k }, e)
	}
}

func (o *overlap) Result() Result {
	for _, lane := range slices.Sorted(maps.Keys(o.open)) {
		for _, r := range o.open[lane] {
			o.judge(r, nil)
		}
	}
	return o.result("starts", "a handler of a keyed message started")
}
