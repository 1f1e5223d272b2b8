package rabbitmq

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// spent takes note of a message of a stream that core has been given, or will not be
// given, and gives the broker credit for more, by halves of what it may have out.
//
// Credit goes back with what is taken, not with what is done: an ack of a stream stores
// nothing, and what core holds it counts by itself. Were credit to wait for the position,
// a partition would stop once as many messages as that wait behind one that is stuck.
func (c *consumer) spent(f *feed, d *amqp.Delivery) {
	f.mu.Lock()
	f.ledger.settleTo(d.DeliveryTag)
	inherited := f.ledger.mark > 0
	f.mu.Unlock()
	if inherited {
		c.poke(c.kick) // the limit changed before: perhaps there is room now
	}
	if (d.DeliveryTag-f.credited)*2 < uint64(f.prefetch) { //nolint:gosec // at least 1
		return
	}
	f.credited = d.DeliveryTag
	_ = f.ch.Ack(d.DeliveryTag, true) // a lost channel shows at the next look
}

// commit stores the highest position acked for this partition, with its state, as a
// confirmed record in the owner queue. Nack and Return of a log change nothing: core holds
// the message, and it is not committed.
func (c *consumer) commit(ctx context.Context, op string, f *feed, batch []driver.Settlement, mine []int, errs []error) {
	last := -1
	for _, i := range mine {
		if !commits(batch[i].Disposition) {
			continue
		}
		if last < 0 || batch[i].Receipt.Aux >= batch[last].Receipt.Aux {
			last = i
		}
	}
	if last < 0 {
		return
	}
	err := f.store(ctx, c, op, &batch[last])
	for _, i := range mine {
		if commits(batch[i].Disposition) {
			errs[i] = err
		}
	}
}

func commits(d driver.Disposition) bool {
	return d == driver.Ack || d == driver.Reject || d == driver.Hold
}

func (f *feed) store(ctx context.Context, c *consumer, op string, e *driver.Settlement) error {
	f.busy.Lock()
	defer f.busy.Unlock()
	if f.gone {
		return driver.Errorf(op, driver.LeaseLost, "partition %q has been given back", f.label)
	}
	if len(e.State) > stateBytes {
		return driver.Errorf(op, driver.TooLarge, "Settlement.State has %d bytes, the limit is %d", len(e.State), stateBytes)
	}
	next := e.Receipt.Aux + 1
	if e.Disposition == driver.Hold {
		next--
	}
	if c.owned {
		f.recMu.Lock()
		f.rec.Seq++
		f.rec.Kind, f.rec.Offset, f.rec.Since, f.rec.State = "at", next, nil, e.State
		f.rec.moved()
		rec := f.rec
		f.recMu.Unlock()
		if err := c.b.publishRecord(ctx, op, c.ownerOf(f.label), rec.publishing()); err != nil {
			return err
		}
	}
	f.acked = max(f.acked, next)
	return nil
}

func (c *consumer) ownerOf(label string) string {
	for _, p := range c.parts {
		if p.label == label {
			return p.owner
		}
	}
	return ""
}

// members is the queue whose consumers are counted.
func (c *consumer) members() string { return membersOf(c.sub.From, c.sub.Group) }

func membersOf(d driver.Destination, group string) string {
	if d.Shape == driver.Queue {
		group = ""
	}
	return membersQueue(d.Name, group)
}
