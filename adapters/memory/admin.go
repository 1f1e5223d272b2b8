package memory

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// admin is a driver.Admin. Its Options are max_messages, max_stored and retention, as
// in Config.
type admin struct{ cl *client }

func (a admin) reachable(ctx context.Context, op string) error {
	s := a.cl.broker.silent.Load()
	switch {
	case a.cl.closed.Load():
		return driver.Errorf(op, driver.Closed, "the driver is closed")
	case a.cl.broker.down.Load():
		return errDown(op)
	case s != nil:
		return a.cl.swallow(ctx, s, op, func() {})
	}
	return nil
}

// Apply implements driver.Admin. A resource with a Group makes its destination too.
// Everything is checked before anything is done.
func (a admin) Apply(ctx context.Context, wanted []driver.Resource, mode driver.Mode) ([]driver.Change, error) {
	if err := a.reachable(ctx, "apply"); err != nil {
		return nil, err
	}
	if mode < driver.Create || mode > driver.Delete {
		return nil, driver.Errorf("apply", driver.Permanent, "Mode %d is invalid", mode)
	}
	all := make([]limits, len(wanted))
	for i, r := range wanted {
		l, err := a.check(r)
		if err != nil {
			return nil, err
		}
		all[i] = l
	}
	var changes []driver.Change
	for i, r := range wanted {
		var (
			some []driver.Change
			err  error
		)
		if mode == driver.Delete {
			some, err = a.remove(r)
		} else {
			some, err = a.obtain(r, all[i], mode == driver.Create)
		}
		changes = append(changes, some...)
		if err != nil {
			return changes, err
		}
	}
	return changes, nil
}

// check validates a resource and returns the limits its options ask for.
func (a admin) check(r driver.Resource) (limits, error) {
	op := "apply " + r.Destination.String()
	l := a.cl.cfg.limits()
	switch {
	case r.Shape < driver.Queue || r.Shape > driver.Stream:
		return l, driver.Errorf(op, driver.Permanent, "Shape %d is none of queue, topic, stream", r.Shape)
	case r.Name == "":
		return l, driver.Errorf(op, driver.Permanent, "Name is empty")
	case r.Partitions < 0:
		return l, driver.Errorf(op, driver.Permanent, "Partitions is %d: use 0 or a positive number", r.Partitions)
	}
	for k, v := range r.Options {
		var err error
		switch k {
		case "max_messages":
			l.messages, err = strconv.Atoi(v)
		case "max_stored":
			l.bytes, err = strconv.ParseInt(v, 10, 64)
		case "retention":
			l.age, err = time.ParseDuration(v)
		default:
			return l, driver.Errorf(op, driver.Unsupported, "option %q is unknown: use max_messages, max_stored or retention", k)
		}
		if err != nil || l.messages < 1 || l.bytes < 1 {
			return l, driver.Errorf(op, driver.Permanent, "option %s is %q, which is not a positive value", k, v)
		}
	}
	return l, checkStart(op, r.Shape, r.Start)
}

// obtain compares a resource with what exists; with create it makes what is missing.
func (a admin) obtain(r driver.Resource, l limits, create bool) ([]driver.Change, error) {
	b := a.cl.broker
	b.mu.Lock()
	d, found := b.dests[place{r.Shape, r.Name}]
	if !found && create {
		d = newDestination(b, r.Destination, l)
		b.dests[d.place] = d
	}
	b.mu.Unlock()
	var changes []driver.Change
	whole := r.Destination
	whole.Group = ""
	if !found {
		changes = append(changes, missing(whole.String(), create))
	} else {
		changes = d.differences(r, l)
	}
	if r.Group == "" || r.Shape == driver.Queue {
		return changes, nil
	}
	if !create {
		if d == nil || d.groupNamed(r.Group) == nil {
			changes = append(changes, missing(r.Destination.String(), false))
		}
		return changes, nil
	}
	_, made, err := d.obtainGroup("apply "+r.Destination.String(), r.Group, r.Start)
	if made {
		changes = append(changes, missing(r.Destination.String(), true))
	}
	return changes, err
}

func missing(subject string, done bool) driver.Change {
	return driver.Change{Subject: subject, Field: "exists", Have: "no", Want: "yes", Done: done}
}

func (d *destination) groupNamed(name string) *group {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.findGroup(name)
}

// differences compares what was asked for by name only; they are reported, not changed.
func (d *destination) differences(r driver.Resource, l limits) []driver.Change {
	var changes []driver.Change
	differ := func(field string, have, want any) {
		if have != want {
			changes = append(changes, driver.Change{
				Subject: fmt.Sprintf("%s %s", d.shape, d.name), Field: field,
				Have: fmt.Sprint(have), Want: fmt.Sprint(want),
			})
		}
	}
	if r.Partitions > 0 {
		differ("partitions", d.partitions, r.Partitions)
	}
	for k := range r.Options {
		switch k {
		case "max_messages":
			differ(k, d.limits.messages, l.messages)
		case "max_stored":
			differ(k, d.limits.bytes, l.bytes)
		case "retention":
			differ(k, d.limits.age, l.age)
		}
	}
	return changes
}

// remove deletes a group without members, or a destination: its consumers end with
// NotFound.
func (a admin) remove(r driver.Resource) ([]driver.Change, error) {
	gone := []driver.Change{{Subject: r.Destination.String(), Field: "exists", Have: "yes", Want: "no", Done: true}}
	b := a.cl.broker
	if r.Group != "" && r.Shape != driver.Queue {
		d := b.find(r.Shape, r.Name)
		if d == nil {
			return nil, nil
		}
		found, err := d.removeGroup("delete "+r.Destination.String(), r.Group)
		if !found || err != nil {
			return nil, err
		}
		return gone, nil
	}
	b.mu.Lock()
	d := b.dests[place{r.Shape, r.Name}]
	if d != nil {
		delete(b.dests, d.place)
		d.deleted.Store(true)
	}
	b.mu.Unlock()
	if d == nil {
		return nil, nil
	}
	for _, g := range d.allGroups() {
		g.mu.Lock()
		for _, c := range g.members {
			c.poke()
		}
		g.mu.Unlock()
	}
	return gone, nil
}

func (d *destination) removeGroup(op, name string) (bool, error) {
	g := d.groupNamed(name)
	if g == nil {
		return false, nil
	}
	g.mu.Lock()
	members := len(g.members)
	g.gone.Store(members == 0) // from here on a Subscribe that has found it looks again
	g.mu.Unlock()
	if members > 0 {
		return false, driver.Errorf(op, driver.Conflict, "the group has %d consumers", members)
	}
	d.dropGroup(g)
	return true, nil
}

// lookup finds what a Resource names, and its group where it names one.
func (a admin) lookup(ctx context.Context, verb string, of driver.Resource) (*destination, *group, error) {
	d, err := a.cl.reach(verb, of.Destination)
	if s := a.cl.broker.silent.Load(); s != nil && err == nil {
		err = a.cl.swallow(ctx, s, verb+" "+of.Destination.String(), func() {})
	}
	if err != nil || of.Group == "" {
		return d, nil, err
	}
	g := d.groupNamed(of.Group)
	if g == nil {
		return d, nil, driver.Errorf(verb+" "+of.Destination.String(), driver.NotFound, "there is no such group")
	}
	return d, g, nil
}

// Seek implements driver.Admin.
func (a admin) Seek(ctx context.Context, of driver.Resource, to driver.Position) error {
	op := "seek " + of.Destination.String()
	d, g, err := a.lookup(ctx, "seek", of)
	switch {
	case err != nil:
		return err
	case of.Shape != driver.Stream:
		return driver.Errorf(op, driver.Unsupported, "replay: only a group of a stream has a position")
	case g == nil:
		return driver.Errorf(op, driver.Permanent, "Group is empty: name the group to move")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.members); n > 0 {
		return driver.Errorf(op, driver.Conflict, "the group has %d consumers: stop them first", n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return g.src.(*cursor).seek(op, to)
}

// Inspect implements driver.Admin.
func (a admin) Inspect(ctx context.Context, need driver.Resource) ([]driver.Finding, error) {
	if err := a.reachable(ctx, "inspect"); err != nil {
		return nil, err
	}
	subject := need.Destination.String()
	found := []driver.Finding{{
		Rule: "DM01", Subject: subject, Seen: "kept in this process only", Wanted: "durable",
		Fix: "use another broker where messages must outlive the process", Inspected: true,
	}}
	changes, err := a.Apply(ctx, []driver.Resource{need}, driver.Verify)
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		found = append(found, driver.Finding{
			Rule: "DM02", Subject: c.Subject, Seen: c.Field + " " + c.Have, Wanted: c.Field + " " + c.Want,
			Fix: "varal topology apply; what exists and differs has to be deleted first", Inspected: true,
		})
	}
	if d := a.cl.broker.find(need.Shape, need.Name); d != nil && d.shape != driver.Stream {
		found = append(found, d.nearlyFull()...)
	}
	return found, nil
}

// nearlyFull reports backlogs over four fifths of a limit.
func (d *destination) nearlyFull() []driver.Finding {
	var found []driver.Finding
	for _, g := range d.allGroups() {
		g.mu.Lock()
		count, bytes := g.backlog.count, g.backlog.bytes
		g.mu.Unlock()
		if count > d.limits.messages/5*4 || bytes > d.limits.bytes/5*4 {
			found = append(found, driver.Finding{
				Rule: "DM03", Subject: driver.Destination{Shape: d.shape, Name: d.name, Group: g.name}.String(),
				Seen:   fmt.Sprintf("%d messages, %d bytes", count, bytes),
				Wanted: fmt.Sprintf("under 4/5 of %d messages and %d bytes: a full backlog stops publishing", d.limits.messages, d.limits.bytes),
				Fix:    "consume faster, or raise MaxMessages and MaxStored", Inspected: true,
			})
		}
	}
	return found
}
