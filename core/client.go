package core

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Publisher is what patterns and wrappers take. *Client satisfies it.
type Publisher interface {
	// Publish sends msgs and waits until the broker has confirmed them; see
	// Client.Publish.
	Publish(ctx context.Context, to Destination, msgs ...*Message) error
}

// Provision says what core does about destinations that do not exist.
type Provision uint8

// The choices.
const (
	// ProvisionDefault is what the opener of the client chose: verify, and create for
	// memory.
	ProvisionDefault Provision = iota
	// ProvisionVerify checks and answers ErrNotFound, naming what to create.
	ProvisionVerify
	// ProvisionCreate creates what is missing.
	ProvisionCreate
	// ProvisionNone makes no administrative call at all.
	ProvisionNone
)

var provisionNames = []string{"default", "verify", "create", "none"}

// String returns the choice in lower case.
func (p Provision) String() string { return provisionNames[min(int(p), 3)] }

// Options configure a Client. The zero Options are valid.
type Options struct {
	// Prefix is put before the name of every destination and group, one per environment,
	// for example "staging-". "" = none.
	Prefix string
	// Provision. 0 = ProvisionVerify.
	Provision Provision
	// Broker names the broker in Describe, without secrets, for example
	// "kafka://localhost:9092".
	Broker string
	// Requests reads how many requests the adapter has made of its broker so far, by
	// operation, for Describe: where each is billed, they are the cost of a message. nil =
	// nobody counts them.
	Requests func() map[string]int64
	// Observer is the hook for metrics and traces. nil = none, at no cost.
	Observer Observer
	// Logger takes what an operator should know. nil = slog.Default().
	Logger *slog.Logger
	// Limits of what comes in and goes out. Zero fields = their defaults.
	Limits Limits
	// PublishTimeout bounds a Publish whose ctx has no deadline. 0 = 30 s.
	PublishTimeout time.Duration
	// FailFast makes Publish return a transient error at once instead of trying again
	// until its ctx ends.
	FailFast bool
}

// Client publishes and consumes over one driver. Its methods may be called
// concurrently. Close it.
type Client struct {
	d   driver.Driver
	o   Options
	ids idSource

	mu        sync.Mutex
	closing   bool // Close was called: no new consumer
	closed    bool // the consumers have drained: no new publish
	consumers map[*Consumer]struct{}
	failed    map[string]error // subscriptions that ended with an error and have not been started again
	publishes sync.WaitGroup   // Publish calls under way, so that Close lets them end
	provision provisioned
	link      link
}

// NewClient returns a Client over d, which it owns: Close closes d. Applications
// usually call adapters.Open instead.
func NewClient(d driver.Driver, o Options) *Client {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	setDefault(&o.PublishTimeout, 30*time.Second)
	o.Limits.setDefaults()
	return &Client{d: d, o: o, ids: newIDSource(), consumers: map[*Consumer]struct{}{}, failed: map[string]error{}}
}

// Capabilities tells what a destination can do with this broker, without a network
// call.
func (c *Client) Capabilities(of Destination) Capabilities { return c.d.Capabilities(c.prefixed(of)) }

// Admin returns the broker's administration, nil where there is none. It takes names
// as the broker knows them: Options.Prefix is not added.
func (c *Client) Admin() Admin { return c.d.Admin() }

// prefixed returns d under its name in this environment, its group included: on Kafka a
// group is a name of the whole cluster, and two environments that shared one would take
// each other's partitions.
func (c *Client) prefixed(d Destination) Destination {
	d.Name = c.o.Prefix + d.Name
	d.Group = c.prefixedGroup(d.Group)
	return d
}

func (c *Client) prefixedGroup(group string) string {
	if group == "" {
		return ""
	}
	return c.o.Prefix + group
}

// Close drains every consumer, waits for publishes under way and closes the driver,
// all within ctx. It is idempotent; later calls return nil.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return nil
	}
	c.closing = true
	running := make([]*Consumer, 0, len(c.consumers))
	for s := range c.consumers {
		running = append(running, s)
	}
	c.mu.Unlock()

	var wg sync.WaitGroup
	for _, s := range running {
		wg.Go(func() { _ = s.Drain(ctx) }) // its error is Wait's to return
	}
	wg.Wait()
	// Only now: a handler that finishes during the drain may still have to publish.
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.awaitPublishes(ctx)
	return c.d.Close(ctx)
}

// awaitPublishes lets publishes under way end: they are bounded by their own ctx,
// and by ours.
func (c *Client) awaitPublishes(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		c.publishes.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done(): // the driver's Close ends them with class Closed or Ambiguous
	}
}

// begin registers a publish, unless the client is closed.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.publishes.Add(1)
	return true
}

func errClosed(op string) error {
	return driver.Errorf(op, driver.Closed, "the client was closed")
}

// Consumer returns the running subscription of that name.
func (c *Client) Consumer(name string) (*Consumer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.consumers {
		if s.name == name {
			return s, true
		}
	}
	return nil, false
}
