package memory

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

type consumerState uint8

const (
	running consumerState = iota
	closing               // Receive ends; Settle works
	closed
)

// consumer is a driver.Consumer: a member of one group.
type consumer struct {
	client *client
	sub    driver.Subscription
	g      *group

	busy   chan struct{} // held by Receive, so that Close can wait until it has left
	wake   chan struct{}
	begun  atomic.Bool // Close was called
	ending chan struct{}
	shut   chan struct{} // Close is through

	// Of the one caller of Receive.
	buf   []driver.Received
	rot   int
	timer *time.Timer
	away  bool // it was told that the broker is down
	// events wait until the lock is open.
	events []driver.Event

	// Guarded by the group's lock.
	state   consumerState
	joined  bool
	tenures []*tenure
	letting map[int]int // Revokes in progress, by partition
	revokes []chan struct{}
	out     int
	waiting bool
	blocked bool // waits for room, not for messages
	armed   int64
}

func newConsumer(cl *client, sub driver.Subscription, g *group) *consumer {
	return &consumer{
		client: cl, sub: sub, g: g, letting: map[int]int{},
		busy: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		ending: make(chan struct{}), shut: make(chan struct{}),
	}
}

func (c *consumer) op(verb string) string {
	s := verb + " " + c.sub.From.String()
	if c.sub.From.Group == "" && c.sub.Group != "" {
		s += ", group " + c.sub.Group
	}
	return s
}

// poke wakes a waiting Receive; one that does not wait looks once more before it does.
func (c *consumer) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// unblock wakes a consumer that waits for room under its Limit.
func (c *consumer) unblock() {
	if c.blocked {
		c.poke()
	}
}

// held counts the partitions c has and keeps.
func (c *consumer) held() int {
	n := 0
	for _, t := range c.tenures {
		if t.state < revoking {
			n++
		}
	}
	return n
}

// eachTenure asks the open partitions in turn, first each for its share, then for
// what is left. It starts with another one each time, so that none starves.
func (c *consumer) eachTenure(w *want, f func(*tenure)) {
	n := len(c.tenures)
	if n == 0 {
		return
	}
	c.rot++
	for _, share := range [...]int{max(1, w.records/n), w.records} {
		for i := range n {
			t := c.tenures[(c.rot+i)%n]
			if w.records <= 0 || w.full {
				return
			}
			if t.state == open && !w.paused(t.name) {
				w.quota = min(share, w.records)
				f(t)
			}
		}
	}
}

// slot returns the next place in buf. It may hold an older message: a source sets Message,
// Receipt and Offset, and the rest is cleared here, the fields that this adapter never sets
// among them. Who stands between core and the adapter may have set them (the slice is the
// caller's until the next call), and an Err of the last batch would send a good message of
// this one to the dead letter.
func (c *consumer) slot() *driver.Received {
	if n := len(c.buf); n < cap(c.buf) {
		c.buf = c.buf[:n+1]
	} else {
		c.buf = append(c.buf, driver.Received{})
	}
	r := &c.buf[len(c.buf)-1]
	r.NativeID, r.DeliveryCount, r.Deadline, r.Err = "", 0, time.Time{}, nil
	return r
}

// Receive implements driver.Consumer.
func (c *consumer) Receive(ctx context.Context, demand driver.Demand) ([]driver.Received, error) {
	select {
	case c.busy <- struct{}{}:
		defer func() { <-c.busy }()
	case <-c.ending:
		return nil, driver.Errorf(c.op("receive"), driver.Closed, "the consumer is closed")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	waited := false
	for {
		at, err := c.attempt(ctx, &demand, waited)
		c.tell()
		if err != nil {
			return nil, err
		}
		if len(c.buf) > 0 {
			return c.buf, nil
		}
		waited = true
		c.wait(ctx, at)
	}
}

// attempt hands out what there is into c.buf, or makes c one of the waiting and returns
// when it has to look again by itself.
func (c *consumer) attempt(ctx context.Context, demand *driver.Demand, waited bool) (int64, error) {
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if waited {
		g.delist(c)
	}
	old := len(c.buf)
	c.buf = c.buf[:0]
	err := c.check(ctx)
	if err != nil {
		g.handOver(g.src.advance(g.d.broker.now()))
		return never, err
	}
	if !c.joined {
		g.join(c)
		c.events = append(c.events, driver.Event{Kind: driver.Disconnected}, driver.Event{Kind: driver.Connected})
	}
	c.openPending()
	if err = c.check(ctx); err != nil { // the lock was open meanwhile
		g.handOver(g.src.advance(g.d.broker.now()))
		return never, err
	}
	if s := g.d.broker.silent.Load(); s != nil {
		g.enlist(c, false, never)
		return s.since + int64(unheard), nil
	}
	now := time.Now()
	w := want{
		records: demand.Records, bytes: demand.Bytes, limit: demand.Limit, skip: demand.Paused,
		now: int64(now.Sub(g.d.broker.base)), lease: c.client.cfg.Lease, deadline: now.Add(c.client.cfg.Lease),
	}
	next := g.src.advance(w.now)
	g.src.take(c, &w)
	if len(c.buf) < old {
		clear(c.buf[len(c.buf):old]) // bodies of the last batch
	}
	if len(c.buf) > 0 {
		if g.waiting > 0 {
			g.handOver(g.src.advance(w.now))
		}
		return never, nil
	}
	able := w.records > 0 && !w.paused("") && len(c.tenures) > 0 && c.tenures[0].state == open
	at := g.enlist(c, able, next)
	if !able { // it may have been woken for something that it can no longer take
		g.handOver(next)
	}
	return at, nil
}

// check returns why Receive ends. The lock is held.
func (c *consumer) check(ctx context.Context) error {
	switch {
	case c.state != running:
		return driver.Errorf(c.op("receive"), driver.Closed, "the consumer is closed")
	case ctx.Err() != nil:
		return ctx.Err()
	case c.g.d.deleted.Load():
		return driver.Errorf(c.op("receive"), driver.NotFound, "%s was deleted", c.sub.From)
	case c.g.d.broker.lost():
		err := c.g.d.broker.errLost(c.op("receive"))
		if !c.away {
			c.away = true
			c.events = append(c.events, driver.Event{Kind: driver.Disconnected, Err: err})
		}
		return err
	case c.away:
		c.away = false
		c.events = append(c.events, driver.Event{Kind: driver.Connected})
	}
	return nil
}

func (c *consumer) wait(ctx context.Context, at int64) {
	var fire <-chan time.Time
	if at != never {
		d := time.Duration(at - c.g.d.broker.now())
		if c.timer == nil {
			c.timer = time.NewTimer(d)
		} else {
			c.timer.Reset(d)
		}
		defer c.timer.Stop()
		fire = c.timer.C
	}
	select {
	case <-ctx.Done():
	case <-c.wake:
	case <-fire:
	}
}

// tell passes events on, without a lock.
func (c *consumer) tell() {
	if len(c.events) == 0 {
		return
	}
	if c.sub.Notify != nil {
		for _, e := range c.events {
			c.sub.Notify(e)
		}
	}
	c.events = c.events[:0]
}

// Settle implements driver.Consumer.
func (c *consumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	if c.g.d.broker.down.Load() {
		return errDown(c.op("settle"))
	}
	if s := c.g.d.broker.silent.Load(); s != nil {
		return c.client.swallow(ctx, s, c.op("settle"), func() { _ = c.settle(batch) })
	}
	return c.settle(batch)
}

func (c *consumer) settle(batch []driver.Settlement) error {
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.state == closed {
		return driver.Errorf(c.op("settle"), driver.Closed, "the consumer is closed")
	}
	now := g.d.broker.now()
	g.src.advance(now) // a lease that has ended is lost, looked at or not
	var errs []error
	for i := range batch {
		if err := g.src.settle(c, &batch[i], now); err != nil {
			if errs == nil {
				errs = make([]error, len(batch))
			}
			errs[i] = err
		}
	}
	if g.waiting > 0 {
		g.handOver(g.src.advance(now))
	}
	return driver.Batch(errs)
}

// Close implements driver.Consumer. What is out comes back at once. If ctx ends while
// core still holds a partition, ownership ends with it.
func (c *consumer) Close(ctx context.Context) error {
	if !c.begun.CompareAndSwap(false, true) {
		select {
		case <-c.shut:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer close(c.shut)
	c.g.mu.Lock()
	c.state = closing
	close(c.ending)
	c.poke()
	c.g.mu.Unlock()
	err := c.drain(ctx)
	c.leave()
	return err
}

// drain waits until Receive has left and every Revoke has returned.
func (c *consumer) drain(ctx context.Context) error {
	var err error
	select {
	case c.busy <- struct{}{}:
	case <-ctx.Done():
		err = ctx.Err()
	}
	err = errors.Join(err, c.joinRevokes(ctx))
	c.g.mu.Lock()
	var names []string
	for _, t := range c.tenures {
		if t.state == open {
			t.state, t.cancel = revoking, func() {}
			names = append(names, t.name)
		}
	}
	c.g.mu.Unlock()
	if len(names) > 0 && c.sub.Revoke != nil {
		c.sub.Revoke(ctx, names)
	}
	return errors.Join(err, c.joinRevokes(ctx))
}

// joinRevokes waits for the goroutines of revoke. Once ctx has ended they get a moment
// to see that their own context ended too.
func (c *consumer) joinRevokes(ctx context.Context) error {
	c.g.mu.Lock()
	revokes := slices.Clone(c.revokes)
	c.g.mu.Unlock()
	for _, done := range revokes {
		select {
		case <-done:
			continue
		case <-ctx.Done():
		}
		c.g.mu.Lock()
		for _, t := range slices.Clone(c.tenures) {
			if t.state == revoking {
				t.cancel()
			}
		}
		c.g.mu.Unlock()
		grace := time.NewTimer(400 * time.Millisecond)
		select {
		case <-done:
			grace.Stop()
		case <-grace.C:
			return driver.Errorf(c.op("close"), driver.Transient, "a Revoke has not returned: %w", context.Cause(ctx))
		}
	}
	return nil
}

// leave takes c out of its group.
func (c *consumer) leave() {
	g := c.g
	g.mu.Lock()
	for _, t := range slices.Clone(c.tenures) {
		g.end(t, true)
	}
	c.state = closed
	g.members = slices.DeleteFunc(g.members, func(m *consumer) bool { return m == c })
	g.rebalance()
	g.handOver(g.src.advance(g.d.broker.now()))
	g.mu.Unlock()
	if g.private {
		g.d.dropGroup(g)
	}
	c.client.forget(c)
}

// join makes c a member, for the first time or again.
func (g *group) join(c *consumer) {
	c.joined = true
	if !slices.Contains(g.members, c) {
		g.members = append(g.members, c)
	}
	if g.shared {
		g.newTenure(c, 0)
		return
	}
	g.rebalance()
}
