package check

import "github.com/varal-go/varal/test/lab/history"

// Attempts is I10's first half. A start after a failed attempt has a higher number
// than the attempt before; after anything else that explains it, at least the same
// (Params.ResetOnCrash allows less after a crash). A further copy of a message and a
// replay count from one again. At most Params.Attempts attempts fail, and no number
// passes it but for attempts that did not fail.
var Attempts = define("I10", "the attempts of a message grow and stay within their limit",
	func(p Params) Stream { return &attempts{verdict: newVerdict(), p: p, t: newTracker(p)} })

type attempts struct {
	verdict
	p Params
	t *tracker
}

func (a *attempts) Observe(e *history.Event) {
	a.tick()
	r := a.t.observe(a.i, e)
	switch e.Op {
	case history.OpStart:
		if e.Attempt > 0 {
			a.n++
			a.start(e, r)
		}
	case history.OpEnd:
		d := a.t.live[groupID(e)]
		if d != nil && a.p.Attempts > 0 && e.Outcome == history.Fail && d.by == (incarnation{e.Proc, e.Gen}) &&
			d.fails > a.p.Attempts+d.forgiven && *a.t.pubs.at(e.ID)&pubMore == 0 && a.t.replay == 0 {
			a.accuse(e.ID, nil, "%s failed %d times, %d attempts are allowed", e.ID, d.fails, a.p.Attempts)
		}
	}
}

func (a *attempts) start(e *history.Event, r *restart) {
	fresh := *a.t.pubs.at(e.ID)&pubMore != 0 || a.t.replay != 0
	if d := a.t.live[groupID(e)]; a.p.Attempts > 0 && !fresh && e.Attempt > a.p.Attempts+d.uncounted {
		a.accuse(e.ID, nil, "attempt %d of %s, %d are allowed", e.Attempt, e.ID, a.p.Attempts)
		return
	}
	if r == nil || fresh || r.prev.index < 0 {
		return
	}
	a.counts["restarts"]++
	before := r.prev.attempt
	failed := r.prev.outcome == history.Fail && !a.t.disturbed(&r.prev)
	reset := a.p.ResetOnCrash && (r.cause == CauseCrash || a.t.holder(r.prev.by).killed)
	switch {
	case reset:
		a.counts["after a crash"]++
	case e.Attempt < before, failed && e.Attempt == before:
		a.accuse(e.ID, r.witness, "%s was started as attempt %d after attempt %d", e.ID, e.Attempt, before)
	}
}

func (a *attempts) Result() Result { return a.result("starts", "a start with an attempt number") }
