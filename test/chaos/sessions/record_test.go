//go:build unix

package sessions

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/taps"
)

// recorder stands between core and an adapter. It writes down what passes, hides the
// commit state where a test asks for it, and holds the failpoints of settles and revokes.
type recorder struct {
	driver.Driver
	member *member
}

// Capabilities without a place for state, if the member is to have none.
func (r *recorder) Capabilities(of driver.Destination) driver.Capabilities {
	c := r.Driver.Capabilities(of)
	if r.member.args.Forget {
		c.StateBytes = 0
	}
	return c
}

// Words of OpLog events that tests look for, in Class.
const (
	saidBegins  = "commit begins"  // N: bytes of state, Partition
	saidCommit  = "commit is done" // N: bytes of state, Partition
	saidRefused = "commit refused" // Outcome: why
	saidRevoke  = "revoke begins"
	saidPoint   = "failpoint "
)

func (r *recorder) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	m := r.member
	c := &recorded{m: m, dest: sub.From.Name, out: taps.NewDeliveries(r.Driver.Capabilities(sub.From).Settle == driver.UpTo)}
	inner := taps.Owned(m.failing(sub), func(a driver.Assignment) {
		m.emit(history.Event{Op: history.OpAssign, Group: group, Dest: c.dest, Partition: a.Partition, Fence: a.Fence, N: len(a.State)})
	}, c.gone)
	var err error
	if c.Consumer, err = r.Driver.Subscribe(ctx, inner); err != nil {
		return nil, err
	}
	return c, nil
}

// failing puts the failpoints of a revoke into a subscription. Where ownership has ended
// already there is nothing to let go.
func (m *member) failing(sub driver.Subscription) driver.Subscription {
	revoke := sub.Revoke
	sub.Revoke = func(ctx context.Context, partitions []string) {
		if ctx.Err() != nil {
			revoke(ctx, partitions)
			return
		}
		for _, p := range partitions {
			m.emit(history.Event{Op: history.OpLog, Class: saidRevoke, Group: group, Partition: p})
		}
		m.at(revokeBegun)
		revoke(ctx, partitions)
		m.at(revokeEnded)
	}
	return sub
}

// recorded is one consumer. Receive and Settle have one caller each, as the contract
// says; the lock is between those two.
type recorded struct {
	driver.Consumer
	m    *member
	dest string

	mu  sync.Mutex
	out taps.Deliveries
}

func (c *recorded) gone(op history.Op, partitions []string) {
	for _, p := range partitions {
		c.m.emit(history.Event{Op: op, Group: group, Dest: c.dest, Partition: p})
	}
}

func (c *recorded) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	got, err := c.Consumer.Receive(ctx, want)
	if c.m.args.Quiet {
		return got, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range got {
		m := &got[i]
		e := c.out.Add(m)
		outcome := ""
		if !intact(&m.Message) || m.Err != nil {
			outcome = history.Corrupt
		}
		c.m.emit(history.Event{Op: history.OpRecv, ID: m.ID, Group: group, Dest: c.dest, Partition: e.Receipt.Partition, Position: e.Position(), Outcome: outcome})
	}
	return got, err
}

func (c *recorded) Settle(ctx context.Context, batch []driver.Settlement) error {
	c.announce(batch)
	c.m.at(settleBegun)
	err := c.settle(ctx, batch)
	c.mu.Lock()
	for i := range batch {
		c.answered(&batch[i], driver.ResultAt(err, i))
	}
	c.mu.Unlock()
	c.m.at(settleAnswered)
	return err
}

// announce marks when commits began: what ended later is not in their state.
func (c *recorded) announce(batch []driver.Settlement) {
	for i := range batch {
		if c.out.UpTo() {
			c.m.emit(history.Event{Op: history.OpLog, Class: saidBegins, Partition: batch[i].Receipt.Partition, N: len(batch[i].State)})
		}
	}
}

// settle settles. Where the failpoint is between request and answer, the broker's
// answers stop coming before the request leaves: it takes effect, and nobody here knows.
func (c *recorded) settle(ctx context.Context, batch []driver.Settlement) error {
	if !c.m.deafAt(settleSent) {
		return c.Consumer.Settle(ctx, batch)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.m.dieAfterSent() })
	return c.Consumer.Settle(ctx, batch)
}

// answered writes down what became of one entry. mu is held.
func (c *recorded) answered(s *driver.Settlement, res error) {
	if c.out.UpTo() {
		said := history.Event{Op: history.OpLog, Class: saidCommit, Partition: s.Receipt.Partition, N: len(s.State)}
		if res != nil {
			said.Class, said.Outcome = saidRefused, res.Error()
		}
		c.m.emit(said)
	}
	if c.m.args.Quiet {
		return
	}
	e, known := c.out.Of(s.Receipt)
	covered := []taps.Delivery{e}
	if c.out.UpTo() && known {
		covered = c.covers(e, s.Disposition, res == nil)
	}
	for _, x := range covered {
		c.m.emit(history.Event{
			Op: history.OpSettled, ID: x.ID, Group: group, Dest: c.dest, Partition: x.Receipt.Partition, Position: x.Position(),
			Outcome: taps.Outcome(s.Disposition), Class: taps.Class(res),
		})
		if res == nil && s.Disposition != driver.Extend && !c.out.UpTo() {
			delete(c.out.Held, x.Receipt)
		}
	}
}

// covers returns what a commit up to e is about, and records an accepted one. One that
// failed is about everything that was received: its state was to speak for what is done
// further up. Receipts are kept while their partition is: core may commit one again.
func (c *recorded) covers(e taps.Delivery, d driver.Disposition, accepted bool) []taps.Delivery {
	if !accepted {
		return c.out.Logs[e.Receipt.Lane]
	}
	next := e.Offset + 1
	if d == driver.Hold {
		next--
	}
	covered, rest := c.out.Split(e.Receipt.Lane, next)
	c.out.Logs[e.Receipt.Lane] = rest
	c.m.emit(history.Event{Op: history.OpCommit, Group: group, Dest: c.dest, Partition: e.Receipt.Partition, Position: taps.Position(next)})
	return covered
}

// number is n of message.
func number(m *driver.Message) int {
	f := strings.Split(string(m.Body), "|")
	if len(f) != 3 {
		return -1
	}
	n, err := strconv.Atoi(f[2])
	if err != nil {
		return -1
	}
	return n
}

func intact(m *driver.Message) bool {
	f := strings.Split(string(m.Body), "|")
	return len(f) == 3 && f[0] == m.ID && f[1] == m.Key
}
