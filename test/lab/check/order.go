package check

import (
	"slices"

	"github.com/varal-go/varal/test/lab/history"
)

// Order is I7: the first starts of a key come in the order of N. Counts tells
// inversions among first starts. A message that was rejected, or ended unknown
// before a later one was started, is not waited for; when it comes late that is
// counted ("late unknown"), not judged. N states the intended order of publishing:
// a history in which a lower N is sent again after a higher one was started is
// judged by what was known at that start.
var Order = define("I7", "the messages of a key start in the order in which they were published",
	func(p Params) Stream { return newOrder(p, true) })

// V2 is strict order under retries: n+1 starts only after n is terminal. A message
// whose last attempt failed and that never starts again was terminal then. A
// rewind needs a cause, and after a change of owner it runs upwards.
var V2 = define("V2", "n+1 starts only after n is terminal; a rewind needs a change of owner and then runs in sequence",
	func(p Params) Stream { return newOrder(p, false) })

// State of a publish, per key and N.
const (
	pubNone uint8 = iota
	pubPending
	pubOK
	pubUnknown
	pubRejected
)

// State of a message in one group, per lane and N.
const (
	laneStarted uint8 = 1 << iota
	laneOver
)

// place is where an ID stands.
type place struct {
	key uint32
	n   int64
}

// waiting is a message that others must not pass: started and not terminal, or
// skipped over.
type waiting struct {
	id    string
	n     int64
	by    incarnation
	index int
	first bool           // not started yet
	past  *history.Event // the first later message that started while it waited
	pastI int
}

// lane is one key in one group.
type lane struct {
	key, own uint32
	top      int64
	open     []*waiting // by n
	cur      waiting    // the latest start
	curT     int64
}

// suspect is an accusation that a publish must still confirm.
type suspect struct {
	key     uint32
	n       int64
	id      string
	witness []int
	other   string
}

// rewind is a start of a terminal message that nothing explained yet.
type rewind struct {
	r *restart
	w []int
}

type order struct {
	verdict
	firsts   bool // I7: judge first starts only
	t        *tracker
	keys     *names // (dest, key) → number, and lanes
	pubs     table[uint8]
	placeOf  ids[place]
	lanes    map[string]*lane
	states   table[uint8]
	suspects []suspect
	rewinds  []rewind
}

// widest gap of N that is looked into; a larger one is not a sequence.
const widest = 1 << 16

func newOrder(p Params, firsts bool) Stream {
	return &order{
		verdict: newVerdict(), firsts: firsts, t: newTracker(p), keys: newNames(), pubs: newTable[uint8](),
		placeOf: newIDs[place](), lanes: map[string]*lane{}, states: newTable[uint8](),
	}
}

func (o *order) Observe(e *history.Event) {
	o.tick()
	r := o.t.observe(o.i, e)
	switch e.Op {
	case history.OpPub:
		if e.Key != "" && e.N > 0 {
			p := place{o.keys.number(laneKey("", e.Dest, e.Key)), int64(e.N)}
			*o.placeOf.at(e.ID) = p
			if s := o.pubs.at(p.key, p.n); *s != pubOK {
				*s = pubPending
			}
		}
	case history.OpPubd:
		o.published(e)
	case history.OpStart:
		if e.Key != "" && e.N > 0 {
			if o.placeOf.at(e.ID).n != 0 {
				o.n++
			} else {
				// Whether it had to come before another is not known, and its end, which
				// need not carry the key, is not found.
				o.counts["starts of what nobody published"]++
			}
			o.start(e, r)
		}
	case history.OpEnd:
		o.end(e)
	case history.OpDead, history.OpSkip:
		o.terminal(e)
	case history.OpSettled:
		if e.Outcome == history.Reject && e.Class == "" {
			o.terminal(e)
		}
	}
}

func (o *order) published(e *history.Event) {
	p := *o.placeOf.at(e.ID)
	if p.n == 0 {
		return
	}
	s := o.pubs.at(p.key, p.n)
	switch {
	case e.Outcome == history.OK:
		*s = pubOK
	case *s == pubOK:
	case e.Outcome == history.Rejected:
		*s = pubRejected
	default:
		*s = pubUnknown
	}
}

func (o *order) lane(e *history.Event) *lane {
	return o.laneOf(e.Group, laneKey("", e.Dest, e.Key))
}

// laneOf returns the lane of a group; key is its laneKey without one.
func (o *order) laneOf(group, key string) *lane {
	name := group + key
	l := o.lanes[name]
	if l == nil {
		l = &lane{key: o.keys.number(key), own: o.keys.number("\x01" + name)}
		o.lanes[name] = l
	}
	return l
}

func (l *lane) find(n int64) *waiting {
	i, ok := slices.BinarySearchFunc(l.open, n, func(w *waiting, n int64) int { return int(w.n - n) })
	if !ok {
		return nil
	}
	return l.open[i]
}

func (l *lane) insert(w *waiting) {
	i, _ := slices.BinarySearchFunc(l.open, w.n, func(x *waiting, n int64) int { return int(x.n - n) })
	l.open = slices.Insert(l.open, i, w)
}

func (l *lane) remove(n int64) {
	l.open = slices.DeleteFunc(l.open, func(w *waiting) bool { return w.n == n })
}

func (o *order) start(e *history.Event, r *restart) {
	l, n := o.lane(e), int64(e.N)
	if n > l.top {
		o.passOver(l, n)
		l.top = n
	}
	st := o.states.at(l.own, n)
	w := l.find(n)
	switch {
	case w != nil && !w.first && r != nil && r.prev.outcome == history.Fail && o.t.last(&r.prev) && o.t.disturbed(&r.prev):
		// Its last attempt had failed: it was dead-lettered, which is terminal. A
		// fault then lost the settle, so it comes again: a rewind, not a retry.
		o.counts["rewinds"]++
	case w != nil:
		o.judgePassed(l, w, e, w.first)
		w.first = false
	case *st&laneOver != 0:
		o.rewound(l, n, e, r)
		w = &waiting{n: n}
		l.insert(w)
	default:
		if n < l.top && *st&laneStarted == 0 {
			o.counts["late unknown"]++
		}
		w = &waiting{n: n}
		l.insert(w)
	}
	*st |= laneStarted
	w.id, w.by, w.index = e.ID, incarnation{e.Proc, e.Gen}, o.i
	w.past = nil
	for _, x := range l.open {
		if x.n < n && x.past == nil {
			c := *e
			x.past, x.pastI = &c, o.i
		}
	}
	l.cur, l.curT = *w, e.T
}

// passOver enters the messages between the highest started and n that are, or may
// be, stored: they should have come first.
func (o *order) passOver(l *lane, n int64) {
	if n-l.top > widest {
		o.counts["gaps too wide to judge"]++
		return
	}
	for m := l.top + 1; m < n; m++ {
		if o.states.peek(l.own, m)&laneOver != 0 {
			continue // dead-lettered or skipped without a start
		}
		if s := o.pubs.peek(l.key, m); s == pubOK || s == pubPending {
			l.insert(&waiting{n: m, first: true, index: o.i})
		}
	}
}

// judgePassed accuses when w is active at e although a later message had started.
func (o *order) judgePassed(l *lane, w *waiting, e *history.Event, first bool) {
	if w.past == nil || !history.Before(w.past, e) || (o.firsts && !first) {
		return
	}
	o.counts["inversions"]++
	witness := []int{w.pastI, o.i}
	if !w.first && w.index != w.pastI && w.index != o.i {
		witness = append([]int{w.index}, witness...) // it started first, and was not over
	}
	o.suspects = append(o.suspects, suspect{l.key, w.n, e.ID, witness, w.past.ID})
}

// rewound judges the start of a message that was terminal.
func (o *order) rewound(l *lane, n int64, e *history.Event, r *restart) {
	o.counts["rewinds"]++
	if o.firsts {
		return
	}
	if r == nil { // terminal without ever having started under this ID
		return
	}
	w := []int{l.cur.index, o.i}
	switch {
	case r.cause == "":
		o.rewinds = append(o.rewinds, rewind{r, w})
	case n < l.cur.n && l.cur.by == (incarnation{e.Proc, e.Gen}) && r.at < l.curT && r.prev.by != l.cur.by &&
		(r.cause == CauseCrash || r.cause == CauseLease || r.cause == CauseNetwork || r.cause == CauseRevoke):
		// The owner changed, the new one has already started a later message, and
		// now goes back behind it: it did not run in sequence.
		o.accuse(e.ID, w, "%s started after %s of the same key, out of sequence after a change of owner", e.ID, l.cur.id)
	}
}

func (o *order) end(e *history.Event) {
	l, n, w := o.waiting(e)
	if w == nil || w.first || w.by != (incarnation{e.Proc, e.Gen}) {
		return
	}
	// w.past set after w's own start means: that one started while w ran.
	o.judgePassed(l, w, e, false)
	if e.Outcome == history.OK {
		*o.states.at(l.own, n) |= laneOver
		l.remove(n)
	}
}

func (o *order) terminal(e *history.Event) {
	p := *o.placeOf.at(e.ID)
	if p.n == 0 {
		return
	}
	// It may be the first that is heard of this lane: what can't be decoded is
	// dead-lettered without a start.
	l := o.laneOf(e.Group, o.keys.list[p.key])
	*o.states.at(l.own, p.n) |= laneOver
	l.remove(p.n)
}

// waiting finds the message of an event that need not carry its key.
func (o *order) waiting(e *history.Event) (*lane, int64, *waiting) {
	p := *o.placeOf.at(e.ID)
	if p.n == 0 {
		return nil, 0, nil
	}
	l := o.lanes[e.Group+o.keys.list[p.key]] // laneKey("", dest, key) is the rest
	if l == nil {
		return nil, 0, nil
	}
	w := l.find(p.n)
	return l, p.n, w
}

func (o *order) Result() Result {
	for _, s := range o.suspects {
		if o.pubs.peek(s.key, s.n) == pubOK {
			o.accuse(s.id, s.witness, "%s was not terminal when %s, published after it under the same key, started", s.id, s.other)
		}
	}
	for _, w := range o.rewinds {
		if w.r.cause == "" {
			o.accuse(w.r.id, w.w, "%s was terminal and started again without a change of owner", w.r.id)
		}
	}
	many := 0
	for _, l := range o.lanes {
		if l.top > 1 {
			many++
		}
	}
	o.counts["keys"] = many
	if many == 0 {
		o.n = 0
	}
	return o.result("starts", "a second message of some key, whose publish is recorded, started")
}
