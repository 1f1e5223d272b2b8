//go:build unix

package faults

import (
	"context"
	"sync"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/taps"
)

// recorder stands between core and an adapter and writes down what passes: receives,
// settles with the broker's answer, and the coming and going of partitions.
type recorder struct {
	driver.Driver
	emit func(history.Event)
}

func (r *recorder) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	c := &recorded{emit: r.emit, out: taps.NewDeliveries(r.Capabilities(sub.From).Settle == driver.UpTo)}
	inner := taps.Owned(sub, func(a driver.Assignment) {
		c.emit(history.Event{Op: history.OpAssign, Group: group, Partition: a.Partition, Fence: a.Fence})
	}, c.gone)
	var err error
	if c.Consumer, err = r.Driver.Subscribe(ctx, inner); err != nil {
		return nil, err
	}
	return c, nil
}

// recorded is one consumer. Receive and Settle have one caller each, as the contract
// says; the lock is between those two.
type recorded struct {
	driver.Consumer
	emit func(history.Event)

	mu  sync.Mutex
	out taps.Deliveries
}

func (c *recorded) gone(op history.Op, partitions []string) {
	for _, p := range partitions {
		c.emit(history.Event{Op: op, Group: group, Partition: p})
	}
}

func (c *recorded) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	got, err := c.Consumer.Receive(ctx, want)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range got {
		m := &got[i]
		e := c.out.Add(m)
		outcome := ""
		if !intact(&m.Message) || m.Err != nil {
			outcome = history.Corrupt
		}
		c.emit(history.Event{Op: history.OpRecv, ID: m.ID, Group: group, Partition: e.Receipt.Partition, Position: e.Position(), Outcome: outcome})
	}
	return got, err
}

// settling marks when a Settle began: its answer may come a freeze later.
const settling = "settling"

func (c *recorded) Settle(ctx context.Context, batch []driver.Settlement) error {
	c.emit(history.Event{Op: history.OpLog, Class: settling, N: len(batch)})
	err := c.Consumer.Settle(ctx, batch)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range batch {
		e, known := c.out.Of(batch[i].Receipt)
		res := driver.ResultAt(err, i)
		covered := []taps.Delivery{e}
		if c.out.UpTo() && known {
			next := e.Offset + 1
			if batch[i].Disposition == driver.Hold { // what is before it is done
				next--
			}
			covered = c.upToLocked(e, next, res == nil)
		}
		for _, x := range covered {
			c.emit(history.Event{
				Op: history.OpSettled, ID: x.ID, Group: group, Partition: x.Receipt.Partition, Position: x.Position(),
				Outcome: taps.Outcome(batch[i].Disposition), Class: taps.Class(res),
			})
			if res == nil && batch[i].Disposition != driver.Extend {
				delete(c.out.Held, x.Receipt)
			}
		}
	}
	return err
}

// upToLocked returns what a commit that puts the group at next covers, and records an accepted one. The
// receipt of e is kept: core may commit the same place again.
func (c *recorded) upToLocked(e taps.Delivery, next int64, accepted bool) []taps.Delivery {
	covered, rest := c.out.Split(e.Receipt.Lane, next)
	if accepted {
		c.out.Logs[e.Receipt.Lane] = rest
		c.emit(history.Event{Op: history.OpCommit, Group: group, Partition: e.Receipt.Partition, Position: taps.Position(next)})
	}
	return covered
}
