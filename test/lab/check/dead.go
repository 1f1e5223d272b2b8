package check

import (
	"maps"
	"slices"
	"strings"

	"github.com/varal-go/varal/test/lab/history"
)

// DeadLetter is I10's second half. A further copy is explained by another start of
// the message that failed as the last attempt does, by a publish to the dead-letter destination that ended
// unknown (a pubd of the ID with that Dest), or by a fault that hit the last holder
// between the copy and its settle.
var DeadLetter = define("I10.dead", "a message is dead-lettered once, and only after its last attempt failed",
	func(p Params) Stream { return newDead(p) })

// V6 reads dead copies in the order of the log of whoever read them. Messages that
// some attempt had completed, and further copies, are not judged.
var V6 = define("V6", "the dead letters of a key are in the order of its messages",
	func(Params) Stream {
		return &deadOrder{verdict: newVerdict(), last: map[string]letter{}, done: newIDs[uint8]()}
	})

// grave is what is known of one dead-lettered message in one group.
type grave struct {
	id      string
	dests   map[string]bool
	copies  int
	caused  int // further copies with a cause
	witness []int
	early   string
}

type dead struct {
	verdict
	p       Params
	t       *tracker
	graves  map[string]*grave
	unknown map[string]map[string]bool // ID → destinations with an unknown publish
}

func newDead(p Params) *dead {
	return &dead{verdict: newVerdict(), p: p, t: newTracker(p), graves: map[string]*grave{}, unknown: map[string]map[string]bool{}}
}

func (d *dead) Observe(e *history.Event) {
	d.tick()
	d.t.observe(d.i, e)
	switch e.Op {
	case history.OpPubd:
		if e.Outcome == history.Unknown && e.Dest != "" {
			if d.unknown[e.ID] == nil {
				d.unknown[e.ID] = map[string]bool{}
			}
			d.unknown[e.ID][e.Dest] = true
		}
	case history.OpDead:
		d.dead(e)
	}
}

func (d *dead) dead(e *history.Event) {
	gid := groupID(e)
	g := d.graves[gid]
	if g == nil {
		d.n++
		g = &grave{id: e.ID, dests: map[string]bool{}}
		d.graves[gid] = g
		g.early = d.tooEarly(gid)
	} else if d.t.disturbed(d.t.live[gid]) || *d.t.pubs.at(e.ID)&pubMore != 0 {
		g.caused++
	}
	g.dests[e.Dest] = true
	g.copies++
	if len(g.witness) < MaxAccused {
		g.witness = append(g.witness, d.i)
	}
}

// tooEarly tells why a message should not be dead yet, "" = it may.
func (d *dead) tooEarly(gid string) string {
	x := d.t.live[gid]
	switch {
	case d.t.spent(gid) > 0:
		return "" // it was due once; what came of it later may be read before its copy
	case x == nil && *d.t.known.at(gid)&knownDone != 0:
		return "after it was done and settled"
	case x == nil:
		return "" // never started: undecodable, expired, or another's group
	case x.permanent:
		return ""
	case x.fails == 0 && x.outcome == history.Cancelled:
		return "although its attempt was only cancelled"
	case x.fails == 0 && x.outcome == history.OK:
		return "after it was done"
	case d.p.Attempts > 0 && x.starts < d.p.Attempts && x.maxAttempt < d.p.Attempts:
		return "before its last attempt"
	}
	return ""
}

func (d *dead) Result() Result {
	for _, gid := range slices.Sorted(maps.Keys(d.graves)) {
		g := d.graves[gid]
		allowed := max(d.t.spent(gid), 1) + g.caused
		for dest := range g.dests {
			if d.unknown[g.id][dest] {
				allowed = g.copies
			}
		}
		d.counts["copies"] += g.copies
		d.counts["copies explained"] += g.caused
		switch {
		case g.copies > allowed:
			d.accuse(g.id, g.witness, "%s was dead-lettered %d times", g.id, g.copies)
		case g.early != "":
			d.accuse(g.id, nil, "%s was dead-lettered %s", g.id, g.early)
		}
	}
	return d.result("dead letters", "a dead letter")
}

type letter struct {
	n     int
	id    string
	index int
}

type deadOrder struct {
	verdict
	last map[string]letter // by group, destination, source and key
	done ids[uint8]        // 1: some attempt completed, 2: had a copy, 4: sent more than once or unknown
}

func (d *deadOrder) Observe(e *history.Event) {
	d.tick()
	switch e.Op {
	case history.OpEnd:
		if e.Outcome == history.OK {
			*d.done.at(e.ID) |= 1
		}
	case history.OpPubd:
		if e.Outcome != history.OK {
			*d.done.at(e.ID) |= 4 // its place among the others is not certain
		}
	case history.OpDead:
		seen := d.done.at(e.ID)
		if e.Key == "" || e.N <= 0 || *seen != 0 {
			*seen |= 2
			return
		}
		*seen |= 2
		d.copy(e)
	}
}

func (d *deadOrder) copy(e *history.Event) {
	k := laneKey(e.Group, e.Dest, e.Key)
	last, ok := d.last[k]
	if ok {
		d.n++
		if e.N < last.n {
			d.accuse(e.ID, []int{last.index, d.i}, "%s is in the dead letters behind %s, which was published after it", e.ID, last.id)
		}
	}
	if !ok || e.N > last.n {
		d.last[strings.Clone(k)] = letter{e.N, e.ID, d.i}
	}
}

func (d *deadOrder) Result() Result {
	return d.result("pairs", "two dead letters of one key")
}
