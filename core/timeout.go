package core

import (
	"context"
	"sync"
	"time"
)

// lazyDeadline is a context with a deadline whose timer is made when somebody waits for
// it: a publish that a broker confirms without anyone waiting on Done costs no timer.
// Until then Err does not look at the clock, which on a virtual machine costs more than
// the rest of a publish in memory: a call that never waits is not late.
type lazyDeadline struct {
	parent context.Context //nolint:containedctx // it is a context
	at     time.Time

	mu     sync.Mutex
	inner  context.Context //nolint:containedctx // it is a context
	cancel context.CancelFunc
}

// withDeadline is context.WithDeadline for a parent without one. The caller calls release
// at the end.
func withDeadline(parent context.Context, at time.Time) *lazyDeadline {
	return &lazyDeadline{parent: parent, at: at}
}

func (c *lazyDeadline) force() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithDeadline(c.parent, c.at)
	}
	return c.inner
}

func (c *lazyDeadline) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
}

// Deadline implements context.Context.
func (c *lazyDeadline) Deadline() (time.Time, bool) { return c.at, true }

// Done implements context.Context.
func (c *lazyDeadline) Done() <-chan struct{} { return c.force().Done() }

// Err implements context.Context.
func (c *lazyDeadline) Err() error {
	c.mu.Lock()
	inner := c.inner
	c.mu.Unlock()
	if inner != nil {
		return inner.Err()
	}
	return c.parent.Err()
}

// Value implements context.Context. It goes to the real context, so that derived ones
// are cancelled with it.
func (c *lazyDeadline) Value(key any) any { return c.force().Value(key) }
