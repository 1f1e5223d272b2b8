package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/varal-go/varal/core/driver"
)

// client is a driver.Driver: one client of a Broker.
type client struct {
	cfg    Config
	broker *Broker

	closed    atomic.Bool   // set under mu
	gone      chan struct{} // closed by the first Close
	mu        sync.Mutex
	consumers map[*consumer]struct{}
}

// Open returns a driver on c.Broker, or on a new private broker. It fails only for a
// Config that is wrong (Permanent).
func Open(_ context.Context, c Config) (driver.Driver, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	cl := &client{cfg: c, broker: c.Broker, gone: make(chan struct{}), consumers: map[*consumer]struct{}{}}
	cl.broker.mu.Lock()
	cl.broker.drivers[cl] = struct{}{}
	cl.broker.mu.Unlock()
	if c.Notify != nil && !cl.broker.down.Load() {
		c.Notify(driver.Event{Kind: driver.Connected})
	}
	return cl, nil
}

// Capabilities implements driver.Driver.
func (cl *client) Capabilities(of driver.Destination) driver.Capabilities {
	c := driver.Capabilities{MaxBytes: cl.cfg.MaxBytes}
	if of.Shape == driver.Stream {
		c.Settle, c.Order, c.Replay, c.StateBytes = driver.UpTo, driver.PerPartition, true, maxState
		return c
	}
	c.Settle, c.Counts, c.TTL, c.Delay, c.Lease = driver.Each, true, true, maxDelay, maxLease
	if of.Partitions > 0 {
		c.Order = driver.PerPartition
		return c
	}
	c.NackDelay, c.Priorities = maxDelay, priorities
	return c
}

// reach finds a destination that can be used now.
func (cl *client) reach(verb string, of driver.Destination) (*destination, error) {
	if cl.closed.Load() {
		return nil, driver.Errorf(verb+" "+of.String(), driver.Closed, "the driver is closed")
	}
	if cl.broker.down.Load() {
		return nil, errDown(verb + " " + of.String())
	}
	d := cl.broker.find(of.Shape, of.Name)
	if d == nil {
		return nil, driver.Errorf(verb+" "+of.String(), driver.NotFound, "there is no %s %q: create it (Provision create, or varal topology apply)", of.Shape, of.Name)
	}
	if of.Partitions > 0 && of.Partitions != d.partitions {
		return nil, d.agree(verb+" "+of.String(), of)
	}
	return d, nil
}

// Subscribe implements driver.Driver. Groups of topics and streams are made as needed.
func (cl *client) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	d, err := cl.reach("subscribe", sub.From)
	if err != nil {
		return nil, err
	}
	op := "subscribe " + sub.From.String()
	if err := ctx.Err(); err != nil {
		return nil, driver.Errorf(op, driver.Transient, "nothing was done: %w", err)
	}
	if s := cl.broker.silent.Load(); s != nil {
		return nil, cl.swallow(ctx, s, op, func() {})
	}
	for {
		g, err := d.groupFor(op, sub)
		if err != nil {
			return nil, err
		}
		c, err := cl.enter(op, sub, g)
		if c != nil || err != nil {
			return c, err
		}
	}
}

// enter makes a consumer of g; nil, nil if g was deleted meanwhile.
func (cl *client) enter(op string, sub driver.Subscription, g *group) (driver.Consumer, error) {
	c := newConsumer(cl, sub, g)
	// Held as by a Receive, so that a Close of the driver waits: it would otherwise close
	// the consumer between its first Assigned and the note that it is open, and nobody
	// would wait for the Revoke that follows.
	c.busy <- struct{}{}
	defer func() { <-c.busy }()
	if !cl.remember(c) {
		if g.private {
			g.d.dropGroup(g)
		}
		return nil, driver.Errorf(op, driver.Closed, "the driver is closed")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone.Load() {
		cl.forget(c)
		return nil, nil
	}
	if c.state == running {
		g.join(c)
		c.openPending()
	}
	return c, nil
}

// groupFor finds or makes the group of a subscription.
func (d *destination) groupFor(op string, sub driver.Subscription) (*group, error) {
	name := sub.Group
	if sub.From.Group != "" && name != "" && sub.From.Group != name {
		return nil, driver.Errorf(op, driver.Permanent, "From.Group is %q and Group %q: use one", sub.From.Group, name)
	}
	name = or(name, sub.From.Group)
	if err := checkStart(op, d.shape, sub.Start); err != nil {
		return nil, err
	}
	switch {
	case d.shape == driver.Queue && sub.Temporary:
		return nil, driver.Errorf(op, driver.Unsupported, "Temporary: a queue has no groups, use a topic")
	case d.shape == driver.Topic && name == "" && !sub.Temporary:
		return nil, driver.Errorf(op, driver.Permanent, "Group is empty: a topic needs a group, or Temporary")
	case d.shape == driver.Stream && name == "":
		if sub.Start.Kind == driver.Default {
			sub.Start.Kind = driver.Latest
		}
		return d.privateGroup(op, "", sub.Start, true)
	case sub.Temporary:
		if name == "" {
			name = fmt.Sprintf("temporary-%d", d.broker.epochs.Add(1))
		}
		return d.privateGroup(op, name, sub.Start, false)
	}
	g, _, err := d.obtainGroup(op, name, sub.Start)
	return g, err
}

// Admin implements driver.Driver.
func (cl *client) Admin() driver.Admin { return admin{cl} }

// Close implements driver.Driver: it closes the consumers.
func (cl *client) Close(ctx context.Context) error {
	cl.mu.Lock()
	if !cl.closed.Swap(true) {
		close(cl.gone)
	}
	all := make([]*consumer, 0, len(cl.consumers))
	for c := range cl.consumers {
		all = append(all, c)
	}
	cl.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup // all at once: each may wait for its handlers
	for i, c := range all {
		wg.Go(func() { errs[i] = c.Close(ctx) })
	}
	wg.Wait()
	cl.broker.mu.Lock()
	delete(cl.broker.drivers, cl)
	cl.broker.mu.Unlock()
	return errors.Join(errs...)
}

func (cl *client) remember(c *consumer) bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.closed.Load() {
		return false
	}
	cl.consumers[c] = struct{}{}
	return true
}

func (cl *client) forget(c *consumer) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	delete(cl.consumers, c)
}
