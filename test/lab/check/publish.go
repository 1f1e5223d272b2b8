package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/varal-go/varal/test/lab/history"
)

// Loss is I1. Messages that the broker still counts as ready at the end are not
// lost, and while the drain has not ended late is not lost either: inconclusive.
// Lost messages are told apart per publisher: prefix (before the first seen),
// middle, postfix (after the last seen).
var Loss = define("I1", "a publish that was confirmed is handled, or dead-lettered, or still counted at the broker",
	func(p Params) Stream { return newFate(p, (*fate).loss) })

// Truth is I3.
var Truth = define("I3", "a publish that was rejected is never delivered; an unknown one may be or not",
	func(p Params) Stream { return newFate(p, (*fate).truth) })

// Invention is I2. An ID, key or number that nobody sent, or bytes that differ
// from what was sent, is an invention.
var Invention = define("I2", "whatever is delivered was published, unaltered",
	func(p Params) Stream { return newFate(p, (*fate).invention) })

// V3 is "every n is terminal exactly". A message done and then, after a cause for
// a second delivery, dead-lettered is terminal twice for that cause and not judged.
var V3 = define("V3", "every message is done, dead-lettered or skipped with a record: one of them, in every group",
	func(p Params) Stream { return newFate(p, (*fate).terminal) })

// What is known of a message, as bits.
const (
	wasSent     = 1 << iota // pub seen
	wasOK                   // a pubd ok
	wasUnknown              // a pubd unknown
	wasRejected             // a pubd rejected
	wasOpen                 // a pub without its pubd yet
	wasSeen                 // recv, start or dead
	wasDone                 // an end ok, in every group that owes it
	wasDead
	wasSkipped
	wasCorrupt
	wasAltered // key or number differ
	wasExcused // written off
	wasRedone  // started again after it was terminal, or published twice: two ends have a cause
)

type life struct {
	bits   uint16
	groups uint16 // groups that are done with it, for topics
	by     uint16 // incarnation of the latest start
	place  uint32 // fingerprint of key and number as published
	came   uint32 // fingerprint as delivered, when it came first
}

// fate keeps a life per message; its four checks differ in what they read off it.
type fate struct {
	verdict
	p       Params
	lives   ids[life]
	digest  digester
	drained string // outcome of the last drained event, "" = none
	ready   map[string]int
	publish int // pubd events
	procs   *names
	judge   func(*fate) Result
}

func newFate(p Params, judge func(*fate) Result) Stream {
	return &fate{
		verdict: newVerdict(), p: p, lives: newIDs[life](), digest: newDigester(), procs: newNames(),
		ready: map[string]int{}, judge: judge,
	}
}

func (f *fate) Observe(e *history.Event) {
	f.tick()
	switch e.Op {
	case history.OpPub, history.OpPubd:
		f.published(e)
	case history.OpRecv, history.OpStart, history.OpEnd, history.OpDead, history.OpSkip:
		f.delivered(e)
	case history.OpWriteoff:
		f.lives.at(e.ID).bits |= wasExcused
	case history.OpDrained:
		f.drained = e.Outcome
	case history.OpStat:
		if e.Outcome == history.StatReady {
			f.ready[e.Dest] = max(e.N, 0)
		}
	}
}

func (f *fate) published(e *history.Event) {
	l := f.lives.at(e.ID)
	if e.Op == history.OpPub {
		if l.bits&wasSent != 0 {
			l.bits |= wasRedone
		}
		l.bits |= wasSent | wasOpen
		l.place = f.digest.of(e.Key, e.N)
		if l.came != 0 && l.came != l.place {
			l.bits |= wasAltered
		}
		return
	}
	f.publish++
	l.bits &^= wasOpen
	switch e.Outcome {
	case history.OK:
		l.bits |= wasOK
	case history.Rejected:
		l.bits |= wasRejected
	default:
		l.bits |= wasUnknown | wasRedone
	}
}

func (f *fate) delivered(e *history.Event) {
	l := f.lives.at(e.ID)
	l.bits |= wasSeen
	if e.Op == history.OpStart && (e.Key != "" || e.N != 0) {
		place := f.digest.of(e.Key, e.N)
		if l.bits&wasSent == 0 {
			l.came = place
		} else if l.place != place {
			l.bits |= wasAltered
		}
	}
	switch {
	case e.Op == history.OpRecv && e.Outcome == history.Corrupt:
		l.bits |= wasCorrupt
	case e.Op == history.OpStart:
		f.started(l, e)
	case e.Op == history.OpDead:
		l.bits |= wasDead
		f.finish(l, e.Group)
	case e.Op == history.OpSkip:
		l.bits |= wasSkipped
		f.finish(l, e.Group)
	case e.Op == history.OpEnd && e.Outcome == history.OK:
		l.bits |= wasDone
		f.finish(l, e.Group)
	}
}

// started notes whether two different ends of the message have a cause: it was over
// already, or it moved to another process. The first owner may have dead-lettered
// it just before it died, and the reader of dead letters come later.
func (f *fate) started(l *life, e *history.Event) {
	by := uint16(f.procs.number(oldKey(incarnation{e.Proc, e.Gen}, e.Group))) + 1 //nolint:gosec // wraps: a missed accusation
	if f.over(l, e.Group) || l.by != 0 && l.by != by {
		l.bits |= wasRedone
	}
	l.by = by
}

// finish notes that group is through with the message.
func (f *fate) finish(l *life, group string) {
	if i := slices.Index(f.p.Groups, group); i >= 0 && i < 16 {
		l.groups |= 1 << i
	}
}

// over reports whether group was through with it before.
func (f *fate) over(l *life, group string) bool {
	if i := slices.Index(f.p.Groups, group); i >= 0 && i < 16 {
		return l.groups&(1<<i) != 0
	}
	return l.bits&(wasDone|wasDead|wasSkipped) != 0
}

// owed reports whether somebody still owes it.
func (f *fate) owed(l life) bool {
	if l.bits&wasOK == 0 || l.bits&wasExcused != 0 {
		return false
	}
	if n := min(len(f.p.Groups), 16); n > 0 {
		return l.groups != 1<<n-1
	}
	return l.bits&(wasDone|wasDead|wasSkipped) == 0
}

func (f *fate) Result() Result { return f.judge(f) }

func (f *fate) loss() Result {
	type span struct{ first, last uint64 }
	seen := map[string]span{}
	var lost []string
	f.lives.each(func(id string, l life) {
		if l.bits&wasOK == 0 {
			return
		}
		f.n++
		if f.owed(l) {
			lost = append(lost, id)
			return
		}
		if pub, c, ok := split(id); ok {
			s, had := seen[pub]
			if !had {
				s = span{c, c}
			}
			seen[pub] = span{min(s.first, c), max(s.last, c)}
		}
	})
	slices.SortFunc(lost, byID)
	for _, id := range lost {
		pub, c, _ := split(id)
		switch s, ok := seen[pub]; {
		case !ok || c < s.first:
			f.counts["prefix"]++
		case c > s.last:
			f.counts["postfix"]++
		default:
			f.counts["middle"]++
		}
		f.accuse(id, nil, "%s was confirmed and never seen again (%d such)", id, len(lost))
	}
	return f.late(f.result("messages", "a confirmed publish"), len(lost))
}

// late takes an accusation back while the messages may still come.
func (f *fate) late(r Result, missing int) Result {
	if missing == 0 {
		return r
	}
	ready := 0
	for _, n := range f.ready {
		ready += n
	}
	switch {
	case missing <= ready:
		r.Outcome, r.Trials[0].Bad, r.IDs, r.Why = Held, 0, nil, ""
		r.Counts = map[string]int{"queued": missing}
	case f.drained != history.OK:
		r.Outcome = Inconclusive
		r.Why = fmt.Sprintf("%d confirmed messages were not seen, and the drain did not end: late is not lost", missing)
	}
	return r
}

func (f *fate) truth() Result {
	var lies []string
	f.lives.each(func(id string, l life) {
		f.n += min(f.publish, 1)
		switch {
		case l.bits&(wasUnknown|wasOpen) != 0 && l.bits&wasOK == 0:
			f.counts["unknown"]++
			if l.bits&wasSeen != 0 {
				f.counts["unknown, stored"]++
			}
		case l.bits&wasRejected != 0 && l.bits&wasOK == 0:
			f.counts["rejected"]++
			if l.bits&wasSeen != 0 {
				lies = append(lies, id)
			}
		}
	})
	slices.SortFunc(lies, byID)
	for _, id := range lies {
		f.accuse(id, nil, "%s was rejected and delivered all the same", id)
	}
	return f.result("messages", "a publish that ended")
}

func (f *fate) invention() Result {
	type charge struct{ id, why string }
	var list []charge
	f.lives.each(func(id string, l life) {
		if l.bits&wasSeen == 0 {
			return
		}
		f.n++
		switch {
		case id == "" || l.bits&wasSent == 0:
			list = append(list, charge{id, "was delivered and never published"})
			f.counts["invented"]++
		case l.bits&wasCorrupt != 0:
			list = append(list, charge{id, "differs from what was sent"})
			f.counts["corrupt"]++
		case l.bits&wasAltered != 0:
			list = append(list, charge{id, "came with another key or number than it was sent with"})
			f.counts["altered"]++
		}
	})
	slices.SortFunc(list, func(a, b charge) int { return byID(a.id, b.id) })
	for _, c := range list {
		f.accuse(c.id, nil, "%q %s", c.id, c.why)
	}
	return f.result("messages", "a delivery")
}

func (f *fate) terminal() Result {
	missing := 0
	type charge struct{ id, why string }
	var list []charge
	f.lives.each(func(id string, l life) {
		if l.bits&wasOK == 0 {
			return
		}
		f.n++
		switch {
		case f.owed(l):
			missing++
			list = append(list, charge{id, "never ended: not done, dead-lettered or skipped"})
		case l.bits&wasDone != 0 && l.bits&(wasDead|wasSkipped) != 0 && l.bits&wasRedone == 0 && len(f.p.Groups) < 2:
			f.counts["twice"]++
			list = append(list, charge{id, "was done and also dead-lettered or skipped"})
		}
	})
	slices.SortFunc(list, func(a, b charge) int { return byID(a.id, b.id) })
	for _, c := range list {
		f.accuse(c.id, nil, "%s %s", c.id, c.why)
	}
	r := f.result("messages", "a confirmed publish")
	if f.bad > missing {
		return r // one that ended twice does not wait for the drain
	}
	return f.late(r, missing)
}

func byID(a, b string) int {
	pa, na, oka := split(a)
	pb, nb, okb := split(b)
	if oka && okb {
		return cmp.Or(cmp.Compare(pa, pb), cmp.Compare(na, nb))
	}
	return cmp.Compare(a, b)
}
