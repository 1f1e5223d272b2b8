package memory

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// source is what a group reads: a backlog (each) or a cursor (up to). All methods are
// called with the group's lock held.
type source interface {
	advance(now int64) (next int64)
	take(c *consumer, w *want)
	settle(c *consumer, s *driver.Settlement, now int64) error
	release(t *tenure)
	describe(t *tenure) driver.Assignment
}

// group is one group of a destination: its members, who owns what, who waits.
type group struct {
	d       *destination
	name    string
	shared  bool        // no partitions: every member holds a tenure of "" at the same time
	private bool        // made for one consumer, ends with it
	hidden  bool        // a stream read without a group: not to be found by name
	gone    atomic.Bool // deleted; set under mu while there is no member

	mu      sync.Mutex
	src     source
	backlog *backlog // src of a queue or topic, else nil
	ready   int      // messages of the backlog that could be handed out now
	members []*consumer
	owner   []*tenure // by partition
	fences  []uint64

	waiting int
	idle    []*consumer // of a shared group: wait and have room, the longest waiting first
	// sentinel is the one waiting consumer whose timer is armed for what comes due
	// next. Invariant: while somebody waits and something will come due, there is a
	// sentinel armed no later than that, or somebody was poked to become it.
	sentinel *consumer
}

// wakeOwner wakes the owner of a partition that has something to take.
func (g *group) wakeOwner(part int) {
	if t := g.owner[part]; t != nil && t.state == open && t.c.waiting {
		t.c.poke()
	}
}

// schedule sees to it that somebody wakes at next.
func (g *group) schedule(next int64) {
	if g.waiting == 0 || next == never {
		return
	}
	if g.sentinel != nil {
		if next < g.sentinel.armed {
			g.sentinel.poke()
		}
		return
	}
	for _, c := range g.members {
		if c.waiting {
			c.poke()
			return
		}
	}
}

// enlist lets c wait. It returns when c has to wake by itself, or never.
func (g *group) enlist(c *consumer, able bool, next int64) int64 {
	c.waiting = true
	g.waiting++
	if g.shared && able {
		g.idle = append(g.idle, c)
	}
	c.blocked = !able
	if next == never {
		return never
	}
	if g.sentinel == nil {
		g.sentinel, c.armed = c, next
		return next
	}
	if next < g.sentinel.armed {
		g.sentinel.poke()
	}
	return never
}

func (g *group) delist(c *consumer) {
	c.waiting, c.blocked = false, false
	g.waiting--
	if i := slices.Index(g.idle, c); i >= 0 {
		g.idle = slices.Delete(g.idle, i, i+1)
	}
	if g.sentinel == c {
		g.sentinel = nil
	}
}

// handOver ends everything that may have made messages ready, moved a timer or taken
// a consumer out of the waiting ones. In a shared group it wakes one consumer that has
// room; if that one leaves some, its own handOver wakes the next. So a batch does not
// wake everybody, and a consumer that was woken and then cancelled passes it on.
func (g *group) handOver(next int64) {
	if g.waiting == 0 {
		return
	}
	if g.shared && g.ready > 0 && len(g.idle) > 0 {
		c := g.idle[0]
		g.idle = slices.Delete(g.idle, 0, 1)
		c.poke()
	}
	g.schedule(next)
}

// want is a Demand on its way through a source.
type want struct {
	records int
	bytes   int64
	limit   int
	skip    []string
	quota   int  // records one partition may still give in this pass
	full    bool // the bytes are used up

	now      int64
	lease    time.Duration
	deadline time.Time
}

func (w *want) paused(name string) bool { return len(w.skip) > 0 && slices.Contains(w.skip, name) }

// admit tells whether a message of that size still fits, and counts it. One that is
// larger than everything comes alone.
func (w *want) admit(size int64, have int) bool {
	if size > w.bytes && have > 0 {
		w.full = true
		return false
	}
	w.bytes -= size
	w.records--
	w.quota--
	if w.bytes <= 0 {
		w.full = true
	}
	return true
}
