package check

import (
	"math"
	"strings"

	"github.com/varal-go/varal/test/lab/history"
)

// Cause explains why a message was started again in a group. "" = nothing does.
type Cause string

// The causes, in the order in which they are looked for. A settle that the broker
// accepted is final: after it only Publish, Broker and Replay explain another start.
const (
	CauseRetry   Cause = "retry"   // the attempt before failed, was cancelled, or was given back
	CauseLease   Cause = "lease"   // lost: told so by lost or by the settle, or the holder was frozen
	CauseSettle  Cause = "settle"  // the settle did not end well, so it may not have happened
	CauseCrash   Cause = "crash"   // the holder was killed before its settle
	CauseNetwork Cause = "network" // a network fault hit the holder before its settle
	CausePublish Cause = "publish" // published more than once, or a publish ended unknown
	CauseBroker  Cause = "broker"  // the broker restarted or failed over
	CauseReplay  Cause = "replay"  // a seek or a redrive
	CauseRevoke  Cause = "revoke"  // the holder gave its partition up, or left, in good order
)

// restart is one start of a message after an earlier one in the same group.
type restart struct {
	id        string
	cause     Cause
	at        int64 // when the cause happened
	completed bool  // the handler had ended ok before
	prev      delivery
	witness   []int
}

type incarnation struct {
	proc string
	gen  int
}

// delivery is the latest start of a message in a group. heir is who received it
// since without starting it (the commit state told that it was done): it settles it
// now, and what happens to the heir explains a repetition too.
type delivery struct {
	heir        incarnation
	heirFrom    int64
	struck      Cause // what hit an heir before the present one
	struckAt    int64
	by          incarnation
	partition   string
	from        int64 // of the start, less its error
	index       int
	attempt     int
	outcome     string // of its end, "" = running
	permanent   bool
	settled     bool // accepted and final
	class       string
	classAt     int64
	gaveBack    bool // nack or return was accepted
	everDone    bool // some start of it ended ok
	maxAttempt  int
	starts      int
	uncounted   int // restarts that do not count as an attempt, or may not
	fails       int
	forgiven    int // fails whose record a fault may have lost
	lostAt      int64
	explainable []*restart // restarts not explained yet, that a late "lost" of this holder explains
}

// holder is what happened to one incarnation.
type holder struct {
	killed, left bool
	killedAt     int64
	gaveAt       map[string]int64 // last revoke or assign, by partition
	lostAt       map[string]int64
	frozen, net  span
}

// span is the last fault of a kind: until is MaxInt64 while it lasts.
type span struct{ from, until int64 }

func (s span) touches(t int64) bool { return s.from != 0 && s.until >= t }

const (
	pubOnce uint8 = 1 << iota
	pubMore
)

const (
	knownStarted uint8 = 1 << iota // started at least once in this group
	knownDone
	knownSpent // a unit: the other bits count attempts that failed as the last one

	mostSpent = 255 &^ (knownSpent - 1)
)

// tracker follows deliveries and what explains their repetition. Settled messages
// shrink to one byte; a worker that reports no settles makes it remember them all.
type tracker struct {
	live    map[string]*delivery // by group and ID
	known   ids[uint8]           // by group and ID: what remains of settled ones
	pubs    ids[uint8]
	holders map[incarnation]*holder
	all     holder // faults that hit everyone
	broker  int64
	replay  int64
	old     map[string]*delivery // by holder, group and ID: taken over without a cause yet
	limit   int                  // Params.Attempts
}

func newTracker(p Params) *tracker {
	return &tracker{
		limit: p.Attempts,
		live:  map[string]*delivery{}, known: newIDs[uint8](), pubs: newIDs[uint8](),
		holders: map[incarnation]*holder{}, old: map[string]*delivery{},
	}
}

func (t *tracker) holder(i incarnation) *holder {
	h := t.holders[i]
	if h == nil {
		h = &holder{gaveAt: map[string]int64{}, lostAt: map[string]int64{}}
		t.holders[i] = h
	}
	return h
}

func groupID(e *history.Event) string { return e.Group + "\x00" + e.ID }

func oldKey(i incarnation, gid string) string {
	return i.proc + "\x00" + string(rune(i.gen)) + "\x00" + gid
}

// observe takes the next event. For a start that is not the first of its message in
// its group it returns the restart; its cause may still be filled in until the end.
func (t *tracker) observe(i int, e *history.Event) *restart {
	by := incarnation{e.Proc, e.Gen}
	switch e.Op {
	case history.OpPub:
		p := t.pubs.at(e.ID)
		if *p != 0 {
			*p |= pubMore
		}
		*p |= pubOnce
	case history.OpPubd:
		if e.Outcome != history.OK && e.Outcome != history.Rejected {
			*t.pubs.at(e.ID) |= pubMore
		}
	case history.OpStart:
		return t.start(i, e, by)
	case history.OpRecv:
		if d := t.live[groupID(e)]; d != nil && d.by != by && d.heir != by {
			if d.heir != (incarnation{}) {
				if c, at := t.struck(t.holder(d.heir), d.heirFrom, d.partition); c != "" {
					d.struck, d.struckAt = c, at
				}
			}
			d.heir, d.heirFrom = by, e.T-max(e.Eps, 0)
		}
	case history.OpEnd:
		t.end(e, by)
	case history.OpSettled:
		t.settled(e, by)
	case history.OpAssign, history.OpRevoke:
		t.holder(by).gaveAt[strings.Clone(e.Partition)] = e.T
	case history.OpLost:
		t.lost(e, by)
	case history.OpBye:
		t.holder(by).left = true
	case history.OpFault, history.OpHeal:
		t.fault(e)
	}
	return nil
}

func (t *tracker) fault(e *history.Event) {
	h := &t.all
	if e.Dest != "" {
		h = t.holder(incarnation{e.Dest, e.N})
	}
	mark := func(s *span, lasting bool) {
		switch {
		case e.Op == history.OpHeal:
			s.until = e.T
		case lasting:
			*s = span{e.T, math.MaxInt64}
		default:
			*s = span{e.T, max(e.T, s.until)}
		}
	}
	switch e.Outcome {
	case history.FaultMissed:
	case history.FaultKill:
		h.killed, h.killedAt = true, e.T
	case history.FaultTerm:
		h.left = true
	case history.FaultFreeze:
		mark(&h.frozen, true)
	case history.FaultBroker:
		t.broker = max(e.T, 1)
	case history.FaultReplay:
		t.replay = max(e.T, 1)
	default:
		mark(&h.net, e.Outcome == history.FaultBlackHole)
	}
}

func (t *tracker) start(i int, e *history.Event, by incarnation) *restart {
	gid := groupID(e)
	d := delivery{by: by, partition: e.Partition, from: e.T - max(e.Eps, 0), index: i, attempt: e.Attempt, starts: 1, maxAttempt: e.Attempt}
	prev := t.live[gid]
	known := t.known.at(gid)
	var r *restart
	switch {
	case prev != nil:
		r = &restart{id: e.ID, prev: *prev, completed: prev.everDone, witness: []int{prev.index, i}}
		d.starts, d.fails, d.everDone, d.uncounted, d.forgiven = prev.starts+1, prev.fails, prev.everDone, prev.uncounted, prev.forgiven
		if prev.outcome == history.Fail && t.disturbed(prev) {
			d.forgiven++
		}
		d.maxAttempt = max(prev.maxAttempt, e.Attempt)
	case *known&knownStarted != 0:
		r = &restart{id: e.ID, completed: *known&knownDone != 0, prev: delivery{settled: true, index: -1}}
		d.everDone = r.completed
	}
	*known |= knownStarted
	if r != nil {
		r.cause, r.at = t.explain(e.ID, &r.prev)
		if r.cause == "" && prev != nil {
			prev.explainable = append(prev.explainable, r)
			t.old[oldKey(prev.by, gid)] = prev
		}
		if r.cause != CauseRetry || r.prev.outcome != history.Fail {
			d.uncounted++
		}
	}
	t.live[gid] = &d
	return r
}

// explain looks for a cause for starting a message again after prev.
func (t *tracker) explain(id string, prev *delivery) (Cause, int64) {
	if !prev.settled {
		if c, at := t.unsettled(prev); c != "" {
			return c, at
		}
	}
	switch {
	case *t.pubs.at(id)&pubMore != 0:
		return CausePublish, 0
	case t.broker != 0:
		return CauseBroker, t.broker
	case t.replay != 0:
		return CauseReplay, t.replay
	}
	if prev.settled {
		return "", 0
	}
	h := t.holder(prev.by)
	for p, at := range h.gaveAt {
		if at >= prev.from && samePartition(p, prev.partition) {
			return CauseRevoke, at
		}
	}
	if h.left {
		return CauseRevoke, prev.from
	}
	return "", 0
}

func (t *tracker) unsettled(prev *delivery) (Cause, int64) {
	h := t.holder(prev.by)
	switch {
	case prev.gaveBack, prev.outcome == history.Fail, prev.outcome == history.Cancelled:
		return CauseRetry, prev.from
	case prev.class == history.LeaseLost:
		return CauseLease, prev.classAt
	case prev.class != "":
		return CauseSettle, prev.classAt
	case prev.lostAt != 0:
		return CauseLease, prev.lostAt
	}
	if c, at := t.struck(h, prev.from, prev.partition); c != "" {
		return c, at
	}
	if prev.heir != (incarnation{}) {
		if c, at := t.struck(t.holder(prev.heir), prev.heirFrom, prev.partition); c != "" {
			return c, at
		}
	}
	return prev.struck, prev.struckAt
}

// struck tells which fault hit a holder while it held a message since from.
func (t *tracker) struck(h *holder, from int64, partition string) (Cause, int64) {
	if h.killed {
		return CauseCrash, h.killedAt
	}
	for p, at := range h.lostAt {
		if at >= from && samePartition(p, partition) {
			return CauseLease, at
		}
	}
	switch {
	case h.frozen.touches(from):
		return CauseLease, h.frozen.from
	case h.net.touches(from):
		return CauseNetwork, h.net.from
	case t.all.net.touches(from):
		return CauseNetwork, t.all.net.from
	}
	return "", 0
}

func samePartition(a, b string) bool { return a == b || a == "" || b == "" }

func (t *tracker) end(e *history.Event, by incarnation) {
	d := t.live[groupID(e)]
	if d == nil || d.by != by {
		return // of an owner that lost it: decides nothing
	}
	d.outcome = e.Outcome
	d.permanent = e.Class == history.Permanent
	switch e.Outcome {
	case history.OK:
		d.everDone = true
		*t.known.at(groupID(e)) |= knownDone
	case history.Fail:
		d.fails++
		if k := t.known.at(groupID(e)); t.last(d) && *k < mostSpent {
			*k += knownSpent
		}
	}
	t.forget(groupID(e), d)
}

// last reports whether a failed attempt may have been the last: no limit is known,
// it is reached, or the error was permanent.
func (t *tracker) last(d *delivery) bool {
	return d.permanent || t.limit <= 0 || d.starts >= t.limit || d.maxAttempt >= t.limit
}

// spent is how many attempts of a message in a group failed as its last one.
func (t *tracker) spent(gid string) int { return int(*t.known.at(gid) / knownSpent) }

func (t *tracker) settled(e *history.Event, by incarnation) {
	gid := groupID(e)
	if e.Class == history.LeaseLost {
		t.explainLate(gid, by, e.T)
	}
	d := t.live[gid]
	if d == nil || d.by != by && d.heir != by || e.Outcome == history.Extend && e.Class != history.LeaseLost {
		return
	}
	switch {
	case e.Class != "":
		d.class, d.classAt = strings.Clone(e.Class), e.T
	case e.Outcome == history.Nack, e.Outcome == history.Return:
		d.gaveBack = true
	default:
		d.settled, d.class = true, ""
		t.forget(gid, d)
	}
}

// forget drops a delivery that is over for good; a byte remains.
func (t *tracker) forget(gid string, d *delivery) {
	if d.settled && d.outcome == history.OK {
		delete(t.live, gid)
	}
}

func (t *tracker) lost(e *history.Event, by incarnation) {
	if e.ID == "" {
		t.holder(by).lostAt[strings.Clone(e.Partition)] = e.T
		return
	}
	gid := groupID(e)
	t.explainLate(gid, by, e.T)
	if d := t.live[gid]; d != nil && d.by == by {
		d.lostAt = max(e.T, 1)
	}
}

// explainLate explains a takeover that was seen before its old holder noticed: a
// lease ran out, another process started the message, and only the settle of the
// first told it so.
func (t *tracker) explainLate(gid string, by incarnation, at int64) {
	k := oldKey(by, gid)
	d := t.old[k]
	if d == nil {
		return
	}
	for _, r := range d.explainable {
		r.cause, r.at = CauseLease, at
	}
	delete(t.old, k)
}

// disturbed: a fault hit the holder before its settle, so what it had written last
// (an attempt count, a dead-letter copy) may stand without the settle, or be lost.
func (t *tracker) disturbed(d *delivery) bool {
	if d == nil || d.settled {
		return false
	}
	c := *d
	c.outcome, c.gaveBack = "", false // the failed attempt itself is no fault
	cause, _ := t.unsettled(&c)
	return cause != ""
}
