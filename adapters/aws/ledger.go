package aws

import (
	"slices"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// delivery is one hand-out of a message. The consumer's lock guards it.
type delivery struct {
	of       *consumer
	id       string // of the message, the queue's own
	handle   string // names the hand-out
	group    string // FIFO
	from     time.Time
	deadline time.Time // end of the lease by our clock
	count    int
	msg      driver.Message
	err      error // not readable as a message
	maybe    bool  // a settlement of it had no answer
	lost     bool  // not ours any more: settled, or its lease is over
}

// ledger knows what is out to one consumer: by the queue's id, and on FIFO by group in the
// order it came. Not safe for concurrent use.
type ledger struct {
	out   map[string]*delivery
	lanes map[string][]*delivery
}

func newLedger() ledger {
	return ledger{out: map[string]*delivery{}, lanes: map[string][]*delivery{}}
}

// add takes a hand-out in. A second one of a message that is still here ends the first:
// only the newest handle settles it, and to renew the older would keep the message hidden
// after it was done.
func (l *ledger) add(d *delivery) {
	if old := l.out[d.id]; old != nil {
		l.lose(old)
	}
	l.out[d.id] = d
	if d.group != "" {
		l.lanes[d.group] = append(l.lanes[d.group], d)
	}
}

// remove takes a delivery out; one that a newer has replaced is out already.
func (l *ledger) remove(d *delivery) {
	if l.out[d.id] == d {
		delete(l.out, d.id)
	}
	if d.group == "" {
		return
	}
	lane := slices.DeleteFunc(l.lanes[d.group], func(o *delivery) bool { return o == d })
	if len(lane) == 0 {
		delete(l.lanes, d.group)
		return
	}
	l.lanes[d.group] = lane
}

func (l *ledger) lose(d *delivery) {
	d.lost = true
	l.remove(d)
}

// loseLane ends the lease of a whole group: what is behind a lost message must not be
// settled before it.
func (l *ledger) loseLane(group string) {
	for _, d := range slices.Clone(l.lanes[group]) {
		l.lose(d)
	}
}

// behind returns what came after d in its group.
func (l *ledger) behind(d *delivery) []*delivery {
	lane := l.lanes[d.group]
	i := slices.Index(lane, d)
	if d.group == "" || i < 0 {
		return nil
	}
	return slices.Clone(lane[i+1:])
}

// sweep forgets what nobody settled and nobody can settle any more.
func (l *ledger) sweep(now time.Time) {
	for _, d := range l.out {
		if now.After(d.deadline.Add(time.Minute)) {
			l.lose(d)
		}
	}
}

// left returns everything that is out, each group from its last message to its first: a
// message that becomes visible behind one that is in flight waits for it, whereas one in
// front could be handed out while those behind it still count as ours.
func (l *ledger) left() []*delivery {
	var all []*delivery
	for _, lane := range l.lanes {
		for _, d := range slices.Backward(lane) {
			all = append(all, d)
		}
	}
	for _, d := range l.out {
		if d.group == "" {
			all = append(all, d)
		}
	}
	return all
}
