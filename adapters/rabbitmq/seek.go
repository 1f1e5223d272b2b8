package rabbitmq

import (
	"context"
	"errors"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// Seek writes a new record into the owner queue of each partition.
func (a admin) Seek(ctx context.Context, of driver.Resource, to driver.Position) error {
	op := "seek " + of.Destination.String()
	if err := validate(op, of.Destination, of.Group); err != nil {
		return err
	}
	switch {
	case of.Shape != driver.Stream:
		return driver.Errorf(op, driver.Unsupported, "only streams have positions (need: %v)", driver.NeedPosition)
	case of.Group == "":
		return driver.Errorf(op, driver.Permanent, "Resource.Group is required: a reader without a group has no position")
	case to.Kind == driver.At && to.Offset < 0:
		return driver.Errorf(op, driver.Permanent, "Position.Offset is negative")
	}
	s, err := a.session(ctx, op)
	if err != nil {
		return err
	}
	parts := partsOf(driver.Subscription{From: of.Destination, Group: of.Group})
	if to.Partition != "" && !slices.ContainsFunc(parts, func(p *part) bool { return p.label == to.Partition }) {
		return driver.Errorf(op, driver.NotFound, "no partition %q", to.Partition)
	}
	return classify(op, a.b.bounded(ctx, func() error { return a.b.seek(ctx, s, op, of, to, parts) }))
}

func (b *broker) seek(ctx context.Context, s *session, op string, of driver.Resource, to driver.Position, parts []*part) error {
	members, err := passive(s, membersOf(of.Destination, of.Group))
	if e, ok := errors.AsType[*amqp.Error](err); err != nil && (!ok || classOfReply(e) != driver.NotFound) {
		return err
	}
	if members.Consumers > 0 {
		return driver.Errorf(op, driver.Conflict, "group %q has %d members: stop them first", of.Group, members.Consumers)
	}
	for _, p := range parts {
		if to.Partition != "" && to.Partition != p.label {
			continue
		}
		if _, err := passive(s, p.queue); err != nil {
			return err
		}
		if err := b.ensure(s, p.owner, ownerArgs(), ""); err != nil {
			return err
		}
		if err := b.seekPart(ctx, s, op, p, to); err != nil {
			return err
		}
	}
	return nil
}

// seekPart takes the ownership for a moment, as a member would: a seed shows when
// everything in front of it has been seen.
func (b *broker) seekPart(ctx context.Context, s *session, op string, p *part, to driver.Position) error {
	ch, err := s.conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	if err := ch.Qos(ownerPrefetch, 0, false); err != nil {
		return err
	}
	records, err := ch.Consume(p.owner, "varal", false, false, false, false, nil)
	if err != nil {
		return err
	}
	seed := record{Nonce: nameless("", 0)}
	if err := b.publishRecord(ctx, op, p.owner, seed.publishing()); err != nil {
		return err
	}
	best, tag, err := readTo(ctx, op, ch, records, seed.Nonce)
	if err != nil {
		return err
	}
	if to.Kind == driver.Latest { // as of now, not as of whoever owns it next
		r, err := reachOf(s, p.queue)
		if err != nil {
			return err
		}
		to = r.latest(p.label)
	}
	next := record{Fence: best.Fence + 1}
	next.setPosition(to)
	next.moved()
	if err := b.publishRecord(ctx, op, p.owner, next.publishing()); err != nil {
		return err
	}
	return ch.Ack(tag, true)
}

// readTo reads records up to the one with nonce.
func readTo(ctx context.Context, op string, ch *amqp.Channel, records <-chan amqp.Delivery, nonce string) (best record, tag uint64, err error) {
	var seen sight
	t := time.NewTimer(recordTimeout)
	defer t.Stop()
	for {
		select {
		case d, ok := <-records:
			if !ok {
				return best, tag, driver.Errorf(op, driver.Transient, "the channel was closed")
			}
			tag = d.DeliveryTag
			r, err := parseRecord(d.Body)
			if err != nil {
				continue
			}
			if r.Nonce == nonce {
				return seen.best, tag, nil
			}
			for _, spent := range seen.see(r, tag) {
				if err := ch.Ack(spent, false); err != nil {
					return best, tag, classify(op, err)
				}
			}
		case <-t.C:
			return best, tag, driver.Errorf(op, driver.Conflict, "another consumer holds the position: stop the group first")
		case <-ctx.Done():
			return best, tag, context.Cause(ctx)
		}
	}
}
