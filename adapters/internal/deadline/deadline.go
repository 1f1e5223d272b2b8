// Package deadline bounds a call into a client library that ignores its context.
package deadline

import (
	"context"
	"sync"
)

// Do runs f in a goroutine and returns its error, or ctx's cause as soon as ctx
// ends. In the second case abandoned is true and late (may be nil) is called once
// with what f returned after all, on f's goroutine. wait blocks until that goroutine
// has ended: whoever owns the connection f works on closes it, which ends f, and
// then waits.
func Do(ctx context.Context, f func() error, late func(error)) (err error, abandoned bool, wait func()) { //nolint:revive,staticcheck // the error belongs first: callers read it like a plain call
	var (
		mu       sync.Mutex
		left     bool // the caller has gone; guarded by mu
		done     = make(chan error, 1)
		finished = make(chan struct{})
	)
	go func() {
		defer close(finished)
		err := f()
		// One lock decides who takes the result. Without it f could finish between
		// the caller's last look at done and its leaving, and nobody would see err.
		mu.Lock()
		if !left {
			done <- err
			mu.Unlock()
			return
		}
		mu.Unlock()
		if late != nil {
			late(err)
		}
	}()
	wait = func() { <-finished }
	select {
	case err := <-done:
		return err, false, wait
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	select {
	case err := <-done:
		return err, false, wait
	default:
		left = true
		return context.Cause(ctx), true, wait
	}
}
