package control

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/oracle/record"
)

// member is a hand-made consumer: it does what its control tells it, wrong or not.
type member struct {
	s     *stage
	name  string
	rec   *record.Client
	inner driver.Driver
	drv   driver.Driver // the same, tapped
	con   driver.Consumer
}

// member connects to the oracle.
func (s *stage) member(name string) (*member, error) {
	rec, err := record.Dial(s.ctx, s.addr, record.Options{Proc: name})
	if err != nil {
		return nil, err
	}
	s.later(func() error { rec.Abort(); return nil }) // after Close it does nothing
	return &member{s: s, name: name, rec: rec}, nil
}

// subscriber is a member with a subscription on the memory broker.
func (s *stage) subscriber(name string, from driver.Destination, lease time.Duration) (*member, error) {
	m, err := s.member(name)
	if err != nil {
		return nil, err
	}
	if m.inner, err = memory.Open(s.ctx, memory.Config{Broker: s.broker, Lease: lease}); err != nil {
		return nil, err
	}
	s.later(func() error { return m.inner.Close(context.WithoutCancel(s.ctx)) })
	m.drv = record.Tap(m.inner, Group, m.emit)
	m.con, err = m.drv.Subscribe(s.ctx, driver.Subscription{
		From: from, Group: Group, Start: driver.Position{Kind: startOf(from)},
		Assigned: func(driver.Assignment) {}, Revoke: noRevoke,
	})
	return m, err
}

// startOf: a queue has no positions.
func startOf(from driver.Destination) driver.PositionKind {
	if from.Shape == driver.Stream {
		return driver.Earliest
	}
	return driver.Default
}

func (m *member) emit(e history.Event) {
	if m.rec.Record(e) == nil {
		e.Proc = m.name
		m.s.note(e)
	}
}

// about is what a handler says of a message.
func about(op history.Op, r *driver.Received) history.Event {
	e := history.Event{
		Op: op, ID: r.ID, Key: r.Key, N: number(&r.Message), Group: Group, Dest: Dest, Attempt: max(r.DeliveryCount, 1),
		Partition: r.Receipt.Partition,
	}
	if r.Offset >= 0 {
		e.Position = strconv.FormatInt(r.Offset, 10)
	}
	return e
}

func (m *member) start(r *driver.Received) { m.emit(about(history.OpStart, r)) }

func (m *member) end(r *driver.Received, outcome, class string) {
	e := about(history.OpEnd, r)
	e.Outcome, e.Class = outcome, class
	m.emit(e)
}

// done handles a message and settles it.
func (m *member) done(r *driver.Received) error {
	m.start(r)
	m.end(r, history.OK, "")
	return m.settle(driver.Ack, r)
}

func (m *member) settle(how driver.Disposition, all ...*driver.Received) error {
	var batch []driver.Settlement
	for _, r := range all {
		batch = append(batch, driver.Settlement{Receipt: r.Receipt, Disposition: how})
	}
	return m.con.Settle(m.s.ctx, batch)
}

// receive returns n messages, or fewer when 20 s pass without one.
func (m *member) receive(n int) (all []*driver.Received, err error) {
	for len(all) < n {
		got, err := m.some(n - len(all))
		if err != nil {
			return all, err
		}
		if len(got) == 0 {
			return all, nil
		}
		all = append(all, got...)
	}
	return all, nil
}

func (m *member) some(n int) ([]*driver.Received, error) {
	ctx, cancel := context.WithTimeout(m.s.ctx, 20*time.Second)
	defer cancel()
	got, err := m.con.Receive(ctx, driver.Demand{Records: n, Bytes: 1 << 30, Limit: 1 << 16})
	if errors.Is(err, context.DeadlineExceeded) && m.s.ctx.Err() == nil {
		return nil, nil
	}
	out := make([]*driver.Received, 0, len(got))
	for i := range got {
		c := got[i] // the slice is ours until the next call only
		out = append(out, &c)
	}
	return out, err
}

// rest handles everything that still comes, in order, until the broker is empty.
func (m *member) rest(of driver.Destination, left int) error {
	got, err := m.receive(left)
	if err != nil {
		return err
	}
	if len(got) != left {
		return fmt.Errorf("%s got %d of %d messages", m.name, len(got), left)
	}
	for _, r := range got {
		if err := m.done(r); err != nil {
			return err
		}
	}
	return m.s.empty(m.drv, of)
}

// leave closes the subscription in good order and says bye.
func (m *member) leave() error {
	err := m.con.Close(m.s.ctx)
	return errors.Join(err, m.rec.Close())
}

// die is a crash: nothing more is heard of it, and the broker notices.
func (m *member) die() error {
	m.rec.Abort() // before the record of the kill: what it still says is never heard
	err := m.s.lab.Record(history.Event{Op: history.OpFault, Outcome: history.FaultKill, Dest: m.name, N: m.rec.Gen()})
	m.s.broker.Evict(m.inner)
	return err
}

// noRevoke lets partitions go as if nothing ran.
func noRevoke(context.Context, []string) {}
