package rabbitmq

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// item is one message on its way.
type item struct {
	at       int    // index in the caller's batch
	lane     string // Message.Key: what must not overtake
	key      string // routing key
	p        amqp.Publishing
	skip     bool // not sent after all
	confirm  *amqp.DeferredConfirmation
	writeErr error
}

// id is what a basic.return is matched by: it carries no delivery tag.
func (it *item) id() string {
	if it.p.MessageId != "" {
		return it.p.MessageId
	}
	v, _ := it.p.Headers[driver.HeaderID].(string)
	return v
}

// Publish sends the batch pipelined over the channel that all callers of one exchange
// share, mandatory, and waits for the confirms. Per message: nil = stored, NotFound =
// no queue took it, Transient = refused or not sent, Ambiguous = sent and unanswered.
//
// Order per key: messages leave in order on one channel, so what a lost connection
// leaves behind is a prefix. After a failure nothing more of that key is sent; what was
// already under way is reported as the broker answered it.
func (b *broker) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	op := "publish " + to.String()
	if b.isClosed() {
		return errClosed(op)
	}
	if err := validate(op, to, to.Group); err != nil {
		return err
	}
	if to.Shape == driver.Stream && to.Group != "" {
		return driver.Errorf(op, driver.Unsupported, "a stream cannot be written to for one group only: clear Destination.Group")
	}
	errs, items := make([]error, len(batch)), make([]item, 0, len(batch))
	for i, m := range batch {
		p, err := b.encode(op, to, m)
		if err != nil {
			errs[i] = err
			continue
		}
		items = append(items, item{at: i, lane: m.Key, key: b.routingKey(to, m), p: p})
	}
	exchange := ""
	if to.Shape == driver.Topic && to.Group == "" {
		exchange = to.Name
	}
	if len(items) > 0 {
		b.send(ctx, op, exchange, items, errs)
	}
	return driver.Batch(errs)
}

func (b *broker) routingKey(to driver.Destination, m *driver.Message) string {
	switch {
	case to.Shape == driver.Topic && to.Group != "":
		return groupQueue(to.Name, to.Group)
	case to.Shape == driver.Topic && m.Type != "":
		return m.Type
	case to.Partitions == 0:
		return to.Name
	case m.Key != "":
		return shardName(to.Name, to.Partitions, driver.PartitionOf(m.Key, to.Partitions))
	}
	b.mu.Lock()
	b.spread++
	n := b.spread
	b.mu.Unlock()
	return shardName(to.Name, to.Partitions, int(n%uint64(to.Partitions)))
}

// publishRecord sends one message of our own to a queue, confirmed.
func (b *broker) publishRecord(ctx context.Context, op, queue string, p amqp.Publishing) error {
	errs := make([]error, 1)
	b.send(ctx, op, "", []item{{key: queue, p: p}}, errs)
	return errs[0]
}

func (b *broker) send(ctx context.Context, op, exchange string, items []item, errs []error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.PublishTimeout)
	defer cancel()
	o, err := b.outlet(ctx, exchange)
	if err != nil {
		err = classify(op, err)
		for i := range items {
			errs[items[i].at] = err
		}
		return
	}
	(&sending{o: o, op: op, items: items, errs: errs}).run(ctx)
}

// sending is one call of Publish: items[:first] have their result, items[first:next]
// are sent and unconfirmed.
type sending struct {
	o           *outlet
	op          string
	items       []item
	errs        []error
	first, next int
	failed      map[string]bool // keys that nothing more is sent of
}

// groupMax is how many messages one write takes: large enough to save system calls,
// small enough that confirms of the first arrive while the next is written.
const groupMax = 128

func (s *sending) run(ctx context.Context) {
	for s.next < len(s.items) {
		n, err := s.reserve(ctx, min(groupMax, len(s.items)-s.next))
		if err != nil {
			s.unsent(err)
			break
		}
		g := &group{items: s.items[s.next : s.next+n], written: make(chan struct{})}
		n -= s.hold(g)
		err, taken := s.o.submit(ctx, g)
		if err != nil && !taken {
			s.o.release(n)
			s.unsent(err)
			break
		}
		s.next += len(g.items)
		if err != nil { // ctx ended while another caller writes our group
			s.abandon(ctx, g)
			return
		}
	}
	for s.first < s.next {
		if !s.settleFirst(ctx) {
			s.abandon(ctx, nil)
			return
		}
	}
}

// reserve takes up to want places of the window, at least one. While there is none it
// settles its own oldest message: waiting for others alone would be a deadlock of
// callers that each hold a part.
func (s *sending) reserve(ctx context.Context, want int) (int, error) {
	for {
		if err := s.o.clear(ctx); err != nil {
			return 0, err
		}
		n := 0
		for n < want && s.o.tryAcquire() {
			n++
		}
		if n > 0 {
			return n, nil
		}
		if s.first < s.next {
			if !s.settleFirst(ctx) {
				return 0, context.Cause(ctx)
			}
			// Confirms come in groups. Taking one place at a time would make every
			// write one message long.
			for n := 1; n < want && s.first < s.next && s.answered(); n++ {
				s.settleFirst(ctx)
			}
			continue
		}
		select {
		case s.o.slots <- struct{}{}:
			return 1, nil
		case <-s.o.s.down:
			return 0, errors.New("the connection ended before the message was sent")
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// hold marks what must not be sent after all and gives its places back.
func (s *sending) hold(g *group) (held int) {
	if len(s.failed) == 0 {
		return 0
	}
	for i := range g.items {
		if it := &g.items[i]; it.lane != "" && s.failed[it.lane] {
			it.skip = true
			s.errs[it.at] = driver.Errorf(s.op, driver.Transient, "not sent: an earlier message of key %.80q failed", it.lane)
			held++
		}
	}
	s.o.release(held)
	return held
}

// answered reports whether the oldest message has its result.
func (s *sending) answered() bool {
	it := &s.items[s.first]
	if it.skip || it.confirm == nil {
		return true
	}
	select {
	case <-it.confirm.Done():
		return true
	default:
		return false
	}
}

// settleFirst waits for the oldest message's confirm; false = ctx ended first.
func (s *sending) settleFirst(ctx context.Context) bool {
	it := &s.items[s.first]
	if it.skip {
		s.first++
		return true
	}
	if it.confirm != nil && !it.confirm.Acked() {
		select {
		case <-it.confirm.Done():
		case <-ctx.Done():
			return false
		}
	}
	s.first++
	err := s.o.outcome(s.op, it)
	s.o.release(1)
	if err != nil {
		s.errs[it.at] = err
		if c := driver.ClassOf(err); it.lane != "" && (c == driver.Transient || c == driver.Ambiguous) {
			if s.failed == nil {
				s.failed = map[string]bool{}
			}
			s.failed[it.lane] = true
		}
	}
	return true
}

func (s *sending) unsent(err error) {
	err = &driver.Error{Op: s.op, Class: driver.Transient, Err: err}
	for i := s.next; i < len(s.items); i++ {
		s.errs[s.items[i].at] = err
	}
	s.items = s.items[:s.next]
}

// abandon reports everything unconfirmed as unknown and leaves a goroutine behind that
// gives the places of the window back when the broker answers or the connection ends.
// Without it every cancelled call would shrink the window for good.
func (s *sending) abandon(ctx context.Context, g *group) {
	for _, it := range s.items[s.next:] {
		s.errs[it.at] = driver.Errorf(s.op, driver.Transient, "not sent: %w", context.Cause(ctx))
	}
	rest := s.items[s.first:s.next]
	for i := range rest {
		// Not it.skip: the writer of g may be at work on the items.
		if at := rest[i].at; s.errs[at] == nil {
			s.errs[at] = driver.Errorf(s.op, driver.Ambiguous, "sent, and not confirmed in time: %w", context.Cause(ctx))
		}
	}
	s.o.b.calls.Go(func() {
		if g != nil {
			<-g.written
		}
		for i := range rest {
			it := &rest[i]
			if it.skip {
				continue
			}
			if it.confirm != nil {
				<-it.confirm.Done()
			}
			s.o.wasReturned(it)
			s.o.release(1)
		}
	})
}
