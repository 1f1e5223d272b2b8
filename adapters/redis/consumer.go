package redis

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

const (
	// maxBlock bounds a read that waits: a consumer looks once a second for leases that
	// have ended, for what is due, and for a connection that is silent.
	maxBlock = time.Second
	// dueBlock bounds it where delayed messages were seen within dueMemory and the waker does
	// not listen: another process may have added one that is due before the first that we
	// know of.
	dueBlock  = 100 * time.Millisecond
	dueMemory = time.Minute
	// lateBlock is how much longer than asked for a read may last: a server that has nothing
	// else to do looks for those whose time is over ten times a second (hz).
	lateBlock = 150 * time.Millisecond
	// lonelyBlock bounds it with room for one message, when only one stream can be asked.
	lonelyBlock = 100 * time.Millisecond
	// obey is how long a cancelled Receive tries to end its request; the contract leaves
	// 500 ms.
	obey = 300 * time.Millisecond
)

// delivery is the adapter's part of a receipt. Settle alone touches it after its hand-out.
type delivery struct {
	retry    bool // from the group's retry stream
	id       string
	count    int64     // in the pending list: with the consumer's name it fences the hand-out
	tries    int64     // hand-outs before this entry
	deadline time.Time // end of the lease by our clock, from before the request left
	maybe    bool      // a settlement of it had no answer
}

// fetched is an entry that was handed to us and not yet to core.
type fetched struct {
	*delivery
	record
}

// consumer is a driver.Consumer: one name in one group.
//
// Receive asks in two ways: a script hands out exactly what there is room for, and where
// there is nothing a blocked read waits. Each request runs beside, because go-redis ends
// none when ctx is cancelled; at most one is open, its outcome goes to the next Receive
// or back in Close.
type consumer struct {
	front
	keys     keys
	retryKey string
	group    string
	name     string
	epoch    atomic.Uint64
	rd       *reader

	acked  atomic.Int64
	wake   chan struct{} // cap 1: something is due before what a read waits for
	relook atomic.Bool   // something was given back: do not wait with the next look

	// Of the one holder of busy.
	open    chan answer // the request under way, nil = none
	held    []fetched   // handed to us, not returned yet
	out     []driver.Received
	cursor  [2]string // where the next look for ended leases begins
	look    time.Time // when
	turn    bool
	biggest int64 // estimate of a message's size
	due     time.Time
	delays  time.Time // when delayed messages were last seen
}

// answer is what a request brought.
type answer struct {
	list    []fetched
	cursor  [2]string
	due     time.Duration // of the first delayed message; -1 = none
	gone    int64
	script  bool
	looked  bool
	err     error
	noGroup error
}

func newConsumer(b *broker, sub driver.Subscription) *consumer {
	c := &consumer{
		front: newFront(b, sub), keys: b.cfg.keys(sub.From), group: groupOf(sub.From, sub.Group),
		name: b.cfg.ClientName + "-" + unique(), biggest: 16 << 10, cursor: [2]string{"0-0", "0-0"},
		wake: make(chan struct{}, 1),
	}
	c.rd = newReader(b, c.keys.log)
	c.retryKey = c.keys.retry(c.group)
	c.epoch.Store(1)
	return c
}

// Receive implements driver.Consumer.
func (c *consumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer c.exit()
	for {
		if err := c.ended(ctx); err != nil {
			return nil, err
		}
		for _, p := range want.Paused {
			if p == "" {
				return nil, c.pause(ctx)
			}
		}
		if err := c.fill(ctx, want); err != nil {
			return nil, err
		}
		if out := c.hand(ctx, want); len(out) > 0 {
			return out, nil
		}
	}
}

func (c *consumer) ended(ctx context.Context) error {
	if err := c.over(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// pause waits with nothing: what came late goes back, so that others can have it. The
// server is asked for a sign of life, since there is nothing else that would tell.
func (c *consumer) pause(ctx context.Context) error {
	for {
		if c.open != nil {
			if err := c.await(ctx); err != nil {
				return err
			}
		}
		if err := c.giveBack(ctx); err != nil {
			return err
		}
		t := time.NewTimer(maxBlock)
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-c.ending:
		}
		t.Stop()
		if err := c.ended(ctx); err != nil {
			return err
		}
		err := c.b.bounded(ctx, func(ctx context.Context) error { return c.b.ctl.Ping(ctx).Err() })
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if c.heard(err); err != nil {
			return classify(c.op("receive"), err)
		}
	}
}

// fill asks until there is something in held, once by the script and else by waiting.
func (c *consumer) fill(ctx context.Context, want driver.Demand) error {
	if c.open != nil { // of an earlier call; what it was asked for counts
		if err := c.await(ctx); err != nil {
			return err
		}
	}
	if len(c.held) > 0 {
		return nil
	}
	room := c.room(want)
	if err := c.ask(ctx, c.fetch(room)); err != nil || len(c.held) > 0 {
		return err
	}
	return c.ask(ctx, c.wait(room))
}

// room is how many messages may be asked for: core's bytes are met by asking for fewer,
// because nobody extends the lease of what core has not seen.
func (c *consumer) room(want driver.Demand) int {
	return max(1, min(want.Records, 1000, int(min(want.Bytes/c.biggest, 1000))))
}

// ask runs one request beside and takes its answer. It returns ctx's error when that ends,
// with the request still open if it did not obey.
func (c *consumer) ask(ctx context.Context, f func() answer) error {
	open := make(chan answer, 1)
	if !c.b.commit.begin(func() { open <- f() }) {
		return errClosed(c.op("receive"))
	}
	c.open = open
	return c.await(ctx)
}

func (c *consumer) await(ctx context.Context) error {
	select {
	case a := <-c.open:
		return c.keep(ctx, a)
	case <-ctx.Done():
	case <-c.ending:
	}
	limit := time.NewTimer(obey)
	defer limit.Stop()
	for {
		c.rd.unblock()
		again := time.NewTimer(10 * time.Millisecond)
		select {
		case a := <-c.open:
			again.Stop()
			a.noGroup = nil // the next call finds out as well, and has time to make it anew
			_ = c.keep(ctx, a)
			return c.ended(ctx)
		case <-limit.C:
			again.Stop()
			return c.ended(ctx)
		case <-again.C:
		}
	}
}

// keep takes the answer of the open request.
func (c *consumer) keep(ctx context.Context, a answer) error {
	c.open = nil
	c.heard(a.err)
	c.held = append(c.held, a.list...)
	if a.gone > 0 {
		c.notify(driver.Event{Kind: driver.Gone, Err: driver.Errorf(c.op("receive"), driver.NotFound, "%d messages were deleted before they were settled", a.gone)})
	}
	now := time.Now()
	if a.script && a.err == nil {
		c.cursor = a.cursor
		if a.looked && a.cursor == [2]string{"0-0", "0-0"} {
			c.look = now.Add(min(c.b.cfg.Lease/3, maxBlock))
		}
		c.due = time.Time{}
		if a.due >= 0 {
			c.due, c.delays = now.Add(a.due), now
		}
	}
	switch {
	case a.noGroup != nil:
		return c.restore(ctx, a.noGroup)
	case a.err != nil && len(a.list) == 0:
		return receiveError(c.op("receive"), a.err)
	}
	return nil
}

// opOf names what a consumer does, for errors.
func opOf(verb string, sub *driver.Subscription) string {
	s := verb + " " + sub.From.String()
	if sub.From.Group == "" && sub.Group != "" {
		s += ", group " + sub.Group
	}
	return s
}

// receiveError gives an error of a request its class: what was handed out and did not
// arrive comes back when its lease has ended, so calling again is right.
func receiveError(op string, err error) error {
	if e, ok := errors.AsType[*driver.Error](err); ok {
		return e
	}
	c := classOf(err)
	if c == driver.Ambiguous {
		c = driver.Transient
	}
	return &driver.Error{Op: op, Class: c, Err: err}
}

// Close implements driver.Consumer.
func (c *consumer) Close(ctx context.Context) error {
	if first, err := c.closeOnce(ctx); !first {
		return err
	}
	defer close(c.shut)
	close(c.ending)
	var err error
	select {
	case c.busy <- struct{}{}: // never given back: Receive is over
		err = c.finish(ctx)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	c.closed.Store(true)
	c.b.wakes.retire(c)
	c.rd.close() // ends a blocked read that did not obey
	if c.open != nil && err == nil {
		select { // Close of the Driver waits for it in any case
		case <-c.open:
		case <-ctx.Done():
		}
	}
	c.b.drop(c)
	return err
}

// finish lets core go, and gives back what it has not seen.
func (c *consumer) finish(ctx context.Context) error {
	if c.sub.Revoke != nil {
		c.sub.Revoke(ctx, []string{""})
	}
	if c.open != nil {
		_ = c.await(ctx)
	}
	err := c.giveBack(ctx)
	if c.acked.Load() > 0 && c.sub.From.Shape != driver.Stream {
		_ = c.b.bounded(ctx, func(ctx context.Context) error {
			return trimScript.Run(ctx, c.b.ctl, []string{c.keys.log}).Err()
		})
	}
	if e := c.leave(ctx); e != nil && err == nil && !vanished(e) {
		err = classify(c.op("close"), e)
	}
	return err
}
