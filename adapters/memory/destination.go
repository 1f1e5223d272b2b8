package memory

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// limits of one destination.
type limits struct {
	messages int
	bytes    int64
	age      time.Duration
}

// destination is a queue, topic or stream.
type destination struct {
	broker *Broker
	place
	partitions int      // 0 = none
	names      []string // of the partitions
	limits     limits
	spread     atomic.Uint64 // keyless messages go round
	deleted    atomic.Bool

	mu     sync.RWMutex
	groups []*group // replaced, never changed: a copy of the slice may be read without the lock
	logs   []*log   // a topic: one, for groups to come; a stream: by partition
}

func newDestination(b *Broker, of driver.Destination, l limits) *destination {
	d := &destination{broker: b, place: place{of.Shape, of.Name}, partitions: of.Partitions, limits: l}
	if of.Shape == driver.Stream {
		d.partitions = max(1, of.Partitions)
	}
	for i := range d.partitions {
		d.names = append(d.names, strconv.Itoa(i))
	}
	switch of.Shape {
	case driver.Queue:
		d.groups = []*group{newGroup(d, "")}
	case driver.Topic:
		d.logs = []*log{newLog(l)}
	case driver.Stream:
		each := l
		each.messages = max(1, l.messages/d.partitions)
		each.bytes = max(1, l.bytes/int64(d.partitions))
		for range d.partitions {
			d.logs = append(d.logs, newLog(each))
		}
	}
	return d
}

func newGroup(d *destination, name string) *group {
	g := &group{d: d, name: name, shared: d.partitions == 0}
	g.owner = make([]*tenure, d.partitions)
	g.fences = make([]uint64, d.partitions)
	if d.shape == driver.Stream {
		g.src = newCursor(g)
		return g
	}
	g.backlog = newBacklog(g, d.partitions)
	g.src = g.backlog
	return g
}

func (d *destination) allGroups() []*group {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.groups
}

// findGroup returns the group of that name, nil if there is none. A queue has one. The
// lock is held.
func (d *destination) findGroup(name string) *group {
	for _, g := range d.groups {
		if !g.hidden && !g.gone.Load() && (d.shape == driver.Queue || g.name == name) {
			return g
		}
	}
	return nil
}

// obtainGroup finds or makes the group a subscription or resource asks for. made tells
// that it is new.
func (d *destination) obtainGroup(op, name string, start driver.Position) (g *group, made bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.findGroup(name); g != nil {
		return g, false, nil
	}
	g, err = d.makeGroup(op, name, start)
	return g, err == nil, err
}

// privateGroup makes a group for one consumer. hidden ones have no name.
func (d *destination) privateGroup(op, name string, start driver.Position, hidden bool) (*group, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !hidden && d.findGroup(name) != nil {
		return nil, driver.Errorf(op, driver.Conflict, "group %q exists, so it cannot be Temporary", name)
	}
	g, err := d.makeGroup(op, name, start)
	if err == nil {
		g.private, g.hidden = true, hidden
	}
	return g, err
}

// makeGroup adds a group at its start. The lock is held, so nothing is published
// meanwhile: what was before is in the log, what comes after reaches the group.
func (d *destination) makeGroup(op, name string, start driver.Position) (*group, error) {
	g := newGroup(d, name)
	now := d.broker.now()
	switch d.shape {
	case driver.Topic:
		if err := checkStart(op, d.shape, start); err != nil {
			return nil, err
		}
		if start.Kind != driver.Latest {
			l := d.logs[0]
			l.trim(now)
			items := make([]item, l.ring.len())
			for i := range items {
				g.backlog.add(&items[i], l.ring.at(i), now)
			}
		}
	case driver.Stream:
		c := g.src.(*cursor)
		for i, l := range d.logs { // those that start says nothing about
			l.trim(now)
			c.committed[i] = l.first
		}
		if err := c.seek(op, start); err != nil {
			return nil, err
		}
	}
	d.groups = append(slices.Clone(d.groups), g)
	return g, nil
}

// checkStart refuses positions that a queue or topic does not have.
func checkStart(op string, shape driver.Shape, start driver.Position) error {
	switch k := start.Kind; {
	case k == driver.Default, k == driver.Earliest, k == driver.Latest && shape == driver.Topic, shape == driver.Stream:
		return nil
	case k == driver.Latest:
		return driver.Errorf(op, driver.Unsupported, "position: a %s cannot start at %q; only a topic's group or a stream can", shape, k)
	default:
		return driver.Errorf(op, driver.Unsupported, "position: a %s cannot start at %q; only a stream can", shape, k)
	}
}

func (d *destination) dropGroup(g *group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.groups = slices.DeleteFunc(slices.Clone(d.groups), func(x *group) bool { return x == g })
}

// agree checks that both sides mean the same number of partitions.
func (d *destination) agree(op string, of driver.Destination) error {
	if of.Partitions <= 0 || of.Partitions == d.partitions {
		return nil
	}
	return driver.Errorf(op, driver.Conflict, "Partitions is %d, but the %s was made with %d: publisher and consumer must agree",
		of.Partitions, of.Shape, d.partitions)
}
