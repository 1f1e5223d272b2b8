package core

import (
	"context"
	"sync"
	"time"
)

// lazyDeadline is a context with a deadline whose timer is made when somebody waits for
// it: a publish that a broker confirms without anyone waiting on Done costs no timer.
// Err is exact even without it.
type lazyDeadline struct {
	parent context.Context //nolint:containedctx // it is a context
	at     time.Time

	mu     sync.Mutex
	inner  context.Context //nolint:containedctx // it is a context
	cancel context.CancelFunc
}

// withTimeout is context.WithTimeout for a parent without a deadline. The caller calls
// release at the end.
func withTimeout(parent context.Context, d time.Duration) *lazyDeadline {
	return &lazyDeadline{parent: parent, at: time.Now().Add(d)}
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
	switch {
	case inner != nil:
		return inner.Err()
	case c.parent.Err() != nil:
		return c.parent.Err()
	case !time.Now().Before(c.at):
		return c.force().Err()
	}
	return nil
}

// Value implements context.Context. It goes to the real context, so that derived ones
// are cancelled with it.
func (c *lazyDeadline) Value(key any) any { return c.force().Value(key) }
