package check

import (
	"strconv"

	"github.com/varal-go/varal/test/lab/history"
)

// Duplicates is I4. Counts tells restarts per cause, and under "started 1×" … how
// many messages were started how often. A retry is no duplicate; it is counted.
var Duplicates = define("I4", "each further start of a message has a recorded cause",
	func(p Params) Stream {
		return &duplicates{verdict: newVerdict(), t: newTracker(p), starts: newIDs[uint8]()}
	})

// V5 is the bound on duplicates: what was completed is repeated only by a fault,
// and after a kill only what its victim held unsettled. A graceful leave or
// rebalance repeats nothing.
var V5 = define("V5", "nothing completed is repeated by a graceful leave; after a kill at most what the victim had not settled",
	func(p Params) Stream {
		return &duplicates{verdict: newVerdict(), t: newTracker(p), starts: newIDs[uint8](), bound: true}
	})

type duplicates struct {
	verdict
	t      *tracker
	starts ids[uint8] // per group and ID, saturating
	open   []*restart // had no cause when they were seen
	bound  bool
}

func (d *duplicates) Observe(e *history.Event) {
	d.tick()
	r := d.t.observe(d.i, e)
	if e.Op != history.OpStart {
		return
	}
	d.n++
	if k := d.starts.at(groupID(e)); *k < 255 {
		*k++
	}
	switch {
	case r == nil:
	case d.bound && !r.completed:
		d.counts["again, not completed"]++
	case d.bound && r.cause == CauseRevoke:
		d.counts[string(r.cause)]++
		d.accuse(r.id, r.witness, "%s was completed, and done again after its holder left in good order", r.id)
	case r.cause != "":
		d.counts[string(r.cause)]++
	default:
		d.open = append(d.open, r)
	}
}

func (d *duplicates) Result() Result {
	for _, r := range d.open {
		if r.cause != "" {
			d.counts[string(r.cause)]++
			continue
		}
		d.counts["unexplained"]++
		w := r.witness
		if r.prev.index < 0 {
			w = nil // its first start is forgotten; the history is traced
		}
		d.accuse(r.id, w, "%s was started again, and nothing recorded explains it", r.id)
	}
	d.starts.each(func(_ string, n uint8) { d.counts["started "+strconv.Itoa(int(n))+"×"]++ })
	return d.result("starts", "a handler started")
}
