package redis

import (
	"context"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

// admin is a driver.Admin. It knows no Options yet.
type admin struct{ b *broker }

// Admin implements driver.Driver.
func (b *broker) Admin() driver.Admin { return admin{b} }

// Apply implements driver.Admin. A resource with a Group makes its destination too.
// Everything is checked before anything is done.
func (a admin) Apply(ctx context.Context, wanted []driver.Resource, mode driver.Mode) ([]driver.Change, error) {
	if a.b.isClosed() {
		return nil, errClosed("apply")
	}
	if mode < driver.Create || mode > driver.Delete {
		return nil, driver.Errorf("apply", driver.Permanent, "Mode %d is invalid", mode)
	}
	for _, r := range wanted {
		op := "apply " + r.Destination.String()
		if err := validate(op, r.Destination, r.Group); err != nil {
			return nil, err
		}
		for name := range r.Options {
			return nil, driver.Errorf(op, driver.Unsupported, "option %q is unknown: there are none", name)
		}
		if err := checkStart(op, r.Shape, r.Start); err != nil {
			return nil, err
		}
	}
	var changes []driver.Change
	for _, r := range wanted {
		some, err := a.apply(ctx, r, mode)
		changes = append(changes, some...)
		if err != nil {
			return changes, classify("apply "+r.Destination.String(), err)
		}
	}
	return changes, nil
}

func (a admin) apply(ctx context.Context, r driver.Resource, mode driver.Mode) (changes []driver.Change, err error) {
	op := "apply " + r.Destination.String()
	if r.Shape == driver.Queue {
		r.Group = "" // it has one, which comes and goes with it
	}
	a.b.forget(r.Destination)
	// What is left of the call after ctx has ended must not touch the result.
	result := make(chan []driver.Change, 1)
	err = a.b.bounded(ctx, func(ctx context.Context) error {
		var out []driver.Change
		var err error
		switch mode {
		case driver.Create:
			out, err = a.create(ctx, op, r)
		case driver.Delete:
			out, err = a.remove(ctx, op, r)
		default:
			out, err = a.compare(ctx, op, r)
		}
		result <- out
		return err
	})
	select {
	case changes = <-result:
	default:
	}
	return changes, err
}

func (a admin) create(ctx context.Context, op string, r driver.Resource) ([]driver.Change, error) {
	var changes []driver.Change
	whole := r.Destination
	whole.Group = ""
	made, err := a.b.createDestination(ctx, op, whole)
	if err != nil {
		return nil, err
	}
	if made {
		changes = append(changes, exists(whole.String(), "no", "yes", true))
	}
	group := groupOf(r.Destination, r.Group)
	if group == "" {
		return changes, nil
	}
	start, err := startID(op, r.Start)
	if err != nil {
		return changes, err
	}
	made, err = a.b.makeGroup(ctx, a.b.cfg.keys(whole), group, start)
	if made && r.Shape != driver.Queue {
		changes = append(changes, exists(r.Destination.String(), "no", "yes", true))
	}
	return changes, err
}

func exists(subject, have, want string, done bool) driver.Change {
	return driver.Change{Subject: subject, Field: "exists", Have: have, Want: want, Done: done}
}

// compare reports what is missing.
func (a admin) compare(ctx context.Context, op string, r driver.Resource) ([]driver.Change, error) {
	whole := r.Destination
	whole.Group = ""
	k := a.b.cfg.keys(whole)
	vals, err := a.b.ctl.HMGet(ctx, k.meta, "shape", "version").Result()
	if err != nil {
		return nil, err
	}
	err = agree(op, whole, text(vals[0]), text(vals[1]))
	missing := driver.ClassOf(err) == driver.NotFound
	switch {
	case err != nil && !missing:
		return nil, err
	case missing && r.Group == "":
		return []driver.Change{exists(whole.String(), "no", "yes", false)}, nil
	case missing:
		return []driver.Change{exists(whole.String(), "no", "yes", false), exists(r.Destination.String(), "no", "yes", false)}, nil
	case r.Group == "":
		return nil, nil
	}
	groups, err := a.b.ctl.XInfoGroups(ctx, k.log).Result()
	for _, g := range groups {
		if g.Name == r.Group {
			return nil, nil
		}
	}
	return []driver.Change{exists(r.Destination.String(), "no", "yes", false)}, err
}

// remove deletes a group or a destination. Consumers of a destination end with NotFound.
func (a admin) remove(ctx context.Context, op string, r driver.Resource) ([]driver.Change, error) {
	k := a.b.cfg.keys(r.Destination)
	gone := []driver.Change{exists(r.Destination.String(), "yes", "no", true)}
	vals, err := a.b.ctl.HMGet(ctx, k.meta, "shape", "version").Result()
	if err != nil {
		return nil, err
	}
	if err := agree(op, r.Destination, text(vals[0]), text(vals[1])); err != nil {
		if driver.ClassOf(err) == driver.NotFound {
			return nil, nil
		}
		return nil, err // a type or layout that we do not know is never destroyed
	}
	groups, err := a.b.ctl.XInfoGroups(ctx, k.log).Result()
	if err != nil && !strings.Contains(err.Error(), "no such key") {
		return nil, err
	}
	if r.Group != "" {
		n, err := a.removeGroup(ctx, k, r.Group)
		if n == 0 || err != nil {
			return nil, err
		}
		return gone, nil
	}
	all := []string{k.log, k.sched, k.meta}
	for _, g := range groups {
		all = append(all, k.retry(g.Name), k.later(g.Name))
	}
	_, err = a.b.ctl.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		p.Set(ctx, k.gone, "1", tombstone) // a consumer that sees nothing sees this
		p.Unlink(ctx, all...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return gone, nil
}

func (a admin) removeGroup(ctx context.Context, k keys, group string) (int64, error) {
	var destroyed *goredis.IntCmd
	_, err := a.b.ctl.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		destroyed = p.XGroupDestroy(ctx, k.log, group)
		p.Unlink(ctx, k.retry(group), k.later(group))
		return nil
	})
	if err != nil {
		return 0, err
	}
	return destroyed.Val(), nil
}

// Seek implements driver.Admin. What the group failed before, and waits to be tried again,
// belongs to the old position and is dropped.
func (a admin) Seek(ctx context.Context, of driver.Resource, to driver.Position) error {
	op := "seek " + of.Destination.String()
	switch err := validate(op, of.Destination, of.Group); {
	case a.b.isClosed():
		return errClosed(op)
	case err != nil:
		return err
	case of.Shape != driver.Stream:
		return driver.Errorf(op, driver.Unsupported, "replay: only a group of a stream has a position")
	case of.Group == "":
		return driver.Errorf(op, driver.Permanent, "Group is empty: name the group to move")
	}
	if err := checkStart(op, of.Shape, to); err != nil {
		return err
	}
	if err := a.b.exists(ctx, op, of.Destination); err != nil {
		return err
	}
	id, err := startID(op, to)
	if err != nil {
		return err
	}
	k := a.b.cfg.keys(of.Destination)
	// A consumer that lives asks at least once in maxBlock, and extends within its lease.
	alive := max(3*maxBlock, a.b.cfg.Lease).Milliseconds()
	var members int64
	err = a.b.bounded(ctx, func(ctx context.Context) (err error) {
		members, err = seekScript.Run(ctx, a.b.ctl, []string{k.log, k.retry(of.Group), k.later(of.Group)}, of.Group, id, alive).Int64()
		return err
	})
	switch {
	case err != nil:
		return classify(op, err)
	case members < 0:
		return driver.Errorf(op, driver.NotFound, "there is no such group")
	case members > 0:
		return driver.Errorf(op, driver.Conflict, "the group has %d consumers: stop them first", members)
	}
	return nil
}

// Inspect implements driver.Admin. It tells what Open saw; a changed setting is seen by
// the next Open.
func (a admin) Inspect(ctx context.Context, need driver.Resource) ([]driver.Finding, error) {
	subject := need.Destination.String()
	var found []driver.Finding
	if a.b.durable != "" {
		seen := "maxmemory-policy " + a.b.server.eviction + ", appendonly off"
		if a.b.server.aof {
			seen = "maxmemory-policy " + a.b.server.eviction
		}
		found = append(found, driver.Finding{
			Rule: "DR01", Subject: subject, Seen: seen, Wanted: "maxmemory-policy noeviction, appendonly yes",
			Fix: a.b.durable, Inspected: a.b.server.read,
		})
	}
	changes, err := a.Apply(ctx, []driver.Resource{need}, driver.Verify)
	for _, c := range changes {
		found = append(found, driver.Finding{
			Rule: "DR02", Subject: c.Subject, Seen: c.Field + " " + c.Have, Wanted: c.Field + " " + c.Want,
			Fix: "varal topology apply", Inspected: true,
		})
	}
	return found, err
}
