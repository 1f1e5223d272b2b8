package kafka

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/core/driver"
)

// sever lets all partitions go when the broker has been silent for a session: they may
// be somebody else's by now. It runs in a goroutine of its own, which every callback of
// the client and Close wait for, so that no partition comes back before core has let go.
//
// The client learns of the loss from the answer to its next heartbeat, or gives that up
// when no answer comes: either way it joins again, and onFetched opens what it gets.
// Where the heartbeat is answered as if nothing had happened (a broker that stood still
// itself, a new coordinator) the client goes on with what it has, and only a new session
// (rejoin) leads to onAssigned, which opens it again. Where the broker assigns nothing
// makes the client begin one: Receive does it (regain).
func (c *consumer) sever() {
	c.mu.Lock()
	if c.opening || c.letting != nil || c.pulse.alive() {
		c.mu.Unlock()
		return // tell comes back to it; or nothing is new since; or a later session has begun
	}
	c.letGo()
}

// letGo closes what is open and calls Revoke for it. c.mu is held, and not when it returns.
func (c *consumer) letGo() {
	if c.hurry != nil {
		c.hurry() // core settles no more of what it is letting go of
	}
	var ids, leaving []int32
	for _, p := range c.ring {
		if p.leave {
			leaving = append(leaving, p.id)
		} else {
			ids = append(ids, p.id)
		}
	}
	c.close(leaving, true)
	names := c.close(ids, true)
	if len(names) == 0 {
		c.mu.Unlock()
		return
	}
	done := make(chan struct{})
	c.severed, c.rejoin, c.letting = append(c.severed, ids...), true, done
	c.mu.Unlock()
	c.revokeLost(context.Background(), names)
	c.mu.Lock()
	c.letting = nil
	c.mu.Unlock()
	close(done)
}

// lock locks c.mu while no Revoke of sever runs. Waiting first and locking after would
// not do: sever begins in between; its Revoke for a partition runs; the caller finds that
// partition closed and opens it again; core hears Assigned before it has let go.
func (c *consumer) lock() {
	for {
		c.mu.Lock()
		letting := c.letting
		if letting == nil {
			return
		}
		c.mu.Unlock()
		<-letting
	}
}

// forget takes partitions that the client gives up out of severed. c.mu is held.
func (c *consumer) forget(ids []int32) {
	c.severed = slices.DeleteFunc(c.severed, func(id int32) bool { return slices.Contains(ids, id) })
	c.rejoin = c.rejoin && len(c.severed) > 0
}

// onAssigned is called by the client at the start of every session, before it fetches
// the offsets of what is new.
func (c *consumer) onAssigned(ctx context.Context, cl *kgo.Client, _ map[string][]int32) {
	c.calls.Lock()
	defer c.calls.Unlock()
	c.pulse.give()
	c.lock()
	if c.pulse.begin() {
		// The timer's goroutine need not have got here yet, and finds nothing to do from now
		// on. But the client can have been put out unseen: a join that is answered with
		// "unknown member" it sends again as a new member, and goes on with the partitions
		// that it is given back as if nobody had had them meanwhile.
		c.letGo()
		c.lock()
	}
	ids := slices.Clone(c.severed)
	c.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	if err := c.reopen(ctx, cl, ids); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pending, c.rejoin = classify(c.op, err, driver.Transient), true // with the Receive after the one that tells
	}
}

// reopen opens partitions that the client has and we have let go of, where the group
// has committed. c.calls is held.
func (c *consumer) reopen(ctx context.Context, cl *kgo.Client, ids []int32) error {
	heard, _ := c.pulse.answered()
	position := c.positions
	if c.d.conf.server() {
		position = c.memberPositions
	}
	owned, fresh, err := position(ctx, cl, ids)
	if err != nil {
		return err
	}
	owned, _, err = c.locate(ctx, cl, owned, fresh, ids)
	if err != nil {
		return err
	}
	seek := make(map[int32]kgo.EpochOffset, len(owned))
	for _, a := range owned {
		seek[a.id] = kgo.EpochOffset{Epoch: -1, Offset: a.at}
	}
	c.unhalt(cl, ids)
	c.lock()
	if c.d.conf.server() && !c.pulse.revive(heard) {
		c.rejoin = true // silent again
		c.mu.Unlock()
		return nil
	}
	// Under one lock, which poll takes too: what the client has buffered is of later
	// offsets, and goes with SetOffsets; polled in between it would come under the new
	// epoch, and what is before it never.
	cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{c.topic: seek})
	c.forget(ids)
	told := c.admit(fenceOf(cl), owned)
	c.mu.Unlock()
	c.tell(told)
	return nil
}

// positions asks where the group has committed.
func (c *consumer) positions(ctx context.Context, _ *kgo.Client, ids []int32) (owned []assignment, fresh []int32, err error) {
	at, err := c.d.adm.FetchOffsets(ctx, c.group)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		o, ok := at.Lookup(c.topic, id)
		switch {
		case ok && o.Err != nil:
			return nil, nil, o.Err
		case !ok || o.At < 0:
			fresh = append(fresh, id)
		default:
			a := assignment{id: id, at: o.At}
			a.state, _ = unarmour(o.Metadata)
			owned = append(owned, a)
		}
	}
	return owned, fresh, nil
}
