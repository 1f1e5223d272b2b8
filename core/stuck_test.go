package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func stuck(p core.StuckPolicy, more func(*core.Policy)) core.Layer {
	return edit("stuck", func(to *core.Policy) {
		to.Stuck = p
		if more != nil {
			more(to)
		}
	})
}

func TestStuckRunIsReportedOnceAndCancelled(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	o := &signals{}
	f.observe = o
	var causes []error
	bubble(t, f, func(ctx context.Context, d *core.Delivery) error {
		if d.Attempt > 1 {
			return nil
		}
		<-ctx.Done()
		causes = append(causes, context.Cause(ctx))
		return ctx.Err()
	}, func(s *core.Consumer) {
		f.push(msg("m1", "a"), msg("m2", "a"))
		time.Sleep(15 * time.Second)
		if n := o.count(core.SignalStuck); n != 1 {
			t.Errorf("%d warnings after 15 s, want 1", n)
		}
		time.Sleep(10 * time.Minute)
		if st := s.Status(); st.InFlight != 0 || st.Totals.Failed != 2 {
			t.Errorf("left: %+v", st)
		}
	}, stuck(core.StuckPolicy{Warn: 10 * time.Second, Cancel: time.Minute}, func(p *core.Policy) {
		p.Order = core.ByKey
		p.SetRetry(core.RetryPolicy{Base: time.Second, Jitter: core.NoJitter})
	}))
	if len(causes) != 2 || !errors.Is(causes[0], core.ErrStuck) {
		t.Errorf("causes %v, want ErrStuck for each message", causes)
	}
	if n := o.count(core.SignalStuck); n != 4 { // warned and cancelled, twice
		t.Errorf("%d signals, want 4", n)
	}
}

// A handler that ignores even its cancelled context loses its slot and keeps its key.
func TestAbandonedRunFreesItsSlotAndHoldsItsKey(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.SettleMode{driver.Each, driver.UpTo} {
		f := newFake(mode)
		release := make(chan struct{})
		var d diary
		bubble(t, f, func(ctx context.Context, m *core.Delivery) error {
			err := d.handle(ctx, m)
			if m.ID == "a1" {
				<-release
			}
			return err
		}, func(s *core.Consumer) {
			release = make(chan struct{})
			f.push(msg("a1", "a"), msg("a2", "a"), msg("b1", "b"), msg("b2", "b"))
			time.Sleep(time.Minute)
			ran := d.take()
			if want := []string{"a1", "b1", "b2"}; !slices.Equal(ran, want) {
				t.Errorf("%v: ran %v, want %v: one slot, given away", mode, ran, want)
			}
			if st := s.Status(); st.Totals.Abandoned != 1 || st.Running != 0 {
				t.Errorf("%v: %+v", mode, st)
			}
			close(release)
			time.Sleep(time.Minute)
			ran = d.take()
			if st := s.Status(); !slices.Equal(ran, []string{"a2"}) || st.InFlight != 0 || st.Running != 0 {
				t.Errorf("%v: after it returned: ran %v, %+v", mode, ran, st)
			}
		}, stuck(core.StuckPolicy{Cancel: 5 * time.Second, Abandon: 5 * time.Second}, func(p *core.Policy) {
			p.Order, p.Concurrency = core.ByKey, 1
		}))
	}
}

// Drain and Close do not wait for an abandoned run; its message stays with the broker.
func TestDrainWithAnAbandonedRun(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	release := make(chan struct{})
	bubble(t, f, func(context.Context, *core.Delivery) error { <-release; return nil }, func(s *core.Consumer) {
		release = make(chan struct{})
		f.push(msg("a1", "a"))
		time.Sleep(time.Minute)
		start := time.Now()
		do(t, s.Drain(context.Background()))
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("the drain took %v", took)
		}
		close(release)
		time.Sleep(time.Second)
	}, stuck(core.StuckPolicy{Cancel: time.Second, Abandon: time.Second}, nil))
	if final, _ := f.settlements(); len(final) > 0 {
		t.Errorf("settled after its end: %v", final)
	}
}

func TestTooManyAbandonedRunsFailTheSubscription(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	release := make(chan struct{})
	bubble(t, f, func(context.Context, *core.Delivery) error { <-release; return nil }, func(s *core.Consumer) {
		release = make(chan struct{})
		for i := range 10 {
			f.push(msg(fmt.Sprint("m", i), ""))
		}
		time.Sleep(time.Minute)
		select {
		case <-s.Done():
		default:
			t.Error("goes on losing goroutines")
		}
		if err := s.Wait(); err == nil {
			t.Error("ended without an error")
		}
		close(release)
		time.Sleep(time.Second)
	}, stuck(core.StuckPolicy{Cancel: time.Second, Abandon: time.Second}, func(p *core.Policy) { p.Concurrency = 2 }))
}

// A gap is passed only where that is asked for, by way of the dead letter, and only for
// a gain: messages done behind it.
func TestGapIsSkippedOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		hang bool // the handler never returns, instead of failing
		skip time.Duration
		more int // messages behind
		want int // dead letters
	}{
		"retried for ever":    {skip: 2 * time.Minute, more: 3, want: 1},
		"hangs":               {hang: true, skip: 2 * time.Minute, more: 3, want: 1},
		"nothing behind":      {skip: 2 * time.Minute},
		"not asked":           {more: 3},
		"hangs and not asked": {hang: true, more: 3},
	} {
		f := newFake(driver.UpTo)
		o := &signals{}
		f.observe = o
		release := make(chan struct{})
		bubble(t, f, func(_ context.Context, d *core.Delivery) error {
			switch {
			case d.ID != "m0":
				return nil
			case tc.hang:
				<-release
				return nil
			}
			return errors.New("no")
		}, func(s *core.Consumer) {
			release = make(chan struct{})
			f.push(msg("m0", "a"))
			for i := range tc.more {
				f.push(msg(fmt.Sprint("m", i+1), fmt.Sprint("k", i)))
			}
			time.Sleep(10 * time.Minute)
			if n := len(f.sent("dlq")); n != tc.want || s.Status().Totals.GapsSkipped != int64(tc.want) || o.count(core.SignalGapSkipped) != tc.want {
				t.Errorf("%s: %d dead letters, %+v", name, n, s.Status().Totals)
			}
			final, _ := f.settlements()
			if passed := len(final) > 0 && final[len(final)-1].Receipt.Seq == int64(tc.more+1); passed != (tc.want > 0) {
				t.Errorf("%s: position %v", name, final)
			}
			close(release)
			time.Sleep(time.Second)
		}, stuck(core.StuckPolicy{Cancel: 10 * time.Second, Abandon: 10 * time.Second, GapSkip: tc.skip}, func(p *core.Policy) {
			p.Order, p.DeadLetter = core.ByKey, core.Queue("dlq")
			p.SetRetry(core.RetryPolicy{Base: time.Second, Cap: 5 * time.Second})
		}))
	}
}

func TestStuckPoliciesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]core.Layer{
		"abandon without cancel":  stuck(core.StuckPolicy{Abandon: 1}, nil),
		"gap without dead letter": stuck(core.StuckPolicy{GapSkip: 1}, nil),
		"negative":                stuck(core.StuckPolicy{Cancel: -1}, nil),
	} {
		if _, err := client(newFake(driver.UpTo)).Start(t.Context(), in, (&diary{}).handle, l); !errors.Is(err, core.ErrPermanent) {
			t.Errorf("%s: %v", name, err)
		}
	}
	gap := stuck(core.StuckPolicy{GapSkip: 1}, func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") })
	if _, err := client(newFake(driver.Each)).Start(t.Context(), in, (&diary{}).handle, gap); !errors.Is(err, core.ErrUnsupported) {
		t.Errorf("a gap where there is no position: %v", err)
	}
}

// A handler that outlives its Revoke may run beside the next owner's: that is counted and
// said, never hidden. A hand-over in time counts nothing.
func TestOverlapIsCounted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		ignores time.Duration
		lost    bool
		want    int64
	}{{"in time", 0, false, 0}, {"outlives it", 10 * time.Second, false, 1}, {"lost", 10 * time.Second, true, 1}} {
		f := newFake(driver.UpTo)
		o := &signals{}
		f.observe = o
		bubble(t, f, func(context.Context, *core.Delivery) error { time.Sleep(time.Second + tc.ignores); return nil }, func(s *core.Consumer) {
			f.push(msg("m1", "a"))
			time.Sleep(500 * time.Millisecond)
			ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
			defer cancel()
			if tc.lost {
				cancel()
			}
			f.sub.Revoke(ctx, []string{""})
			if n := s.Status().Totals.Overlaps; n != tc.want || o.count(core.SignalOverlap) != int(tc.want) {
				t.Errorf("%s: %d overlaps, %d signals, want %d", tc.name, n, o.count(core.SignalOverlap), tc.want)
			}
			time.Sleep(time.Minute)
		})
	}
}
