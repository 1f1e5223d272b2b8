package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// outlet is the confirm channel of one exchange in one session, shared by all callers.
// One per exchange, because publishing to a missing exchange closes the channel under
// everybody.
type outlet struct {
	b        *broker
	s        *session
	exchange string
	ready    chan struct{} // closed when ch or err is set
	ch       *amqp.Channel
	err      error

	slots chan struct{} // one for each unconfirmed message
	turn  chan struct{} // capacity 1: who writes

	mu       sync.Mutex
	waiting  []*group
	returns  chan amqp.Return // as large as the window: the client drops what finds no room
	returned map[returnKey]int
	closes   chan *amqp.Error
	why      *amqp.Error

	firstSent atomic.Pointer[amqp.DeferredConfirmation] // of this channel
}

type returnKey struct{ id, key string }

// group is what one caller wants written at once.
type group struct {
	items   []item
	written chan struct{}
}

// outlet returns the open channel for exchange, connecting and opening as needed.
func (b *broker) outlet(ctx context.Context, exchange string) (*outlet, error) {
	s, err := b.pub.session(ctx)
	if err != nil {
		return nil, err
	}
	if err := waitClear(ctx, s); err != nil {
		return nil, err
	}
	s.mu.Lock()
	o := s.outlets[exchange]
	if o == nil || o.dead() {
		o = &outlet{
			b: b, s: s, exchange: exchange, ready: make(chan struct{}),
			slots: make(chan struct{}, b.cfg.Window), turn: make(chan struct{}, 1),
			returned: map[returnKey]int{},
		}
		s.outlets[exchange] = o
		// A goroutine: the client's calls ignore ctx, and every caller waits for this
		// channel with a ctx of its own. It ends with the answer or the connection.
		b.calls.Go(o.open)
	}
	s.mu.Unlock()
	select {
	case <-o.ready:
		return o, o.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (o *outlet) dead() bool {
	select {
	case <-o.ready:
		return o.err != nil || o.ch.IsClosed()
	default:
		return false
	}
}

func (o *outlet) open() {
	defer close(o.ready)
	if o.exchange != "" {
		o.err = o.s.scratch(func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(o.exchange, amqp.ExchangeTopic, true, false, false, false, nil)
		})
		if o.err != nil {
			o.err = classify("find topic "+o.exchange, o.err)
			return
		}
	}
	if o.ch, o.err = o.s.conn.Channel(); o.err != nil {
		return
	}
	o.returns = o.ch.NotifyReturn(make(chan amqp.Return, o.b.cfg.Window))
	o.closes = o.ch.NotifyClose(make(chan *amqp.Error, 1))
	o.err = o.ch.Confirm(false)
}

// clear waits while the broker takes no publishes: a publish would go into the kernel's
// buffers, then block inside the client.
func (o *outlet) clear(ctx context.Context) error { return waitClear(ctx, o.s) }

func waitClear(ctx context.Context, s *session) error {
	flows, blocked := s.unblocked()
	if !blocked {
		return nil
	}
	select {
	case <-flows:
		return nil
	case <-s.down:
		return errors.New("the connection ended while the broker took no publishes")
	case <-ctx.Done():
		return fmt.Errorf("the broker takes no publishes (memory or disk alarm): %w", context.Cause(ctx))
	}
}

func (o *outlet) tryAcquire() bool {
	select {
	case o.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (o *outlet) release(n int) {
	for range n {
		<-o.slots
	}
}

// submit gets g written, by this caller or by another one that writes for all who wait:
// one system call for many small publishes. On an error taken tells whether somebody
// may still write g.
func (o *outlet) submit(ctx context.Context, g *group) (err error, taken bool) { //nolint:revive // callers read it like a plain call, which has its error first
	o.mu.Lock()
	o.waiting = append(o.waiting, g)
	o.mu.Unlock()
	// A write takes microseconds: yielding a few times is cheaper than to be parked and
	// woken for it, on top of being woken for the confirm.
	for range 4 {
		select {
		case <-g.written:
			return nil, true
		case o.turn <- struct{}{}:
			o.write(ctx)
			<-o.turn
			<-g.written
			return nil, true
		default:
			runtime.Gosched()
		}
	}
	select {
	case o.turn <- struct{}{}:
		o.write(ctx)
		<-o.turn
		// Either we wrote g or the one before us did, and closed written before it
		// gave up its turn.
		<-g.written
		return nil, true
	case <-g.written:
		return nil, true
	case <-ctx.Done():
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, w := range o.waiting {
		if w == g {
			o.waiting = append(o.waiting[:i:i], o.waiting[i+1:]...)
			return context.Cause(ctx), false
		}
	}
	return context.Cause(ctx), true
}

func (o *outlet) write(ctx context.Context) {
	o.mu.Lock()
	groups := o.waiting
	o.waiting = nil
	o.mu.Unlock()
	if len(groups) == 0 {
		return
	}
	done := o.s.guard(ctx)
	o.s.sock.hold()
	for _, g := range groups {
		for i := range g.items {
			it := &g.items[i]
			if !it.skip {
				it.confirm, it.writeErr = o.ch.PublishWithDeferredConfirm(o.exchange, it.key, true, false, it.p)
				if o.firstSent.Load() == nil {
					o.firstSent.Store(it.confirm)
				}
			}
		}
	}
	_ = o.s.sock.send() // its error ends the connection, hence every confirm of it
	done()
	for _, g := range groups {
		close(g.written)
	}
}

// outcome of a message whose confirm has come, or will never come.
func (o *outlet) outcome(op string, it *item) error {
	if it.writeErr != nil {
		if errors.Is(it.writeErr, amqp.ErrClosed) {
			return driver.Errorf(op, driver.Transient, "not sent: %w", it.writeErr)
		}
		return driver.Errorf(op, driver.Ambiguous, "the connection broke while the message was written: %w", it.writeErr)
	}
	// The return is in its channel before the confirm fires: one goroutine of the
	// client delivers both, the return first.
	if o.wasReturned(it) {
		return driver.Errorf(op, driver.NotFound, "no queue for routing key %.80q of exchange %q: create the queue or bind a group", it.key, o.exchange)
	}
	if it.confirm.Acked() {
		return nil
	}
	// Not acknowledged is two things. The client marks its channel closed before it
	// fails the open confirms, so an open channel means a basic.nack.
	if !o.ch.IsClosed() {
		if o.exchange != "" {
			return driver.Errorf(op, driver.Ambiguous, "the queue of a group refused the message (basic.nack: full, or its leader away), other groups may have it")
		}
		return driver.Errorf(op, driver.Transient, "the broker refused the message (basic.nack: queue full, or its leader away)")
	}
	return o.lost(op, it)
}

func (o *outlet) lost(op string, it *item) error {
	o.mu.Lock()
	if o.why == nil {
		select {
		case o.why = <-o.closes:
		default:
		}
	}
	why := o.why
	o.mu.Unlock()
	if why == nil {
		return driver.Errorf(op, driver.Ambiguous, "the connection ended before the confirm")
	}
	if limit, ok := sizeLimit(why); ok && len(it.p.Body) > limit {
		return driver.Errorf(op, driver.TooLarge, "the body has %d bytes, the broker's max_message_size is %d: %w", len(it.p.Body), limit, why)
	}
	// The right to write is missing from the start, so nothing before this message was
	// stored either. Withdrawn later, it leaves the ones under way unknown.
	if first := o.firstSent.Load(); why.Code == amqp.AccessRefused && (first == nil || !first.Acked()) {
		return driver.Errorf(op, driver.Denied, "the user may not write here: %w", why)
	}
	return driver.Errorf(op, driver.Ambiguous, "the channel ended before the confirm: %w", why)
}

// sizeLimit reads "message size 5 is larger than configured max size 4".
func sizeLimit(e *amqp.Error) (int, bool) {
	_, after, ok := strings.Cut(e.Reason, "larger than configured max size ")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(after))
	return n, err == nil
}

// wasReturned looks for a basic.return of this message, by id and routing key: callers
// share the channel, so whoever drains it finds the returns of all.
func (o *outlet) wasReturned(it *item) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.returns) > 0 {
		r, ok := <-o.returns
		if !ok {
			break
		}
		id := r.MessageId
		if id == "" {
			id, _ = r.Headers[driver.HeaderID].(string)
		}
		o.returned[returnKey{id, r.RoutingKey}]++
	}
	if len(o.returned) == 0 {
		return false
	}
	k := returnKey{it.id(), it.key}
	n := o.returned[k]
	if n > 1 {
		o.returned[k]--
	} else {
		delete(o.returned, k)
	}
	return n > 0
}
