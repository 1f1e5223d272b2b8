package check

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/varal-go/varal/test/lab/history"
)

// InFlight is I9: at every instant, handlers that run and messages received and
// not settled, per process and group; and the broker's own count. A message stops
// to count with its final settle (accepted, or lost), with the loss or revoke of
// its partition, and with its process.
var InFlight = define("I9", "what is received and not settled never exceeds the limit",
	func(p Params) Stream { return &inFlight{verdict: newVerdict(), p: p, of: map[string]*load{}} })

// load of one process and group.
type load struct {
	by      incarnation
	held    map[string]history.Event // by copy, from recv
	running map[string]int           // ID → handlers
	n       int                      // handlers running
}

type inFlight struct {
	verdict
	p  Params
	of map[string]*load
}

func (f *inFlight) Observe(e *history.Event) {
	f.tick()
	if e.Op == history.OpStat && e.Outcome == history.StatInFlight && f.p.BrokerInFlight > 0 {
		f.n++
		f.counts["peak at the broker"] = max(f.counts["peak at the broker"], e.N)
		if e.N > f.p.BrokerInFlight {
			f.accuse("", []int{f.i}, "the broker counts %d out, the limit is %d", e.N, f.p.BrokerInFlight)
		}
	}
	if e.Op == history.OpFault && e.Outcome == history.FaultKill {
		for k, l := range f.of {
			if l.by == (incarnation{e.Dest, e.N}) {
				delete(f.of, k)
			}
		}
	}
	if f.p.InFlight > 0 {
		f.count(e)
	}
}

func (f *inFlight) load(e *history.Event) *load {
	k := oldKey(incarnation{e.Proc, e.Gen}, e.Group)
	l := f.of[k]
	if l == nil {
		l = &load{by: incarnation{e.Proc, e.Gen}, held: map[string]history.Event{}, running: map[string]int{}}
		f.of[strings.Clone(k)] = l
	}
	return l
}

func (f *inFlight) count(e *history.Event) {
	switch e.Op {
	case history.OpRecv:
		l := f.load(e)
		l.held[copyKey(e)] = history.Event{ID: e.ID, Partition: e.Partition}
		f.judge(l, len(l.held), e)
	case history.OpStart:
		l := f.load(e)
		l.running[e.ID]++
		l.n++
		f.judge(l, l.n, e)
	case history.OpEnd:
		if l := f.load(e); l.running[e.ID] > 0 {
			l.n--
			if l.running[e.ID]--; l.running[e.ID] == 0 {
				delete(l.running, e.ID)
			}
		}
	case history.OpSettled:
		if e.Outcome != history.Extend && (e.Class == "" || e.Class == history.LeaseLost) {
			delete(f.load(e).held, copyKey(e))
		}
	case history.OpRevoke, history.OpLost:
		l := f.load(e)
		for k, m := range l.held {
			if e.ID == m.ID || e.ID == "" && samePartition(m.Partition, e.Partition) {
				delete(l.held, k)
			}
		}
	}
}

func (f *inFlight) judge(l *load, n int, e *history.Event) {
	f.n++
	f.counts["peak"] = max(f.counts["peak"], n)
	if n > f.p.InFlight {
		f.accuse(e.ID, []int{f.i}, "%s has %d in flight, the limit is %d", e.Proc, n, f.p.InFlight)
	}
}

func (f *inFlight) Result() Result {
	return f.result("instants", "a receive or start under a limit that Params states")
}

// Deadline is I12. Calls of a process that was killed, or frozen meanwhile, are
// not judged. Stalls of the machine, seen as gaps between ticks, widen the
// tolerance; one above it makes an accusation inconclusive.
var Deadline = define("I12", "every call returns by its deadline and 500 ms",
	func(p Params) Stream {
		if p.Grace == 0 {
			p.Grace = 500 * time.Millisecond
		}
		return &deadline{
			verdict: newVerdict(), p: p, open: map[string]call{}, tick10: map[incarnation]int64{}, t: newTracker(p),
		}
	})

type call struct {
	e     history.Event
	index int
}

type overrun struct {
	id   string
	over int64
	w    []int
}

type deadline struct {
	verdict
	p      Params
	open   map[string]call
	tick10 map[incarnation]int64
	stall  int64
	late   []overrun
	t      *tracker
	last   int64
}

// tickEvery is how often a process ticks.
const tickEvery = int64(10 * time.Millisecond)

func (d *deadline) Observe(e *history.Event) {
	d.tick()
	d.last = max(d.last, e.T)
	by := incarnation{e.Proc, e.Gen}
	switch e.Op {
	case history.OpFault, history.OpHeal:
		d.t.observe(d.i, e)
		if e.Outcome == history.FaultFreeze {
			delete(d.tick10, incarnation{e.Dest, e.N}) // its gap is our doing
		}
	case history.OpTick:
		if before, ok := d.tick10[by]; ok {
			d.stall = max(d.stall, e.T-before-tickEvery)
		}
		d.tick10[by] = e.T
	case history.OpCall:
		if e.N > 0 {
			d.open[oldKey(by, e.ID)] = call{*e, d.i}
		}
	case history.OpRet:
		k := oldKey(by, e.ID)
		if c, ok := d.open[k]; ok {
			delete(d.open, k)
			d.judge(c, e.T, []int{c.index, d.i})
		}
	}
}

func (d *deadline) judge(c call, until int64, w []int) {
	by := incarnation{c.e.Proc, c.e.Gen}
	if h := d.t.holder(by); h.frozen.touches(c.e.T) {
		d.counts["frozen meanwhile"]++
		return
	}
	d.n++
	if over := until - c.e.T - int64(c.e.N); over > int64(d.p.Grace) {
		d.late = append(d.late, overrun{c.e.ID, over, w})
	}
}

func (d *deadline) Result() Result {
	for _, k := range slices.Sorted(maps.Keys(d.open)) {
		c := d.open[k]
		if !d.t.holder(incarnation{c.e.Proc, c.e.Gen}).killed && d.last-c.e.T-int64(c.e.N) > int64(d.p.Grace) {
			d.counts["never returned"]++
			d.judge(c, d.last, []int{c.index})
		}
	}
	for _, o := range d.late {
		if o.over-d.stall > int64(d.p.Grace) {
			d.accuse(o.id, o.w, "call %s overran its deadline by %s", o.id, time.Duration(o.over))
		}
	}
	r := d.result("calls", "a call with a deadline")
	if d.stall > int64(d.p.Grace) && (r.Outcome == Broken || len(d.late) > 0) {
		r.Outcome, r.Why = Inconclusive, "machine too busy: a process stood still for "+time.Duration(d.stall).String()
	}
	return r
}

// V7 reads stat events of Class Resource: the first sample of a process is taken
// before the load, the last when it is over.
var V7 = define("V7", "goroutines, timers and maps do not grow",
	func(p Params) Stream {
		return &growth{verdict: newVerdict(), p: p, first: map[string]sample{}, last: map[string]sample{}}
	})

type growth struct {
	verdict
	p           Params
	first, last map[string]sample
}

type sample struct {
	proc, name string
	n, index   int
}

func (g *growth) Observe(e *history.Event) {
	g.tick()
	if e.Op != history.OpStat || e.Class != history.Resource {
		return
	}
	k := oldKey(incarnation{e.Proc, e.Gen}, e.Outcome)
	if _, ok := g.first[k]; !ok {
		k = strings.Clone(k)
		g.first[k] = sample{strings.Clone(e.Proc), strings.Clone(e.Outcome), e.N, g.i}
		return
	}
	first := g.first[k]
	g.last[k] = sample{first.proc, first.name, e.N, g.i}
}

func (g *growth) Result() Result {
	for _, k := range slices.Sorted(maps.Keys(g.last)) {
		first, last := g.first[k], g.last[k]
		g.n++
		g.counts[last.name] = max(g.counts[last.name], last.n-first.n)
		if last.n > first.n+g.p.Growth {
			g.accuse("", []int{first.index, last.index}, "%s of %s grew from %d to %d", last.name, last.proc, first.n, last.n)
		}
	}
	return g.result("resources", "two samples of a resource")
}
