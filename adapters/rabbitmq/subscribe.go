package rabbitmq

import (
	"context"
	"errors"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/adapters/internal/deadline"
	"github.com/varal-go/varal/core/driver"
)

// Subscribe checks that the queues exist and may be read. It makes what belongs to a
// group and is missing: a topic group's queue (bound to everything), the owner and
// members queues of a keyed queue or a stream group.
func (b *broker) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	op := "subscribe to " + sub.From.String()
	if b.isClosed() {
		return nil, errClosed(op)
	}
	if err := b.checkSub(op, &sub); err != nil {
		return nil, err
	}
	c := &consumer{
		b: b, op: op, sub: sub, upTo: sub.From.Shape == driver.Stream, parts: partsOf(sub),
		kick: make(chan struct{}, 1), changed: make(chan struct{}, 1), closing: make(chan struct{}),
		ended: make(chan struct{}), ready: make(chan struct{}),
	}
	c.owned = c.parts[0].owner != ""
	s, err := b.sub.session(ctx)
	if err != nil {
		return nil, classify(op, err)
	}
	if err := b.bounded(ctx, func() error { return b.prepare(s, c) }); err != nil {
		return nil, classify(op, err)
	}
	c.forget = b.sub.listen(sub.Notify)
	if err := b.add(c); err != nil {
		c.forget()
		return nil, err
	}
	if err := b.attach(ctx, c); err != nil {
		return nil, err
	}
	return c, nil
}

// attach starts a reader without a group at once where it begins with the next message:
// what is published after Subscribe has returned must reach it.
func (b *broker) attach(ctx context.Context, c *consumer) error {
	at := c.sub.Start // of one partition: the others begin with the next message
	if !c.upTo || c.owned || (at.Kind != driver.Latest && at.Kind != driver.Default && at.Partition == "") {
		return nil
	}
	c.start(16 * len(c.parts))
	defer c.poke(c.changed) // for the first Receive
	for {
		select {
		case <-c.ready:
			return nil
		case <-c.changed: // one partition of several is open, or there is trouble
			if err := c.state(); err != nil {
				_ = c.Close(ctx)
				return err
			}
		case <-ctx.Done():
			_ = c.Close(ctx)
			return classify(c.op, context.Cause(ctx))
		}
	}
}

func (b *broker) checkSub(op string, sub *driver.Subscription) error {
	if err := validate(op, sub.From, sub.Group); err != nil {
		return err
	}
	switch {
	case sub.From.Shape == driver.Topic && sub.Group == "" && !sub.Temporary:
		return driver.Errorf(op, driver.Permanent, "Subscription.Group is required for a topic")
	case sub.From.Shape == driver.Queue && sub.Temporary:
		return driver.Errorf(op, driver.Unsupported, "Subscription.Temporary: a queue has one group, and it stays")
	case sub.From.Shape != driver.Stream && (sub.Start.Kind == driver.At || sub.Start.Kind == driver.Since):
		return driver.Errorf(op, driver.Unsupported, "Subscription.Start: only streams have positions (need: %v)", driver.NeedPosition)
	}
	if sub.From.Shape == driver.Stream && sub.Temporary {
		sub.Group = "" // a group that ends with its consumer need not commit
	}
	return nil
}

func partsOf(sub driver.Subscription) []*part {
	d := sub.From
	switch {
	case sub.Temporary && d.Shape == driver.Topic:
		return []*part{{}} // declareTemporary names it
	case d.Shape == driver.Topic:
		return []*part{{queue: groupQueue(d.Name, sub.Group)}}
	}
	owned := d.Partitions > 0 && d.Shape == driver.Queue || d.Shape == driver.Stream && sub.Group != ""
	group := sub.Group
	if d.Shape == driver.Queue {
		group = ""
	}
	var out []*part
	for i := range max(1, d.Partitions) {
		p := &part{queue: shardName(d.Name, d.Partitions, i)}
		if d.Partitions > 0 {
			p.label = strconv.Itoa(i)
		}
		if owned {
			p.owner = ownerQueue(p.queue, group)
		}
		out = append(out, p)
	}
	return out
}

// bounded runs calls of the client, which ignore ctx. One that is abandoned ends with
// its connection, and Driver.Close waits for it.
func (b *broker) bounded(ctx context.Context, f func() error) error {
	err, abandoned, wait := deadline.Do(ctx, f, nil)
	if abandoned {
		b.calls.Go(wait)
	}
	return err
}

func (b *broker) prepare(s *session, c *consumer) error {
	if c.sub.From.Shape == driver.Topic {
		if err := s.scratch(func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(c.sub.From.Name, amqp.ExchangeTopic, true, false, false, false, nil)
		}); err != nil {
			return err
		}
		if c.sub.Temporary {
			return b.declareTemporary(s, c)
		}
		if err := b.ensure(s, c.parts[0].queue, b.queueArgs(false), c.sub.From.Name); err != nil {
			return err
		}
	}
	for _, p := range c.parts {
		if _, err := passive(s, p.queue); err != nil {
			return err
		}
		if c.owned {
			if err := b.ensure(s, p.owner, ownerArgs(), ""); err != nil {
				return err
			}
		}
	}
	if c.owned {
		if err := b.ensure(s, c.members(), membersArgs(), ""); err != nil {
			return err
		}
	}
	return readable(s, c.parts[0].queue)
}

func membersArgs() amqp.Table { return amqp.Table{"x-queue-type": "classic"} }

// passive asks for a queue on a channel of its own: a miss closes the channel.
func passive(s *session, queue string) (q amqp.Queue, err error) {
	err = s.scratch(func(ch *amqp.Channel) error {
		q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	return q, err
}

// ensure makes a queue that is missing. It looks first, because a service may have no
// right to configure.
func (b *broker) ensure(s *session, queue string, args amqp.Table, bindTo string) error {
	_, err := passive(s, queue)
	if e, ok := errors.AsType[*amqp.Error](err); !ok || classOfReply(e) != driver.NotFound {
		return err
	}
	return s.scratch(func(ch *amqp.Channel) error {
		if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil || bindTo == "" {
			return err
		}
		return ch.QueueBind(queue, "#", bindTo, false, nil)
	})
}

// declareTemporary makes the queue of a Temporary subscription: exclusive, so it ends
// with the connection. Not auto-delete: a changed limit cancels the consumer for a
// moment. Made again after a reconnect, by a new name: the old one is locked until the
// broker too has seen the end of the old connection. What was published meanwhile is gone.
func (b *broker) declareTemporary(s *session, c *consumer) error {
	p := c.parts[0]
	if p.on != s {
		p.on, p.queue = s, "varal.temporary:"+c.sub.From.Name+":"+nameless("", 0)
	}
	return s.scratch(func(ch *amqp.Channel) error {
		q := p.queue
		if _, err := ch.QueueDeclare(q, false, false, true, false, amqp.Table{"x-queue-type": "classic"}); err != nil {
			return err
		}
		return ch.QueueBind(q, "#", c.sub.From.Name, false, nil)
	})
}

// dropTemporary removes the queue of a temporary group whose connection lives on.
func (c *consumer) dropTemporary() {
	p := c.parts[0]
	if p.on == nil || !p.on.alive() {
		return
	}
	_ = p.on.scratch(func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(p.queue, false, false, false)
		return err
	})
}

// readable tells whether the user may consume, with nothing handed out: the broker
// checks the right first and then refuses the argument (406).
func readable(s *session, queue string) error {
	err := s.scratch(func(ch *amqp.Channel) error {
		if err := ch.Qos(1, 0, false); err != nil {
			return err
		}
		_, err := ch.Consume(queue, "varal.probe", false, false, false, false, amqp.Table{"x-priority": "none"})
		return err
	})
	if e, ok := errors.AsType[*amqp.Error](err); ok && classOfReply(e) == driver.Denied {
		return err
	}
	return nil
}
