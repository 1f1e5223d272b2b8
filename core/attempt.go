package core

import (
	"context"
	"sync/atomic"
	"time"
)

// attempt is one run of a handler.
type attempt struct {
	d      Delivery
	ctx    attemptCtx
	cancel context.CancelFunc      // of its timeout; nil = none
	others context.CancelCauseFunc // of the batch it belongs to; nil = none
}

// end cancels an attempt and refuses later decisions of its handler.
func (t *attempt) end(cause error) {
	fate := fateRevoked
	if cause == ErrLeaseLost { //nolint:errorlint // our own sentinel, never wrapped here
		fate = fateLeaseLost
	}
	t.d.fate.CompareAndSwap(fateOpen, fate)
	t.ctx.end(cause)
	if t.others != nil {
		t.others(cause)
	}
}

// attemptCtx is the context of one attempt. The real, cancellable context behind it is
// made when somebody asks for it: a handler that never looks costs no allocation.
type attemptCtx struct {
	parent context.Context //nolint:containedctx // it is a context
	made   atomic.Pointer[madeCtx]
}

type madeCtx struct {
	context.Context //nolint:containedctx // it is a context
	cancel          context.CancelCauseFunc
}

// over is the context of every attempt that ended before anybody asked for one.
var over = func() *madeCtx {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(context.Canceled)
	return &madeCtx{ctx, cancel}
}()

// make returns the real context.
func (c *attemptCtx) make() *madeCtx {
	if m := c.made.Load(); m != nil {
		return m
	}
	ctx, cancel := context.WithCancelCause(c.parent)
	m := &madeCtx{ctx, cancel}
	if !c.made.CompareAndSwap(nil, m) { // somebody else made it, or ended the attempt
		cancel(context.Canceled)
		return c.made.Load()
	}
	return m
}

// end cancels the attempt with a cause. The first cause stays.
func (c *attemptCtx) end(cause error) { c.make().cancel(cause) }

// finish ends the context after its handler has returned: whoever still waits for it
// learns that it is over, and whoever asks for it later gets one that is.
func (c *attemptCtx) finish() {
	if !c.made.CompareAndSwap(nil, over) {
		c.made.Load().cancel(context.Canceled)
	}
}

// ended returns why the attempt was cancelled, nil if it was not.
func (c *attemptCtx) ended() error {
	ctx := c.parent
	if m := c.made.Load(); m != nil {
		ctx = m
	}
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// Deadline implements context.Context.
func (c *attemptCtx) Deadline() (time.Time, bool) { return c.parent.Deadline() }

// Done implements context.Context.
func (c *attemptCtx) Done() <-chan struct{} { return c.make().Done() }

// Err implements context.Context.
func (c *attemptCtx) Err() error {
	if m := c.made.Load(); m != nil {
		return m.Err()
	}
	return c.parent.Err()
}

// Value implements context.Context. It goes to the real context, so that
// context.Cause and derived contexts find what they look for there.
func (c *attemptCtx) Value(key any) any { return c.make().Value(key) }
