package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
)

var (
	queue  = driver.Destination{Shape: driver.Queue, Name: Dest}
	stream = driver.Destination{Shape: driver.Stream, Name: Dest, Partitions: 1}
)

// filled is a member of a destination that has n messages.
func (s *stage) filled(to driver.Destination, lease time.Duration, all []*driver.Message) (*member, error) {
	d, err := s.client()
	if err != nil {
		return nil, err
	}
	if err := s.fill(d, to, all); err != nil {
		return nil, err
	}
	return s.subscriber("m1", to, lease)
}

// fill creates a destination and publishes to it.
func (s *stage) fill(d driver.Driver, to driver.Destination, all []*driver.Message) error {
	if err := s.create(d, to); err != nil {
		return err
	}
	return s.publish(func(m *driver.Message) error { return d.Publish(s.ctx, to, []*driver.Message{m}) }, all)
}

const lease = 30 * time.Second

// flatPool: four workers and one channel. The first message of a key is slow.
func flatPool(s *stage) error {
	const workers = 4
	all := s.make(30+s.rng.IntN(30), 5)
	m, err := s.filled(queue, lease, all)
	if err != nil {
		return err
	}
	got, err := m.receive(len(all))
	if err != nil {
		return err
	}
	work := make(chan *driver.Received)
	var pool sync.WaitGroup
	errs := make(chan error, len(all))
	for range workers {
		pool.Go(func() {
			for r := range work {
				errs <- m.slowFirst(r)
			}
		})
	}
	for _, r := range got {
		work <- r
	}
	close(work)
	pool.Wait()
	for range got {
		if err := <-errs; err != nil {
			return err
		}
	}
	return s.finish(m)
}

// slowFirst handles a message; the first of k0 takes until the second has begun.
func (m *member) slowFirst(r *driver.Received) error {
	m.start(r)
	if r.Key == "k0" && number(&r.Message) == 1 {
		if err := m.s.await("the second message of k0", func(e *history.Event) bool {
			return e.Op == history.OpStart && e.Key == "k0" && e.N == 2
		}); err != nil {
			return err
		}
	}
	m.end(r, history.OK, "")
	return m.settle(driver.Ack, r)
}

// finish ends a control whose last member is m.
func (s *stage) finish(m *member) error {
	if err := s.drained(); err != nil {
		return err
	}
	return m.leave()
}

// commitMax keeps the lane of its first message in order, and commits each completion
// as it comes.
func commitMax(s *stage) error {
	all := s.make(30+s.rng.IntN(30), 5)
	m1, err := s.filled(stream, lease, all)
	if err != nil {
		return err
	}
	got, err := m1.receive(20)
	if err != nil {
		return err
	}
	victim := got[0]
	m1.start(victim)
	for _, r := range got[1:] {
		if r.Key == victim.Key {
			continue // waits behind it
		}
		if err := m1.done(r); err != nil { // an Ack here commits past the victim
			return err
		}
	}
	if err := m1.die(); err != nil {
		return err
	}
	m2, err := s.subscriber("m2", stream, lease)
	if err != nil {
		return err
	}
	left, err := s.lag(m2.drv, stream)
	if err != nil {
		return err
	}
	if err := m2.rest(stream, left); err != nil {
		return err
	}
	return s.finish(m2)
}

// nackRequeue fails the first message once, and goes on with what it has received.
func nackRequeue(s *stage) error {
	all := s.make(30+s.rng.IntN(30), 5)
	m, err := s.filled(queue, lease, all)
	if err != nil {
		return err
	}
	got, err := m.receive(len(all))
	if err != nil {
		return err
	}
	for _, r := range got {
		if r != got[0] {
			if err := m.done(r); err != nil {
				return err
			}
			continue
		}
		m.start(r)
		m.end(r, history.Fail, "")
		if err := m.settle(driver.Nack, r); err != nil {
			return err
		}
	}
	if err := m.rest(queue, 1); err != nil {
		return err
	}
	return s.finish(m)
}

// noDrain closes its subscription with a handler at work.
func noDrain(s *stage) error {
	all := s.make(10+s.rng.IntN(10), 3)
	m1, err := s.filled(stream, lease, all)
	if err != nil {
		return err
	}
	m2, err := s.subscriber("m2", stream, lease)
	if err != nil {
		return err
	}
	got, err := m1.receive(len(all))
	if err != nil {
		return err
	}
	i := s.rng.IntN(len(got) - 1)
	for _, r := range got[:i] {
		if err := m1.done(r); err != nil {
			return err
		}
	}
	m1.start(got[i])
	if err := m1.con.Close(s.ctx); err != nil {
		return err
	}
	again, err := m2.receive(len(all) - i)
	if err != nil {
		return err
	}
	m2.start(again[0])
	m1.end(got[i], history.OK, "") // two have run at once
	m2.end(again[0], history.OK, "")
	if err := m2.settle(driver.Ack, again[0]); err != nil {
		return err
	}
	for _, r := range again[1:] {
		if err := m2.done(r); err != nil {
			return err
		}
	}
	if err := m1.rec.Close(); err != nil {
		return err
	}
	return s.finish(m2)
}

// dropOnFull has lanes of four and a worker that begins when everything has come.
func dropOnFull(s *stage) error {
	all := s.make(30+s.rng.IntN(30), 3)
	m, err := s.filled(queue, lease, all)
	if err != nil {
		return err
	}
	got, err := m.receive(len(all))
	if err != nil {
		return err
	}
	lanes := map[string]chan *driver.Received{}
	for _, r := range got {
		if lanes[r.Key] == nil {
			lanes[r.Key] = make(chan *driver.Received, 4)
		}
		select {
		case lanes[r.Key] <- r:
		default:
			if err := m.settle(driver.Ack, r); err != nil {
				return err
			}
		}
	}
	for _, lane := range lanes {
		close(lane)
		for r := range lane {
			if err := m.done(r); err != nil {
				return err
			}
		}
	}
	return s.finish(m)
}

// stealing: the lease is short, and whoever runs longer is taken for dead.
func stealing(s *stage) error {
	all := s.make(1, 1) // alone in its key: nothing but the theft is wrong
	for i := range 10 + s.rng.IntN(10) {
		all = append(all, message(fmt.Sprintf("p.%d", i+2), fmt.Sprintf("other%d", i), 1))
	}
	m1, err := s.filled(queue, 50*time.Millisecond, all)
	if err != nil {
		return err
	}
	got, err := m1.receive(1)
	if err != nil {
		return err
	}
	m1.start(got[0])
	m2, err := s.subscriber("m2", queue, lease)
	if err != nil {
		return err
	}
	claimed, err := m2.receive(len(all))
	if err != nil {
		return err
	}
	for _, r := range claimed {
		m2.start(r)
		if r.ID == got[0].ID {
			m1.end(got[0], history.OK, "")
			_ = m1.settle(driver.Ack, got[0]) // refused: it has been stolen
		}
		m2.end(r, history.OK, "")
		if err := m2.settle(driver.Ack, r); err != nil {
			return err
		}
	}
	if err := m1.leave(); err != nil {
		return err
	}
	return s.finish(m2)
}

// noLastCommit does some work, keeps it to itself, and leaves in good order.
func noLastCommit(s *stage) error {
	all := s.make(10+s.rng.IntN(10), 3)
	m1, err := s.filled(stream, lease, all)
	if err != nil {
		return err
	}
	got, err := m1.receive(len(all))
	if err != nil {
		return err
	}
	for _, r := range got[:1+s.rng.IntN(len(got))] {
		m1.start(r)
		m1.end(r, history.OK, "")
	}
	if err := m1.leave(); err != nil {
		return err
	}
	m2, err := s.subscriber("m2", stream, lease)
	if err != nil {
		return err
	}
	if err := m2.rest(stream, len(all)); err != nil {
		return err
	}
	return s.finish(m2)
}

// client opens a driver of the lab's own.
func (s *stage) client() (driver.Driver, error) {
	d, err := memory.Open(s.ctx, memory.Config{Broker: s.broker, Lease: lease})
	if err == nil {
		s.later(func() error { return d.Close(context.WithoutCancel(s.ctx)) })
	}
	return d, err
}
