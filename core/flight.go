package core

import (
	"context"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/schedule"
	"github.com/varal-go/varal/core/internal/watermark"
)

// phase is what a flight needs done next.
type phase uint8

const (
	phaseHandle phase = iota // run the handler
	phaseEmit                // the handler succeeded: send what it published, then ack
	phaseDead                // publish the dead-letter copy, then end it
	phaseHop                 // not due yet: send it on with the rest of its delay, then ack
	phaseNack                // back-off over: give it back as failed
)

// flightState is where a flight is. It changes only under Consumer.mu.
type flightState uint8

const (
	stateQueued   flightState = iota // in the run queue or behind its key
	stateRunning                     // a worker has it
	stateWaiting                     // in back-off
	stateSettling                    // its disposition is on the way to the broker
	stateGone                        // over, or no longer ours
)

// flight is one received message on its way through the engine. Its fields are
// guarded by Consumer.mu, but for those a worker uses while the state is running.
type flight struct {
	rec  driver.Received // as it came: never changed, so that no attempt leaks into the next
	asg  *assignment
	lane *schedule.Lane[*flight]

	state    flightState
	phase    phase
	base     int       // attempt number of the first run here
	failures int       // failed runs here
	first    time.Time // of the first failure here
	last     time.Time // of the last failure
	received time.Time
	cause    error  // why it failed last
	reason   string // failure reason of the dead-letter record
	stack    []byte // of a panic
	emit     []heldPublish
	tries    int // failed tries of the phase (dead letter, emit, hop)

	seq      uint64 // in asg.ring (UpTo)
	size     int
	deadline time.Time     // end of the lease; zero = none
	lease    time.Duration // length of the lease
	extend   bool          // an Extend is on the way
	lost     bool          // somebody else's by now
	acked    bool          // AckFirst: settled before it ran
	released bool          // its share of the budget was returned

	due  time.Time // end of the back-off
	heap int       // index in the waiting heap

	prev, next *flight // list of all flights

	run *attempt // the attempt that runs now
}

// attempt is one run of a handler.
type attempt struct {
	d   Delivery
	ctx attemptCtx
}

// assignment is one period of ownership of one partition. Guarded by Consumer.mu.
type assignment struct {
	driver.Assignment
	drain   bool // admits nothing any more
	closed  bool // nor settles
	running int  // attempts that run
	pending int  // settlements handed to the settler and not answered
	idle    chan struct{}
	ring    watermark.Ring[driver.Receipt]
	dirty   bool   // in Consumer.dirty
	acked   uint64 // receipts committed, for Status
	flights int
	acking  []*flight // AckFirst on a log: they run once the next commit is confirmed
	paused  bool      // asked for no more until its span shrinks
}

// attemptCtx is the context of one attempt. The real cancellable context behind it is
// made when somebody asks for it: a handler that never looks costs no allocation.
type attemptCtx struct {
	parent context.Context //nolint:containedctx // it is a context

	mu     sync.Mutex
	inner  context.Context //nolint:containedctx // it is a context
	cancel context.CancelCauseFunc
	cause  error // why it was cancelled before inner was made
}

// force makes the real context.
func (c *attemptCtx) force() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithCancelCause(c.parent)
		if c.cause != nil {
			c.cancel(c.cause)
		}
	}
	return c.inner
}

// end cancels the attempt with a cause. The first cause stays.
func (c *attemptCtx) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = cause
	}
	if c.cancel != nil {
		c.cancel(cause)
	}
}

// ended returns why the attempt was cancelled, nil if it was not.
func (c *attemptCtx) ended() error {
	c.mu.Lock()
	inner, cause := c.inner, c.cause
	c.mu.Unlock()
	switch {
	case cause != nil:
		return cause
	case inner != nil && inner.Err() != nil:
		return context.Cause(inner)
	case c.parent.Err() != nil:
		return context.Cause(c.parent)
	}
	return nil
}

// Deadline implements context.Context.
func (c *attemptCtx) Deadline() (time.Time, bool) { return c.parent.Deadline() }

// Done implements context.Context.
func (c *attemptCtx) Done() <-chan struct{} { return c.force().Done() }

// Err implements context.Context.
func (c *attemptCtx) Err() error {
	c.mu.Lock()
	inner, cause := c.inner, c.cause
	c.mu.Unlock()
	switch {
	case inner != nil:
		return inner.Err()
	case cause != nil:
		return context.Canceled
	}
	return c.parent.Err()
}

// Value implements context.Context. It goes to the real context, so that
// context.Cause and derived contexts find what they look for there.
func (c *attemptCtx) Value(key any) any { return c.force().Value(key) }
