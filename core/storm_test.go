package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// storm is a broker that does everything a broker may do, at random: see TestStorm. It
// judges what core says to it, and collects what is wrong in bad.
type storm struct {
	mode       driver.SettleMode
	lease      time.Duration // 0 = none
	quarantine int           // Policy.Quarantine; 7 is more unclean ends than a storm has
	ladder     bool          // stuck runs are cancelled and abandoned
	stateBytes int           // UpTo
	calm       bool          // no more faults

	mu     sync.Mutex
	r      *rand.Rand
	parts  []*stormPart
	epoch  uint64
	seq    int64
	sub    driver.Subscription
	wake   chan struct{}
	closed bool
	bad    []string
	logMu  sync.Mutex
	log    []string // what happened, for whoever looks into a violation

	effects   *effects
	confirmed map[string]bool // ids of copies that were confirmed, by destination and id
	inFlight  func() (records int, bytes int64)
}

type stormPart struct {
	name      string
	msgs      []driver.Message
	done      []bool // acked or rejected (Each)
	out       []*outMsg
	committed int             // UpTo: so many
	state     []byte          // UpTo: stored beside committed
	finished  map[string]bool // UpTo: what must not run again under this epoch
	next      int             // UpTo: to be read
	epoch     uint64
	since     time.Time // of the epoch
	open      bool      // hands out
	settles   bool      // takes settlements
	fenced    map[uint64]time.Time
	assigned  bool
}

// outMsg is one hand-out.
type outMsg struct {
	i       int
	receipt driver.Receipt
	until   time.Time // end of the lease
	state   driver.Disposition
	dead    bool // no longer with the consumer
	redo    time.Time
}

// note keeps what happened. It has a lock of its own: some callers hold mu.
func (b *storm) note(what ...any) {
	b.logMu.Lock()
	defer b.logMu.Unlock()
	b.log = append(b.log, fmt.Sprintln(append([]any{time.Now().Format("05.000")}, what...)...))
}

func (b *storm) violation(format string, args ...any) {
	if len(b.bad) < 5 {
		b.bad = append(b.bad, fmt.Sprintf(format, args...))
	}
}

// intN is for whoever does not hold mu.
func (b *storm) intN(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.r.IntN(n)
}

func (b *storm) chance(percent int) bool { return !b.calm && b.r.IntN(100) < percent }

func (b *storm) Capabilities(driver.Destination) driver.Capabilities {
	c := driver.Capabilities{Settle: b.mode, Order: driver.PerPartition, Durable: true, Lease: b.lease, StateBytes: b.stateBytes}
	if b.effects.counts {
		c.Counts, c.NackDelay = true, 150*time.Millisecond
	}
	return c
}
func (b *storm) Admin() driver.Admin { return nil }

func (b *storm) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	b.mu.Lock()
	wait := time.Duration(b.r.IntN(3)) * time.Duration(b.r.IntN(40)) * time.Millisecond
	b.mu.Unlock()
	if sleepCtx(ctx, wait) != nil {
		return driver.Errorf("publish", driver.Ambiguous, "cut off: %w", ctx.Err())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	errs := make([]error, len(batch))
	for i, m := range batch {
		switch {
		case b.chance(10):
			errs[i] = driver.Errorf("publish", driver.Transient, "busy")
		case b.chance(5):
			errs[i] = driver.Errorf("publish", driver.Ambiguous, "cut off")
		default:
			if to.Name == "dlq" {
				b.effects.mayBeDead(m.ID, b.violation)
			}
			b.confirmed[to.Name+"/"+m.ID] = true
		}
	}
	return driver.Batch(errs)
}

func (b *storm) Subscribe(_ context.Context, sub driver.Subscription) (driver.Consumer, error) {
	b.mu.Lock()
	b.sub, b.closed = sub, false
	b.wake = make(chan struct{}, 1)
	b.mu.Unlock()
	for _, p := range b.parts {
		b.assign(p)
	}
	return b, nil
}

// assign opens a partition under a new epoch.
func (b *storm) assign(p *stormPart) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return
	}
	if p.assigned { // nothing was handed over
		p.finished = nil
	}
	b.epoch++
	p.epoch, p.since, p.next = b.epoch, time.Now(), p.committed
	// Closed until core knows the epoch, also where nothing was revoked: a message of the new
	// epoch that is returned before Assigned is stale to core, and nobody hands it out again.
	p.settles, p.assigned, p.open = true, true, false
	b.giveBack(p)
	a := driver.Assignment{Partition: p.name, Epoch: p.epoch, Fence: p.epoch}
	if b.stateBytes > 0 {
		a.Committed = driver.Position{Kind: driver.At, Offset: int64(p.committed)}
		a.High = driver.Position{Kind: driver.At, Offset: int64(len(p.msgs))}
		a.State = slices.Clone(p.state)
	}
	b.mu.Unlock()
	b.note("assigned", p.name, p.epoch, p.committed, len(p.state))
	b.sub.Assigned(a)
	b.mu.Lock()
	p.open = p.epoch == a.Epoch && p.assigned // opened before its first message is returned
	b.mu.Unlock()
	b.poke()
}

// giveBack ends every hand-out of a partition.
func (b *storm) giveBack(p *stormPart) {
	for _, o := range p.out {
		o.dead = true
	}
	p.out = slices.DeleteFunc(p.out, func(o *outMsg) bool { return o.state == 0 })
}

// revoke lets core let go of a partition; lost: it is gone already.
func (b *storm) revoke(ctx context.Context, p *stormPart, lost bool) {
	b.mu.Lock()
	if !p.assigned {
		b.mu.Unlock()
		return
	}
	p.assigned, p.open, p.finished = false, false, nil
	epoch := p.epoch
	if lost {
		p.settles = false
		b.giveBack(p)
		over, cancel := context.WithCancel(ctx)
		cancel()
		ctx = over
	}
	b.mu.Unlock()
	b.note("revoke", p.name, epoch, ctx.Err())
	b.sub.Revoke(ctx, []string{p.name})
	b.note("revoked", p.name, epoch, ctx.Err())
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.epoch == epoch {
		if ctx.Err() == nil && !b.closed {
			b.unsettled(p)
			b.handedOver(p)
		}
		p.settles = false
		b.giveBack(p)
	}
	p.fenced[epoch] = time.Now()
	b.effects.fenced(epoch, ctx.Err() != nil || b.closed || b.ladder, b.violation) // a drain may have abandoned some
}

func (b *storm) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *storm) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	for {
		b.mu.Lock()
		if b.closed {
			b.mu.Unlock()
			return nil, driver.Errorf("receive", driver.Closed, "closed")
		}
		if b.chance(2) {
			b.mu.Unlock()
			return nil, driver.Errorf("receive", driver.Transient, "connection lost")
		}
		got := b.pick(want)
		hold := time.Duration(0)
		if len(got) > 0 && b.chance(30) {
			hold = time.Duration(b.r.IntN(60)) * time.Millisecond
		}
		b.mu.Unlock()
		if len(got) > 0 {
			time.Sleep(hold) // tagged and not yet returned: a revoke may come in between
			b.checkRoom(want, got)
			return got, nil
		}
		t := time.NewTimer(20 * time.Millisecond)
		select {
		case <-b.wake:
		case <-t.C: // a lease or a delay may have ended
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
		t.Stop()
	}
}

// checkRoom: what is in flight never passes the limit that this Receive was told.
func (b *storm) checkRoom(want driver.Demand, got []driver.Received) {
	records, size := b.inFlight()
	n := int64(0)
	for i := range got {
		n += int64(got[i].Size())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if records+len(got) > want.Limit {
		b.violation("in flight: %d and %d more with a limit of %d", records, len(got), want.Limit)
	}
	if len(got) > 1 && size+n > stormBytes {
		b.violation("in flight: %d bytes and %d more with a limit of %d", size, n, stormBytes)
	}
}

// pick chooses what to hand out now.
func (b *storm) pick(want driver.Demand) (got []driver.Received) {
	room, now := min(want.Records, 1+b.r.IntN(8)), time.Now()
	left := want.Bytes
	for _, k := range b.r.Perm(len(b.parts)) {
		p := b.parts[k]
		if !p.open || slices.Contains(want.Paused, p.name) {
			continue
		}
		b.expire(p, now)
		busy := map[string]bool{}
		if b.lease > 0 {
			for _, o := range p.out {
				if o.state == 0 {
					busy[p.msgs[o.i].Key] = true
				}
			}
		}
		for i := 0; i < len(p.msgs) && room > 0; i++ {
			m := p.msgs[i]
			if !b.ready(p, i, now) || busy[m.Key] {
				busy[m.Key] = busy[m.Key] || b.lease > 0 && b.effects.byKey && !b.isDone(p, i)
				continue
			}
			size := int64(m.Size())
			if size > left && (len(got) > 0 || left < want.Bytes) {
				return got
			}
			left -= size
			room--
			got = append(got, b.handOut(p, i, now))
		}
	}
	return got
}

func (b *storm) isDone(p *stormPart, i int) bool {
	if b.mode == driver.UpTo {
		return i < p.committed
	}
	return p.done[i]
}

func (b *storm) ready(p *stormPart, i int, now time.Time) bool {
	if b.mode == driver.UpTo {
		return i == p.next
	}
	if p.done[i] {
		return false
	}
	for _, o := range p.out {
		if o.i == i && (o.state == 0 || o.redo.After(now)) {
			return false
		}
	}
	return true
}

func (b *storm) handOut(p *stormPart, i int, now time.Time) driver.Received {
	b.seq++
	o := &outMsg{i: i, receipt: driver.Receipt{Partition: p.name, Epoch: p.epoch, Seq: b.seq, Aux: int64(i)}}
	r := driver.Received{Message: p.msgs[i], Receipt: o.receipt, Offset: int64(i)}
	if b.lease > 0 {
		o.until = now.Add(b.lease)
		r.Deadline = o.until
	}
	if b.effects.counts {
		r.DeliveryCount = 1
		for _, old := range p.out {
			if old.i == i && old.state == driver.Nack {
				r.DeliveryCount++
			}
		}
	}
	p.next = max(p.next, i+1)
	p.out = append(p.out, o)
	return r
}

// expire takes back what nobody extended.
func (b *storm) expire(p *stormPart, now time.Time) {
	if b.lease == 0 {
		return
	}
	for _, o := range p.out {
		if o.state == 0 && now.After(o.until) {
			o.dead = true
		}
	}
	p.out = slices.DeleteFunc(p.out, func(o *outMsg) bool { return o.state == 0 && o.dead })
}

func (b *storm) Close(ctx context.Context) error {
	b.mu.Lock()
	again := b.closed
	b.closed = true
	b.mu.Unlock()
	if again {
		return nil
	}
	b.poke()
	for _, p := range b.parts {
		b.revoke(ctx, p, false)
	}
	return nil
}

func sleepCtx(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
