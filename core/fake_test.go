package core_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// fake is a scriptable driver: one source "in" that hands out what push gave it, and
// a record of everything that was published and settled. It is what core's own tests
// stand on; the behaviour of real adapters is test/conformance's.
type fake struct {
	caps driver.Capabilities

	mu        sync.Mutex
	ready     []driver.Received
	wake      chan struct{}
	settled   []driver.Settlement
	published map[string][]*driver.Message
	onPublish func(to driver.Destination, batch []*driver.Message) error
	publishes time.Duration // how long it takes
	onSettle  func(batch []driver.Settlement) error
	onClose   func(ctx context.Context)
	onCancel  func() []driver.Received // what a Receive that was cancelled returns all the same
	demands   []driver.Demand
	sub       driver.Subscription
	seq       int64
	closed    bool
	epoch     uint64
	given     driver.Assignment // what Assigned is told beside epoch and fence
	observe   core.Observer     // of client(f)
	more      []string          // partitions beside ""
}

func newFake(mode driver.SettleMode) *fake {
	return &fake{
		caps:      driver.Capabilities{Settle: mode, Order: driver.PerPartition, Durable: true, Counts: false},
		wake:      make(chan struct{}, 1),
		published: map[string][]*driver.Message{},
		epoch:     1,
	}
}

func (f *fake) Capabilities(driver.Destination) driver.Capabilities { return f.caps }
func (f *fake) Admin() driver.Admin                                 { return nil }

func (f *fake) Publish(_ context.Context, to driver.Destination, batch []*driver.Message) error {
	time.Sleep(f.publishes)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.onPublish != nil {
		if err := f.onPublish(to, batch); err != nil {
			return err
		}
	}
	f.published[to.Name] = append(f.published[to.Name], batch...)
	return nil
}

func (f *fake) sent(name string) []*driver.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*driver.Message(nil), f.published[name]...)
}

func (f *fake) Subscribe(_ context.Context, sub driver.Subscription) (driver.Consumer, error) {
	f.mu.Lock()
	f.sub = sub
	f.mu.Unlock()
	a := f.given
	a.Epoch, a.Fence = f.epoch, 7
	for _, name := range append([]string{""}, f.more...) {
		a.Partition = name
		sub.Assigned(a)
	}
	return f, nil
}

// push makes messages ready.
func (f *fake) push(msgs ...driver.Received) {
	f.mu.Lock()
	for _, m := range msgs {
		f.seq++
		m.Receipt.Seq, m.Receipt.Epoch = f.seq, f.epoch
		m.Offset = f.seq
		f.ready = append(f.ready, m)
	}
	f.mu.Unlock()
	f.signal()
}

func (f *fake) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fake) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	f.mu.Lock()
	f.demands = append(f.demands, want)
	f.mu.Unlock()
	for {
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			return nil, driver.Errorf("receive", driver.Closed, "closed")
		}
		if out := f.take(want); len(out) > 0 {
			f.mu.Unlock()
			return out, nil
		}
		f.mu.Unlock()
		select {
		case <-f.wake:
		case <-ctx.Done():
			if f.onCancel != nil {
				return f.onCancel(), ctx.Err()
			}
			return nil, ctx.Err()
		}
	}
}

// take hands out what is ready, in order, of partitions that are not paused.
func (f *fake) take(want driver.Demand) (out []driver.Received) {
	var left []driver.Received
	for _, m := range f.ready {
		if len(out) < want.Records && !slices.Contains(want.Paused, m.Receipt.Partition) {
			out = append(out, m)
		} else {
			left = append(left, m)
		}
	}
	f.ready = left
	return out
}

func (f *fake) Settle(_ context.Context, batch []driver.Settlement) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.onSettle != nil {
		if err := f.onSettle(batch); err != nil {
			return err
		}
	}
	f.settled = append(f.settled, batch...)
	return nil
}

func (f *fake) Close(ctx context.Context) error {
	if f.onClose != nil {
		f.onClose(ctx)
	}
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.signal()
	return nil
}

// settlements returns what was settled so far, extensions apart.
func (f *fake) settlements() (final, extends []driver.Settlement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.settled {
		if s.Disposition == driver.Extend {
			extends = append(extends, s)
		} else {
			final = append(final, s)
		}
	}
	return final, extends
}

func msg(id, key string) driver.Received {
	return driver.Received{Message: driver.Message{ID: id, Key: key, Body: []byte(id), Time: time.Unix(1, 0)}}
}
