package core_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func client(f *fake) *core.Client {
	return core.NewClient(f, core.Options{Logger: quiet, Observer: f.observe})
}

func edit(name string, f func(*core.Policy)) core.Layer {
	return core.Layer{Name: name, Edit: func(p *core.Policy) error { f(p); return nil }}
}

var in = core.Subscription{From: core.Queue("in")}

// bubble runs a consumer of f in fake time and drains it after act.
func bubble(t *testing.T, f *fake, h core.Handler, act func(s *core.Consumer), layers ...core.Layer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1) // a channel of the bubble
		c := client(f)
		s, err := c.Start(t.Context(), in, h, layers...)
		if err != nil {
			t.Fatal(err)
		}
		act(s)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestEveryMessageIsHandledAndAckedOnce(t *testing.T) {
	t.Parallel()
	for _, order := range []core.Order{core.Unordered, core.ByKey} {
		t.Run(order.String(), func(t *testing.T) {
			t.Parallel()
			f := newFake(driver.Each)
			var mu sync.Mutex
			seen := map[string]int{}
			h := func(_ context.Context, d *core.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				seen[d.ID]++
				return nil
			}
			bubble(t, f, h, func(*core.Consumer) {
				for i := range 1000 {
					f.push(msg(fmt.Sprint("m", i), fmt.Sprint("k", i%10)))
				}
				time.Sleep(time.Second)
				final, _ := f.settlements()
				if len(final) != 1000 {
					t.Errorf("%d settled, want 1000", len(final))
				}
			}, edit("order", func(p *core.Policy) { p.Order = order }))
			for id, n := range seen {
				if n != 1 {
					t.Errorf("%s handled %d times", id, n)
				}
			}
			if len(seen) != 1000 {
				t.Errorf("%d handled, want 1000", len(seen))
			}
		})
	}
}

func TestKeyOrderHoldsThroughRetries(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	var mu sync.Mutex
	last, running, tries := map[string]int{}, map[string]bool{}, map[string]int{}
	h := func(_ context.Context, d *core.Delivery) error {
		mu.Lock()
		if running[d.Key] {
			t.Errorf("key %s runs twice at once", d.Key)
		}
		running[d.Key] = true
		tries[d.ID]++
		try := tries[d.ID]
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		running[d.Key] = false
		var n int
		if _, err := fmt.Sscanf(string(d.Body), d.Key+"-%d", &n); err != nil {
			t.Error(err)
		}
		if n != last[d.Key]+1 {
			t.Errorf("key %s: %d after %d", d.Key, n, last[d.Key])
		}
		if n%7 == 0 && try < 3 {
			return errors.New("transient")
		}
		last[d.Key] = n
		return nil
	}
	bubble(t, f, h, func(*core.Consumer) {
		for n := 1; n <= 50; n++ {
			for k := range 8 {
				key := fmt.Sprint("k", k)
				f.push(msg(fmt.Sprintf("%s-%d", key, n), key))
			}
		}
		time.Sleep(time.Hour)
	}, edit("order", func(p *core.Policy) { p.Order = core.ByKey }))
	for k, n := range last {
		if n != 50 {
			t.Errorf("key %s ended at %d", k, n)
		}
	}
}

func TestLogCommitsOnlyThePrefix(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	release := make(chan struct{})
	h := func(ctx context.Context, d *core.Delivery) error {
		if d.ID == "m3" {
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		f.wake, release = make(chan struct{}, 1), make(chan struct{})
		c := client(f)
		if _, err := c.Start(t.Context(), in, h); err != nil {
			t.Fatal(err)
		}
		for i := 1; i <= 10; i++ {
			f.push(msg(fmt.Sprint("m", i), ""))
		}
		time.Sleep(time.Second)
		final, _ := f.settlements()
		if got := final[len(final)-1].Receipt.Seq; got != 2 {
			t.Errorf("committed up to %d with 3 unfinished", got)
		}
		close(release)
		time.Sleep(time.Second)
		final, _ = f.settlements()
		if got := final[len(final)-1].Receipt.Seq; got != 10 {
			t.Errorf("committed up to %d, want 10", got)
		}
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestDeadLetterAfterAttempts(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.SettleMode{driver.Each, driver.UpTo} {
		f := newFake(mode)
		var attempts []int
		h := func(_ context.Context, d *core.Delivery) error {
			attempts = append(attempts, d.Attempt)
			d.Body[0] = 'X' // must not leak
			d.Headers = append(d.Headers, core.Header{Key: "leak", Value: "1"})
			return errors.New("line one\nline two")
		}
		bubble(t, f, h, func(*core.Consumer) {
			f.push(msg("m1", "k"))
			time.Sleep(time.Hour)
		}, edit("retry", func(p *core.Policy) {
			p.SetRetry(core.RetryPolicy{Attempts: 3})
			p.DeadLetter = core.Queue("dlq")
		}))
		if fmt.Sprint(attempts) != "[1 2 3]" {
			t.Errorf("%v: attempts %v", mode, attempts)
		}
		dead := f.sent("dlq")
		if len(dead) != 1 {
			t.Fatalf("%v: %d dead letters", mode, len(dead))
		}
		m := dead[0]
		if string(m.Body) != "m1" || m.Key != "k" || m.ID != "m1" {
			t.Errorf("%v: record %+v", mode, m)
		}
		for k, want := range map[string]string{
			driver.HeaderAttempts: "3", driver.HeaderFailureReason: "exhausted",
			driver.HeaderError: `line one\nline two`, driver.HeaderSource: "queue in",
		} {
			if got, _ := m.Header(k); got != want {
				t.Errorf("%v: header %s = %q, want %q", mode, k, got, want)
			}
		}
		if _, ok := m.Header("leak"); ok {
			t.Errorf("%v: a failed attempt's header leaked", mode)
		}
		final, _ := f.settlements()
		if len(final) != 1 {
			t.Errorf("%v: settled %v", mode, final)
		}
	}
}

func TestDeadLetterFailureKeepsTheOriginal(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	down := true
	f.onPublish = func(driver.Destination, []*driver.Message) error {
		if down {
			return driver.Errorf("publish", driver.NotFound, "no such queue")
		}
		return nil
	}
	bubble(t, f, func(context.Context, *core.Delivery) error { return core.Permanent(errors.New("bad")) },
		func(*core.Consumer) {
			f.push(msg("m1", ""))
			time.Sleep(time.Minute)
			if final, _ := f.settlements(); len(final) != 0 {
				t.Errorf("settled while the dead letter was down: %v", final)
			}
			f.mu.Lock()
			down = false
			f.mu.Unlock()
			time.Sleep(10 * time.Minute)
			final, _ := f.settlements()
			if len(final) != 1 || final[0].Disposition != driver.Reject {
				t.Errorf("settled %v", final)
			}
		}, edit("dlq", func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") }))
	if n := len(f.sent("dlq")); n != 1 {
		t.Errorf("%d copies", n)
	}
}

func TestDrainCancelsAtTheDeadlineAndReturns(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	var cause error
	h := func(ctx context.Context, _ *core.Delivery) error {
		<-ctx.Done()
		cause = context.Cause(ctx)
		return ctx.Err()
	}
	var took time.Duration
	bubble(t, f, h, func(s *core.Consumer) {
		f.push(msg("m1", ""))
		time.Sleep(time.Second)
		start := time.Now()
		if err := s.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		took = time.Since(start)
	}, edit("drain", func(p *core.Policy) { p.DrainTimeout = 5 * time.Second; p.DeadLetter = core.Queue("dlq") }))
	if !errors.Is(cause, core.ErrDrained) {
		t.Errorf("cause %v", cause)
	}
	if took < 5*time.Second || took > 5500*time.Millisecond {
		t.Errorf("drain took %v", took)
	}
	final, _ := f.settlements()
	if len(final) != 1 || final[0].Disposition != driver.Return {
		t.Errorf("settled %v, want one return", final)
	}
	if len(f.sent("dlq")) != 0 {
		t.Error("a cancelled message was dead-lettered")
	}
}

func TestLeaseIsExtendedWhileRunningAndWhileQueued(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.caps.Lease = time.Hour
	h := func(context.Context, *core.Delivery) error { time.Sleep(10 * time.Second); return nil }
	bubble(t, f, h, func(*core.Consumer) {
		for i := range 2 {
			m := msg(fmt.Sprint("m", i), "")
			m.Deadline = time.Now().Add(2 * time.Second)
			f.push(m)
		}
		time.Sleep(30 * time.Second)
		_, extends := f.settlements()
		per := map[int64]int{}
		for _, e := range extends {
			per[e.Receipt.Seq]++
		}
		// The second waits 10 s for the one worker and runs 10 s.
		if per[1] < 8 || per[2] < 16 {
			t.Errorf("extensions per message: %v", per)
		}
	}, edit("one", func(p *core.Policy) { p.Concurrency = 1 }))
}

func TestHandlerPublishesOnlyAfterSuccess(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	n := 0
	h := func(_ context.Context, d *core.Delivery) error {
		n++
		d.Publish(core.Topic("out"), &core.Message{Body: fmt.Appendf(nil, "try %d", n)})
		if n == 1 {
			return errors.New("once")
		}
		return nil
	}
	bubble(t, f, h, func(*core.Consumer) {
		f.push(msg("m1", ""))
		time.Sleep(time.Hour)
	})
	out := f.sent("out")
	if len(out) != 1 || string(out[0].Body) != "try 2" {
		t.Errorf("published %d", len(out))
	}
}

func TestStaleEpochIsDropped(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	handled := 0
	bubble(t, f, func(context.Context, *core.Delivery) error { handled++; return nil }, func(*core.Consumer) {
		f.mu.Lock()
		f.ready = append(f.ready, driver.Received{Message: driver.Message{ID: "old"}, Receipt: driver.Receipt{Epoch: 99}})
		f.mu.Unlock()
		f.signal()
		time.Sleep(time.Second)
	})
	if final, _ := f.settlements(); handled != 0 || len(final) != 0 {
		t.Errorf("handled %d, settled %v", handled, final)
	}
}

func TestRevokeWaitsForTheRunningAndDropsTheRest(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	started := 0
	h := func(context.Context, *core.Delivery) error { started++; time.Sleep(3 * time.Second); return nil }
	bubble(t, f, h, func(*core.Consumer) {
		f.push(msg("m1", "k"), msg("m2", "k"), msg("m3", "k"))
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		start := time.Now()
		f.sub.Revoke(ctx, []string{""})
		if took := time.Since(start); took < 2*time.Second || took > 2200*time.Millisecond {
			t.Errorf("revoke took %v, want the 2 s that were left", took)
		}
		final, _ := f.settlements()
		if len(final) != 1 || final[0].Receipt.Seq != 1 {
			t.Errorf("settled %v, want up to 1", final)
		}
		time.Sleep(time.Minute)
	}, edit("order", func(p *core.Policy) { p.Order = core.ByKey }))
	if started != 1 {
		t.Errorf("%d started", started)
	}
}

func TestHaltStopsWithoutPassingTheMessage(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		h := func(_ context.Context, d *core.Delivery) error {
			if d.ID == "m2" {
				return core.Permanent(errors.New("cannot"))
			}
			return nil
		}
		s, err := c.Start(t.Context(), in, h, edit("one", func(p *core.Policy) { p.Concurrency = 1 }))
		if err != nil {
			t.Fatal(err)
		}
		f.push(msg("m1", ""), msg("m2", ""), msg("m3", ""))
		err = s.Wait()
		if err == nil || !strings.Contains(err.Error(), "DeadLetter") {
			t.Errorf("error %v names no way out", err)
		}
		final, _ := f.settlements()
		if len(final) != 1 || final[0].Receipt.Seq != 1 {
			t.Errorf("settled %v, want up to 1", final)
		}
		_ = c.Close(context.Background())
	})
}

func TestUnreadableWithoutADeadLetterHalts(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		s, err := c.Start(t.Context(), in, func(context.Context, *core.Delivery) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		bad := msg("m1", "")
		bad.Err = errors.New("not a record")
		f.push(bad, msg("m2", ""))
		if err := s.Wait(); err == nil || !strings.Contains(err.Error(), "not a record") {
			t.Errorf("error %v", err)
		}
		if final, _ := f.settlements(); len(final) != 0 {
			t.Errorf("settled %v: passed an unreadable record", final)
		}
		_ = c.Close(context.Background())
	})
}

// TestDrainReturnsByItsDeadline although a handler ignores its context and the broker
// does not answer.
func TestDrainReturnsByItsDeadline(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		release := make(chan struct{})
		s, err := c.Start(t.Context(), in, func(context.Context, *core.Delivery) error { <-release; return nil })
		if err != nil {
			t.Fatal(err)
		}
		f.push(msg("m1", ""))
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		err = s.Drain(ctx)
		if took := time.Since(start); took > 2500*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("drain took %v: %v", took, err)
		}
		<-s.Done()
		if st := s.Status(); st.Totals.Abandoned != 1 {
			t.Errorf("abandoned %d", st.Totals.Abandoned)
		}
		if final, _ := f.settlements(); len(final) != 0 {
			t.Errorf("settled %v", final)
		}
		close(release)
		_ = c.Close(context.Background())
	})
}
