package conformance

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// SpawnLocal runs a job inside the test process, for a broker that lives there too. A
// killed or frozen job's driver answers no call any more: what was under way stays
// there, and nothing reaches the broker. gone is called when the broker would have
// noticed, session after Kill or Freeze (it takes away what the dead client owns); it
// may be nil. wrap goes around the driver inside the process; nil = nothing.
func SpawnLocal(t testing.TB, d driver.Driver, wrap func(driver.Driver) driver.Driver, session time.Duration, gone func(), job Job) *Process {
	g := &limbo{Driver: d, freed: make(chan struct{}), over: make(chan struct{}), calls: map[int]context.CancelFunc{}}
	inside := driver.Driver(g)
	if wrap != nil {
		inside = wrap(g)
	}
	p := &Process{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Work(ctx, inside, job, func(e Event) { g.report(p, e) })
	}()
	var timer *time.Timer
	stop := func() {
		g.stop()
		if gone != nil {
			timer = time.AfterFunc(session, gone)
		}
	}
	p.Kill, p.Freeze, p.Thaw = stop, stop, g.thaw
	t.Cleanup(func() {
		if timer != nil {
			timer.Stop()
		}
		close(g.over)
		cancel()
		<-done
	})
	return p
}

// limbo is a driver whose process may be stopped.
type limbo struct {
	driver.Driver
	over chan struct{} // the test is over: everything returns

	mu      sync.Mutex
	stopped bool
	freed   chan struct{} // closed by thaw
	next    int
	calls   map[int]context.CancelFunc // under way
}

func (g *limbo) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	for _, cancel := range g.calls { // a waiting Receive must not take messages to its grave
		cancel()
	}
}

func (g *limbo) thaw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		g.stopped = false
		close(g.freed)
		g.freed = make(chan struct{})
	}
}

// wait holds the caller while the process is stopped; false = the test is over, and
// the process was stopped to the end.
func (g *limbo) wait() bool {
	for {
		g.mu.Lock()
		stopped, freed := g.stopped, g.freed
		g.mu.Unlock()
		if !stopped {
			return true
		}
		select {
		case <-freed:
		case <-g.over:
			return false
		}
	}
}

// report passes an event on while the process runs: none comes after stop.
func (g *limbo) report(p *Process, e Event) {
	for g.wait() {
		g.mu.Lock()
		if !g.stopped {
			p.Report(e)
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
	}
}

// enter lets a call reach the broker, unless the process was stopped to the end.
func (g *limbo) enter(ctx context.Context) (inner context.Context, leave func(), ok bool) {
	if !g.wait() {
		return ctx, nil, false
	}
	inner, cancel := context.WithCancel(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next++
	n := g.next
	g.calls[n] = cancel
	return inner, func() {
		cancel()
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.calls, n)
	}, true
}

func errOver(op string) error { return driver.Errorf(op, driver.Closed, "the process was killed") }

func (g *limbo) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	ctx, leave, ok := g.enter(ctx)
	if !ok {
		return errOver("publish")
	}
	defer leave()
	err := g.Driver.Publish(ctx, to, batch)
	if !g.wait() {
		return errOver("publish")
	}
	return err
}

func (g *limbo) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	ctx, leave, ok := g.enter(ctx)
	if !ok {
		return nil, errOver("subscribe")
	}
	defer leave()
	c, err := g.Driver.Subscribe(ctx, sub)
	if err != nil {
		return nil, err
	}
	return &limboConsumer{Consumer: c, g: g}, nil
}

type limboConsumer struct {
	driver.Consumer
	g *limbo
}

func (c *limboConsumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	for {
		inner, leave, ok := c.g.enter(ctx)
		if !ok {
			return nil, errOver("receive")
		}
		got, err := c.Consumer.Receive(inner, want)
		cut := inner.Err() != nil && ctx.Err() == nil
		leave()
		if !c.g.wait() {
			return nil, errOver("receive")
		}
		if err != nil && cut {
			continue // thawed: the call goes on
		}
		return got, err
	}
}

func (c *limboConsumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	ctx, leave, ok := c.g.enter(ctx)
	if !ok {
		return errOver("settle")
	}
	defer leave()
	return c.Consumer.Settle(ctx, batch)
}

func (c *limboConsumer) Close(ctx context.Context) error {
	_ = c.g.wait()
	return c.Consumer.Close(ctx)
}
