package check

import (
	"maps"
	"slices"
	"strconv"

	"github.com/varal-go/varal/test/lab/history"
)

// V4 judges commit events: their Position is the next offset to read. A received
// message below it must be terminal. Where that is told only later (a dead letter
// is read after the commit that passed it) the check waits; a message below the
// commit that runs on, starts, or never becomes terminal accuses it, and so does one
// that is handed out below it for the first time. So does a late commit: one that the
// broker took from a process that had given the partition up in good order, whose last
// commit was done by definition. (After lost, one may have been on its way: not judged.)
var V4 = define("V4", "a committed position is at most the lowest message that is not terminal",
	func(Params) Stream {
		return &commits{verdict: newVerdict(), parts: map[string]*part{}, at: map[string][]spot{}, over: newIDs[uint8](), gave: map[string]int{}}
	})

type spot struct {
	part   string
	offset int64
}

// log entry of a partition, from its receipt until it is terminal and passed.
type entry struct {
	id     string
	done   bool
	by     incarnation
	index  int
	passed *history.Event // the first commit above it
	passI  int
}

type part struct {
	entries   map[int64]*entry
	committed int64
	last      *history.Event // the commit that brought it there
	lastI     int
}

type commits struct {
	verdict
	parts   map[string]*part
	at      map[string][]spot // group and ID → where its copies are
	over    ids[uint8]        // group and ID: 1 = some copy was terminal
	gave    map[string]int    // process and partition → index of its revoke, until it is assigned again
	drained bool
}

func (c *commits) Observe(e *history.Event) {
	c.tick()
	switch e.Op {
	case history.OpRecv, history.OpStart:
		if offset, err := strconv.ParseInt(e.Position, 10, 64); err == nil {
			c.received(e, offset)
		} else if e.Op == history.OpStart {
			c.active(e)
		}
	case history.OpEnd:
		if c.active(e) && e.Outcome == history.OK {
			c.terminal(e)
		}
	case history.OpDead, history.OpSkip:
		c.terminal(e)
	case history.OpSettled:
		if e.Outcome == history.Reject && e.Class == "" {
			c.terminal(e)
		}
	case history.OpRevoke:
		c.gave[owner(e)] = c.i
	case history.OpAssign:
		delete(c.gave, owner(e))
	case history.OpDrained:
		c.drained = e.Outcome == history.OK
	case history.OpCommit:
		if p, err := strconv.ParseInt(e.Position, 10, 64); err == nil {
			c.commit(e, p)
		}
	}
}

// owner names a process and a partition of a group.
func owner(e *history.Event) string {
	return oldKey(incarnation{e.Proc, e.Gen}, laneKey(e.Group, e.Dest, e.Partition))
}

func (c *commits) part(e *history.Event) (string, *part) {
	name := e.Group + "\x00" + e.Dest + "\x00" + e.Partition
	p := c.parts[name]
	if p == nil {
		p = &part{entries: map[int64]*entry{}}
		c.parts[name] = p
	}
	return name, p
}

func (c *commits) received(e *history.Event, offset int64) {
	name, p := c.part(e)
	x := p.entries[offset]
	switch {
	case x != nil && !x.done && e.Op == history.OpStart:
		c.judge(x, e)
		x.index = c.i
	case x == nil && (offset >= p.committed || *c.over.at(groupID(e)) == 0):
		x = &entry{id: e.ID, index: c.i}
		p.entries[offset] = x
		c.at[groupID(e)] = append(c.at[groupID(e)], spot{name, offset})
		if offset < p.committed { // it was committed unseen
			x.passed, x.passI = p.last, p.lastI
			if e.Op == history.OpStart {
				c.judge(x, e)
			}
		}
	}
	if x != nil {
		x.by = incarnation{e.Proc, e.Gen}
	}
}

// find returns the copies an event is about: the one at its Position, or all.
func (c *commits) find(e *history.Event) []spot {
	// A copy: forget, called while the caller ranges over it, deletes in place.
	all := slices.Clone(c.at[groupID(e)])
	offset, err := strconv.ParseInt(e.Position, 10, 64)
	if err != nil {
		return all
	}
	return slices.DeleteFunc(all, func(s spot) bool { return s.offset != offset })
}

func (c *commits) entry(s spot) *entry { return c.parts[s.part].entries[s.offset] }

// active is a sign of life of a message: it must not be below a commit. It reports
// whether the sign comes from who holds it.
func (c *commits) active(e *history.Event) (holds bool) {
	for _, s := range c.find(e) {
		if x := c.entry(s); !x.done && x.by == (incarnation{e.Proc, e.Gen}) {
			c.judge(x, e)
			holds = true
		}
	}
	return holds
}

func (c *commits) judge(x *entry, e *history.Event) {
	if x.passed == nil || !history.Before(x.passed, e) {
		return
	}
	c.accuse(x.id, []int{x.index, x.passI, c.i}, "%s was not terminal when position %s was committed above it", x.id, x.passed.Position)
	x.passed = nil
}

// terminal makes a message terminal; what a commit has passed is forgotten.
func (c *commits) terminal(e *history.Event) {
	*c.over.at(groupID(e)) = 1
	for _, s := range c.find(e) {
		x := c.entry(s)
		x.done = true
		if x.passed != nil {
			c.forget(groupID(e), s)
		}
	}
}

func (c *commits) forget(gid string, s spot) {
	delete(c.parts[s.part].entries, s.offset)
	rest := slices.DeleteFunc(c.at[gid], func(x spot) bool { return x == s })
	if c.at[gid] = rest; len(rest) == 0 {
		delete(c.at, gid)
	}
}

func (c *commits) commit(e *history.Event, position int64) {
	c.n++
	if revoked, ok := c.gave[owner(e)]; ok {
		c.counts["late"]++
		c.accuse("", []int{revoked, c.i}, "%s committed position %s of partition %q after it had given it up", e.Proc, e.Position, e.Partition)
	}
	name, p := c.part(e)
	for offset, x := range p.entries {
		switch {
		case offset >= position || x.passed != nil:
		case x.done:
			c.forget(e.Group+"\x00"+x.id, spot{name, offset})
		default:
			ev := *e
			x.passed, x.passI = &ev, c.i
		}
	}
	if position > p.committed {
		ev := *e
		p.committed, p.last, p.lastI = position, &ev, c.i
	}
}

func (c *commits) Result() Result {
	for _, name := range slices.Sorted(maps.Keys(c.parts)) {
		p := c.parts[name]
		for _, offset := range slices.Sorted(maps.Keys(p.entries)) {
			if x := p.entries[offset]; x.passed != nil && !x.done {
				if !c.drained { // its dead letter may not have been read yet
					c.counts["open at the end"]++
					continue
				}
				c.accuse(x.id, []int{x.index, x.passI}, "%s never became terminal, and position %s was committed above it", x.id, x.passed.Position)
			}
		}
	}
	return c.result("commits", "a commit")
}
