package conformance

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// tap sits between core and an adapter: it counts what passes, holds the adapter to
// the parts of the contract that are visible here, and can fail or alter traffic.
type tap struct {
	driver.Driver
	e *env

	mu       sync.Mutex
	onPub    func(to driver.Destination, batch []*driver.Message) error // non-nil result = not passed on
	onRcv    func(r *driver.Received)
	lossy    bool // settlements are reported as done and not passed on
	pubs     []published
	received int
	inside   int                 // calls of Receive under way that leave out no partition
	settled  []driver.Settlement // final ones that were sent, in order
	opened   []driver.Assignment
	events   []driver.Event
	out      map[driver.Receipt]int // handed out and not settled, with sizes (settle mode Each)
	bytes    int64
	peak     int
	peakByte int64
}

// published is one confirmed message.
type published struct {
	to driver.Destination
	id string
	at time.Time
}

func newTap(e *env, d driver.Driver) *tap {
	return &tap{Driver: d, e: e, out: map[driver.Receipt]int{}}
}

// failPublish makes publishes to a destination fail with err, until it is called with
// nil.
func (t *tap) failPublish(to driver.Destination, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onPub = nil
	if err != nil {
		t.onPub = func(dest driver.Destination, _ []*driver.Message) error {
			if dest.Name == to.Name && dest.Shape == to.Shape {
				return err
			}
			return nil
		}
	}
}

// loseSettlements lets no settlement reach the broker from now on but extensions, and
// reports all as done.
func (t *tap) loseSettlements() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lossy = true
}

func (t *tap) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	t.mu.Lock()
	hook := t.onPub
	t.mu.Unlock()
	if hook != nil {
		if err := hook(to, batch); err != nil {
			return err
		}
	}
	err := t.Driver.Publish(ctx, to, batch)
	t.late(ctx, "Publish")
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, m := range batch {
		if driver.ResultAt(err, i) == nil {
			t.pubs = append(t.pubs, published{to: to, id: m.ID, at: now})
		}
	}
	return err
}

// late holds a call to its deadline + 500 ms, and a loaded machine's share on top.
func (t *tap) late(ctx context.Context, call string) {
	if end, ok := ctx.Deadline(); ok && time.Since(end) > 500*time.Millisecond+t.e.h.Tolerance {
		t.e.Errorf("%s returned %v after its deadline (limit 500 ms)", call, time.Since(end).Round(time.Millisecond))
	}
}

func (t *tap) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	assigned, notify := sub.Assigned, sub.Notify
	c := &tapConsumer{t: t, epochs: map[string]map[uint64]bool{}}
	sub.Assigned = func(a driver.Assignment) {
		t.mu.Lock()
		t.opened = append(t.opened, a)
		if a.Epoch == 0 || c.epochs[a.Partition][a.Epoch] {
			t.e.Errorf("Assigned partition %q with epoch %d: it must be above 0 and never used before", a.Partition, a.Epoch)
		}
		if c.epochs[a.Partition] == nil {
			c.epochs[a.Partition] = map[uint64]bool{}
		}
		c.epochs[a.Partition][a.Epoch] = true
		t.mu.Unlock()
		assigned(a)
	}
	revoke := sub.Revoke
	sub.Revoke = func(ctx context.Context, parts []string) {
		revoke(ctx, parts)
		t.forget(parts)
	}
	sub.Notify = func(ev driver.Event) {
		t.mu.Lock()
		t.events = append(t.events, ev)
		t.mu.Unlock()
		if notify != nil {
			notify(ev)
		}
	}
	var err error
	if c.Consumer, err = t.Driver.Subscribe(ctx, sub); err != nil {
		return nil, err
	}
	return c, nil
}

// forget takes what is out of revoked partitions off the count: their receipts are void.
func (t *tap) forget(parts []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r, n := range t.out {
		if slices.Contains(parts, r.Partition) {
			t.bytes -= int64(n)
			delete(t.out, r)
		}
	}
}

type tapConsumer struct {
	driver.Consumer
	t      *tap
	epochs map[string]map[uint64]bool // ever assigned, guarded by tap.mu
}

func (c *tapConsumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	ended := make(chan time.Time, 1)
	stop := context.AfterFunc(ctx, func() { ended <- time.Now() })
	if len(want.Paused) == 0 {
		c.t.receiving(1)
		defer c.t.receiving(-1) // when what it returned has been counted
	}
	got, err := c.Consumer.Receive(ctx, want)
	if !stop() {
		if late := time.Since(<-ended); late > 500*time.Millisecond+c.t.e.h.Tolerance {
			c.t.e.Errorf("Receive returned %v after its ctx ended (limit 500 ms)", late.Round(time.Millisecond))
		}
	}
	t := c.t
	t.mu.Lock()
	defer t.mu.Unlock()
	size := int64(0)
	for i := range got {
		r := &got[i]
		if t.onRcv != nil {
			t.onRcv(r)
		}
		n := r.Size()
		size += int64(n)
		t.out[r.Receipt] = n
		t.bytes += int64(n)
		if !c.epochs[r.Receipt.Partition][r.Receipt.Epoch] {
			t.e.Errorf("Receive returned message %q of partition %q under epoch %d, which was never Assigned", r.ID, r.Receipt.Partition, r.Receipt.Epoch)
		}
	}
	t.received += len(got)
	t.peak, t.peakByte = max(t.peak, len(t.out)), max(t.peakByte, t.bytes)
	if len(got) > want.Records {
		t.e.Errorf("Receive returned %d messages for a Demand of %d", len(got), want.Records)
	}
	if size > want.Bytes && len(got) > 1 {
		t.e.Errorf("Receive returned %d messages of %d bytes together for a Demand of %d bytes", len(got), size, want.Bytes)
	}
	return got, err
}

func (c *tapConsumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	t := c.t
	t.mu.Lock()
	for i := range batch {
		if s := &batch[i]; s.Disposition != driver.Extend {
			t.settled = append(t.settled, *s)
			t.bytes -= int64(t.out[s.Receipt])
			delete(t.out, s.Receipt)
		}
	}
	lossy := t.lossy
	t.mu.Unlock()
	if lossy {
		batch = slices.DeleteFunc(slices.Clone(batch), func(s driver.Settlement) bool { return s.Disposition != driver.Extend })
	}
	if len(batch) == 0 {
		return nil
	}
	err := c.Consumer.Settle(ctx, batch)
	t.late(ctx, "Settle")
	return err
}

// settlements counts the final settlements that were sent for each receipt.
func (t *tap) settlements() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := map[string]int{}
	for _, s := range t.settled {
		n[fmt.Sprintf("%s/%d/%d/%d/%s/%p", s.Receipt.Partition, s.Receipt.Epoch, s.Receipt.Seq, s.Receipt.Aux, s.Receipt.ID, s.Receipt.Ref)]++
	}
	return n
}

// peaks returns the most messages and bytes that were out at once, and resets them to
// what is out now.
func (t *tap) peaks() (records int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	records, bytes = t.peak, t.peakByte
	t.peak, t.peakByte = len(t.out), t.bytes
	return records, bytes
}

func (t *tap) receiving(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inside += n
}

// idle reports whether no Receive is under way but such as leave paused partitions out.
func (t *tap) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inside == 0
}

func (t *tap) count() (received, assigned int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.received, len(t.opened)
}

// openedTwice names a partition that was assigned more than once; "" = none, or "one"
// for a source without names. A partition that is opened late is not one of them.
func (t *tap) openedTwice() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[string]bool{}
	for _, a := range t.opened {
		if seen[a.Partition] {
			return cmp.Or(a.Partition, "one")
		}
		seen[a.Partition] = true
	}
	return ""
}

// confirmedAt returns when a message was first confirmed at a destination.
func (t *tap) confirmedAt(to driver.Destination, id string) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.pubs {
		if p.id == id && p.to.Name == to.Name && p.to.Shape == to.Shape {
			return p.at, true
		}
	}
	return time.Time{}, false
}

// saw reports whether an event of that kind arrived.
func (t *tap) saw(k driver.EventKind) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.events {
		if e.Kind == k {
			return true
		}
	}
	return false
}
