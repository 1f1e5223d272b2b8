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

func TestPauseKeepsTheConnectionAndResumeLosesNothing(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	var mu sync.Mutex
	handled := 0
	count := func() int { mu.Lock(); defer mu.Unlock(); return handled }
	h := func(context.Context, *core.Delivery) error { mu.Lock(); handled++; mu.Unlock(); return nil }
	bubble(t, f, h, func(s *core.Consumer) {
		time.Sleep(time.Second)
		s.Pause()
		time.Sleep(time.Second)
		f.push(msg("m1", ""), msg("m2", ""))
		time.Sleep(time.Minute)
		if count() != 0 || s.Status().State != "paused" {
			t.Errorf("handled %d while %s", count(), s.Status().State)
		}
		f.mu.Lock()
		last := f.demands[len(f.demands)-1]
		f.mu.Unlock()
		if len(last.Paused) != 1 {
			t.Errorf("demand %+v does not pause the partition", last)
		}
		s.Resume()
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		if count() != 2 {
			t.Errorf("handled %d after resume", count())
		}
	})
}

func TestLimitChangesWhileRunning(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	var mu sync.Mutex
	running, peak := 0, 0
	h := func(context.Context, *core.Delivery) error {
		mu.Lock()
		running++
		peak = max(peak, running)
		mu.Unlock()
		time.Sleep(time.Second)
		mu.Lock()
		running--
		mu.Unlock()
		return nil
	}
	reset := func() (was int) { mu.Lock(); defer mu.Unlock(); was, peak = peak, 0; return was }
	bubble(t, f, h, func(s *core.Consumer) {
		for i := range 500 {
			f.push(msg(fmt.Sprint("m", i), ""))
		}
		for _, step := range []struct{ limit, want int }{{0, 8}, {2, 2}, {20, 20}, {1, 1}, {5, 5}} {
			if step.limit > 0 {
				s.SetLimit(step.limit)
				time.Sleep(1500 * time.Millisecond) // what already runs may finish
				reset()
			}
			time.Sleep(5 * time.Second)
			if got := reset(); got != step.want {
				t.Errorf("limit %d: %d ran at once, want %d", step.limit, got, step.want)
			}
			if st := s.Status(); st.InFlight > max(step.limit, step.want) {
				t.Errorf("limit %d: %d in flight", step.limit, st.InFlight)
			}
		}
	}, edit("limits", func(p *core.Policy) { p.MaxInFlight, p.Concurrency = 8, 100 }))
}

func TestBudgetInBytes(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	release := make(chan struct{})
	synctest.Test(t, func(t *testing.T) {
		f.wake, release = make(chan struct{}, 1), make(chan struct{})
		c := client(f)
		s, err := c.Start(t.Context(), in, func(context.Context, *core.Delivery) error { <-release; return nil },
			edit("bytes", func(p *core.Policy) { p.MaxInFlightBytes = 1000 }))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		f.mu.Lock()
		first := f.demands[0]
		f.mu.Unlock()
		if first.Bytes != 1000 {
			t.Errorf("demand of %d bytes", first.Bytes)
		}
		big := msg("big", "")
		big.Body = make([]byte, 5000) // a larger one comes alone
		f.push(big)
		time.Sleep(time.Second)
		f.push(msg("m2", ""))
		time.Sleep(time.Minute)
		if st := s.Status(); st.InFlight != 1 || st.InFlightBytes != 5000 {
			t.Errorf("status %+v", st)
		}
		close(release)
		time.Sleep(time.Second)
		if final, _ := f.settlements(); len(final) != 2 {
			t.Errorf("settled %v", final)
		}
		_ = c.Close(context.Background())
	})
}

func TestRunDrainsAllWhenOneFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := newFake(driver.Each), newFake(driver.Each)
		a.wake, b.wake = make(chan struct{}, 1), make(chan struct{}, 1)
		c := client(&fake{})
		_ = c
		two := core.NewClient(&pair{"a": a, "b": b}, core.Options{Logger: quiet})
		cause := errors.New("enough")
		bind := func(name string, h core.Handler) core.Binding {
			return core.Binding{Subscription: core.Subscription{From: core.Queue(name)}, Handler: h}
		}
		go func() { time.Sleep(time.Minute); a.push(msg("m1", "")) }()
		err := two.Run(t.Context(),
			bind("a", func(context.Context, *core.Delivery) error { return core.Halt(cause) }),
			bind("b", func(context.Context, *core.Delivery) error { return nil }))
		if !errors.Is(err, cause) || !a.closed || !b.closed {
			t.Errorf("error %v, closed %v %v", err, a.closed, b.closed)
		}
		_ = two.Close(context.Background())
	})
}

// pair is one driver with a fake behind each name.
type pair map[string]*fake

func (p *pair) Capabilities(to driver.Destination) driver.Capabilities {
	return (*p)[to.Name].Capabilities(to)
}

func (p *pair) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	return (*p)[to.Name].Publish(ctx, to, batch)
}

func (p *pair) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	return (*p)[sub.From.Name].Subscribe(ctx, sub)
}
func (p *pair) Admin() driver.Admin         { return nil }
func (p *pair) Close(context.Context) error { return nil }

func TestHealthFollowsProgress(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		_, err := c.Start(t.Context(), in, func(ctx context.Context, _ *core.Delivery) error { <-ctx.Done(); return ctx.Err() })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if h := c.Health(); !h.Ready {
			t.Errorf("idle: %v", h.Reasons)
		}
		f.push(msg("m1", ""))
		time.Sleep(2 * time.Minute)
		if h := c.Health(); h.Ready {
			t.Error("ready although the one message has been stuck for 2 minutes")
		}
		c.Notify(core.Event{Kind: driver.Blocked})
		if h := c.Health(); len(h.Reasons) != 2 {
			t.Errorf("reasons %v", h.Reasons)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx)
		if h := c.Health(); h.Ready {
			t.Error("ready after Close")
		}
	})
}

// recorder counts what an Observer is told.
type recorder struct {
	mu                            sync.Mutex
	published, attempted, settled int
	outcomes                      map[string]int
	signals                       map[core.SignalKind]int
}

func (r *recorder) Published(i core.PublishInfo) {
	r.mu.Lock()
	r.published += i.Messages
	r.mu.Unlock()
}
func (r *recorder) Settled(i core.SettleInfo) { r.mu.Lock(); r.settled += i.Entries; r.mu.Unlock() }
func (r *recorder) Attempted(_ *core.Delivery, i core.AttemptInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempted++
	if r.outcomes == nil {
		r.outcomes = map[string]int{}
	}
	r.outcomes[i.Outcome]++
}

func (r *recorder) Signalled(s core.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.signals == nil {
		r.signals = map[core.SignalKind]int{}
	}
	r.signals[s.Kind] += s.Count
}

func TestObserverIsToldEverything(t *testing.T) {
	t.Parallel()
	f, r := newFake(driver.Each), &recorder{}
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := core.NewClient(f, core.Options{Logger: quiet, Observer: r})
		h := func(_ context.Context, d *core.Delivery) error {
			switch d.ID {
			case "bad":
				return core.Permanent(errors.New("bad"))
			case "skip":
				return core.Ignore(nil)
			}
			return nil
		}
		if _, err := c.Start(t.Context(), in, h, edit("dlq", func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") })); err != nil {
			t.Fatal(err)
		}
		f.push(msg("a", ""), msg("bad", ""), msg("skip", ""))
		if err := c.Publish(t.Context(), core.Queue("out"), batchOf("x", "y")...); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		_ = c.Close(context.Background())
	})
	if r.published != 2 || r.attempted != 3 || r.settled != 3 || r.signals[core.SignalDeadLettered] != 1 ||
		r.outcomes["ack"] != 1 || r.outcomes["dead-letter"] != 1 || r.outcomes["ignored"] != 1 {
		t.Errorf("told %+v", r)
	}
}

func TestHealthRemembersASubscriptionThatFailed(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		var halt atomic.Bool
		halt.Store(true)
		h := func(context.Context, *core.Delivery) error {
			if halt.Load() {
				return core.Halt(errors.New("enough"))
			}
			return nil
		}
		s, err := c.Start(t.Context(), in, h)
		if err != nil {
			t.Fatal(err)
		}
		f.push(msg("m1", ""))
		_ = s.Wait()
		if got := c.Health(); got.Ready {
			t.Error("ready although its only subscription has failed")
		}
		halt.Store(false)
		f.closed = false
		if s, err = c.Start(t.Context(), in, h); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := c.Health(); !got.Ready {
			t.Errorf("started again, and still %v", got.Reasons)
		}
		_ = s.Drain(context.Background())
		_ = c.Close(context.Background())
	})
}

func TestADueHeaderIsNothingWhereNobodyDelays(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	var handled atomic.Int32
	bubble(t, f, func(context.Context, *core.Delivery) error { handled.Add(1); return nil }, func(*core.Consumer) {
		m := msg("m1", "")
		m.Headers = []core.Header{{Key: driver.HeaderDue, Value: time.Now().Add(time.Hour).Format(time.RFC3339Nano)}}
		f.push(m)
		time.Sleep(time.Second)
		if n := handled.Load(); n != 1 {
			t.Errorf("handled %d times: a header of a stranger holds up the log", n)
		}
	})
}
