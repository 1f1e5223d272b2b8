package aws

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// broker is the Driver.
type broker struct {
	cfg  Config
	api  *services
	down atomic.Bool // Notify was told Disconnected

	life  context.Context // of what outlives a call: ends when Close has waited long enough
	cut   context.CancelFunc
	calls sync.WaitGroup // what outlives its caller

	mu        sync.Mutex
	closed    bool
	stopped   bool // calls takes no more
	consumers map[*consumer]struct{}
	places    map[string]string  // URL or ARN by kind and name
	senders   map[string]*sender // by URL or ARN
}

// Open reads the SDK's configuration and credentials and returns the Driver. It asks no
// queue: the first use of a destination does. Errors: Permanent (the Config; the text names
// the field), Denied (no credentials, or no right to assume the role). It returns by ctx.
func Open(ctx context.Context, c Config) (driver.Driver, error) {
	const op = "open SQS"
	cfg, err := c.withDefaults()
	if err != nil {
		return nil, driver.Errorf(op, driver.Permanent, "%w", err)
	}
	api, err := connect(ctx, op, &cfg)
	if err != nil {
		return nil, err
	}
	b := &broker{cfg: cfg, api: api, consumers: map[*consumer]struct{}{}, places: map[string]string{}, senders: map[string]*sender{}}
	b.life, b.cut = context.WithCancel(context.Background())
	return b, nil
}

const (
	maxDelay = 900 * time.Second
	// maxNackDelay is an hour below the 12 h that a delivery may be hidden in all.
	maxNackDelay = 11 * time.Hour
	dedupWindow  = 5 * time.Minute
)

// Capabilities implements driver.Driver. A stream has none, so that core refuses it by name.
func (b *broker) Capabilities(of driver.Destination) driver.Capabilities {
	if of.Shape != driver.Queue && of.Shape != driver.Topic {
		return driver.Capabilities{}
	}
	c := driver.Capabilities{
		Settle: driver.Each, Durable: true, Counts: true, NackDelay: maxNackDelay, Lease: maxLease,
		MaxBytes: payload(b.cfg.MaxBytes),
	}
	if isFIFO(of) {
		c.Order, c.Dedup = driver.PerKey, dedupWindow
	}
	switch through := of.Shape == driver.Topic && of.Group == ""; {
	case through: // SNS delays nothing
		c.MaxBytes = payload(min(b.cfg.MaxBytes, b.cfg.TopicMaxBytes))
	case !isFIFO(of):
		c.Delay = maxDelay
	}
	return c
}

// overhead is kept free for the attributes of a message.
const overhead = 4 << 10

// payload is what of a limit on the wire is left for headers and body. Any body must fit,
// and one that is no text travels as base64, which takes four bytes for three.
func payload(wire int) int {
	if wire <= 2*overhead {
		return wire * 3 / 8
	}
	return (wire - overhead) / 4 * 3
}

// begin runs f beside, unless the driver is closed. The lock makes every Add come before
// the Wait of Close.
func (b *broker) begin(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return false
	}
	b.calls.Go(f)
	return true
}

// Close implements driver.Driver.
func (b *broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	open := make([]*consumer, 0, len(b.consumers))
	for c := range b.consumers {
		open = append(open, c)
	}
	b.mu.Unlock()
	errs := make([]error, len(open))
	var wg sync.WaitGroup // all at once: each may wait for its handlers
	for i, c := range open {
		wg.Go(func() { errs[i] = c.Close(ctx) })
	}
	wg.Wait()
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	idle := make(chan struct{})
	go func() { // joined below
		defer close(idle)
		b.calls.Wait()
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	b.cut() // what is left ends
	<-idle
	b.api.transport.CloseIdleConnections()
	return errors.Join(errs...)
}

func (b *broker) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

func (b *broker) add(c *consumer) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.consumers[c] = struct{}{}
	return true
}

func (b *broker) drop(c *consumer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.consumers, c)
}

// bounded is ctx with a deadline of our own: a service that says nothing is not waited for.
func (b *broker) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.cfg.ConnectTimeout+b.cfg.Timeout)
}

// heard tells Notify when the connection was lost or is back.
func (b *broker) heard(err error) {
	switch {
	case !offline(err):
		if err == nil && b.down.CompareAndSwap(true, false) {
			b.tell(driver.Event{Kind: driver.Connected})
		}
	case b.down.CompareAndSwap(false, true):
		b.tell(driver.Event{Kind: driver.Disconnected, Err: classify("sqs", err)})
	}
}

func (b *broker) tell(e driver.Event) {
	if b.cfg.Notify != nil {
		b.cfg.Notify(e)
	}
}
