package core_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// While the broker takes no commits there is one per partition to send again, not one for
// each time the watermark moved.
func TestCommitsDoNotPileUp(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	down, longest := true, 0
	f.onSettle = func(batch []driver.Settlement) error {
		longest = max(longest, len(batch))
		if down {
			return driver.Errorf("settle", driver.Transient, "down")
		}
		return nil
	}
	bubble(t, f, func(context.Context, *core.Delivery) error { return nil }, func(*core.Consumer) {
		for i := range 100 {
			f.push(msg(fmt.Sprint("m", i), ""))
			time.Sleep(3 * time.Second)
		}
		f.mu.Lock()
		down = false
		f.mu.Unlock()
		time.Sleep(time.Minute)
	})
	final, _ := f.settlements()
	if longest != 1 || final[len(final)-1].Receipt.Seq != 100 {
		t.Errorf("up to %d entries in one call, committed %v", longest, final)
	}
}

// The limit rises while more messages are here than the old one let start, and nobody is
// parked: what a Receive returned that was cancelled to lower the limit.
func TestARaisedLimitStartsWhatIsHere(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	var running atomic.Int32
	f.onCancel = func() (out []driver.Received) {
		for i := range 5 {
			m := msg(fmt.Sprint("late", i), "")
			m.Receipt = driver.Receipt{Epoch: 1, Seq: int64(100 + i)}
			out = append(out, m)
		}
		f.onCancel = nil
		return out
	}
	h := func(ctx context.Context, _ *core.Delivery) error {
		running.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}
	bubble(t, f, h, func(s *core.Consumer) {
		f.push(msg("m1", ""))
		time.Sleep(time.Second)
		s.SetLimit(1)
		time.Sleep(time.Second)
		s.SetLimit(6)
		time.Sleep(time.Second)
		if n := running.Load(); n != 6 {
			t.Errorf("%d run, want 6", n)
		}
	}, edit("p", func(p *core.Policy) { p.MaxInFlight, p.DrainTimeout = 6, time.Second }))
}

// The end of ctx lets the loop body end what it does.
func TestMessagesLetsTheBodyEnd(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		f.push(msg("m0", ""), msg("m1", ""))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := 0
		for d, err := range c.Messages(ctx, in) {
			if err != nil {
				t.Fatal(err)
			}
			if seen++; seen == 1 {
				continue // never settled
			}
			cancel()
			time.Sleep(time.Second)
			if err := d.Ack(); err != nil {
				t.Errorf("ack after the end of ctx: %v", err)
			}
		}
		final, _ := f.settlements()
		got := map[driver.Disposition]int{}
		for _, e := range final {
			got[e.Disposition]++
		}
		if seen != 2 || got[driver.Ack] != 1 || got[driver.Return] != 1 {
			t.Errorf("saw %d, settled %v", seen, got)
		}
		_ = c.Close(context.Background())
	})
}

func TestTheStackIsThatOfTheLastFailure(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	runs := 0
	h := func(context.Context, *core.Delivery) error {
		if runs++; runs == 1 {
			panic("boom")
		}
		return core.Permanent(errors.New("something else"))
	}
	bubble(t, f, h, func(*core.Consumer) {
		f.push(msg("m1", ""))
		time.Sleep(time.Hour)
	}, edit("p", func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") }))
	dead := f.sent("dlq")
	if len(dead) != 1 {
		t.Fatalf("%d dead letters", len(dead))
	}
	if stack, ok := dead[0].Header(driver.HeaderStack); ok {
		t.Errorf("the record of a plain error has a stack: %.60s", stack)
	}
}

func TestMaxElapsedHoldsWhereTheBrokerCounts(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.caps.Counts, f.caps.NackDelay = true, time.Hour
	f.onSettle = func(batch []driver.Settlement) error {
		for _, e := range batch {
			if e.Disposition == driver.Nack {
				m := msg("m1", "")
				m.DeliveryCount = int(e.Receipt.Aux) + 2
				m.Receipt = driver.Receipt{Epoch: 1, Aux: e.Receipt.Aux + 1}
				f.ready = append(f.ready, m)
				f.signal()
			}
		}
		return nil
	}
	bubble(t, f, func(context.Context, *core.Delivery) error { return errors.New("no") }, func(*core.Consumer) {
		f.push(msg("m1", ""))
		time.Sleep(10 * time.Minute)
	}, edit("p", func(p *core.Policy) {
		p.SetRetry(core.RetryPolicy{MaxElapsed: time.Minute, Cap: 10 * time.Second, Jitter: core.NoJitter})
		p.DeadLetter = core.Queue("dlq")
	}))
	if n := len(f.sent("dlq")); n != 1 {
		t.Errorf("%d dead letters after ten minutes of failure, allowed was one minute", n)
	}
}

func TestPlacesForADeadLetterThatLoseMessages(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	f.caps.DeadLetter = true
	h := func(context.Context, *core.Delivery) error { return nil }
	_, err := client(f).Start(t.Context(), in, h, edit("p", func(p *core.Policy) { p.NativeDeadLetter = true }))
	if !errors.Is(err, core.ErrUnsupported) {
		t.Errorf("the native dead letter of a log, which never sees a Reject: %v", err)
	}
	sub := core.Subscription{From: core.Queue("in").Keyed(8)}
	_, err = client(f).Start(t.Context(), sub, h, edit("p", func(p *core.Policy) { p.DeadLetter = core.Queue("in") }))
	if !errors.Is(err, core.ErrPermanent) {
		t.Errorf("the source under another number of partitions as dead letter: %v", err)
	}
}

// The child of this test crashes by its policy. Its message must not be dead-lettered on
// the way down.
func TestACrashDrawsNoConclusion(t *testing.T) {
	t.Parallel()
	const env = "VARAL_TEST_CRASH"
	if os.Getenv(env) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestACrashDrawsNoConclusion$") //nolint:gosec // itself
		cmd.Env = append(os.Environ(), env+"=1")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "panic: boom") || !strings.Contains(string(out), "edges_test.go") || strings.Contains(string(out), "concluded") {
			t.Errorf("error %v, output %s", err, out)
		}
		return
	}
	f := newFake(driver.Each)
	f.onPublish = func(driver.Destination, []*driver.Message) error { fmt.Println("concluded"); return nil }
	_, err := client(f).Start(t.Context(), in, func(context.Context, *core.Delivery) error { panic("boom") },
		edit("p", func(p *core.Policy) {
			p.PanicCrashes, p.DeadLetter = true, core.Queue("dlq")
			p.SetRetry(core.RetryPolicy{Attempts: 1})
		}))
	if err != nil {
		t.Fatal(err)
	}
	f.push(msg("m1", ""))
	time.Sleep(time.Minute)
}

func TestACancelledHandlerMayEndByGoexit(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	bubble(t, f, func(ctx context.Context, _ *core.Delivery) error {
		<-ctx.Done()
		runtime.Goexit()
		return nil
	}, func(s *core.Consumer) {
		f.push(msg("m1", ""))
		time.Sleep(time.Second)
		_ = s.Drain(context.Background())
	}, edit("p", func(p *core.Policy) {
		p.DrainTimeout, p.DeadLetter = time.Second, core.Queue("dlq")
		p.SetRetry(core.RetryPolicy{Attempts: 1})
	}))
	final, _ := f.settlements()
	if n := len(f.sent("dlq")); n != 0 || len(final) != 1 || final[0].Disposition != driver.Return {
		t.Errorf("%d dead letters, settled %v: cancelled is not failed", n, final)
	}
}
