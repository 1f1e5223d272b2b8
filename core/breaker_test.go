package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func breaking(failures int, openFor time.Duration, workers int) core.Layer {
	return edit("breaker", func(p *core.Policy) {
		p.Breaker = core.BreakerPolicy{Failures: failures, OpenFor: openFor}
		p.Order, p.Concurrency = core.ByKey, workers
		p.SetRetry(core.RetryPolicy{Base: time.Millisecond, Jitter: core.NoJitter})
	})
}

// A dependency is down for a minute: five attempts find out, then one after 10 s, 20 s and
// 40 s, and the last of these finds it up again. Nothing is asked of the broker meanwhile.
func TestBreakerStopsWhatOnlyFails(t *testing.T) {
	t.Parallel()
	const n = 100
	f := newFake(driver.Each)
	o := &signals{}
	f.observe = o
	var mu sync.Mutex
	var starts []time.Duration
	place := map[string]int{}
	var begun time.Time
	h := func(_ context.Context, d *core.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		at := time.Since(begun)
		starts = append(starts, at)
		if at < time.Minute {
			return errors.New("the oven is cold")
		}
		var k, i int
		if _, err := fmt.Sscanf(d.ID, "m%d.%d", &k, &i); err != nil || place[d.Key] != i {
			t.Errorf("%s came at place %d of its key", d.ID, place[d.Key])
		}
		place[d.Key]++
		return nil
	}
	bubble(t, f, h, func(s *core.Consumer) {
		begun = time.Now()
		for i := range n {
			f.push(msg(fmt.Sprintf("m%d.%d", i%10, i/10), fmt.Sprint("k", i%10)))
		}
		time.Sleep(5 * time.Second)
		if st := s.Status(); st.State != "running" || st.BreakerUntil.Sub(begun).Round(time.Second) != 10*time.Second {
			t.Errorf("after 5 s: %+v", st)
		}
		before := s.Status().Totals.Received
		f.push(msg("m0.10", "k0"))
		time.Sleep(4 * time.Second)
		if got := s.Status().Totals.Received; got != before {
			t.Errorf("%d messages were received while the breaker was open", got-before)
		}
		time.Sleep(2 * time.Minute)
		if st := s.Status(); st.InFlight != 0 || !st.BreakerUntil.IsZero() || st.Totals.Handled != 5+2+n+1 {
			t.Errorf("in the end: %+v", st)
		}
	}, breaking(5, 10*time.Second, 1))
	for i, want := range []time.Duration{0, 0, 0, 0, 0, 10 * time.Second, 30 * time.Second, 70 * time.Second, 70 * time.Second} {
		if got := starts[i].Round(time.Second); got != want {
			t.Errorf("attempt %d at %v, want %v", i+1, got, want)
		}
	}
	if opened, closed := o.count(core.SignalBreakerOpen), o.count(core.SignalBreakerClosed); opened != 3 || closed != 1 {
		t.Errorf("opened %d times, closed %d times", opened, closed)
	}
}

// Attempts that run when it opens change nothing, and after the opening one runs alone.
func TestBreakerTriesOneAttempt(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	var mu sync.Mutex
	running, most, began := 0, 0, 0
	var begun time.Time
	h := func(context.Context, *core.Delivery) error {
		mu.Lock()
		running++
		began++
		if time.Since(begun) > 5*time.Second {
			most = max(most, running)
		}
		mu.Unlock()
		time.Sleep(time.Second)
		mu.Lock()
		running--
		mu.Unlock()
		return errors.New("no")
	}
	bubble(t, f, h, func(*core.Consumer) {
		begun = time.Now()
		for i := range 40 {
			f.push(msg(fmt.Sprint("m", i), fmt.Sprint("k", i)))
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		// 16 at 0 s, two more as the first two of them end at 1 s, one at 11 s and one at 32 s.
		if began != 16+2+2 || most != 1 {
			t.Errorf("%d attempts, at most %d at once after the opening", began, most)
		}
	}, breaking(3, 10*time.Second, 16), edit("drain", func(p *core.Policy) { p.DrainTimeout = -1 }))
}

// An attempt that has hung since before the opening does not keep the next one from being
// made.
func TestBreakerDoesNotWaitForWhatHangs(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	began := 0
	h := func(ctx context.Context, d *core.Delivery) error {
		if d.ID == "hangs" {
			<-ctx.Done()
			return ctx.Err()
		}
		if began++; began > 3 {
			return nil
		}
		return errors.New("no")
	}
	bubble(t, f, h, func(s *core.Consumer) {
		f.push(msg("hangs", "h"))
		time.Sleep(time.Second)
		for i := range 10 {
			f.push(msg(fmt.Sprint("m", i), fmt.Sprint("k", i)))
		}
		time.Sleep(20 * time.Second)
		if st := s.Status(); st.InFlight != 1 || !st.BreakerUntil.IsZero() {
			t.Errorf("%+v", st)
		}
	}, breaking(3, 10*time.Second, 2), edit("drain", func(p *core.Policy) { p.DrainTimeout = -1 }))
}

// What says nothing about a dependency does not open it.
func TestBreakerStaysClosed(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]func(i int) error{
		"a success between": func(i int) error {
			if i%3 == 2 {
				return nil
			}
			return errors.New("no")
		},
		"permanent": func(int) error { return core.Permanent(errors.New("never")) },
		"ignored":   func(int) error { return core.Ignore(errors.New("so what")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(driver.Each)
			o := &signals{}
			f.observe = o
			i := 0
			bubble(t, f, func(context.Context, *core.Delivery) error { i++; return h(i) }, func(s *core.Consumer) {
				for i := range 50 {
					f.push(msg(fmt.Sprint("m", i), fmt.Sprint("k", i)))
				}
				time.Sleep(time.Minute)
				if st := s.Status(); st.InFlight != 0 {
					t.Errorf("left: %+v", st)
				}
			}, breaking(3, time.Hour, 1), edit("dead", func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") }))
			if n := o.count(core.SignalBreakerOpen); n != 0 {
				t.Errorf("opened %d times", n)
			}
		})
	}
}

func TestBreakerThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]core.BreakerPolicy{
		"neither may be negative":  {Failures: -1},
		"nor the time":             {Failures: 1, OpenFor: 8 * 24 * time.Hour},
		"OpenFor without Failures": {OpenFor: time.Second},
	} {
		_, err := client(newFake(driver.Each)).DescribeSubscription(in, edit("b", func(to *core.Policy) { to.Breaker = p }))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Breaker") {
			t.Errorf("%+v: %v", p, err)
		}
	}
}
