package aws

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// consumer is a driver.Consumer of one queue.
//
// Requests for messages outlive the Receive that began them: a request that is cut may
// still be handed messages, which then stay hidden for a lease. What they bring waits in
// held, and what they have asked for counts against the next Demand.
type consumer struct {
	b     *broker
	sub   driver.Subscription
	url   string
	lease time.Duration
	wait  time.Duration
	fifo  bool
	owned bool // the queue and its subscription are this consumer's own (Temporary)

	ready  chan struct{} // a request has ended
	begun  atomic.Bool   // Close was called
	ending chan struct{}
	shut   chan struct{}
	away   atomic.Bool     // Notify was told Disconnected
	work   sync.WaitGroup  // requests, and the keeper of held
	life   context.Context // of the requests: they outlive calls
	cut    context.CancelFunc

	mu      sync.Mutex
	closed  bool // Settle refuses
	ledger  ledger
	held    []*delivery // handed to us and not yet to core
	polls   polls
	err     error // of a request, for the next Receive
	keeping bool  // the keeper runs
	biggest int64 // estimate of a message's size
	swept   time.Time
	out     []driver.Received
}

// epoch of every assignment: a reconnect voids no receipts.
const epoch = 1

func newConsumer(b *broker, sub driver.Subscription, url string, lease time.Duration) *consumer {
	c := &consumer{
		b: b, sub: sub, url: url, lease: lease, wait: waitFor(b.cfg.Wait, lease), fifo: isFIFO(sub.From),
		ready: make(chan struct{}, 1), ending: make(chan struct{}), shut: make(chan struct{}),
		ledger: newLedger(), biggest: 16 << 10, polls: polls{most: b.cfg.Polls, target: 1},
	}
	c.life, c.cut = context.WithCancel(context.Background())
	return c
}

// waitFor is how long one request waits: never so long that a message handed out at its
// beginning and read at its end would have used up its lease.
func waitFor(wait, lease time.Duration) time.Duration {
	if wait == 0 {
		wait = maxWait
	}
	return max(time.Second, min(wait, (lease*2/3).Truncate(time.Second)))
}

func (c *consumer) op(verb string) string {
	s := verb + " " + c.sub.From.String()
	if c.sub.From.Group == "" && c.sub.Group != "" {
		s += ", group " + c.sub.Group
	}
	return s
}

// heard tells Notify when the connection was lost or is back.
func (c *consumer) heard(err error) {
	c.b.heard(err)
	switch {
	case c.sub.Notify == nil:
	case !offline(err):
		if err == nil && c.away.CompareAndSwap(true, false) {
			c.sub.Notify(driver.Event{Kind: driver.Connected})
		}
	case c.away.CompareAndSwap(false, true):
		c.sub.Notify(driver.Event{Kind: driver.Disconnected, Err: classify(c.op("receive"), err)})
	}
}

// Receive implements driver.Consumer.
func (c *consumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	paused := false
	for _, p := range want.Paused {
		paused = paused || p == ""
	}
	for {
		select {
		case <-c.ending:
			return nil, errClosed(c.op("receive"))
		default:
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if paused {
			c.giveBackHeld(ctx)
		} else if out, err := c.step(ctx, want); err != nil || len(out) > 0 {
			return out, err
		}
		c.rest(ctx)
	}
}

// step hands out what there is, or begins requests for more.
func (c *consumer) step(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	c.refresh(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun.Load() { // Close gives back what is here, and must not race with a hand-out
		return nil, nil
	}
	out := c.hand(want)
	if len(out) > 0 {
		return out, nil
	}
	if err := c.err; err != nil {
		c.err = nil
		return nil, err
	}
	c.topUp(want, time.Now())
	return nil, nil
}

// rest waits until something may have changed.
func (c *consumer) rest(ctx context.Context) {
	c.mu.Lock()
	pause := c.polls.pause(time.Now())
	c.mu.Unlock()
	var later <-chan time.Time
	if pause > 0 {
		t := time.NewTimer(pause)
		defer t.Stop()
		later = t.C
	}
	select {
	case <-c.ready:
	case <-later:
	case <-ctx.Done():
	case <-c.ending:
	}
}

// topUp begins requests for what there is room for. Core's bytes are met by asking for
// fewer, because nobody extends the lease of what core has not seen. Callers hold mu.
func (c *consumer) topUp(want driver.Demand, now time.Time) {
	room := max(1, min(want.Records, int(min(want.Bytes/c.biggest, 1<<20))))
	for {
		n := c.polls.ask(room-len(c.held), now)
		if n == 0 {
			return
		}
		c.work.Go(func() { c.poll(n) })
	}
}

// hand returns from held what the Demand allows. Callers hold mu.
func (c *consumer) hand(want driver.Demand) []driver.Received {
	c.out = c.out[:0]
	var bytes, biggest int64
	n := 0
	for ; n < len(c.held) && len(c.out) < want.Records; n++ {
		d := c.held[n]
		if d.lost {
			continue
		}
		size := int64(d.msg.Size())
		if len(c.out) > 0 && bytes+size > want.Bytes {
			break
		}
		bytes += size
		biggest = max(biggest, size)
		c.out = append(c.out, driver.Received{
			Message: d.msg, Receipt: driver.Receipt{Epoch: epoch, ID: d.id, Ref: d}, Offset: -1,
			NativeID: d.id, DeliveryCount: d.count, Deadline: d.deadline, Err: d.err,
		})
		d.msg = driver.Message{} // core's from here on
	}
	if n > 0 {
		c.biggest = max(biggest, c.biggest-c.biggest/8, 64)
	}
	clear(c.held[:n])
	if c.held = c.held[n:]; len(c.held) == 0 {
		c.held = nil
	}
	return c.out
}

// Close implements driver.Consumer.
func (c *consumer) Close(ctx context.Context) error {
	if !c.begun.CompareAndSwap(false, true) {
		select {
		case <-c.shut:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer close(c.shut)
	close(c.ending)
	if c.sub.Revoke != nil {
		c.sub.Revoke(ctx, []string{""})
	}
	c.drain(ctx)
	last, cancel := lastWord(ctx)
	defer cancel()
	c.giveBackAll(last)
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.b.drop(c)
	if c.owned {
		// Not Apply: when the driver closes, that is refused already.
		_, err := admin{c.b}.deleteGroup(last, c.op("close"), driver.Resource{Destination: c.sub.From.ForGroup(c.sub.Group)})
		return err
	}
	return nil
}

// lastWord is ctx, or a little more where that has been cancelled: what is not given back
// stays hidden for a lease, and a private group that is not deleted stays for good.
func lastWord(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), cutMargin*4/5)
}

// cutMargin of the time that Close has is kept for giving back.
const cutMargin = 500 * time.Millisecond

// drain waits for the requests that are open. What is not over when ctx nearly is, is cut;
// a message handed to a cut request comes again when its lease has ended.
func (c *consumer) drain(ctx context.Context) {
	defer c.work.Wait()
	defer c.cut()
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left-min(cutMargin, left/2))
		defer cancel()
	}
	for {
		c.mu.Lock()
		open := c.polls.open
		c.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-c.ready:
		case <-ctx.Done():
			return
		}
		c.giveBackHeld(ctx)
	}
}
