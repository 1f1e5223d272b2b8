package core_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// A handler that publishes and then says Ignore is done with the message, although what it
// published is dropped: its id is marked, and a second copy is a duplicate.
func TestDedupMarksWhatIsIgnoredAfterAPublish(t *testing.T) {
	t.Parallel()
	dedupModes(t, func(t *testing.T, mode driver.SettleMode, order core.Order) {
		f, k := newFake(mode), newKeeper()
		ran := 0
		h := func(_ context.Context, d *core.Delivery) error {
			ran++
			d.Publish(core.Queue("out"), &core.Message{Body: []byte("b")})
			return core.Ignore(errors.New("not for us"))
		}
		bubble(t, f, h, func(s *core.Consumer) {
			for range 2 {
				f.push(msg("a", "k"))
				time.Sleep(time.Second)
			}
			if got := k.told(); ran != 1 || got != "claim, done, claim" || s.Status().Totals.Duplicates != 1 {
				t.Errorf("ran %d times; the store was asked %s; %+v", ran, got, s.Status().Totals)
			}
			if n := len(f.sent("out")); n != 0 {
				t.Errorf("%d messages of an ignored attempt were published", n)
			}
		}, deduping(k, func(p *core.Policy) { p.Order = order }))
	})
}

// An attempt that was cut short by the drain goes back untried whatever its handler makes of
// it. Were its id marked, the next owner would take it for a duplicate, and it would be lost.
func TestDedupDoesNotMarkWhatGoesBack(t *testing.T) {
	t.Parallel()
	dedupModes(t, func(t *testing.T, mode driver.SettleMode, order core.Order) {
		f, k := newFake(mode), newKeeper()
		h := func(ctx context.Context, _ *core.Delivery) error {
			<-ctx.Done()
			return core.Ignore(ctx.Err())
		}
		bubble(t, f, h, func(s *core.Consumer) {
			f.push(msg("a", "k"))
			time.Sleep(time.Second)
			if err := s.Drain(context.Background()); err != nil {
				t.Error(err)
			}
			for _, x := range f.settled {
				if x.Disposition == driver.Ack {
					t.Errorf("it was acknowledged: %+v", x)
				}
			}
			if _, state := claims(t, k.DedupStore, "in", "a", time.Minute); state != "ours" {
				t.Errorf("for the next owner it is %s", state)
			}
		}, deduping(k, func(p *core.Policy) { p.Order, p.DrainTimeout = order, time.Second }))
	})
}

// What the handler published is refused for good, so the message halts its key. ReplayKey runs
// the handler again: it must not find a claim of our own, which we would extend for ever.
func TestDedupOfAHaltedKeyFreesItsClaim(t *testing.T) {
	t.Parallel()
	f, k := newFake(driver.Each), newKeeper()
	var refused atomic.Bool
	refused.Store(true)
	f.onPublish = func(driver.Destination, []*driver.Message) error {
		if refused.Load() {
			return driver.Errorf("publish", driver.TooLarge, "too large")
		}
		return nil
	}
	ran := 0
	h := func(_ context.Context, d *core.Delivery) error {
		ran++
		d.Publish(core.Queue("out"), &core.Message{Body: []byte("b")})
		return nil
	}
	bubble(t, f, h, func(s *core.Consumer) {
		f.push(msg("a", "k"))
		time.Sleep(time.Second)
		if keys := s.Keys(0); len(keys) != 1 || keys[0].State != "halted" {
			t.Fatalf("%+v", keys)
		}
		refused.Store(false)
		if err := s.ReplayKey("k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if st := s.Status(); ran != 2 || st.InFlight != 0 || len(f.sent("out")) != 1 {
			t.Errorf("ran %d times, %+v; the store was asked %s", ran, st, k.told())
		}
	}, deduping(k, func(p *core.Policy) { p.Order, p.AfterTerminal = core.ByKey, core.HaltKey }))
}

// hungStore says nothing until ctx ends.
type hungStore struct{ *keeper }

func (s hungStore) Claim(ctx context.Context, _ string, _ [32]byte, _ time.Duration) (string, time.Duration, error) {
	<-ctx.Done()
	return "", 0, ctx.Err()
}

// The time of an attempt is the handler's: a store that hangs uses up none of it, and is
// noticed whatever the timeout is.
func TestDedupStoreThatHangsUsesUpNoAttempt(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		f, o := newFake(driver.Each), &signals{}
		f.observe = o
		ran := 0
		var left time.Duration
		h := func(ctx context.Context, _ *core.Delivery) error {
			ran++
			end, _ := ctx.Deadline()
			left = time.Until(end)
			return ctx.Err()
		}
		bubble(t, f, h, func(s *core.Consumer) {
			f.push(msg("a", ""))
			time.Sleep(time.Minute)
			want := map[bool]int{true: 1}[open]
			if st := s.Status(); ran != want || st.InFlight != 1-want || st.Totals.Failed != 0 {
				t.Errorf("open %v: ran %d times, %+v", open, ran, st)
			}
			if n := o.count(core.SignalDedupDown); n != 1 {
				t.Errorf("open %v: %d signals", open, n)
			}
			if open && left != time.Second {
				t.Errorf("%v of the attempt were left", left)
			}
		}, deduping(hungStore{newKeeper()}, func(p *core.Policy) { p.Timeout, p.Dedup.FailOpen = time.Second, open }))
	}
}

// A key function that ends its goroutine (t.FailNow does) is a failed attempt, and not the end
// of the process.
func TestDedupKeyThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	f, k := newFake(driver.Each), newKeeper()
	asked, ran := 0, 0
	key := func(d *core.Delivery) string {
		if asked++; asked == 1 {
			runtime.Goexit()
		}
		return d.ID
	}
	bubble(t, f, func(context.Context, *core.Delivery) error { ran++; return nil }, func(s *core.Consumer) {
		f.push(msg("a", ""))
		time.Sleep(time.Second)
		if st := s.Status(); ran != 1 || st.Totals.Failed != 1 || st.InFlight != 0 {
			t.Errorf("ran %d times, %+v", ran, st)
		}
	}, deduping(k, func(p *core.Policy) { p.Dedup.Key = key }))
}

// deafStore claims, and then says nothing until ctx ends.
type deafStore struct{ *keeper }

func (s deafStore) Extend(ctx context.Context, _ string, _ [32]byte, _ string, _ time.Duration) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s deafStore) Release(ctx context.Context, _ string, _ [32]byte, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// A store that hangs holds up the end of a subscription for one call and not for one of every
// claim, nor for a third of a lease.
func TestDedupStoreThatHangsAtTheEnd(t *testing.T) {
	t.Parallel()
	f, k := newFake(driver.UpTo), newKeeper()
	f.onPublish = func(driver.Destination, []*driver.Message) error {
		return driver.Errorf("publish", driver.Denied, "not yet")
	}
	h := func(_ context.Context, d *core.Delivery) error {
		d.Publish(core.Queue("out"), &core.Message{Body: []byte("b")})
		return nil
	}
	for name, wait := range map[string]time.Duration{"frees claims": time.Second, "extends claims": 5*time.Minute + time.Second} {
		bubble(t, f, h, func(s *core.Consumer) {
			for i := range 50 {
				f.push(msg(fmt.Sprint(name, i), ""))
			}
			time.Sleep(wait) // their publishes are tried again, and the claims are kept
			began := time.Now()
			if err := s.Drain(context.Background()); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s: the end took %v", name, took)
			}
		}, deduping(deafStore{k}, func(p *core.Policy) { p.Dedup.Lease, p.DrainTimeout = 15*time.Minute, time.Second }))
		f.closed = false
	}
}

// farStore takes its time over an extension.
type farStore struct{ *keeper }

func (s farStore) Extend(ctx context.Context, scope string, id [32]byte, token string, lease time.Duration) error {
	time.Sleep(20 * time.Millisecond)
	return s.keeper.Extend(ctx, scope, id, token, lease)
}

// The claims of many handlers are all extended in time, by a store that is far away, too.
func TestDedupExtendsTheClaimsOfMany(t *testing.T) {
	t.Parallel()
	const many = 400
	f, k := newFake(driver.Each), newKeeper()
	h := func(context.Context, *core.Delivery) error { time.Sleep(time.Minute); return nil }
	bubble(t, f, h, func(s *core.Consumer) {
		for i := range many {
			f.push(msg(fmt.Sprint(i), ""))
		}
		time.Sleep(50 * time.Second)
		lost := 0
		for i := range many {
			if token, _, err := k.DedupStore.Claim(t.Context(), "in", hash(fmt.Sprint(i)), time.Minute); token != "" || err != nil {
				lost++
			}
		}
		if st := s.Status(); lost > 0 || st.Running != many {
			t.Errorf("%d of %d claims were lost while their handlers ran", lost, st.Running)
		}
		time.Sleep(time.Minute)
	}, deduping(farStore{k}, func(p *core.Policy) {
		p.Concurrency, p.MaxInFlight, p.Dedup.Lease = many, many, 3*time.Second
	}))
}

// A store whose driver panics is one that does not answer: the message waits for it and the
// process goes on, whichever goroutine of the engine had asked.
func TestDedupStoreThatPanicsIsDown(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"claim", "extend", "done", "release"} {
		dedupModes(t, func(t *testing.T, mode driver.SettleMode, order core.Order) {
			f, k := newFake(mode), newKeeper()
			k.broken(func(what string) error {
				if what == call {
					panic("nil pointer in the driver of " + call)
				}
				return nil
			})
			var ran atomic.Int64
			h := func(context.Context, *core.Delivery) error {
				time.Sleep(2 * time.Second) // two extensions of a lease of 3 s
				if ran.Add(1) == 1 {
					return errors.New("once") // releases the claim
				}
				return nil
			}
			bubble(t, f, h, func(s *core.Consumer) {
				f.push(msg("a", "k"))
				time.Sleep(10 * time.Second)
				if call == "claim" && ran.Load() != 0 {
					t.Errorf("the handler ran %d times before the store said whether it may", ran.Load())
				}
				k.broken(nil)
				time.Sleep(20 * time.Second)
				final, _ := f.settlements()
				if got := s.Status().Totals; ran.Load() != 2 || len(final) != 1 || final[0].Disposition != driver.Ack || got.MarksLost != map[bool]int64{true: 1}[call == "done"] {
					t.Errorf("%s: the handler ran %d times, settled %v, %+v", call, ran.Load(), final, got)
				}
			}, deduping(k, func(p *core.Policy) { p.Order, p.Dedup.Lease = order, 3*time.Second }))
		})
	}
}
