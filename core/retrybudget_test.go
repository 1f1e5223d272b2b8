package core_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func budget(perSecond, percent, attempts int) core.Layer {
	return edit("budget", func(p *core.Policy) {
		p.RetryBudget = core.RetryBudgetPolicy{PerSecond: perSecond, Percent: percent}
		p.Order, p.Concurrency = core.ByKey, 1000
		p.MaxInFlight = 1000
		p.Exhausted = core.ExhaustedDiscard
		p.SetRetry(core.RetryPolicy{Base: 100 * time.Millisecond, Cap: time.Second, Attempts: attempts, Jitter: core.NoJitter})
	})
}

// Everything fails for a minute, 300 messages of 300 keys. Left alone they would try 300 times
// a second; with a budget of ten it is ten, whatever there is, and a second's worth at first.
// Nothing is given up for it: an attempt that waits is no attempt.
func TestRetryBudgetBoundsAllRetriesTogether(t *testing.T) {
	t.Parallel()
	const n, down = 300, time.Minute
	for _, mode := range []driver.SettleMode{driver.Each, driver.UpTo} {
		f := newFake(mode)
		o := &signals{}
		f.observe = o
		var mu sync.Mutex
		again := map[int]int{} // second: retries
		most, done := 0, 0
		var begun time.Time
		h := func(_ context.Context, d *core.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			at := time.Since(begun)
			if d.Attempt > 1 {
				again[int(at/time.Second)]++
			}
			most = max(most, d.Attempt)
			if at < down {
				return errors.New("the oven is cold")
			}
			done++
			return nil
		}
		bubble(t, f, h, func(s *core.Consumer) {
			begun = time.Now()
			for i := range n {
				f.push(msg(fmt.Sprint("m", i), fmt.Sprint("k", i)))
			}
			time.Sleep(3 * down)
			if st := s.Status(); done != n || st.InFlight != 0 || st.Totals.Discarded != 0 || st.Totals.PutOff < n {
				t.Errorf("mode %v: %d done, %+v", mode, done, st)
			}
		}, budget(10, 0, 8))
		total := 0
		for second, got := range again {
			if total += got; got > 20 || second > 0 && got > 10 {
				t.Errorf("mode %v: %d retries in second %d", mode, got, second)
			}
		}
		if total < n || most > 5 {
			t.Errorf("mode %v: %d retries, up to %d attempts", mode, total, most)
		}
		if got := o.count(core.SignalRetryBudget); got != 1 {
			t.Errorf("mode %v: %d signals, want 1: it stayed dry", mode, got)
		}
	}
}

// One message in two fails once. What succeeds pays for what does not: with 100 % nothing
// waits for the budget, with 10 % most of it does.
func TestRetryBudgetGrowsWithSuccess(t *testing.T) {
	t.Parallel()
	const n = 1000
	putOff := func(percent int) int64 {
		f := newFake(driver.Each)
		var total int64
		h := func(_ context.Context, d *core.Delivery) error {
			if d.Attempt == 1 && d.Key[len(d.Key)-1]%2 == 0 {
				return errors.New("the oven is cold")
			}
			return nil
		}
		bubble(t, f, h, func(s *core.Consumer) {
			for i := range n { // a hundred a second
				f.push(msg(fmt.Sprint("m", i), fmt.Sprint("k", i)))
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(10 * time.Minute)
			st := s.Status()
			if total = st.Totals.PutOff; st.InFlight != 0 || st.Totals.Handled != n+n/2 {
				t.Errorf("%d %%: %+v", percent, st)
			}
		}, budget(1, percent, 3))
		return total
	}
	if got := putOff(100); got != 0 {
		t.Errorf("with 100 %%, %d of %d retries waited", got, n/2)
	}
	// A second brings 50 retries; 1 and 10 % of the 100 that succeed are allowed.
	if got := putOff(10); got < 300 {
		t.Errorf("with 10 %%, only %d of %d retries waited", got, n/2)
	}
}

func TestRetryBudgetRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, b := range []core.RetryBudgetPolicy{{PerSecond: -1}, {PerSecond: 1_000_001}, {Percent: 10}, {PerSecond: 1, Percent: 101}, {PerSecond: 1, Percent: -1}} {
		c := core.NewClient(newFake(driver.Each), core.Options{})
		_, err := c.Start(t.Context(), core.Subscription{From: core.Queue("in")}, func(context.Context, *core.Delivery) error { return nil },
			edit("budget", func(p *core.Policy) { p.RetryBudget = b }))
		if !errors.Is(err, core.ErrPermanent) {
			t.Errorf("%+v: %v", b, err)
		}
	}
}
