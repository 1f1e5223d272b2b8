package redis

import (
	"context"
	"sync/atomic"

	"github.com/varal-go/varal/core/driver"
)

// front is the side that a consumer of either kind, plain or keyed, shows to core: calls
// that come and end, and what core is told of the connection.
type front struct {
	b   *broker
	sub driver.Subscription

	busy   chan struct{} // held by Receive, so that Close can wait until it has left
	begun  atomic.Bool   // Close was called
	ending chan struct{} // closed by Close at its beginning
	shut   chan struct{} // closed by Close at its end
	closed atomic.Bool   // Settle refuses
	away   atomic.Bool   // Notify was told Disconnected
}

func newFront(b *broker, sub driver.Subscription) front {
	return front{b: b, sub: sub, busy: make(chan struct{}, 1), ending: make(chan struct{}), shut: make(chan struct{})}
}

func (f *front) op(verb string) string { return opOf(verb, &f.sub) }

func (f *front) notify(e driver.Event) {
	if f.sub.Notify != nil {
		f.sub.Notify(e)
	}
}

// heard tells Notify when the connection was lost or is back.
func (f *front) heard(err error) {
	switch {
	case err == nil || !offline(err):
		if f.away.CompareAndSwap(true, false) {
			f.notify(driver.Event{Kind: driver.Connected})
		}
	case f.away.CompareAndSwap(false, true):
		f.notify(driver.Event{Kind: driver.Disconnected, Err: classify(f.op("receive"), err)})
	}
	f.b.heard(err)
}

// over is the error of a Receive after Close began, else nil.
func (f *front) over() error {
	select {
	case <-f.ending:
		return errClosed(f.op("receive"))
	default:
		return nil
	}
}

// enter takes busy for a Receive, which calls exit if err is nil.
func (f *front) enter(ctx context.Context) error {
	// Looked at by itself: select would choose at random where Close has begun and not taken
	// busy yet.
	if err := f.over(); err != nil {
		return err
	}
	select {
	case f.busy <- struct{}{}:
		return nil
	case <-f.ending:
		return errClosed(f.op("receive"))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *front) exit() { <-f.busy }

// closeOnce reports whether this Close is the first. Another one waits for that to end.
func (f *front) closeOnce(ctx context.Context) (first bool, err error) {
	if f.begun.CompareAndSwap(false, true) {
		return true, nil
	}
	select {
	case <-f.shut:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
