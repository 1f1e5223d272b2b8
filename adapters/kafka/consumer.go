package kafka

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/core/driver"
)

// The most that lies in the adapter's own buffer before it stops taking more from the
// client. Partitions that are paused do not count: they must not starve the others.
const (
	aheadRecords = 32 << 10
	aheadBytes   = 16 << 20
)

// consumer is one member of a group, or one reader of all partitions.
type consumer struct {
	d     *kafka
	sub   driver.Subscription
	op    string
	topic string
	id    kadm.TopicID
	group string // "" = none
	// instance makes it a static member; "" = it is none.
	instance string
	link     *link
	cl       *kgo.Client // set before Subscribe returns; callbacks use the one they are given
	kill     context.CancelFunc

	pulse  pulse  // of a group member
	member member // likewise

	wake  chan struct{} // something may have been buffered
	stop  chan struct{} // closed by Close: Receive ends
	ended chan struct{} // closed at the end of Close: Settle ends
	once  sync.Once

	adjust map[int32]int64 // from onFetched to onAdjust, which the client calls in turn

	// calls is held by the callbacks of the client, which calls one at a time, and by regain.
	calls   sync.Mutex
	classic atomic.Bool // the client has fallen back from the protocol that was asked for

	look time.Time // when to look again whether there is more to open; Receive's own

	// Of a reader without group:
	count   int32      // partitions that it reads, the first ones; Receive's own
	growing sync.Mutex // held while partitions are opened by Receive

	mu      sync.Mutex
	epoch   uint64              // last given; guarded by mu
	parts   map[string]*part    // open ones by name; guarded by mu
	byID    map[int32]*part     // the same; guarded by mu
	ring    []*part             // the same, in the order they are served; guarded by mu
	turn    int                 // guarded by mu
	records int                 // in the queues of parts that are not paused; guarded by mu
	bytes   int64               // likewise; guarded by mu
	pending error               // for the next Receive; guarded by mu
	news    []driver.Event      // to notify without the lock; guarded by mu
	adrift  []*part             // out of range, not decided yet; guarded by mu
	paused  map[string]struct{} // by core, as of the last Receive; guarded by mu
	late    bool                // Close is out of time; guarded by mu
	hurry   context.CancelFunc  // of the Revoke under way, nil = none; guarded by mu
	opening bool                // Assigned is being called; guarded by mu
	letting chan struct{}       // closed when the Revoke of sever has returned, nil = none; guarded by mu
	severed []int32             // let go of, and the client still has them; guarded by mu
	rejoin  bool                // to get severed back; guarded by mu
	doubt   time.Time           // until when the topic may turn out to be gone; guarded by mu
	abort   context.CancelFunc  // of the last grow or regain, nil = none; guarded by mu
	out     []driver.Received   // Receive's own, reused
}

// part is one partition while it is ours.
type part struct {
	id     int32
	name   string
	epoch  uint64
	paused bool // by core
	halted bool // out of range: nothing more comes until that is decided
	leave  bool // a Revoke is under way: settle, but return nothing

	queue []*kgo.Record // returned by the client, not yet by us
	head  int
	bytes int64
}

func (p *part) len() int { return len(p.queue) - p.head }

func (d *kafka) newConsumer(sub driver.Subscription, t kadm.TopicDetail) *consumer {
	c := &consumer{
		d: d, sub: sub, op: "receive from " + sub.From.String(), topic: sub.From.Name, id: t.ID,
		group: groupOf(sub.From, sub.Group),
		wake:  make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{}),
		parts: make(map[string]*part), byID: make(map[int32]*part),
	}
	c.instance = d.conf.instanceOf(sub, c.group)
	c.link = &link{notify: c.notify}
	c.pulse.limit, c.pulse.silent, c.pulse.beat = d.conf.SessionTimeout, c.sever, c.beat
	c.pulse.server = d.conf.server()
	return c
}

func (c *consumer) notify(e driver.Event) {
	if c.sub.Notify != nil {
		c.sub.Notify(e)
	}
}

// waker is the client's hook: a record can be polled soon.
type waker struct{ c *consumer }

var _ kgo.HookFetchRecordBuffered = waker{}

// OnFetchRecordBuffered never blocks: the client calls it under locks of its own.
func (w waker) OnFetchRecordBuffered(*kgo.Record) { w.c.signal() }

func (c *consumer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Receive waits for messages of any partition that is ours.
func (c *consumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	c.pause(want.Paused)
	for {
		select {
		case <-c.stop:
			return nil, driver.Errorf(c.op, driver.Closed, "%w", errClosed)
		default:
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := errors.Join(c.downgraded(), c.orphaned(ctx)); err != nil {
			return nil, err
		}
		c.grow(ctx)
		c.regain(ctx)
		out, adrift, err := c.take(want)
		for _, p := range adrift {
			c.outOfRange(ctx, p)
		}
		if len(out) > 0 || err != nil {
			return out, c.verify(ctx, err)
		}
		c.sleep(ctx)
	}
}

// take polls the client and fills the result in one critical section, which the
// revoke callback also takes: a record is tagged with the epoch of the assignment it
// was fetched under. The client drops its own buffer of a partition before it calls
// that callback and fetches a new one only after onFetched, so what a poll returns
// belongs to the assignment that is open here.
func (c *consumer) take(want driver.Demand) ([]driver.Received, []*part, error) {
	c.mu.Lock()
	if c.records < aheadRecords && c.bytes < aheadBytes {
		c.poll()
	}
	var out []driver.Received
	if c.pulse.alive() {
		out = c.fill(want)
	}
	var err error
	if len(out) == 0 {
		err, c.pending = c.pending, nil
	}
	rejoin := c.rejoin && err == nil && !c.d.conf.server()
	c.rejoin = c.rejoin && !rejoin
	adrift, news := c.adrift, c.news
	c.adrift, c.news = nil, nil
	c.mu.Unlock()
	if rejoin {
		c.cl.ForceRebalance()
	}
	for _, e := range news {
		c.notify(e)
	}
	return out, adrift, err
}

// sleep waits for the hook, with two guards. The hook runs before the fetch can be
// polled: a poll in between finds nothing, and since a buffered fetch stops further
// ones there may never be another hook, so look again in 1 ms while something is
// buffered. And a fetch that carries only an error fires no hook: look four times a second.
func (c *consumer) sleep(ctx context.Context) {
	d := 250 * time.Millisecond
	if c.cl.BufferedFetchRecords() > 0 {
		d = time.Millisecond
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-c.stop:
	case <-c.wake:
	case <-t.C:
	}
}

// poll moves what the client has buffered into the queues. c.mu is held.
func (c *consumer) poll() {
	fetches := c.cl.PollRecords(nil, -1) //nolint:staticcheck // nil is this client's "do not wait"
	for i := range fetches {
		for j := range fetches[i].Topics {
			t := &fetches[i].Topics[j]
			for k := range t.Partitions {
				f := &t.Partitions[k]
				p := c.byID[f.Partition]
				if t.Topic != c.topic {
					p = nil
				}
				c.enqueue(p, f.Records)
				if f.Err != nil {
					c.fetchError(p, f.Err)
				}
			}
		}
	}
}

// enqueue drops what belongs to no open assignment: it was not settled, so the next
// owner gets it. c.mu is held.
func (c *consumer) enqueue(p *part, recs []*kgo.Record) {
	if p == nil || p.leave || len(recs) == 0 {
		return
	}
	if p.len() == 0 {
		p.queue, p.head = recs, 0
	} else {
		if p.head > 0 {
			n := copy(p.queue, p.queue[p.head:])
			clear(p.queue[n:])
			p.queue, p.head = p.queue[:n], 0
		}
		p.queue = append(p.queue, recs...)
	}
	var n int64
	for _, r := range recs {
		n += sizeOf(r)
	}
	p.bytes += n
	if !p.paused {
		c.records += len(recs)
		c.bytes += n
	}
}

// fetchError sorts an error of the client. c.mu is held.
func (c *consumer) fetchError(p *part, err error) {
	loss, lost := errors.AsType[*kgo.ErrDataLoss](err)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
		select {
		case <-c.stop: // our own doing
		default:
			c.pending = driver.Errorf(c.op, driver.Transient, "%w", err)
		}
	case lost:
		c.news = append(c.news, driver.Event{Kind: driver.Gone, Partition: partitionName(c.topic, loss.Partition), Err: err})
	case errors.Is(err, kerr.OffsetOutOfRange):
		if p != nil && !p.halted {
			p.halted = true // until decided: the client repeats the error with every fetch
			c.adrift = append(c.adrift, p)
			c.news = append(c.news, driver.Event{Kind: driver.OutOfRange, Partition: p.name, Err: err})
		}
	default:
		if e := c.groupError(err); e != nil {
			c.pending = e
		}
	}
}

// verify asks again before a subscription ends because its topic is gone: a broker
// that has just taken a partition over does not know it for a moment.
func (c *consumer) verify(ctx context.Context, err error) error {
	e, ok := errors.AsType[*driver.Error](err)
	if !ok || e.Class != driver.NotFound {
		return err
	}
	if _, missing := c.d.topic(ctx, c.topic); classOf(missing, driver.Transient) == driver.NotFound {
		return err
	}
	return &driver.Error{Op: e.Op, Class: driver.Transient, Err: e.Err}
}

// fill takes from the queues in turn. Each partition gets an equal part of the
// demand before any gets more: one with a long queue must not keep the others
// waiting. c.mu is held.
func (c *consumer) fill(want driver.Demand) []driver.Received {
	ready := 0
	for _, p := range c.ring {
		if !p.paused && p.len() > 0 {
			ready++
		}
	}
	// Every entry is written in full, so only what the last call left beyond this one's
	// must be let go of.
	last := c.out
	defer func() {
		if n := len(c.out); n < len(last) && cap(last) == cap(c.out) {
			clear(last[n:])
		}
	}()
	c.out = c.out[:0]
	if ready == 0 {
		return nil
	}
	most := min(max(want.Records, 1), c.records)
	if cap(c.out) < most {
		c.out = make([]driver.Received, 0, most)
	}
	share := max(1, (most+ready-1)/ready)
	room := max(want.Bytes, 1)
	// Grown as needed: many messages have none. What an earlier array held stays valid
	// for the messages that point into it.
	var headers []driver.Header
	for full := false; !full && len(c.out) < most; {
		before := len(c.out)
		for range c.ring {
			p := c.ring[c.turn%len(c.ring)]
			c.turn = (c.turn + 1) % len(c.ring)
			if p.paused {
				continue
			}
			if headers, full = c.drain(p, min(share, most-len(c.out)), &room, headers); full {
				break
			}
		}
		if len(c.out) == before {
			break
		}
	}
	return c.out
}

// drain moves up to n records of p to the result; true = the bytes are used up. A
// record larger than all the room comes alone. c.mu is held.
func (c *consumer) drain(p *part, n int, room *int64, headers []driver.Header) ([]driver.Header, bool) {
	for ; n > 0 && p.len() > 0; n-- {
		r := p.queue[p.head]
		size := sizeOf(r)
		if size > *room && len(c.out) > 0 {
			return headers, true
		}
		*room -= size
		p.queue[p.head] = nil
		p.head++
		p.bytes -= size
		c.records--
		c.bytes -= size
		c.out = append(c.out, driver.Received{})
		m := &c.out[len(c.out)-1]
		headers = decode(&m.Message, r, headers)
		m.Offset = r.Offset
		m.Receipt.Partition, m.Receipt.Epoch = p.name, p.epoch
		m.Receipt.Seq, m.Receipt.Aux = r.Offset, int64(r.LeaderEpoch)
	}
	return headers, *room <= 0
}
