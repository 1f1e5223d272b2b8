package record

import (
	"context"
	"sync"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/taps"
)

// Tap stands between core and an adapter and reports what passes: receives, settles
// with the broker's answer, commits, and the coming and going of partitions. emit is
// called before the call that it is about returns, and must wait for its record.
func Tap(d driver.Driver, group string, emit func(history.Event)) driver.Driver {
	return &tap{Driver: d, group: group, emit: emit}
}

type tap struct {
	driver.Driver
	group string
	emit  func(history.Event)
}

// Subscribe implements driver.Driver.
func (t *tap) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	c := &tapped{
		group: t.group, dest: sub.From.Name, emit: t.emit,
		out: taps.NewDeliveries(t.Capabilities(sub.From).Settle == driver.UpTo), last: map[taps.Lane]taps.Receipt{},
	}
	inner := taps.Owned(sub, func(a driver.Assignment) { t.emit(c.event(history.OpAssign, a.Partition, a.Fence)) }, c.gone)
	var err error
	if c.Consumer, err = t.Driver.Subscribe(ctx, inner); err != nil {
		return nil, err
	}
	return c, nil
}

// tapped is one consumer. Receive and Settle have one caller each; the lock is between
// those two.
type tapped struct {
	driver.Consumer
	group, dest string
	emit        func(history.Event)

	mu   sync.Mutex
	out  taps.Deliveries
	last map[taps.Lane]taps.Receipt // a log: where the last commit was; core may commit it again
}

func (c *tapped) event(op history.Op, partition string, fence uint64) history.Event {
	return history.Event{Op: op, Group: c.group, Dest: c.dest, Partition: partition, Fence: fence}
}

func (c *tapped) gone(op history.Op, partitions []string) {
	c.mu.Lock()
	for _, p := range partitions {
		for l := range c.out.Logs {
			if l.Partition == p {
				delete(c.out.Logs, l)
				delete(c.last, l)
			}
		}
		for r := range c.out.Held {
			if r.Partition == p {
				delete(c.out.Held, r)
			}
		}
	}
	c.mu.Unlock()
	for _, p := range partitions {
		c.emit(c.event(op, p, 0))
	}
}

// Receive implements driver.Consumer.
func (c *tapped) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	got, err := c.Consumer.Receive(ctx, want)
	for i := range got {
		m := &got[i]
		c.mu.Lock()
		x := c.out.Add(m)
		c.mu.Unlock()
		e := c.event(history.OpRecv, x.Receipt.Partition, 0)
		e.ID, e.Position = x.ID, x.Position()
		if m.Err != nil {
			e.Outcome = history.Corrupt
		}
		c.emit(e)
	}
	return got, err
}

// Settle implements driver.Consumer.
func (c *tapped) Settle(ctx context.Context, batch []driver.Settlement) error {
	// Looked up before: once the broker has the answer the partition may go.
	all := make([]settling, len(batch))
	c.mu.Lock()
	for i := range batch {
		all[i] = c.beginLocked(&batch[i])
	}
	c.mu.Unlock()
	err := c.Consumer.Settle(ctx, batch)
	for i := range batch {
		c.settled(&all[i], driver.ResultAt(err, i))
	}
	return err
}

// settling is one settlement on its way.
type settling struct {
	how     driver.Disposition
	at      taps.Delivery
	covered []taps.Delivery // what it is about: one delivery, or on a log everything up to it
	commit  int64           // next to read, on a log; -1 = it commits nothing
}

// beginLocked takes what a settlement covers off the log, so that the next one of the
// same batch covers the rest only.
func (c *tapped) beginLocked(s *driver.Settlement) settling {
	x, known := c.out.Of(s.Receipt)
	b := settling{how: s.Disposition, at: x, covered: []taps.Delivery{x}, commit: -1}
	if !c.out.UpTo() || !known {
		return b
	}
	switch s.Disposition {
	case driver.Ack, driver.Reject:
		b.commit = x.Offset + 1
	case driver.Hold: // everything before it is done
		b.commit = x.Offset
	default: // a log takes nothing back: it is not committed, and that is all
		return b
	}
	b.covered, c.out.Logs[x.Receipt.Lane] = c.out.Split(x.Receipt.Lane, b.commit)
	return b
}

func (c *tapped) settled(b *settling, res error) {
	for _, x := range b.covered {
		e := c.event(history.OpSettled, x.Receipt.Partition, 0)
		e.ID, e.Position, e.Outcome, e.Class = x.ID, x.Position(), taps.Outcome(b.how), taps.Class(res)
		if b.commit >= 0 && x.Receipt != b.at.Receipt {
			e.Outcome = history.Ack // a rejected one is the last
		}
		c.emit(e)
	}
	c.mu.Lock()
	switch {
	case res != nil && b.commit >= 0:
		if log, owned := c.out.Logs[b.at.Receipt.Lane]; owned { // not taken away meanwhile
			c.out.Logs[b.at.Receipt.Lane] = append(b.covered, log...)
		}
	case res == nil:
		c.forgetLocked(b)
	}
	c.mu.Unlock()
	if res == nil && b.commit >= 0 {
		e := c.event(history.OpCommit, b.at.Receipt.Partition, 0)
		e.Position = taps.Position(b.commit)
		c.emit(e)
	}
}

// forgetLocked drops what the broker has settled.
func (c *tapped) forgetLocked(b *settling) {
	for _, x := range b.covered {
		if b.how != driver.Extend && (b.commit < 0 || x.Receipt != b.at.Receipt) {
			delete(c.out.Held, x.Receipt)
		}
	}
	if b.commit < 0 || b.how == driver.Hold {
		return
	}
	if before, ok := c.last[b.at.Receipt.Lane]; ok && before != b.at.Receipt {
		delete(c.out.Held, before)
	}
	c.last[b.at.Receipt.Lane] = b.at.Receipt
}
