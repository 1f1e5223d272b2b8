package mutant

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/varal-go/varal/core/driver"
)

// hooks change what passes between core and an adapter. nil = passed on as it is.
type hooks struct {
	caps      func(of driver.Destination, c driver.Capabilities) driver.Capabilities
	publish   func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error
	subscribe func(sub *driver.Subscription)
	receive   func(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error)
	settle    func(ctx context.Context, c *consumer, batch []driver.Settlement) error
	closeIt   func(ctx context.Context, c *consumer) error
	closeAll  func(ctx context.Context, d driver.Driver) error
	admin     func(a driver.Admin) driver.Admin
}

// mutate returns a Wrap that puts fresh hooks around each driver.
func mutate(fresh func() hooks) func(driver.Driver) driver.Driver {
	return func(d driver.Driver) driver.Driver { return &wrapped{Driver: d, h: fresh()} }
}

type wrapped struct {
	driver.Driver
	h hooks
}

func (w *wrapped) Capabilities(of driver.Destination) driver.Capabilities {
	c := w.Driver.Capabilities(of)
	if w.h.caps != nil {
		c = w.h.caps(of, c)
	}
	return c
}

func (w *wrapped) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	if w.h.publish != nil {
		return w.h.publish(ctx, w.Driver, to, batch)
	}
	return w.Driver.Publish(ctx, to, batch)
}

func (w *wrapped) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	if w.h.subscribe != nil {
		w.h.subscribe(&sub)
	}
	c, err := w.Driver.Subscribe(ctx, sub)
	if err != nil {
		return nil, err
	}
	return &consumer{Consumer: c, w: w, sub: sub, caps: w.Driver.Capabilities(sub.From)}, nil
}

func (w *wrapped) Admin() driver.Admin {
	a := w.Driver.Admin()
	if w.h.admin != nil && a != nil {
		a = w.h.admin(a)
	}
	return a
}

func (w *wrapped) Close(ctx context.Context) error {
	if w.h.closeAll != nil {
		return w.h.closeAll(ctx, w.Driver)
	}
	return w.Driver.Close(ctx)
}

type consumer struct {
	driver.Consumer
	w    *wrapped
	sub  driver.Subscription
	caps driver.Capabilities
	n    atomic.Int64

	mu   sync.Mutex
	held []driver.Received
}

func (c *consumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	if c.w.h.receive != nil {
		return c.w.h.receive(ctx, c, want)
	}
	return c.Consumer.Receive(ctx, want)
}

func (c *consumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	if c.w.h.settle != nil {
		return c.w.h.settle(ctx, c, batch)
	}
	return c.Consumer.Settle(ctx, batch)
}

func (c *consumer) Close(ctx context.Context) error {
	if c.w.h.closeIt != nil {
		return c.w.h.closeIt(ctx, c)
	}
	return c.Consumer.Close(ctx)
}

// onReceive changes what Receive returned.
func onReceive(f func(c *consumer, got []driver.Received) []driver.Received) func() hooks {
	return func() hooks {
		return hooks{receive: func(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
			got, err := c.Consumer.Receive(ctx, want)
			if len(got) > 0 {
				got = f(c, append([]driver.Received(nil), got...))
			}
			return got, err
		}}
	}
}

// onSettle changes settlements one by one. keep false: not passed on, reported as done.
func onSettle(f func(c *consumer, s *driver.Settlement) (keep bool)) func() hooks {
	return func() hooks {
		return hooks{settle: func(ctx context.Context, c *consumer, batch []driver.Settlement) error {
			errs := make([]error, len(batch))
			var pass []driver.Settlement
			var at []int
			for i := range batch {
				s := batch[i]
				if f(c, &s) {
					pass, at = append(pass, s), append(at, i)
				}
			}
			if len(pass) == 0 {
				return nil
			}
			err := c.Consumer.Settle(ctx, pass)
			for k, i := range at {
				errs[i] = driver.ResultAt(err, k)
			}
			return driver.Batch(errs)
		}}
	}
}

// onPublish changes copies of the messages on their way.
func onPublish(f func(i int, m *driver.Message) (keep bool)) func() hooks {
	var n atomic.Int64
	return func() hooks {
		return hooks{publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
			errs := make([]error, len(batch))
			var pass []*driver.Message
			var at []int
			for i, m := range batch {
				m := *m
				if f(int(n.Add(1)), &m) {
					pass, at = append(pass, &m), append(at, i)
				}
			}
			if len(pass) == 0 {
				return nil
			}
			err := d.Publish(ctx, to, pass)
			for k, i := range at {
				errs[i] = driver.ResultAt(err, k)
			}
			return driver.Batch(errs)
		}}
	}
}
