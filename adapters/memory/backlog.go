package memory

import (
	"math"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// never is later than any time.
const never = math.MaxInt64

// backlog is the source of queues and topics: the messages one group has not settled,
// each under a lease of its own while it is out. Guarded by the group's lock.
type backlog struct {
	g     *group
	parts [][]lane // by partition; without partitions one, of a lane for each priority
	times timeHeap // delayed: due. Ready with a TTL: end. Out with a lease of an odd length: end
	// holders have (or had) something out. earliest is a lower bound of when the
	// first lease in their lists of usual leases ends, so that looking at the clock costs
	// nothing while none can have ended.
	holders  []*tenure
	earliest int64
	tokens   int64
	free     *item // settled ones, to use again
	frees    int

	count   int   // all messages; the ready ones are counted in group.ready
	bytes   int64 // of these
	out     int
	delayed int
}

func newBacklog(g *group, partitions int) *backlog {
	b := &backlog{g: g, earliest: never}
	if partitions == 0 {
		b.parts = [][]lane{make([]lane, priorities)}
		return b
	}
	b.parts = make([][]lane, partitions)
	for i := range b.parts {
		b.parts[i] = make([]lane, 1)
	}
	return b
}

func (b *backlog) lane(m *stored) *lane {
	lanes := b.parts[m.part]
	return &lanes[min(m.Priority, len(lanes)-1)]
}

// fits returns how many of msgs, counted from the first, there is room for.
func (b *backlog) fits(msgs []stored, l limits) int {
	n, bytes := min(len(msgs), l.messages-b.count), b.bytes
	for i := range max(0, n) {
		if bytes += msgs[i].size; bytes > l.bytes {
			return i
		}
	}
	return max(0, n)
}

// push takes new messages in.
func (b *backlog) push(msgs []stored, now int64) {
	var slab []item
	for i := range msgs {
		it := b.free
		switch {
		case it != nil:
			b.free, it.next = it.next, nil
			b.frees--
		case len(slab) == 0:
			slab = make([]item, len(msgs)-i)
			fallthrough
		default:
			it, slab = &slab[0], slab[1:]
		}
		b.add(it, &msgs[i], now)
	}
}

// maxFree bounds the settled items kept for new messages.
const maxFree = 4096

// recycle keeps a settled item for a new message. A receipt of its old one names another
// token, so it stays as lost as it was.
func (b *backlog) recycle(it *item) {
	if b.frees < maxFree {
		*it = item{of: b, state: gone, next: b.free}
		b.free = it
		b.frees++
	}
}

func (b *backlog) add(it *item, m *stored, now int64) {
	it.m, it.of = m, b
	b.count++
	b.bytes += m.size
	if m.due > now {
		it.state = delayed
		b.delayed++
		b.times.add(it, m.due)
		return
	}
	b.offer(it, now)
}

// offer makes an item ready, or lets it go if its time is over.
func (b *backlog) offer(it *item, now int64) {
	if it.m.expires > 0 && it.m.expires <= now {
		b.drop(it)
		return
	}
	b.lane(it.m).add(it)
	b.g.ready++
	if it.m.expires > 0 {
		b.times.add(it, it.m.expires)
	}
	if !b.g.shared {
		b.g.wakeOwner(it.m.part)
	}
}

// drop forgets an item that is in no lane, list or heap.
func (b *backlog) drop(it *item) {
	it.state = gone
	b.count--
	b.bytes -= it.m.size
}

// advance does what time has made due, and returns when there is something to do
// next.
func (b *backlog) advance(now int64) int64 {
	for len(b.times) > 0 && b.times[0].at <= now {
		it := b.times[0]
		b.times.remove(it)
		switch it.state {
		case delayed:
			b.delayed--
			b.offer(it, now)
		case ready:
			b.g.ready--
			b.drop(it)
			b.lane(it.m).bury()
		case out:
			b.expire(it, now)
		}
	}
	if b.earliest <= now {
		b.scanLeases(now)
	}
	if len(b.times) > 0 {
		return min(b.earliest, b.times[0].at)
	}
	return b.earliest
}

func (b *backlog) scanLeases(now int64) {
	for _, t := range b.holders {
		for it := t.usual.head; it != nil && it.at <= now; it = t.usual.head {
			b.expire(it, now)
		}
	}
	b.earliest = never
	keep := b.holders[:0]
	for _, t := range b.holders {
		if t.usual.head != nil {
			b.earliest = min(b.earliest, t.usual.head.at)
		}
		if t.out > 0 || t.state != ended {
			keep = append(keep, t)
		}
	}
	clear(b.holders[len(keep):])
	b.holders = keep
}

// expire ends the lease of an item. Where there is order its owner loses everything:
// handing out this one again while later ones of its key are still out would break the
// order, and an owner that does not extend is taken for frozen or dead.
func (b *backlog) expire(it *item, now int64) {
	if b.g.shared {
		b.takeBack(it)
		b.offer(it, now)
		return
	}
	if t := it.holder; t.c.state == running {
		b.g.evict(t.c, true)
	} else {
		b.g.lose(t)
	}
	b.g.rebalance()
}

// takeBack ends a hand-out.
func (b *backlog) takeBack(it *item) {
	t := it.holder
	it.list.remove(it)
	b.times.remove(it)
	it.holder, it.token = nil, 0
	b.out--
	t.out--
	if t.state != ended {
		t.c.out--
		t.c.unblock()
	}
}

// take hands messages out into c.buf.
func (b *backlog) take(c *consumer, w *want) {
	if w.limit > 0 {
		w.records = min(w.records, w.limit-c.out)
	}
	if b.g.shared {
		for _, t := range c.tenures {
			if t.state == open && !w.paused(t.name) {
				w.quota = w.records
				b.takePart(c, t, w)
			}
		}
		return
	}
	c.eachTenure(w, func(t *tenure) { b.takePart(c, t, w) })
}

func (b *backlog) takePart(c *consumer, t *tenure, w *want) {
	lanes := b.parts[t.part]
	for i := len(lanes) - 1; i >= 0; i-- {
		l := &lanes[i]
		for w.quota > 0 && !w.full {
			it := l.peek()
			if it == nil {
				break
			}
			if !w.admit(it.m.size, len(c.buf)) {
				return
			}
			l.pop()
			b.handOut(it, t, w)
			r := c.slot()
			r.Message = it.m.Message
			r.Receipt = driver.Receipt{Partition: t.name, Epoch: t.epoch, Seq: it.token, Ref: it}
			r.Offset = -1
			r.DeliveryCount = int(it.count)
			r.Deadline = w.deadline
		}
	}
}

func (b *backlog) handOut(it *item, t *tenure, w *want) {
	b.times.remove(it)
	b.tokens++
	it.state, it.token, it.holder = out, b.tokens, t
	it.handed, it.at = w.now, w.now+int64(w.lease)
	it.count++
	t.usual.push(it)
	if !t.listed {
		t.listed = true
		b.holders = append(b.holders, t)
	}
	b.earliest = min(b.earliest, it.at)
	b.g.ready--
	b.out++
	t.out++
	t.c.out++
}

// settle ends or extends one hand-out.
func (b *backlog) settle(c *consumer, s *driver.Settlement, now int64) error {
	it, ok := s.Receipt.Ref.(*item)
	if !ok || it.of != b {
		return driver.Errorf(c.op("settle"), driver.LeaseLost, "the receipt is not one of this consumer")
	}
	t := it.holder // nil unless out
	if it.state != out || it.token != s.Receipt.Seq || t.c != c || t.epoch != s.Receipt.Epoch || t.state == ended {
		return driver.Errorf(c.op("settle"), driver.LeaseLost, "the lease ended or the message was settled before")
	}
	switch s.Disposition {
	case driver.Ack, driver.Reject:
		b.takeBack(it)
		b.drop(it)
		b.recycle(it)
	case driver.Nack:
		return b.nack(c, it, s.Delay, now)
	case driver.Return:
		it.count--
		b.takeBack(it)
		b.offer(it, now)
	case driver.Extend:
		return b.extend(c, it, s.Delay, now)
	default:
		return driver.Errorf(c.op("settle"), driver.Permanent, "Disposition %d is invalid", s.Disposition)
	}
	return nil
}

func (b *backlog) nack(c *consumer, it *item, d time.Duration, now int64) error {
	switch {
	case d > 0 && !b.g.shared:
		return driver.Errorf(c.op("settle"), driver.Unsupported, "delay-nack: a delayed message would let later ones of its key pass; hold it, or nack without Delay")
	case d > maxDelay:
		return driver.Errorf(c.op("settle"), driver.Unsupported, "delay-nack: Delay is %v, at most %v", d, maxDelay)
	}
	b.takeBack(it)
	if d <= 0 {
		b.offer(it, now)
		return nil
	}
	it.state = delayed
	b.delayed++
	b.times.add(it, now+int64(d))
	return nil
}

func (b *backlog) extend(c *consumer, it *item, d time.Duration, now int64) error {
	usual := d <= 0 || d == c.client.cfg.Lease
	if usual {
		d = c.client.cfg.Lease
	}
	end := now + int64(d)
	if end-it.handed > int64(maxLease) {
		return driver.Errorf(c.op("settle"), driver.Unsupported, "lease: a message can be held %v in all", maxLease)
	}
	t := it.holder
	it.list.remove(it)
	b.times.remove(it)
	if usual { // the latest end of all usual ones: the list stays sorted
		it.at = end
		t.usual.push(it)
		b.earliest = min(b.earliest, end)
		return nil
	}
	t.odd.push(it)
	b.times.add(it, end)
	return nil
}

// release gives back what a tenure has out.
func (b *backlog) release(t *tenure) {
	now := b.g.d.broker.now()
	for _, l := range []*itemList{&t.usual, &t.odd} {
		for it := l.head; it != nil; it = l.head {
			b.takeBack(it)
			b.offer(it, now)
		}
	}
}

// reset gives back everything that is out, also under tenures that ended.
func (b *backlog) reset() {
	for _, t := range b.holders {
		b.release(t)
	}
}

func (b *backlog) describe(t *tenure) driver.Assignment {
	return driver.Assignment{Partition: t.name, Epoch: t.epoch, Fence: t.fence}
}
