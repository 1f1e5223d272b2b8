package rabbitmq

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// part is one partition of a subscription as the keeper sees it.
type part struct {
	label, queue, owner string
	on                  *session // a temporary group: where its queue was made

	f *feed // open while we own it

	// Streams.
	resume driver.Position // without a group: where to go on after a reconnect
	lost   error           // the position asked for is gone
	unseen bool            // the stream showed nothing when we looked for it

	// Owned partitions.
	stage    stage
	ch       *amqp.Channel // consumes the owner queue
	records  <-chan amqp.Delivery
	seen     sight  // before we own it
	held     uint64 // tag of the record that proves ownership
	heldSeq  uint64
	claim    record // ours, written and not yet come back
	declined time.Time
	since    time.Time
	written  time.Time
	release  context.CancelFunc // ends the ctx of a Revoke in progress
}

type stage uint8

const (
	inLine    stage = iota // consuming the owner queue, no record
	claiming               // a record came, our successor is written
	owning                 // our successor came back
	releasing              // Revoke is running
)

// keep is the keeper: one life after the other, each on one session.
func (c *consumer) keep(ctx context.Context) {
	defer close(c.ended)
	defer c.dropTemporary()
	for try := 0; ; try++ {
		if c.isClosing() {
			return
		}
		began := time.Now()
		err := c.life(ctx)
		if c.isClosing() {
			return
		}
		if time.Since(began) > 5*time.Second {
			try = 0
		}
		c.report(err)
		if !c.pause(ctx, jitter(try)) {
			return
		}
	}
}

func (c *consumer) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// report hands err to Receive: for good when a new attempt would end the same way.
func (c *consumer) report(err error) {
	err = classify(c.op, err)
	c.mu.Lock()
	switch driver.ClassOf(err) {
	case driver.Transient, driver.Ambiguous, driver.LeaseLost, 0:
		c.trouble = err
	default:
		c.fatal = err
	}
	c.mu.Unlock()
	c.poke(c.changed)
}

// pause waits before the next life; a fatal error waits for Close.
func (c *consumer) pause(ctx context.Context, d time.Duration) bool {
	c.mu.Lock()
	fatal := c.fatal
	c.mu.Unlock()
	if fatal != nil {
		<-ctx.Done()
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// life serves the subscription on one session until the session or a channel of it is
// lost, or the consumer closes. Whatever ends it, afterwards core has let go of every
// partition and every channel is closed.
func (c *consumer) life(ctx context.Context) (err error) {
	s, err := c.b.sub.session(ctx)
	if err != nil {
		return err
	}
	l := &life{c: c, s: s, revoked: make(chan *part, len(c.parts)), quota: len(c.parts)}
	defer func() { l.end(err) }()
	if err := l.begin(ctx); err != nil {
		return err
	}
	return l.run(ctx)
}

type life struct {
	c        *consumer
	s        *session
	util     *amqp.Channel // members queue
	revoked  chan *part    // a Revoke has returned
	quota    int           // partitions this member should hold
	unseeded bool
}

func (l *life) begin(ctx context.Context) error {
	if l.c.sub.Temporary {
		if err := l.c.b.declareTemporary(l.s, l.c); err != nil {
			return err
		}
	}
	if l.c.owned {
		return l.joinLine(ctx)
	}
	for _, p := range l.c.parts {
		if err := l.openPart(ctx, p, record{}); err != nil {
			return err
		}
	}
	l.c.readyOnce.Do(func() { close(l.c.ready) })
	return nil
}

// first returns the first position that is set.
func first(ps ...driver.Position) driver.Position {
	for _, p := range ps {
		if p.Kind != driver.Default {
			return p
		}
	}
	return driver.Position{}
}

// share is the prefetch of one partition.
func (c *consumer) share() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(1, c.limit/len(c.parts))
}

// openPart consumes p and tells core that it is open.
func (l *life) openPart(ctx context.Context, p *part, rec record) error {
	c := l.c
	f, err := l.feed(ctx, p, rec)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.epoch++
	f.epoch = c.epoch
	c.mu.Unlock()
	a := driver.Assignment{Partition: p.label, Epoch: f.epoch, Fence: rec.Fence, State: rec.State}
	if rec.Kind != "" {
		a.Committed = rec.position(p.label)
	}
	if len(rec.State) > 0 { // core believes a state only below the end of the stream
		r, err := reachOf(l.s, p.queue)
		if err != nil {
			return err
		}
		a.High = driver.Position{Kind: driver.At, Partition: p.label, Offset: r.end}
	}
	p.f = f
	if p.lost != nil {
		f.closing = c.sub.Reset == driver.Default // this partition stops
		if c.sub.Notify != nil {
			c.sub.Notify(driver.Event{Kind: driver.OutOfRange, Partition: p.label, Err: p.lost})
		}
	}
	// Assigned before the feed is visible: core must know the epoch before the first
	// message of it.
	if c.sub.Assigned != nil {
		c.sub.Assigned(a)
	}
	c.mu.Lock()
	c.feeds = append(c.feeds, f)
	c.mu.Unlock()
	c.poke(c.changed)
	return nil
}

// feed consumes the queue of p, a stream from where rec or the subscription says.
func (l *life) feed(ctx context.Context, p *part, rec record) (f *feed, err error) {
	c := l.c
	var args amqp.Table
	var next int64
	var from driver.Position
	if c.upTo {
		if from, err = l.startPart(ctx, p, rec); err != nil {
			return nil, err
		}
		args, next = streamArgs(from, p.unseen)
	}
	if f, err = openFeed(l.s, p.queue, c.share(), args); err != nil {
		return nil, err
	}
	f.label, f.stream, f.next, f.rec, f.acked = p.label, c.upTo, next, rec, next
	f.owned = c.owned && !c.upTo
	f.counts = !c.upTo && !c.b.cfg.Classic && !c.sub.Temporary
	f.fence = rec.Fence
	switch from.Kind {
	case driver.At:
		f.gapFrom = from.Offset
	case driver.Since:
		f.since = from.Time
	}
	return f, nil
}

// startOf is the subscription's start for one partition.
func (c *consumer) startOf(label string) driver.Position {
	if s := c.sub.Start; s.Partition == "" || s.Partition == label {
		return s
	}
	return driver.Position{}
}

// hide takes the feed out of sight: no Receive, no Settle.
func (c *consumer) hide(f *feed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, x := range c.feeds {
		if x == f {
			c.feeds = append(c.feeds[:i:i], c.feeds[i+1:]...)
			return
		}
	}
}

// end lets go of everything. Lost (session or channel gone): nothing can be settled any
// more, so the feeds go first and Revoke gets an ended ctx. Closing: core may settle
// until Revoke returns.
func (l *life) end(err error) {
	c := l.c
	closing := c.isClosing() && err == nil && l.s.alive()
	var held []*part
	var labels []string
	for _, p := range c.parts {
		if p.f == nil {
			continue
		}
		p.f.setClosing()
		held = append(held, p)
		if p.stage != releasing {
			labels = append(labels, p.label)
		} else if !closing {
			p.release() // its Revoke is running: now without the right to settle
		}
		if !closing {
			c.hide(p.f)
		}
	}
	ctx := ended
	if closing {
		c.mu.Lock()
		ctx = c.until
		c.mu.Unlock()
	}
	if closing {
		for _, p := range held {
			if p.stage == releasing { // its Revoke has no deadline of its own
				defer context.AfterFunc(ctx, p.release)() //nolint:gocritic // each must hold until the Revoke below is over
			}
		}
	}
	if len(labels) > 0 && c.sub.Revoke != nil {
		c.sub.Revoke(ctx, labels)
	}
	c.revokes.Wait()
	c.standAside(func() {
		for _, p := range held {
			if c.upTo && c.sub.Group == "" {
				p.f.busy.Lock()
				if p.f.acked > 0 {
					p.resume = driver.Position{Kind: driver.At, Partition: p.label, Offset: p.f.acked}
				}
				p.f.busy.Unlock()
			}
			c.hide(p.f)
			p.f.giveBack(c.owned || !closing)
		}
	})
	l.leaveLine()
}

// errLost: a channel of this life is gone. What the broker said about it is the cause.
func errLost(what string, e *amqp.Error) error {
	if e == nil {
		return driver.Errorf(what, driver.Transient, "the channel was closed")
	}
	err := classify(what, e)
	if e.Code == amqp.PreconditionFailed { // consumer_timeout, an unknown tag: come again
		return &driver.Error{Op: what, Class: driver.Transient, Err: e}
	}
	return err
}

var errSession = errors.New("the connection ended")

// adjust brings every feed's prefetch to the limit of the last Receive.
func (l *life) adjust() error {
	share := l.c.share()
	var err error
	for _, p := range l.c.parts {
		f := p.f
		if f == nil || f.isClosing() {
			continue
		}
		if f.gap.Load() {
			if err := l.atGap(p); err != nil {
				return err
			}
		}
		f.mu.Lock()
		same := f.prefetch == share && f.ledger.older == 0 && !f.paused
		f.mu.Unlock()
		if same {
			continue
		}
		l.c.standAside(func() { err = f.fit(share) })
		if err != nil {
			return err
		}
	}
	return nil
}
