package soak

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
	"github.com/varal-go/varal/core/driver"
)

// local is a member in this process, for a broker that lives in it. Killed, its calls to
// the broker never return again and its handlers say nothing more: to broker and judge that
// is what a dead process is.
type local struct {
	j      *judge
	number int
	base   time.Time

	mu       sync.RWMutex // held while something is told
	killed   bool
	held     []driver.Consumer // what the broker has to take back from a dead member
	noticing sync.WaitGroup

	life   context.Context //nolint:containedctx // of the member; kill ends it
	die    context.CancelFunc
	burial chan struct{} // closed when the calls of a dead one may return
	stop   context.CancelFunc
	ended  chan struct{} // closed when consume has returned, with err
	err    error
}

var errKilled = errors.New("this member was killed")

func startLocal(j *judge, c memberConfig, base time.Time, wrap func(driver.Driver) driver.Driver) *local {
	ctx, stop := context.WithCancel(context.Background())
	l := &local{j: j, number: j.join(), base: base, stop: stop, burial: make(chan struct{}), ended: make(chan struct{})}
	l.life, l.die = context.WithCancel(context.Background())
	go func() {
		defer close(l.ended)
		l.err = c.consume(ctx, l, func(d driver.Driver) driver.Driver {
			if wrap != nil {
				d = wrap(d)
			}
			return &mortal{d, l}
		})
	}()
	return l
}

func (l *local) begin(t ticket.Ticket) error {
	l.mu.RLock()
	if l.killed {
		l.mu.RUnlock()
		<-l.burial // nothing goes on in a dead process
		return errKilled
	}
	defer l.mu.RUnlock()
	l.j.begin(l.number, t, time.Since(l.base))
	return nil
}

func (l *local) end(t ticket.Ticket, o outcome) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.killed {
		l.j.end(l.number, t, o)
	}
}

func (l *local) lost() {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.killed {
		l.j.lostAll(l.number)
	}
}

func (l *local) kill() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed = true
	l.die()
	l.j.buried(l.number)
	l.noticing.Go(l.notice)
	return nil
}

// session is how long the broker takes to notice that a member is dead.
const session = 300 * time.Millisecond

// notice has the broker take back what a dead member holds, as the end of its session does
// where there are sessions. This broker would wait for leases, and for ever for a member
// that had nothing out.
func (l *local) notice() {
	select {
	case <-time.After(session):
	case <-l.burial:
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeIn)
	defer cancel()
	for _, c := range l.held {
		_ = c.Close(ctx) // what does not answer is closed with its driver
	}
}

func (l *local) leave() { l.stop() }

func (l *local) done() <-chan struct{} { return l.ended }

// wait returns how it ended. One that was killed is buried first.
func (l *local) wait() error {
	l.mu.RLock()
	killed := l.killed
	l.mu.RUnlock()
	l.stop()
	if killed {
		close(l.burial)
		l.noticing.Wait()
		<-l.ended
		return nil
	}
	<-l.ended
	l.die()
	return l.err
}

// mortal is a driver that can die.
type mortal struct {
	driver.Driver
	l *local
}

func (m *mortal) isDead() bool { return m.l.life.Err() != nil }

// last holds a dead member's call until it is buried.
func (m *mortal) last() error {
	<-m.l.burial
	return driver.Errorf("call", driver.Closed, "%w", errKilled)
}

// Publish hands nothing over after death.
func (m *mortal) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	if m.isDead() {
		return m.last()
	}
	return m.Driver.Publish(ctx, to, batch)
}

// Subscribe returns a consumer that can die. A dead one answers no Revoke.
func (m *mortal) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	revoke := sub.Revoke
	sub.Revoke = func(ctx context.Context, partitions []string) {
		if !m.isDead() {
			revoke(ctx, partitions)
		}
	}
	c, err := m.Driver.Subscribe(ctx, sub)
	if err != nil {
		return nil, err
	}
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	m.l.held = append(m.l.held, c)
	return &mortalConsumer{c, m}, nil
}

type mortalConsumer struct {
	driver.Consumer
	*mortal
}

// Receive hands out nothing after death.
func (c *mortalConsumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(c.l.life, cancel)
	defer stop()
	got, err := c.Consumer.Receive(ctx, want)
	if c.isDead() {
		return nil, c.last()
	}
	return got, err
}

// Settle takes nothing after death.
func (c *mortalConsumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	if c.isDead() {
		return c.last()
	}
	return c.Consumer.Settle(ctx, batch)
}

// Close is the consumer's own.
func (c *mortalConsumer) Close(ctx context.Context) error { return c.Consumer.Close(ctx) }
