package core_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// onReceiver reports whether its caller, a handler, runs in the receiver's goroutine.
func onReceiver() bool {
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "(*Consumer).serve") {
			return true
		}
		if !more {
			return false
		}
	}
}

// quick lets a consumer learn that its handlers are quick: in fake time they take none.
func quick(f *fake) {
	for i := range 200 {
		f.push(msg(fmt.Sprint("quick", i), fmt.Sprint("k", i%7)))
		time.Sleep(10 * time.Microsecond)
	}
}

func TestReceiverServesQuickHandlersOnly(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]time.Duration{"quick": 0, "slow": 3 * time.Microsecond} {
		for _, mode := range []driver.SettleMode{driver.Each, driver.UpTo} {
			for _, order := range []core.Order{core.Unordered, core.ByKey} {
				f := newFake(mode)
				var served, handled atomic.Int32
				bubble(t, f, func(context.Context, *core.Delivery) error {
					handled.Add(1)
					if onReceiver() {
						served.Add(1)
					}
					time.Sleep(run)
					return nil
				}, func(*core.Consumer) {
					quick(f)
					time.Sleep(time.Second)
				}, edit("order", func(p *core.Policy) { p.Order = order }))
				if n := handled.Load(); n != 200 {
					t.Errorf("%s %s %s: %d handled, want 200", name, mode, order, n)
				}
				if n := served.Load(); run == 0 && n < 100 || run > 0 && n > 0 {
					t.Errorf("%s %s %s: the receiver ran %d of 200", name, mode, order, n)
				}
			}
		}
	}
}

// One that was quick for long waits: the receiver runs it, and all the others must go on
// as if it did not.
func TestReceiverThatIsHeldUpIsRelieved(t *testing.T) {
	t.Parallel()
	for _, order := range []core.Order{core.Unordered, core.ByKey} {
		f := newFake(driver.UpTo)
		release := make(chan struct{})
		var handled, served atomic.Int32
		bubble(t, f, func(_ context.Context, d *core.Delivery) error {
			if d.ID == "waits" {
				if !onReceiver() {
					t.Errorf("%s: the message that waits was not served: this test shows nothing", order)
				}
				<-release
				return nil
			}
			handled.Add(1)
			if onReceiver() {
				served.Add(1)
			}
			return nil
		}, func(s *core.Consumer) {
			release = make(chan struct{}) // a channel of the bubble
			quick(f)
			handled.Store(0)
			f.push(msg("waits", "w"), msg("behind", "b"), msg("next", "w"))
			time.Sleep(20 * time.Millisecond)
			f.push(msg("later", "l"))
			synctest.Wait()
			want := int32(3)
			if order == core.ByKey {
				want = 2 // "next" waits for its key
			}
			if n := handled.Load(); n != want {
				t.Errorf("%s: %d others handled beside one that waits, want %d", order, n, want)
			}
			served.Store(0)
			for i := range 100 {
				f.push(msg(fmt.Sprint("rest", i), "r"))
				synctest.Wait()
			}
			if n := served.Load(); n > 0 {
				t.Errorf("%s: %d served right after the receiver was held up", order, n)
			}
			close(release)
			time.Sleep(time.Second)
			quick(f)
			if served.Load() == 0 {
				t.Errorf("%s: nothing served a second later", order)
			}
			if st := s.Status(); st.InFlight != 0 {
				t.Errorf("%s: left: %+v", order, st)
			}
		}, edit("order", func(p *core.Policy) { p.Order = order }))
	}
}

// With one slot the receiver that serves has it, and a worker must not start beside it.
func TestServedRunsCountAgainstConcurrency(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	var now, most, handled atomic.Int32
	bubble(t, f, func(_ context.Context, d *core.Delivery) error {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		handled.Add(1)
		if strings.HasPrefix(d.ID, "long") {
			time.Sleep(time.Second)
		}
		return nil
	}, func(*core.Consumer) {
		for i := range 5 {
			quick(f)
			f.push(msg(fmt.Sprint("long", i), "a"), msg(fmt.Sprint("long", i, "b"), "b"))
			time.Sleep(500 * time.Millisecond) // the receiver may serve again, were there a slot
			quick(f)
			time.Sleep(5 * time.Second)
		}
	}, edit("one", func(p *core.Policy) { p.Concurrency = 1 }))
	if most.Load() != 1 || handled.Load() != 2010 {
		t.Errorf("%d at once and %d handled, want 1 and 2010", most.Load(), handled.Load())
	}
}

func TestServedHandlerMayUnwindItsGoroutine(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, 50 * time.Millisecond} { // as the receiver, or relieved before
		f := newFake(driver.UpTo)
		var exits, handled atomic.Int32
		bubble(t, f, func(_ context.Context, d *core.Delivery) error {
			if strings.HasPrefix(d.ID, "exit") && d.Attempt == 1 {
				exits.Add(1)
				if !onReceiver() {
					t.Error("the handler that exits was not served: this test shows nothing")
				}
				time.Sleep(wait)
				runtime.Goexit()
			}
			handled.Add(1)
			return nil
		}, func(s *core.Consumer) {
			for i := range 3 {
				quick(f)
				f.push(msg(fmt.Sprint("exit", i), "e"), msg(fmt.Sprint("behind", i), "e"))
				time.Sleep(10 * time.Second)
			}
			if st := s.Status(); st.InFlight != 0 || st.Totals.Failed != 3 {
				t.Errorf("left: %+v", st)
			}
		}, edit("order", func(p *core.Policy) { p.Order = core.ByKey }))
		if exits.Load() != 3 || handled.Load() != 606 {
			t.Errorf("%d exits, %d handled, want 3 and 606", exits.Load(), handled.Load())
		}
	}
}

// A drain whose receiver sits in a handler: it is relieved, cancelled when the time is up,
// and what did not run goes back.
func TestDrainRelievesAReceiverThatServes(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	var cause error
	bubble(t, f, func(ctx context.Context, d *core.Delivery) error {
		if d.ID != "waits" {
			return nil
		}
		<-ctx.Done()
		cause = context.Cause(ctx)
		return ctx.Err()
	}, func(s *core.Consumer) {
		quick(f)
		f.push(msg("waits", "w"))
		synctest.Wait()
		start := time.Now()
		if err := s.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("drained after %v, want a minute", took)
		}
	}, edit("drain", func(p *core.Policy) { p.DrainTimeout = time.Minute }))
	if cause == nil || cause.Error() != core.ErrDrained.Error() {
		t.Errorf("the handler ended because of %v, want ErrDrained", cause)
	}
	final, _ := f.settlements()
	if last := final[len(final)-1]; len(final) != 201 || last.Disposition != driver.Return {
		t.Errorf("%d settled, the last one as %v; want 201, Return", len(final), last.Disposition)
	}
}

// The slot of a served run that is abandoned comes back with its handler, and only once.
func TestServedRunIsAbandonedAsAnyOther(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	release := make(chan struct{})
	var beside atomic.Int32
	bubble(t, f, func(_ context.Context, d *core.Delivery) error {
		if strings.HasPrefix(d.ID, "deaf") {
			<-release
		}
		if strings.HasPrefix(d.ID, "long") {
			beside.Add(1)
			time.Sleep(10 * time.Second)
		}
		return nil
	}, func(s *core.Consumer) {
		release = make(chan struct{}) // a channel of the bubble
		quick(f)
		f.push(msg("deaf", "d"))
		time.Sleep(2 * time.Minute)
		if n := s.Status().Totals.Abandoned; n != 1 {
			t.Errorf("%d abandoned, want 1", n)
		}
		close(release)
		synctest.Wait()
		for i := range 4 {
			f.push(msg(fmt.Sprint("long", i), fmt.Sprint("l", i)))
		}
		time.Sleep(time.Second)
		if n := beside.Load(); n != 2 {
			t.Errorf("%d run at once afterwards, want 2", n)
		}
		time.Sleep(time.Minute)
	}, edit("two", func(p *core.Policy) {
		p.Concurrency = 2
		p.Stuck = core.StuckPolicy{Cancel: 10 * time.Second, Abandon: 10 * time.Second}
	}))
}

// What publishes waits for a broker: others receive meanwhile, were it ever so quick before.
//
//nolint:paralleltest // it counts goroutines
func TestReceptionGoesOnWhileAServedMessageIsPublished(t *testing.T) {
	others := runtime.NumGoroutine() // of tests that wait for their turn
	for _, kind := range []string{"publishes", "broken", "poison"} {
		f := newFake(driver.UpTo)
		f.publishes = time.Minute
		var handled atomic.Int32
		bubble(t, f, func(_ context.Context, d *core.Delivery) error {
			handled.Add(1)
			switch d.ID {
			case "publishes":
				d.Publish(core.Queue("out"), &core.Message{Body: []byte("x")})
			case "poison":
				return core.Permanent(errors.New("no"))
			}
			return nil
		}, func(s *core.Consumer) {
			quick(f)
			for round := range 60 {
				handled.Store(0)
				m := msg(kind, "b")
				if kind == "broken" {
					m.Err = errors.New("unreadable")
				}
				f.push(m)
				quick(f)
				if n := handled.Load(); n < 200 {
					t.Errorf("%s %d: %d handled while one is published, want 200", kind, round, n)
				}
				time.Sleep(2 * time.Minute)
			}
			if st := s.Status(); st.InFlight != 0 || st.Running != 0 {
				t.Errorf("%s: left: %+v", kind, st)
			}
			if n := runtime.NumGoroutine() - others; n > 55 {
				t.Errorf("%s: %d goroutines", kind, n)
			}
		}, edit("dead", func(p *core.Policy) { p.DeadLetter = core.Queue("dead") }))
	}
}

// A served run that halts the subscription: nothing behind it starts.
func TestNothingIsServedBehindAHalt(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	var behind atomic.Int32
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1) // a channel of the bubble
		c := client(f)
		s, err := c.Start(t.Context(), in, func(_ context.Context, d *core.Delivery) error {
			switch {
			case d.ID == "halts" && !onReceiver():
				t.Error("the message that halts was not served: this test shows nothing")
				fallthrough
			case d.ID == "halts":
				return core.Permanent(errors.New("no"))
			case strings.HasPrefix(d.ID, "behind"):
				behind.Add(1)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		quick(f)
		batch := []driver.Received{msg("halts", "h")}
		for i := range 50 {
			batch = append(batch, msg(fmt.Sprint("behind", i), "b"))
		}
		f.push(batch...)
		if err := s.Wait(); err == nil {
			t.Error("the subscription ended without an error")
		}
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if n := behind.Load(); n > 0 {
		t.Errorf("%d handled behind the message that halted", n)
	}
}

// Quick as a rule, and waiting now and then: most of the time workers run it, so that the
// waits are side by side.
func TestHandlerThatWaitsNowAndThenRunsSideBySide(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{time.Millisecond, 3 * time.Millisecond, 30 * time.Millisecond} {
		f := newFake(driver.UpTo)
		var handled, waits atomic.Int32
		bubble(t, f, func(context.Context, *core.Delivery) error {
			if handled.Add(1)%20 == 0 {
				waits.Add(1)
				time.Sleep(wait)
			}
			return nil
		}, func(*core.Consumer) {
			quick(f)
			time.Sleep(time.Second)
			handled.Store(0)
			waits.Store(0)
			start := time.Now()
			batch := make([]driver.Received, 10_000)
			for i := range batch {
				batch[i] = msg(fmt.Sprint("m", i), "")
			}
			f.push(batch...)
			for handled.Load() < 10_000 {
				time.Sleep(100 * time.Microsecond)
			}
			took, alone := time.Since(start), time.Duration(waits.Load())*wait
			if took > alone/8 {
				t.Errorf("waits of %v, %v of them in all, took %v by 16 workers", wait, alone, took)
			}
		}, edit("wide", func(p *core.Policy) { p.Concurrency, p.MaxInFlight = 16, 4096 }))
	}
}
