package redis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// keyed is a driver.Consumer of a keyed destination. It has two sides that meet at mu:
// Receive, which asks for messages of the shards that are ours, and the owner (owner.go),
// which claims shards, keeps their leases and lets them go.
//
// Receive waits with a plain XREAD that takes nothing, and takes messages with a script
// that looks at the lease first. A blocked XREADGROUP would not do: it cannot look, so it
// may take a message for an owner whose lease has ended meanwhile, and the next owner
// would hand out the one behind it.
type keyed struct {
	front
	keys   keys
	shards []shard
	group  string
	name   string
	rd     waiter
	base   time.Time // origin of tenure.until

	changed chan struct{}   // something that a waiting Receive must look at
	quit    context.Context // of Close; set before ending is closed
	left    chan struct{}   // closed by the owner at its end

	mu    sync.Mutex
	owned []*tenure // by shard; nil = not ours to read
	fatal error     // ends Receive

	own owner

	// Of the one holder of busy.
	open    chan shardAnswer // the request under way, nil = none
	waits   bool             // it is one that blocks
	held    []kept           // handed to us, not returned yet
	out     []driver.Received
	turn    int       // which shard is asked first
	glanced time.Time // when shards were looked at that seemed to have nothing
	biggest int64     // estimate of a message's size
}

// glanceEvery is how often a consumer that has enough to read in some shards looks at the
// others.
const glanceEvery = 20 * time.Millisecond

// tenure is one period in which a shard is ours.
type tenure struct {
	c     *keyed
	shard *shard
	at    int // index of shard
	epoch uint64
	fence string
	since time.Time
	until atomic.Int64 // end of the lease by our clock: nanoseconds after keyed.base
	over  atomic.Bool
	acked atomic.Int64 // since the last trim

	// Guarded by keyed.mu.
	hot   bool   // there may be something to read
	heats int    // how often it was said so by others than a read
	last  string // id of the stream up to which all is read, where not hot
	// out are the ids that we know to be out, each with the number of its hand-out, since
	// what settles an earlier one says nothing about the present. doubt says that there may
	// be others: the answer to a read, or to a return, was lost.
	out    map[string]int64
	handed int64 // number of the last hand-out
	doubt  bool
	doubts int // how often it was said
	round  int // see shard_recover.lua
}

// live reports whether the shard is ours by our own clock. The lease was counted from
// before the request for it left, so it ends here before it does on the server.
func (t *tenure) live() bool {
	return !t.over.Load() && int64(time.Since(t.c.base)) < t.until.Load()
}

// kept is a message that was handed to us and not yet to core.
type kept struct {
	t     *tenure
	id    string
	count int64
	n     int64 // of the hand-out, see tenure.out
	record
}

func newKeyed(b *broker, sub driver.Subscription) *keyed {
	now := time.Now()
	c := &keyed{
		front: newFront(b, sub), keys: b.cfg.keys(sub.From), shards: b.cfg.shards(sub.From), group: groupOf(sub.From, sub.Group),
		name: fmt.Sprintf("%012x-%s-%s", now.UnixMilli(), b.cfg.ClientName, unique()),
		rd:   b.waiter(), base: now, biggest: 16 << 10,
		changed: make(chan struct{}, 1), left: make(chan struct{}),
	}
	c.owned = make([]*tenure, len(c.shards))
	c.own = newOwner(len(c.shards))
	return c
}

// subscribeKeyed makes the group in every shard and starts the owner.
func (b *broker) subscribeKeyed(ctx context.Context, op string, sub driver.Subscription) (driver.Consumer, error) {
	c := newKeyed(b, sub)
	if err := c.createGroup(ctx, op); err != nil {
		c.rd.close()
		return nil, err
	}
	if !b.add(c) {
		c.rd.close()
		return nil, errClosed(op)
	}
	if !b.commit.begin(c.run) {
		b.drop(c)
		c.rd.close()
		return nil, errClosed(op)
	}
	return c, nil
}

// lostSome reports messages that were deleted before they were settled.
func (c *keyed) lostSome(s *shard, n int64) {
	if n > 0 {
		c.notify(driver.Event{Kind: driver.Gone, Partition: s.label, Err: driver.Errorf(c.op("receive"), driver.NotFound, "%d messages were deleted before they were settled", n)})
	}
}

// poke wakes whoever waits on a channel of capacity 1.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Receive implements driver.Consumer.
func (c *keyed) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer c.exit()
	for {
		if err := c.ended(ctx); err != nil {
			return nil, err
		}
		if err := c.prune(ctx, want.Paused); err != nil {
			return nil, err
		}
		if out := c.hand(ctx, want); len(out) > 0 {
			return out, nil
		}
		if err := c.fill(ctx, want); err != nil {
			return nil, err
		}
	}
}

func (c *keyed) ended(ctx context.Context) error {
	if err := c.over(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fatal != nil {
		return c.fatal
	}
	return context.Cause(ctx)
}

// fail ends the subscription.
func (c *keyed) fail(err error) {
	c.mu.Lock()
	c.fatal = err
	c.mu.Unlock()
	poke(c.changed)
}

func (c *keyed) isFatal() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fatal != nil
}

// ours reports whether t is what Receive may read and return messages of.
func (c *keyed) ours(t *tenure) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owned[t.at] == t
}

// heat notes that there may be something to read.
func (c *keyed) heat(t *tenure) {
	c.mu.Lock()
	t.hot = true
	t.heats++
	c.mu.Unlock()
	poke(c.changed)
}

// Close implements driver.Consumer.
func (c *keyed) Close(ctx context.Context) error {
	if first, err := c.closeOnce(ctx); !first {
		return err
	}
	defer close(c.shut)
	c.quit = ctx
	close(c.ending)
	var err error
	select {
	case <-c.left:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	select {
	case c.busy <- struct{}{}: // never given back: Receive is over
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	c.closed.Store(true)
	c.rd.close() // ends a blocked read
	c.b.drop(c)
	return err
}

// readable are the shards that Receive may ask now: those that may have something, and
// those of which it is not known what is out.
func (c *keyed) readable(paused []string) (all, hot, doubtful []*tenure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.owned {
		if t == nil || slices.Contains(paused, t.shard.label) {
			continue
		}
		all = append(all, t)
		if t.hot {
			hot = append(hot, t)
		}
		if t.doubt {
			doubtful = append(doubtful, t)
		}
	}
	return all, hot, doubtful
}
