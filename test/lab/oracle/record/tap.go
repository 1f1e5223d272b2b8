package record

import (
	"context"
	"errors"
	"sync"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
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
		group: t.group, dest: sub.From.Name, emit: t.emit, upTo: t.Capabilities(sub.From).Settle == driver.UpTo,
		held: map[receipt]entry{}, logs: map[lane][]entry{}, last: map[lane]receipt{},
	}
	inner := sub
	inner.Assigned = func(a driver.Assignment) {
		t.emit(c.event(history.OpAssign, a.Partition, a.Fence))
		sub.Assigned(a)
	}
	inner.Revoke = func(ctx context.Context, partitions []string) {
		lost := ctx.Err() != nil
		if lost {
			c.gone(history.OpLost, partitions)
		}
		sub.Revoke(ctx, partitions)
		switch {
		case lost:
		case ctx.Err() != nil: // ownership ended while core was letting go
			c.gone(history.OpLost, partitions)
		default:
			c.gone(history.OpRevoke, partitions)
		}
	}
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
	upTo        bool

	mu   sync.Mutex
	held map[receipt]entry
	logs map[lane][]entry // a log: received and not committed, in order
	last map[lane]receipt // a log: where the last commit was; core may commit it again
}

// receipt is a driver.Receipt without Ref, which need not be comparable.
type receipt struct {
	lane
	seq, aux int64
	id       string
}

type lane struct {
	partition string
	epoch     uint64
}

type entry struct {
	id     string
	offset int64
	r      receipt
}

func key(r driver.Receipt) receipt {
	return receipt{lane{r.Partition, r.Epoch}, r.Seq, r.Aux, r.ID}
}

func (c *tapped) event(op history.Op, partition string, fence uint64) history.Event {
	return history.Event{Op: op, Group: c.group, Dest: c.dest, Partition: partition, Fence: fence}
}

func (c *tapped) gone(op history.Op, partitions []string) {
	c.mu.Lock()
	for _, p := range partitions {
		for l := range c.logs {
			if l.partition == p {
				delete(c.logs, l)
				delete(c.last, l)
			}
		}
		for r := range c.held {
			if r.partition == p {
				delete(c.held, r)
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
		x := entry{id: m.ID, offset: m.Offset, r: key(m.Receipt)}
		c.mu.Lock()
		c.held[x.r] = x
		if c.upTo {
			c.logs[x.r.lane] = append(c.logs[x.r.lane], x)
		}
		c.mu.Unlock()
		e := c.event(history.OpRecv, x.r.partition, 0)
		e.ID, e.Position = x.id, position(x.offset)
		if m.Err != nil {
			e.Outcome = history.Corrupt
		}
		c.emit(e)
	}
	return got, err
}

var dispositions = map[driver.Disposition]string{
	driver.Ack: history.Ack, driver.Nack: history.Nack, driver.Return: history.Return,
	driver.Reject: history.Reject, driver.Extend: history.Extend,
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
	at      entry
	covered []entry // what it is about: one delivery, or on a log everything up to it
	commit  int64   // next to read, on a log; -1 = it commits nothing
}

// beginLocked takes what a settlement covers off the log, so that the next one of the
// same batch covers the rest only.
func (c *tapped) beginLocked(s *driver.Settlement) settling {
	x, known := c.held[key(s.Receipt)]
	if !known {
		x = entry{id: "unknown receipt", offset: -1, r: key(s.Receipt)}
	}
	b := settling{how: s.Disposition, at: x, covered: []entry{x}, commit: -1}
	if !c.upTo || !known {
		return b
	}
	switch s.Disposition {
	case driver.Ack, driver.Reject:
		b.commit = x.offset + 1
	case driver.Hold: // everything before it is done
		b.commit = x.offset
	default: // a log takes nothing back: it is not committed, and that is all
		return b
	}
	log := c.logs[x.r.lane]
	n := 0
	for n < len(log) && log[n].offset < b.commit {
		n++
	}
	b.covered, c.logs[x.r.lane] = log[:n:n], log[n:]
	return b
}

func (c *tapped) settled(b *settling, res error) {
	for _, x := range b.covered {
		e := c.event(history.OpSettled, x.r.partition, 0)
		e.ID, e.Position, e.Outcome, e.Class = x.id, position(x.offset), dispositions[b.how], class(res)
		if b.commit >= 0 && x.r != b.at.r {
			e.Outcome = history.Ack // a rejected one is the last
		}
		c.emit(e)
	}
	c.mu.Lock()
	switch {
	case res != nil && b.commit >= 0:
		if log, owned := c.logs[b.at.r.lane]; owned { // not taken away meanwhile
			c.logs[b.at.r.lane] = append(b.covered, log...)
		}
	case res == nil:
		c.forgetLocked(b)
	}
	c.mu.Unlock()
	if res == nil && b.commit >= 0 {
		e := c.event(history.OpCommit, b.at.r.partition, 0)
		e.Position = position(b.commit)
		c.emit(e)
	}
}

// forgetLocked drops what the broker has settled.
func (c *tapped) forgetLocked(b *settling) {
	for _, x := range b.covered {
		if b.how != driver.Extend && (b.commit < 0 || x.r != b.at.r) {
			delete(c.held, x.r)
		}
	}
	if b.commit < 0 || b.how == driver.Hold {
		return
	}
	if before, ok := c.last[b.at.r.lane]; ok && before != b.at.r {
		delete(c.held, before)
	}
	c.last[b.at.r.lane] = b.at.r
}

// class is the word the checks know.
func class(err error) string {
	switch c := driver.ClassOf(err); {
	case err == nil:
		return ""
	case errors.Is(err, driver.LeaseLost):
		return history.LeaseLost
	case c == 0:
		return "unclassified"
	default:
		return c.String()
	}
}
