package rabbitmq

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// reach is what a stream shows: offsets from first up to, not including, end. Not all of
// them are messages: the broker keeps notes of its own at the start of a segment, under
// an offset of their own. The zero value: it shows nothing, for it is new, or retention
// has removed all there was. Then nothing tells what the next offset will be.
type reach struct{ first, end int64 }

func (r reach) empty() bool { return r.end == 0 }

// holds reports whether reading can go on at o with nothing missing. One below first too:
// that offset is the broker's note, since first begins a segment.
func (r reach) holds(o int64) bool { return r.first <= o+1 && o <= r.end }

const (
	// shownWithin is how long the broker may take to hand out what a stream holds; one
	// that stays silent twice as long holds nothing.
	shownWithin = 100 * time.Millisecond
	// lagWithin is how long a replica may be behind the one a position was read from.
	lagWithin = time.Second
)

// reachOf asks the broker by reading, for AMQP has no question for it.
func reachOf(s *session, queue string) (r reach, err error) {
	err = s.scratch(func(ch *amqp.Channel) error {
		// One look that shows something and one that does not: the broker was slow, or
		// has removed it in between.
		for range 5 {
			both := false
			if r, both, err = look(ch, queue); both || err != nil {
				return err
			}
		}
		return driver.Errorf("look at "+queue, driver.Transient, "the broker does not say what the stream holds")
	})
	return r, err
}

// look reads the last chunk, which comes whole, and the oldest message. both: the two
// agree on whether there is anything.
func look(ch *amqp.Channel, queue string) (r reach, both bool, err error) {
	if err := peek(ch, queue, "last", 1<<16-1, func(o int64) { r.end = o + 1 }); err != nil {
		return r, false, err
	}
	r.first = -1
	err = peek(ch, queue, "first", 1, func(o int64) {
		if r.first < 0 { // more may come: the broker sends whole chunks
			r.first = o
		}
	})
	if r.first < 0 {
		r.first = 0
		return r, r.empty(), err
	}
	return r, !r.empty(), err
}

// peek reads from one end of a stream. Messages come from the queue and the answer to a
// command from the channel, so an early cancel may overtake them: it waits for the first.
func peek(ch *amqp.Channel, queue, from string, prefetch int, each func(offset int64)) error {
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return err
	}
	found, err := ch.Consume(queue, "varal-"+from, false, false, false, false, amqp.Table{"x-stream-offset": from})
	if err != nil {
		return err
	}
	t := time.NewTimer(shownWithin)
	defer t.Stop()
	select {
	case d, ok := <-found:
		if ok {
			each(streamOffset(&d))
		}
	case <-t.C:
	}
	if err := ch.Cancel("varal-"+from, false); err != nil {
		return err
	}
	for d := range found {
		each(streamOffset(&d))
	}
	return nil
}

// place makes an offset of Latest, and of an offset that the stream does not hold (any
// more, or not yet: it was deleted and made again) whatever Reset says; lost tells why.
// The broker itself would start somewhere else, without a word, or give nothing until
// the offset is written.
//
// Of a stream that shows nothing, Latest is everything from now on, and an offset is
// compared with that of the first message: see wanted.
func (c *consumer) place(ctx context.Context, s *session, p *part, from driver.Position) (to driver.Position, lost, err error) {
	if from.Kind != driver.At && from.Kind != driver.Latest {
		return from, nil, nil
	}
	r, err := reachFor(ctx, s, p.queue, from)
	if err != nil {
		return from, nil, err
	}
	newest := r.latest(p.label)
	switch p.unseen = r.empty(); {
	case from.Kind == driver.Latest:
		return newest, nil, nil
	case p.unseen, r.holds(from.Offset):
		return from, nil, nil
	}
	lost = fmt.Errorf("offset %d of %s is gone, the next to read is one of %d to %d", from.Offset, p.queue, r.first, r.end)
	switch c.sub.Reset {
	case driver.Earliest:
		return driver.Position{Kind: driver.At, Partition: p.label, Offset: r.first}, lost, nil
	case driver.Latest:
		return newest, lost, nil
	}
	return from, lost, nil
}

// latest is where reading goes on with what is written from now on.
func (r reach) latest(label string) driver.Position {
	if r.empty() {
		return driver.Position{Kind: driver.Earliest, Partition: label}
	}
	return driver.Position{Kind: driver.At, Partition: label, Offset: r.end}
}

// reachFor looks again while from is beyond the end: the consumer may have come to a
// replica that is behind the one it has read from.
func reachFor(ctx context.Context, s *session, queue string, from driver.Position) (r reach, err error) {
	for end := time.Now().Add(lagWithin); ; {
		r, err = reachOf(s, queue)
		if err != nil || r.empty() || from.Kind != driver.At || from.Offset <= r.end || time.Now().After(end) {
			return r, err
		}
		t := time.NewTimer(shownWithin)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return r, context.Cause(ctx)
		}
	}
}

// startPart is where the feed of p begins. An owner has placed it in its record.
func (l *life) startPart(ctx context.Context, p *part, rec record) (from driver.Position, err error) {
	c := l.c
	if c.owned {
		return first(rec.position(p.label), c.startOf(p.label), driver.Position{Kind: driver.Earliest}), nil
	}
	from = first(p.resume, c.startOf(p.label), driver.Position{Kind: driver.Latest})
	if from, p.lost, err = c.place(ctx, l.s, p, from); err == nil {
		p.resume = from // what comes and is not settled comes again after a reconnect
	}
	return from, err
}

// placed is the record a new owner starts with. What Latest or a Reset has become is
// stored as a commit is, so that it holds for whoever comes next: each owner looking
// anew would skip what was written between two of them. Not in the claim: that may be
// written before the last commits of the owner before have been seen, and outlive us.
func (l *life) placed(ctx context.Context, p *part) (rec record, err error) {
	rec = p.claim
	if !l.c.upTo {
		return rec, nil
	}
	from := first(rec.position(p.label), l.c.startOf(p.label))
	to, lost, err := l.c.place(ctx, l.s, p, from)
	if p.lost = lost; err != nil || to == from {
		return rec, err
	}
	rec.Seq++
	rec.setPosition(to)
	rec.State = nil
	rec.moved()
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	return rec, l.c.b.publishRecord(ctx, "own "+p.queue, p.owner, rec.publishing())
}

// wanted looks at a stream delivery before it is returned. The broker starts at the
// chunk that holds the offset asked for, so earlier ones come first. Where the first one
// of interest has another offset than the one asked for, the keeper decides.
func (c *consumer) wanted(f *feed, d *amqp.Delivery) bool {
	off := streamOffset(d)
	if off < f.next {
		c.spent(f, d)
		return false
	}
	if f.gapFrom >= 0 && off != f.gapFrom {
		f.back = append([]amqp.Delivery{*d}, f.back...)
		f.gap.Store(true)
		c.poke(c.kick)
		return false
	}
	f.gapFrom = -1
	return true
}

// atGap goes on with a feed whose first message has an unexpected offset, or ends the
// life because the position is gone: the next one says so and follows Reset.
func (l *life) atGap(p *part) error {
	r, err := reachOf(l.s, p.queue)
	if err != nil {
		return err
	}
	f := p.f
	if !r.holds(f.gapFrom) {
		return driver.Errorf(l.c.op, driver.Transient, "what partition %q goes on with is gone", p.label)
	}
	l.c.standAside(func() {
		f.next, f.gapFrom = f.gapFrom, -1
		f.gap.Store(false)
	})
	return nil
}
