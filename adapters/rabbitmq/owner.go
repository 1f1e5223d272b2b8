package rabbitmq

import (
	"context"
	"reflect"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// Ownership of shards and of a stream group's partitions, with nothing but queues.
//
// Each partition has an owner queue: quorum, single active consumer. Whoever is first in
// line gets the record in it, publishes a successor with Fence + 1 and waits until that
// one comes back: the queue is in order, so by then every record in front of it has been
// seen, whatever crashes left behind. If none of them is newer, the partition is ours as
// long as we hold our record unacked. A lost connection hands the record to the next in
// line at once.
//
// Every member adds a seed, a record of fence 0, when it joins: an owner throws it away,
// and an owner queue that was just made, or has lost its record, gets one. There is no
// moment at which two creators could disagree.
//
// Records are given up by closing the channel, never by a cancel: the broker returns the
// record and moves on to the next in line in one step. After a cancel the next in line
// would be active while our record is still out, could see a seed alone, and would start
// at fence 1 again.

const (
	ownerPrefetch = 64
	recordTimeout = 5 * time.Second
	declineAgain  = time.Second
)

func (l *life) joinLine(ctx context.Context) (err error) {
	c := l.c
	for _, p := range c.parts {
		p.stage, p.f, p.ch, p.records = inLine, nil, nil, nil
	}
	if l.util, err = l.s.conn.Channel(); err != nil {
		return err
	}
	// The consumer count of this queue is the number of members. That of an owner queue
	// would not do: it is one, the active consumer.
	if _, err := l.util.Consume(c.members(), "varal", true, false, false, false, nil); err != nil {
		return err
	}
	l.count()
	if err := l.seed(ctx); err != nil {
		if driver.ClassOf(err) == driver.NotFound {
			return err
		}
		l.unseeded = true // publishing is blocked; the records are most likely there
	}
	for _, p := range c.parts {
		if err := l.enqueue(p); err != nil {
			return err
		}
	}
	return nil
}

func (l *life) seed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	items, errs := make([]item, len(l.c.parts)), make([]error, len(l.c.parts))
	for i, p := range l.c.parts {
		items[i] = item{at: i, key: p.owner, p: record{}.publishing()}
	}
	l.c.b.send(ctx, "join "+l.c.op, "", items, errs)
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// enqueue puts p at the end of the line.
func (l *life) enqueue(p *part) (err error) {
	p.stage, p.seen, p.held, p.claim = inLine, sight{}, 0, record{}
	if p.ch, err = l.s.conn.Channel(); err != nil {
		return err
	}
	if err := p.ch.Qos(ownerPrefetch, 0, false); err != nil {
		return err
	}
	p.records, err = p.ch.Consume(p.owner, "varal", false, false, false, false, nil)
	return err
}

// leaveLine closes the owner channels, which frees the records, and the members channel.
func (l *life) leaveLine() {
	for _, p := range l.c.parts {
		if p.ch != nil {
			_ = p.ch.Close()
			p.ch, p.records = nil, nil
		}
		p.stage, p.f = inLine, nil
	}
	if l.util != nil {
		_ = l.util.Close()
	}
}

// run is the keeper's loop on one session.
func (l *life) run(ctx context.Context) error {
	tick := time.NewTicker(l.c.b.cfg.Balance)
	defer tick.Stop()
	var ticks <-chan time.Time
	if l.c.owned {
		ticks = tick.C
	}
	const fixed = 5
	for {
		cases := []reflect.SelectCase{recv(ctx.Done()), recv(l.s.down), recv(l.c.kick), recv(l.revoked), recv(ticks)}
		var of []*part
		for _, p := range l.c.parts {
			if p.records != nil {
				cases, of = append(cases, recv(p.records)), append(of, p)
			}
			if p.f != nil {
				cases, of = append(cases, recv(p.f.closes), recv(p.f.cancels)), append(of, nil, nil)
			}
		}
		i, v, ok := reflect.Select(cases)
		var err error
		switch {
		case i == 0:
			return nil
		case i == 1:
			return errSession
		case i == 2:
			err = l.adjust()
		case i == 3:
			p, _ := v.Interface().(*part)
			err = l.letGo(p)
		case i == 4:
			err = l.balance(ctx)
		case of[i-fixed] == nil:
			return l.channelLost(v, ok)
		default:
			err = l.onRecord(ctx, of[i-fixed], v, ok)
		}
		if err != nil {
			return err
		}
	}
}

// channelLost: the consumer was cancelled (its queue is gone, or its leader), or its
// channel closed. A new life finds out what is left.
func (l *life) channelLost(v reflect.Value, ok bool) error {
	if ok {
		if e, is := v.Interface().(*amqp.Error); is {
			return errLost(l.c.op, e)
		}
		return driver.Errorf(l.c.op, driver.Transient, "the broker cancelled the consumer")
	}
	return errLost(l.c.op, nil)
}

func (l *life) onRecord(ctx context.Context, p *part, v reflect.Value, ok bool) error {
	if !ok {
		return driver.Errorf(l.c.op, driver.Transient, "the owner queue %s was lost", p.owner)
	}
	d, _ := v.Interface().(amqp.Delivery)
	rec, err := parseRecord(d.Body)
	if err != nil {
		return p.ch.Ack(d.DeliveryTag, false)
	}
	if p.stage == owning || p.stage == releasing {
		return p.keep(rec, d.DeliveryTag)
	}
	mine := p.stage == claiming && rec.Nonce == p.claim.Nonce
	// What was in front of ours says more than it knew. The same fence too: two owners
	// must never have one.
	outdated := p.seen.best.Fence >= p.claim.Fence || p.seen.best.later(p.claim)
	for _, tag := range p.seen.see(rec, d.DeliveryTag) {
		if err := p.ch.Ack(tag, false); err != nil {
			return err
		}
	}
	switch {
	case p.stage == inLine, mine && outdated:
		return l.tryClaim(ctx, p)
	case !mine:
		return nil // more in front of our own
	}
	return l.own(ctx, p, d.DeliveryTag)
}

// keep while owning: our own newer record replaces the one held, anything else is a
// seed or the word of an owner that has lost the partition.
func (p *part) keep(rec record, tag uint64) error {
	if rec.Nonce != p.claim.Nonce || rec.Seq < p.heldSeq {
		return p.ch.Ack(tag, false)
	}
	old := p.held
	p.held, p.heldSeq = tag, rec.Seq
	return p.ch.Ack(old, false)
}

// tryClaim writes our successor, unless this member has its share: then it goes to the
// end of the line, once in a while only, for counts may be old.
func (l *life) tryClaim(ctx context.Context, p *part) error {
	if l.holding() >= l.quota && time.Since(p.declined) > declineAgain {
		p.declined = time.Now()
		_ = p.ch.Close()
		return l.enqueue(p)
	}
	next := record{Fence: p.seen.best.Fence + 1, Nonce: nameless("", 0)}
	next.takePosition(p.seen.best)
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	p.stage, p.claim = claiming, next
	err := l.c.b.publishRecord(ctx, "own "+p.queue, p.owner, next.publishing())
	if err != nil {
		// Blocked or unknown. The next tick claims again with another nonce; this
		// record, if it was stored, is a stray.
		p.stage = inLine
	}
	return nil
}

func (l *life) holding() (n int) {
	for _, p := range l.c.parts {
		if p.stage == owning || p.stage == claiming {
			n++
		}
	}
	return n
}

// own: our record came back and none in front of it was newer.
func (l *life) own(ctx context.Context, p *part, tag uint64) error {
	for _, t := range []uint64{p.seen.fenced, p.seen.placed} {
		if t != tag && t != 0 {
			if err := p.ch.Ack(t, false); err != nil {
				return err
			}
		}
	}
	p.seen, p.held, p.heldSeq = sight{}, tag, 0
	p.stage, p.since, p.written = owning, time.Now(), time.Now()
	rec, err := l.placed(ctx, p)
	if err != nil {
		return err
	}
	return l.openPart(ctx, p, rec)
}

// balance is one tick: claim what could not be written before, renew records, count
// members and hand over what is above the share, the youngest first.
func (l *life) balance(ctx context.Context) error {
	if l.util.IsClosed() {
		return errLost(l.c.op, nil)
	}
	if _, blocked := l.blocked(); !blocked {
		if l.unseeded && l.seed(ctx) == nil {
			l.unseeded = false
		}
		for _, p := range l.c.parts {
			switch {
			case p.stage == inLine && p.seen.fenced != 0:
				if err := l.tryClaim(ctx, p); err != nil {
					return err
				}
			case p.stage >= owning && time.Since(p.written) > l.c.b.cfg.Renew:
				l.renew(ctx, p)
			}
		}
	}
	l.count()
	for l.owningNow() > l.quota {
		l.handOver(l.youngest())
	}
	return nil
}

func (l *life) blocked() (<-chan struct{}, bool) {
	if s := l.c.b.pub.live(); s != nil {
		return s.unblocked()
	}
	return nil, false
}

// renew writes the record anew. The broker closes a channel that holds a message longer
// than consumer_timeout (30 min).
func (l *life) renew(ctx context.Context, p *part) {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	p.f.recMu.Lock()
	p.f.rec.Seq++
	rec := p.f.rec
	p.f.recMu.Unlock()
	if l.c.b.publishRecord(ctx, "renew "+p.queue, p.owner, rec.publishing()) == nil {
		p.written = time.Now()
	}
}

// count sets the share from the number of members.
func (l *life) count() {
	q, err := l.util.QueueDeclarePassive(l.c.members(), true, false, false, false, nil)
	if err == nil && q.Consumers > 0 {
		n := len(l.c.parts)
		l.quota = (n + q.Consumers - 1) / q.Consumers
	}
}

func (l *life) owningNow() (n int) {
	for _, p := range l.c.parts {
		if p.stage == owning {
			n++
		}
	}
	return n
}

func (l *life) youngest() (y *part) {
	for _, p := range l.c.parts {
		if p.stage == owning && (y == nil || !p.since.Before(y.since)) {
			y = p
		}
	}
	return y
}

// handOver starts a Revoke. The keeper goes on meanwhile: the partition is ours, and its
// record renewed, until core has let go.
func (l *life) handOver(p *part) {
	p.stage = releasing
	p.f.setClosing()
	l.c.poke(l.c.changed)
	ctx, cancel := context.WithCancel(context.Background())
	p.release = cancel
	revoke := l.c.sub.Revoke
	l.c.revokes.Go(func() {
		if revoke != nil {
			revoke(ctx, []string{p.label})
		}
		l.revoked <- p
	})
}

// letGo of a partition whose Revoke has returned: first its messages go back, then the
// record, so that the next owner never meets ours.
func (l *life) letGo(p *part) error {
	p.release()
	l.c.standAside(func() {
		l.c.hide(p.f)
		p.f.giveBack(true)
	})
	p.f = nil
	if err := p.ch.Close(); err != nil {
		return err
	}
	return l.enqueue(p)
}
