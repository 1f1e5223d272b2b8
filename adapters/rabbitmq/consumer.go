package rabbitmq

import (
	"context"
	"reflect"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// consumer is the Consumer of every shape. One goroutine, the keeper, owns the channels
// (their calls share one reply slot and ignore ctx): it opens them, counts members,
// writes owner records and opens them again after a loss. Receive takes what the feeds
// have; Settle writes acks.
type consumer struct {
	b      *broker
	op     string
	sub    driver.Subscription
	upTo   bool
	owned  bool // partitions have owner queues
	parts  []*part
	forget func()

	kick    chan struct{} // capacity 1: wakes the keeper
	changed chan struct{} // capacity 1: wakes Receive
	closing chan struct{}
	ended   chan struct{} // the keeper is gone
	revokes sync.WaitGroup

	pull sync.Mutex // who takes from the feeds; see standAside

	mu      sync.Mutex
	feeds   []*feed
	epoch   uint64
	limit   int
	turn    int           // round robin over feeds
	aside   chan struct{} // Receive waits here while the keeper pulls
	trouble error         // for one Receive
	fatal   error         // for every Receive
	running bool
	closed  bool
	until   context.Context // of Close, for the keeper's last Revoke

	ready     chan struct{} // closed when the first life of a consumer without owners has opened
	readyOnce sync.Once
	cancel    context.CancelFunc
	out       []driver.Received
}

func (c *consumer) poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// start runs the keeper once.
func (c *consumer) start(limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit != limit {
		c.limit = limit
		c.poke(c.kick)
	}
	if c.running || c.closed {
		return
	}
	c.running = true
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go c.keep(ctx)
}

// Receive implements driver.Consumer.
func (c *consumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	limit := max(want.Limit, want.Records, 1)
	if c.overcommits(limit) {
		return nil, driver.Errorf(c.op, driver.Unsupported, "%d partitions and Demand.Limit %d: RabbitMQ has no prefetch over several queues, so the limit must be at least the number of partitions", len(c.parts), limit)
	}
	c.start(limit)
	for {
		if err := c.state(); err != nil {
			return nil, err
		}
		if err := c.waitAside(ctx); err != nil {
			return nil, err
		}
		c.pull.Lock()
		out := c.take(want, nil, nil)
		if len(out) == 0 {
			f, d, err := c.wait(ctx, want.Paused)
			if err != nil {
				c.pull.Unlock()
				return nil, err
			}
			if f != nil {
				out = c.take(want, f, d)
			}
		}
		c.pull.Unlock()
		if len(out) > 0 {
			return out, nil
		}
	}
}

// overcommits reports whether the first Receive asks for less than one message of each
// shard queue: the broker has no prefetch over several queues, so it would have more out
// than the limit. A limit that is lowered later is kept by asking one of each, which is
// the least there is; a stream counts nothing as out.
func (c *consumer) overcommits(limit int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owned && c.sub.From.Shape != driver.Stream && !c.running && len(c.parts) > limit
}

func (c *consumer) state() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return errClosed(c.op)
	case c.fatal != nil:
		return c.fatal
	}
	err := c.trouble
	c.trouble = nil
	return err
}

// standAside makes Receive stop taking, so that the keeper can drain a feed: two takers
// would swap messages. The order matters. The keeper sets aside, then wakes Receive; a
// Receive that looked at aside before that is woken by changed, one that looks after it
// waits. Without the mark Receive could take the lock again before the keeper got it and
// sleep with it until the next message.
func (c *consumer) standAside(f func()) {
	c.mu.Lock()
	c.aside = make(chan struct{})
	c.mu.Unlock()
	c.poke(c.changed)
	c.pull.Lock()
	f()
	c.pull.Unlock()
	c.mu.Lock()
	close(c.aside)
	c.aside = nil
	c.mu.Unlock()
	c.poke(c.changed)
}

func (c *consumer) waitAside(ctx context.Context) error {
	for {
		c.mu.Lock()
		aside := c.aside
		c.mu.Unlock()
		if aside == nil {
			return nil
		}
		select {
		case <-aside:
		case <-c.closing:
			return errClosed(c.op)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// open returns the feeds to take from, the next one in turn first.
func (c *consumer) open(paused []string) []*feed {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*feed, 0, len(c.feeds))
	for i := range c.feeds {
		f := c.feeds[(i+c.turn)%len(c.feeds)]
		if !f.isClosing() && !f.gap.Load() && !contains(paused, f.label) {
			out = append(out, f)
		}
	}
	c.turn++
	return out
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// take fills a batch without waiting, first with d of feed from if there is one.
func (c *consumer) take(want driver.Demand, from *feed, d *amqp.Delivery) []driver.Received {
	b := taking{c: c, want: want, out: c.out[:0]}
	feeds := c.open(want.Paused)
	if from != nil {
		from.arrived(d)
		if !b.add(from, d) {
			return b.out
		}
	}
	// A fair share of each feed per round; what is left goes to whoever has more.
	share := max(1, want.Records/max(1, len(feeds)))
	for more := true; more && len(b.out) < want.Records; {
		more = false
		for _, f := range feeds {
			for n := 0; n < share && len(b.out) < want.Records; n++ {
				d, ok, gone := f.poll()
				if gone {
					c.poke(c.kick)
				}
				if !ok {
					break
				}
				more = true
				if !b.add(f, &d) {
					return b.out
				}
			}
		}
	}
	c.out = b.out
	return b.out
}

// taking is one batch in the making.
type taking struct {
	c     *consumer
	want  driver.Demand
	out   []driver.Received
	bytes int64
}

// add reports whether there may be room for more.
func (b *taking) add(f *feed, d *amqp.Delivery) bool {
	if f.stream && !b.c.wanted(f, d) {
		return true
	}
	r := f.received(d)
	if f.stream && !f.since.IsZero() {
		if r.Time.Before(f.since) { // the broker starts with the chunk that holds it
			b.c.spent(f, d)
			return true
		}
		f.since = time.Time{}
	}
	n := int64(r.Size())
	if len(b.out) > 0 && b.bytes+n > b.want.Bytes {
		f.back = append([]amqp.Delivery{*d}, f.back...) // the one that RabbitMQ makes us take to see its size
		return false
	}
	if f.stream {
		f.next = r.Offset + 1
		b.c.spent(f, d)
	}
	b.bytes += n
	b.out = append(b.out, r)
	return b.bytes < b.want.Bytes && len(b.out) < b.want.Records
}

// wait blocks until a feed has a message (f and d), something changed (nil), or ctx or
// the consumer ends.
func (c *consumer) wait(ctx context.Context, paused []string) (*feed, *amqp.Delivery, error) {
	feeds := c.open(paused)
	live := feeds[:0]
	for _, f := range feeds {
		if f.deliveries != nil {
			live = append(live, f)
		}
	}
	if len(live) > 1 {
		return c.waitMany(ctx, live)
	}
	var one <-chan amqp.Delivery
	if len(live) == 1 {
		one = live[0].deliveries
	}
	select {
	case d, ok := <-one:
		return c.got(live[0], &d, ok)
	case <-c.changed:
		return nil, nil, nil
	case <-c.closing:
		return nil, nil, errClosed(c.op)
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
}

func (c *consumer) got(f *feed, d *amqp.Delivery, ok bool) (*feed, *amqp.Delivery, error) {
	if !ok {
		f.deliveries = nil
		c.poke(c.kick)
		return nil, nil, nil
	}
	return f, d, nil
}

func (c *consumer) waitMany(ctx context.Context, live []*feed) (*feed, *amqp.Delivery, error) {
	cases := []reflect.SelectCase{recv(c.changed), recv(c.closing), recv(ctx.Done())}
	for _, f := range live {
		cases = append(cases, recv(f.deliveries))
	}
	i, v, ok := reflect.Select(cases)
	switch i {
	case 0:
		return nil, nil, nil
	case 1:
		return nil, nil, errClosed(c.op)
	case 2:
		return nil, nil, context.Cause(ctx)
	}
	var d amqp.Delivery
	if ok {
		d = v.Interface().(amqp.Delivery) //nolint:forcetypeassert // the channel's type
	}
	return c.got(live[i-3], &d, ok)
}

func recv(ch any) reflect.SelectCase {
	return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ch)}
}

// Settle implements driver.Consumer.
func (c *consumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	op := "settle " + c.sub.From.String()
	errs := make([]error, len(batch))
	mine := map[*feed][]int{}
	c.mu.Lock()
	if c.closed && !c.running {
		c.mu.Unlock()
		return errClosed(op)
	}
	gone := false
	select {
	case <-c.ended:
		gone = true
	default:
	}
	for i := range batch {
		if f := c.feedOf(batch[i].Receipt); f != nil {
			mine[f] = append(mine[f], i)
		} else if gone && c.closed {
			errs[i] = errClosed(op)
		} else {
			errs[i] = driver.Errorf(op, driver.LeaseLost, "partition %q is no longer held in epoch %d", batch[i].Receipt.Partition, batch[i].Receipt.Epoch)
		}
	}
	c.mu.Unlock()
	for f, at := range mine {
		if c.upTo {
			c.commit(ctx, op, f, batch, at, errs)
		} else {
			f.settle(ctx, op, batch, at, errs)
		}
		f.mu.Lock()
		inherited := f.ledger.mark > 0
		f.mu.Unlock()
		if inherited {
			c.poke(c.kick) // the limit changed before: perhaps there is room now
		}
	}
	return driver.Batch(errs)
}

func (c *consumer) feedOf(r driver.Receipt) *feed {
	for _, f := range c.feeds {
		if f.epoch == r.Epoch && f.label == r.Partition {
			return f
		}
	}
	return nil
}

// Close implements driver.Consumer.
func (c *consumer) Close(ctx context.Context) error {
	unused := false
	c.mu.Lock()
	if !c.closed {
		c.closed, c.until = true, ctx
		close(c.closing)
		if c.cancel != nil {
			c.cancel()
		}
		if unused = !c.running; unused {
			close(c.ended)
		}
	}
	c.mu.Unlock()
	c.forget()
	if unused {
		_ = c.b.bounded(ctx, func() error { c.dropTemporary(); return nil }) // else it ends with the connection
	}
	select {
	case <-c.ended:
		c.b.drop(c)
		return nil
	case <-ctx.Done():
		// The keeper is in a call that ignores ctx. It ends with the answer or with
		// the connection, whose end Driver.Close and the heartbeat see to.
		return driver.Errorf("close "+c.op, driver.Ambiguous, "the broker did not answer in time, what is out goes back with the connection: %w", context.Cause(ctx))
	}
}

// join waits for the keeper after the connections were cut.
func (c *consumer) join() { <-c.ended }
