package redis

import (
	"context"
	"slices"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

// admin is a driver.Admin. Its one option is retention: see the package's documentation.
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
		if _, _, err := wantedRetention(op, r); err != nil {
			return nil, err
		}
		if err := checkStart(op, r.Destination, r.Start); err != nil {
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
	kept, err := a.retain(ctx, op, r, true)
	if changes = append(changes, kept...); err != nil {
		return changes, err
	}
	group := groupOf(r.Destination, r.Group)
	if group == "" {
		return changes, nil
	}
	made, err = a.b.makeAnyGroup(ctx, op, r, group)
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
	vals, err := a.b.meta(ctx, whole)
	if err != nil {
		return nil, err
	}
	err = agree(op, whole, vals)
	missing := driver.ClassOf(err) == driver.NotFound
	switch {
	case err != nil && !missing:
		return nil, err
	case missing && r.Group == "":
		return []driver.Change{exists(whole.String(), "no", "yes", false)}, nil
	case missing:
		return []driver.Change{exists(whole.String(), "no", "yes", false), exists(r.Destination.String(), "no", "yes", false)}, nil
	}
	changes, err := a.missing(ctx, r)
	if err != nil {
		return changes, err
	}
	kept, err := a.retain(ctx, op, r, false)
	return append(changes, kept...), err
}

// missing tells which streams of a destination, and whether the group in one of them, are
// not there.
func (a admin) missing(ctx context.Context, r driver.Resource) (changes []driver.Change, err error) {
	group := false
	for _, log := range a.b.cfg.logs(r.Destination) {
		groups, err := a.b.ctl.XInfoGroups(ctx, log).Result()
		if err != nil && !isNoKey(err) {
			return changes, err
		}
		if err != nil {
			changes = append(changes, exists("stream "+log, "no", "yes", false))
		}
		group = group || r.Group != "" && !slices.ContainsFunc(groups, func(g goredis.XInfoGroup) bool { return g.Name == r.Group })
	}
	if group {
		changes = append(changes, exists(r.Destination.String(), "no", "yes", false))
	}
	return changes, nil
}

// remove deletes a group or a destination. Consumers of a destination end with NotFound.
func (a admin) remove(ctx context.Context, op string, r driver.Resource) ([]driver.Change, error) {
	k := a.b.cfg.keys(r.Destination)
	gone := []driver.Change{exists(r.Destination.String(), "yes", "no", true)}
	vals, err := a.b.meta(ctx, r.Destination)
	if err != nil {
		return nil, err
	}
	if err := agree(op, r.Destination, vals); err != nil {
		if driver.ClassOf(err) == driver.NotFound {
			return nil, nil
		}
		return nil, err // a type or layout that we do not know is never destroyed
	}
	if r.Group != "" {
		n, err := a.removeGroup(ctx, r, r.Group)
		if n == 0 || err != nil {
			return nil, err
		}
		return gone, nil
	}
	all, err := a.everything(ctx, r.Destination)
	if err != nil {
		return nil, err
	}
	if err := a.unlink(ctx, k.gone, all); err != nil {
		return nil, err
	}
	return gone, nil
}

// unlink deletes all, the first of which says that the destination is there, and notes it.
// In a Cluster that is not one step: the first key is the last to go, so that what fails
// half-way can be done again.
func (a admin) unlink(ctx context.Context, note string, all []string) error {
	if !a.b.cfg.Cluster {
		_, err := a.b.ctl.TxPipelined(ctx, func(p goredis.Pipeliner) error {
			p.Set(ctx, note, "1", tombstone) // a consumer that sees nothing sees this
			p.Unlink(ctx, all...)
			return nil
		})
		return err
	}
	if err := a.b.ctl.Set(ctx, note, "1", tombstone).Err(); err != nil {
		return err
	}
	_, err := a.b.ctl.Pipelined(ctx, func(p goredis.Pipeliner) error {
		for _, key := range all[1:] {
			p.Unlink(ctx, key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return a.b.ctl.Unlink(ctx, all[0]).Err()
}

// everything is every key of a destination but the tombstone.
func (a admin) everything(ctx context.Context, of driver.Destination) ([]string, error) {
	k := a.b.cfg.keys(of)
	shards := a.b.cfg.shards(of)
	all := []string{k.meta, k.sched}
	for i, log := range a.b.cfg.logs(of) {
		all = append(all, log)
		groups, err := a.b.ctl.XInfoGroups(ctx, log).Result()
		if err != nil && !isNoKey(err) {
			return nil, err
		}
		for _, g := range groups {
			if of.Partitions == 0 {
				all = append(all, k.retry(g.Name), k.later(g.Name))
				continue
			}
			all = append(all, shards[i].keys(g.Name)[1:]...)
			if i == 0 {
				all = append(all, k.members(g.Name))
			}
		}
	}
	return all, nil
}

func (a admin) removeGroup(ctx context.Context, r driver.Resource, group string) (n int64, err error) {
	k := a.b.cfg.keys(r.Destination)
	keys := []string{k.retry(group), k.later(group)}
	if r.Partitions > 0 {
		keys = []string{k.members(group)}
	}
	for _, s := range a.b.cfg.shards(r.Destination) {
		keys = append(keys, s.keys(group)[1:]...)
	}
	var destroyed []*goredis.IntCmd
	together := a.b.ctl.TxPipelined
	if a.b.cfg.Cluster { // a transaction is within one slot
		together = a.b.ctl.Pipelined
	}
	_, err = together(ctx, func(p goredis.Pipeliner) error {
		for _, log := range a.b.cfg.logs(r.Destination) {
			destroyed = append(destroyed, p.XGroupDestroy(ctx, log, group))
		}
		for _, key := range keys {
			p.Unlink(ctx, key)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, cmd := range destroyed {
		n += cmd.Val()
	}
	return n, nil
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
	if err := checkStart(op, of.Destination, to); err != nil {
		return err
	}
	if err := a.b.exists(ctx, op, of.Destination); err != nil {
		return err
	}
	if of.Partitions > 0 {
		return a.seekKeyed(ctx, op, of, to)
	}
	id, err := startID(op, to)
	if err != nil {
		return err
	}
	k := a.b.cfg.keys(of.Destination)
	alive := a.b.silence().Milliseconds()
	var members int64
	err = a.b.bounded(ctx, func(ctx context.Context) (err error) {
		members, err = seekScript.Run(ctx, a.b.ctl, []string{k.log, k.retry(of.Group), k.later(of.Group)}, of.Group, id, alive).Int64()
		return err
	})
	if err != nil { // what is left of the call may still write to members
		return classify(op, err)
	}
	return sought(op, members)
}

// sought is the result of a Seek that met so many members, or -1: no group.
func sought(op string, members int64) error {
	switch {
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
