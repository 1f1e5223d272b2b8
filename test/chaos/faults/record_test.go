//go:build unix

package faults

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
)

// recorder stands between core and an adapter and writes down what passes: receives,
// settles with the broker's answer, and the coming and going of partitions.
type recorder struct {
	driver.Driver
	emit func(history.Event)
}

func (r *recorder) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	c := &recorded{emit: r.emit, upTo: r.Capabilities(sub.From).Settle == driver.UpTo, held: map[receipt]entry{}, logs: map[lane][]entry{}}
	inner := sub
	inner.Assigned = func(a driver.Assignment) {
		c.emit(history.Event{Op: history.OpAssign, Group: group, Partition: a.Partition, Fence: a.Fence})
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
	upTo bool

	mu   sync.Mutex
	held map[receipt]entry
	logs map[lane][]entry // a log: received and not committed, in order
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
	id, position string
	offset       int64
	r            receipt
}

func key(r driver.Receipt) receipt {
	return receipt{lane{r.Partition, r.Epoch}, r.Seq, r.Aux, r.ID}
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
		e := entry{id: m.ID, position: position(m.Offset), offset: m.Offset, r: key(m.Receipt)}
		c.held[e.r] = e
		if c.upTo {
			c.logs[e.r.lane] = append(c.logs[e.r.lane], e)
		}
		outcome := ""
		if !intact(&m.Message) || m.Err != nil {
			outcome = history.Corrupt
		}
		c.emit(history.Event{Op: history.OpRecv, ID: m.ID, Group: group, Partition: e.r.partition, Position: e.position, Outcome: outcome})
	}
	return got, err
}

// position is how a place in a log is written; "" = no log.
func position(offset int64) string {
	if offset < 0 {
		return ""
	}
	return strconv.FormatInt(offset, 10)
}

var dispositions = map[driver.Disposition]string{
	driver.Ack: history.Ack, driver.Nack: history.Nack, driver.Return: history.Return,
	driver.Reject: history.Reject, driver.Extend: history.Extend, driver.Hold: history.Ack,
}

// settling marks when a Settle began: its answer may come a freeze later.
const settling = "settling"

func (c *recorded) Settle(ctx context.Context, batch []driver.Settlement) error {
	c.emit(history.Event{Op: history.OpLog, Class: settling, N: len(batch)})
	err := c.Consumer.Settle(ctx, batch)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range batch {
		e, known := c.held[key(batch[i].Receipt)]
		if !known {
			e = entry{id: "unknown receipt", r: key(batch[i].Receipt)}
		}
		res := driver.ResultAt(err, i)
		covered := []entry{e}
		if c.upTo && known {
			next := e.offset + 1
			if batch[i].Disposition == driver.Hold { // what is before it is done
				next--
			}
			covered = c.upToLocked(e, next, res == nil)
		}
		for _, x := range covered {
			c.emit(history.Event{
				Op: history.OpSettled, ID: x.id, Group: group, Partition: x.r.partition, Position: x.position,
				Outcome: dispositions[batch[i].Disposition], Class: class(res),
			})
			if res == nil && batch[i].Disposition != driver.Extend {
				delete(c.held, x.r)
			}
		}
	}
	return err
}

// upToLocked returns what a commit that puts the group at next covers, and records an accepted one. The
// receipt of e is kept: core may commit the same place again.
func (c *recorded) upToLocked(e entry, next int64, accepted bool) []entry {
	log := c.logs[e.r.lane]
	n := 0
	for n < len(log) && log[n].offset < next {
		n++
	}
	covered := log[:n:n]
	if accepted {
		c.logs[e.r.lane] = log[n:]
		c.emit(history.Event{Op: history.OpCommit, Group: group, Partition: e.r.partition, Position: position(next)})
	}
	return covered
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
