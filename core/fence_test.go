package core_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// leased is a message whose lease ends in d.
func leased(id, key string, d time.Duration) driver.Received {
	m := msg(id, key)
	m.Deadline = time.Now().Add(d)
	return m
}

// loseLeases answers every Extend of the sequence with LeaseLost.
func loseLeases(seq int64) func([]driver.Settlement) error {
	return func(batch []driver.Settlement) error {
		errs := make([]error, len(batch))
		for i, e := range batch {
			if e.Disposition == driver.Extend && e.Receipt.Seq == seq {
				errs[i] = driver.Errorf("extend", driver.LeaseLost, "gone")
			}
		}
		return driver.Batch(errs)
	}
}

// A message that lost its lease comes again. Those behind it in its key that have not
// started must come behind it again, too.
func TestALostLeaseTakesTheRestOfItsKeyAlong(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]core.Handler{
		"running": func(ctx context.Context, _ *core.Delivery) error { <-ctx.Done(); return ctx.Err() },
		"waiting": func(context.Context, *core.Delivery) error { return core.RetryAfter(time.Hour, errors.New("later")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(driver.Each)
			f.caps.Lease = time.Hour
			f.onSettle = loseLeases(1)
			var mu sync.Mutex
			var ran []string
			h := func(ctx context.Context, d *core.Delivery) error {
				if d.Offset == 1 {
					return first(ctx, d)
				}
				mu.Lock()
				ran = append(ran, d.ID)
				mu.Unlock()
				return nil
			}
			bubble(t, f, h, func(s *core.Consumer) {
				f.push(leased("m1", "k", 2*time.Second), leased("m2", "k", 2*time.Second))
				time.Sleep(5 * time.Second)
				f.push(leased("m1", "k", 2*time.Second), leased("m2", "k", 2*time.Second)) // the leases ended
				time.Sleep(5 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				if fmt.Sprint(ran) != "[m1 m2]" {
					t.Errorf("order after the loss: %v", ran)
				}
				if st := s.Status(); st.InFlight != 0 || st.Keys != 0 {
					t.Errorf("left over: %+v", st)
				}
			}, edit("order", func(p *core.Policy) { p.Order = core.ByKey }))
		})
	}
}

// The handler ends while the extension that finds the loss is on its way: its ack must
// not follow, since the message is somebody else's by then.
func TestNothingIsSettledAfterItsLeaseWasLost(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.caps.Lease = time.Hour
	lose := loseLeases(1)
	f.onSettle = func(batch []driver.Settlement) error {
		f.mu.Unlock()
		time.Sleep(time.Second)
		f.mu.Lock()
		return lose(batch)
	}
	h := func(context.Context, *core.Delivery) error { time.Sleep(1500 * time.Millisecond); return nil }
	bubble(t, f, h, func(s *core.Consumer) {
		f.push(leased("m1", "", 2*time.Second))
		time.Sleep(time.Minute)
		if st := s.Status(); st.InFlight != 0 || st.Totals.LeaseLost != 1 {
			t.Errorf("status %+v", st)
		}
	})
	if final, _ := f.settlements(); len(final) != 0 {
		t.Errorf("settled %v", final)
	}
}

// While a partition is paused for its span a Receive waits with a Demand that says so.
// The same partition under a new epoch is not paused, and the Receive must learn it.
func TestAPausedPartitionThatComesAgainIsAskedFor(t *testing.T) {
	t.Parallel()
	const span = 1 << 16
	f := newFake(driver.UpTo)
	var handled atomic.Int32
	h := func(ctx context.Context, d *core.Delivery) error {
		if d.ID == "stuck" {
			<-ctx.Done()
			return ctx.Err()
		}
		if d.ID == "after" {
			handled.Add(1)
		}
		return nil
	}
	bubble(t, f, h, func(s *core.Consumer) {
		f.push(msg("stuck", ""))
		batch := make([]driver.Received, span)
		for i := range batch {
			batch[i] = msg("m", "")
		}
		f.push(batch...)
		time.Sleep(time.Minute)
		if st := s.Status(); !st.Partitions[0].Paused {
			t.Fatalf("not paused: %+v", st.Partitions)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		f.sub.Revoke(ctx, []string{""})
		f.mu.Lock()
		f.ready, f.epoch = nil, 2
		f.mu.Unlock()
		f.sub.Assigned(driver.Assignment{Epoch: 2})
		f.push(msg("after", ""))
		time.Sleep(time.Minute)
		if handled.Load() != 1 {
			t.Error("the partition is not asked for under its new epoch")
		}
	}, edit("p", func(p *core.Policy) { p.MaxInFlight = 4096 }))
}

// An adapter's Close may revoke under a lease without a deadline. It must not wait for a
// handler that has been given up.
func TestCloseDoesNotWaitForAnAbandonedHandler(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.onClose = func(context.Context) { f.sub.Revoke(context.Background(), []string{""}) }
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		s, err := c.Start(t.Context(), in, func(context.Context, *core.Delivery) error { time.Sleep(time.Hour); return nil },
			edit("drain", func(p *core.Policy) { p.DrainTimeout = time.Second }))
		if err != nil {
			t.Fatal(err)
		}
		f.push(msg("m1", ""))
		time.Sleep(time.Second)
		start := time.Now()
		if err := s.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
		_ = c.Close(context.Background())
		time.Sleep(2 * time.Hour) // the handler returns
		if final, _ := f.settlements(); len(final) != 0 {
			t.Errorf("settled %v", final)
		}
	})
}

// What the engine itself publishes is no handler that may be abandoned: it ends with the
// subscription.
func TestADeadLetterUnderWayEndsWithTheDrain(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.onPublish = func(driver.Destination, []*driver.Message) error {
		return driver.Errorf("publish", driver.Transient, "down")
	}
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		s, err := c.Start(t.Context(), in, func(context.Context, *core.Delivery) error { return core.Permanent(nil) },
			edit("p", func(p *core.Policy) { p.DrainTimeout, p.DeadLetter = time.Second, core.Queue("dlq") }))
		if err != nil {
			t.Fatal(err)
		}
		f.push(msg("m1", ""))
		time.Sleep(time.Second)
		if err := s.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		if st := s.Status(); st.Running != 0 || st.Totals.Abandoned != 0 {
			t.Errorf("after the end: %+v", st)
		}
		if final, _ := f.settlements(); len(final) != 1 || final[0].Disposition != driver.Return {
			t.Errorf("settled %v", final)
		}
		_ = c.Close(context.Background())
	})
}

// With -race: a revoke may look for the attempt's context while it is being made.
func TestRevokeWhileAnAttemptWithATimeoutStarts(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	c := client(f)
	_, err := c.Start(t.Context(), in, func(context.Context, *core.Delivery) error { return nil },
		edit("timeout", func(p *core.Policy) { p.Timeout = time.Minute }))
	if err != nil {
		t.Fatal(err)
	}
	lost, cancel := context.WithCancel(t.Context())
	cancel()
	for range 300 {
		f.push(msg("a", ""), msg("b", ""), msg("c", ""), msg("d", ""))
		f.sub.Revoke(lost, []string{""})
		f.mu.Lock()
		f.epoch++
		epoch := f.epoch
		f.mu.Unlock()
		f.sub.Assigned(driver.Assignment{Epoch: epoch})
	}
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
