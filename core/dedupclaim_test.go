package core_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// keeper is a DedupStore that notes what it was asked, and fails where it is told to.
type keeper struct {
	core.DedupStore
	mu   sync.Mutex
	said []string
	fail func(what string) error // nil = never
}

func newKeeper() *keeper { return &keeper{DedupStore: core.NewMemoryDedup(0)} }

func (k *keeper) note(what string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail != nil {
		if err := k.fail(what); err != nil {
			k.said = append(k.said, what+" failed")
			return err
		}
	}
	k.said = append(k.said, what)
	return nil
}

// told returns what the store was asked, and forgets it.
func (k *keeper) told() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := strings.Join(k.said, ", ")
	k.said = nil
	return s
}

func (k *keeper) broken(fail func(what string) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = fail
}

func (k *keeper) Claim(ctx context.Context, scope string, id [32]byte, lease time.Duration) (string, time.Duration, error) {
	if err := k.note("claim"); err != nil {
		return "", 0, err
	}
	return k.DedupStore.Claim(ctx, scope, id, lease)
}

func (k *keeper) Extend(ctx context.Context, scope string, id [32]byte, token string, lease time.Duration) error {
	if err := k.note("extend"); err != nil {
		return err
	}
	return k.DedupStore.Extend(ctx, scope, id, token, lease)
}

func (k *keeper) Done(ctx context.Context, scope string, id [32]byte, token string, keep time.Duration) error {
	if err := k.note("done"); err != nil {
		return err
	}
	return k.DedupStore.Done(ctx, scope, id, token, keep)
}

func (k *keeper) Release(ctx context.Context, scope string, id [32]byte, token string) error {
	if err := k.note("release"); err != nil {
		return err
	}
	return k.DedupStore.Release(ctx, scope, id, token)
}

func deduping(store core.DedupStore, more ...func(*core.Policy)) core.Layer {
	return edit("dedup", func(p *core.Policy) {
		p.Dedup.Store = store
		p.Concurrency = 4
		p.SetRetry(core.RetryPolicy{Base: 100 * time.Millisecond, Jitter: core.NoJitter})
		for _, m := range more {
			m(p)
		}
	})
}

// dedupModes are a queue and a log, with and without order by key.
func dedupModes(t *testing.T, test func(t *testing.T, mode driver.SettleMode, order core.Order)) {
	t.Helper()
	for _, mode := range []driver.SettleMode{driver.Each, driver.UpTo} {
		for _, order := range []core.Order{core.Unordered, core.ByKey} {
			t.Run(fmt.Sprint(mode, order), func(t *testing.T) {
				t.Parallel()
				test(t, mode, order)
			})
		}
	}
}

// A message that has had its effect is acknowledged and not handled; one whose handler failed
// is handled again; one that another consumer works on waits for what becomes of it.
func TestDedupHandlesAnIDOnce(t *testing.T) {
	t.Parallel()
	dedupModes(t, func(t *testing.T, mode driver.SettleMode, order core.Order) {
		f, k := newFake(mode), newKeeper()
		var mu sync.Mutex
		ran := map[string]int{}
		h := func(_ context.Context, d *core.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			ran[d.ID]++
			if d.ID == "flaky" && ran[d.ID] == 1 {
				return errors.New("the oven is cold")
			}
			return nil
		}
		bubble(t, f, h, func(s *core.Consumer) {
			step := func(what string, id string, after time.Duration, runs int, told string) {
				t.Helper()
				f.push(msg(id, "k-"+id))
				time.Sleep(after)
				mu.Lock()
				defer mu.Unlock()
				if ran[id] != runs {
					t.Errorf("%s: ran %d times, want %d", what, ran[id], runs)
				}
				if got := k.told(); got != told {
					t.Errorf("%s: the store was asked %s, want %s", what, got, told)
				}
				if st := s.Status(); st.InFlight != 0 {
					t.Errorf("%s: %d in flight", what, st.InFlight)
				}
			}
			step("first", "a", time.Second, 1, "claim, done")
			step("again", "a", time.Second, 1, "claim")
			step("fails once", "flaky", time.Second, 2, "claim, release, claim, done")
			step("again", "flaky", time.Second, 2, "claim")
			token, _, err := k.DedupStore.Claim(t.Context(), "in", hash("b"), time.Minute)
			if err != nil || token == "" {
				t.Fatal(token, err)
			}
			f.push(msg("b", "k-b"))
			time.Sleep(59 * time.Second)
			if st := s.Status(); st.InFlight != 1 || st.Waiting != 1 || ran["b"] != 0 {
				t.Errorf("claimed by another: %+v, ran %d times", st, ran["b"])
			}
			k.told()
			told := "claim, done, claim" // the second copy waits in its lane
			if order == core.Unordered {
				told = "claim, " + told // or finds it claimed as well
			}
			step("claimed by another", "b", 2*time.Second, 1, told)
			if st := s.Status(); st.Totals.Duplicates != 3 || st.Totals.Handled != 4 || st.Totals.Failed != 1 {
				t.Errorf("totals: %+v", st.Totals)
			}
		}, deduping(k, func(p *core.Policy) { p.Order, p.Concurrency = order, 1 }))
	})
}

// The claim is extended for as long as the handler runs: nobody else gets the id.
func TestDedupExtendsTheClaimOfALongHandler(t *testing.T) {
	t.Parallel()
	f, k := newFake(driver.Each), newKeeper()
	h := func(context.Context, *core.Delivery) error { time.Sleep(95 * time.Second); return nil }
	bubble(t, f, h, func(*core.Consumer) {
		f.push(msg("a", ""))
		for range 9 {
			time.Sleep(10 * time.Second)
			if token, held, err := k.DedupStore.Claim(t.Context(), "in", hash("a"), time.Minute); token != "" || held <= 0 || err != nil {
				t.Fatalf("somebody else got it: %q %v %v", token, held, err)
			}
		}
		time.Sleep(10 * time.Second)
		if _, state := claims(t, k.DedupStore, "in", "a", time.Minute); state != "done" {
			t.Errorf("afterwards: %s", state)
		}
		if got := k.told(); got != "claim"+strings.Repeat(", extend", 9)+", done" {
			t.Errorf("the store was asked %s", got)
		}
	}, deduping(k, func(p *core.Policy) { p.Dedup.Lease = 30 * time.Second }))
}

// A store that does not answer says nothing about duplicates: nothing is handled, nothing
// acknowledged and no attempt counted until it answers. FailOpen handles meanwhile.
func TestDedupWaitsForItsStore(t *testing.T) {
	t.Parallel()
	dedupModes(t, func(t *testing.T, mode driver.SettleMode, order core.Order) {
		for _, open := range []bool{false, true} {
			f, k, o := newFake(mode), newKeeper(), &signals{}
			f.observe = o
			k.broken(func(string) error { return errors.New("connection refused") })
			ran, attempt := 0, 0
			h := func(_ context.Context, d *core.Delivery) error { ran++; attempt = d.Attempt; return nil }
			bubble(t, f, h, func(s *core.Consumer) {
				f.push(msg("a", "k"))
				time.Sleep(time.Minute)
				st := s.Status()
				if want := map[bool]int{true: 1}[open]; ran != want || st.InFlight != 1-want {
					t.Errorf("open %v: ran %d times, %+v", open, ran, st)
				}
				if st.Totals.Failed != 0 || st.Totals.Duplicates != 0 || st.Totals.DedupUnknown != int64(ran) {
					t.Errorf("open %v: %+v", open, st.Totals)
				}
				k.broken(nil)
				time.Sleep(10 * time.Second)
				if st = s.Status(); ran != 1 || attempt != 1 || st.InFlight != 0 {
					t.Errorf("open %v: it answers again: ran %d times, attempt %d, %+v", open, ran, attempt, st)
				}
				if got := o.count(core.SignalDedupDown); got != 1 {
					t.Errorf("open %v: %d signals", open, got)
				}
			}, deduping(k, func(p *core.Policy) { p.Order, p.Dedup.FailOpen = order, open }))
		}
	})
}

// What the handler publishes is a part of its effect: the id is marked after the confirm. A
// process that ends before runs it again; one that marked before would have lost it.
func TestDedupMarksAfterWhatTheHandlerPublished(t *testing.T) {
	t.Parallel()
	f, k := newFake(driver.Each), newKeeper()
	var down atomic.Bool
	down.Store(true)
	f.onPublish = func(driver.Destination, []*driver.Message) error {
		if down.Load() {
			return driver.Errorf("publish", driver.Transient, "no broker")
		}
		return k.note("published")
	}
	ran := 0
	h := func(_ context.Context, d *core.Delivery) error {
		ran++
		d.Publish(core.Queue("out"), &core.Message{Body: []byte("b")})
		return nil
	}
	bubble(t, f, h, func(s *core.Consumer) {
		f.push(msg("a", ""))
		time.Sleep(time.Minute)
		if _, state := claims(t, k.DedupStore, "in", "a", time.Minute); !strings.HasPrefix(state, "busy") {
			t.Errorf("while it is published: %s", state)
		}
		down.Store(false)
		time.Sleep(2 * time.Minute)
		if got := k.told(); ran != 1 || !strings.HasPrefix(got, "claim, extend") || !strings.HasSuffix(got, ", published, done") {
			t.Errorf("ran %d times; %s", ran, got)
		}
		if st := s.Status(); st.InFlight != 0 {
			t.Errorf("%+v", st)
		}
	}, deduping(k))
}

// A message that was handled and cannot be marked is acknowledged all the same.
func TestDedupAcksWhatItCannotMark(t *testing.T) {
	t.Parallel()
	for _, why := range []error{errors.New("connection refused"), core.ErrLeaseLost} {
		f, k, o := newFake(driver.Each), newKeeper(), &signals{}
		f.observe = o
		k.fail = func(what string) error {
			if what == "done" {
				return why
			}
			return nil
		}
		ran := 0
		bubble(t, f, func(context.Context, *core.Delivery) error { ran++; return nil }, func(s *core.Consumer) {
			f.push(msg("a", ""))
			time.Sleep(time.Minute)
			if st := s.Status(); ran != 1 || st.InFlight != 0 || st.Totals.MarksLost != 1 || o.count(core.SignalDedupMarkLost) != 1 {
				t.Errorf("%v: ran %d times, %+v", why, ran, st)
			}
		}, deduping(k))
	}
}

// A dead letter had no effect, so one that is sent again is handled; what the handler does not
// want had one.
func TestDedupOfWhatFailedForGood(t *testing.T) {
	t.Parallel()
	f, k := newFake(driver.Each), newKeeper()
	h := func(_ context.Context, d *core.Delivery) error {
		switch d.ID {
		case "poison":
			return core.Permanent(errors.New("no such pizza"))
		case "panics":
			panic("no such pizza")
		}
		return core.Ignore(errors.New("not for us"))
	}
	bubble(t, f, h, func(*core.Consumer) {
		f.push(msg("poison", ""), msg("panics", ""), msg("foreign", ""))
		time.Sleep(time.Minute)
		for id, want := range map[string]string{"poison": "ours", "panics": "ours", "foreign": "done"} {
			if _, state := claims(t, k.DedupStore, "in", id, time.Minute); state != want {
				t.Errorf("%s: %s, want %s", id, state, want)
			}
		}
		if got := len(f.sent("dlq")); got != 2 {
			t.Errorf("%d dead letters", got)
		}
	}, deduping(k, func(p *core.Policy) {
		p.DeadLetter = core.Queue("dlq")
		p.SetRetry(core.RetryPolicy{Base: time.Millisecond, Attempts: 2})
	}))
}

// An end in the middle leaves no claim behind: not of a handler that gives up, nor of one
// whose publishes were not confirmed.
func TestDedupLeavesNoClaim(t *testing.T) {
	t.Parallel()
	f, k := newFake(driver.Each), newKeeper()
	f.onPublish = func(driver.Destination, []*driver.Message) error {
		return driver.Errorf("publish", driver.Transient, "no broker")
	}
	h := func(ctx context.Context, d *core.Delivery) error {
		if d.ID == "publishes" {
			d.Publish(core.Queue("out"), &core.Message{Body: []byte("b")})
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	bubble(t, f, h, func(s *core.Consumer) {
		f.push(msg("waits", ""), msg("publishes", ""))
		time.Sleep(time.Second)
		if err := s.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		for _, id := range []string{"waits", "publishes"} {
			if _, state := claims(t, k.DedupStore, "in", id, time.Minute); state != "ours" {
				t.Errorf("%s: %s", id, state)
			}
		}
	}, deduping(k, func(p *core.Policy) { p.DrainTimeout = time.Second }))
}

// The key and the scope are the application's: another scope handles again, a message without
// a key is always handled, and a key that panics is a failed attempt.
func TestDedupByAKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	k := newKeeper()
	for _, scope := range []string{"billing", "screen"} {
		f := newFake(driver.Each)
		ran := map[string]int{}
		h := func(_ context.Context, d *core.Delivery) error { ran[d.ID]++; return nil }
		bubble(t, f, h, func(s *core.Consumer) {
			f.push(msg("order-1/a", ""), msg("order-1/b", ""), msg("x/a", ""), msg("x/b", ""), msg("panics", ""))
			time.Sleep(time.Minute)
			st := s.Status()
			if ran["order-1/a"] != 1 || ran["order-1/b"] != 0 || ran["x/a"] != 1 || ran["x/b"] != 1 || ran["panics"] != 0 {
				t.Errorf("%s: %v", scope, ran)
			}
			if d := f.sent("dlq"); len(d) != 1 || d[0].ID != "panics" {
				t.Errorf("%s: %d dead letters", scope, len(d))
			}
			if st.Totals.Duplicates != 1 || st.InFlight != 0 {
				t.Errorf("%s: %+v", scope, st)
			}
		}, deduping(k, func(p *core.Policy) {
			p.Concurrency = 1
			p.DeadLetter = core.Queue("dlq")
			p.SetRetry(core.RetryPolicy{Base: time.Millisecond, Attempts: 2})
			p.Dedup.Scope = scope
			p.Dedup.Key = func(d *core.Delivery) string {
				order, _, _ := strings.Cut(d.ID, "/")
				switch order {
				case "x":
					return ""
				case "panics":
					panic("no order")
				}
				return order
			}
		}))
	}
}

func TestDedupRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	store := core.NewMemoryDedup(0)
	for name, bad := range map[string]func(*core.Policy){
		"no store":  func(p *core.Policy) { p.Dedup = core.DedupPolicy{FailOpen: true} },
		"lease":     func(p *core.Policy) { p.Dedup.Lease = time.Millisecond },
		"keep":      func(p *core.Policy) { p.Dedup.Keep = -1 },
		"ack first": func(p *core.Policy) { p.AckFirst, p.Retry = true, core.RetryPolicy{} },
	} {
		c := core.NewClient(newFake(driver.Each), core.Options{})
		_, err := c.Start(t.Context(), core.Subscription{From: core.Queue("in")}, func(context.Context, *core.Delivery) error { return nil },
			edit("bad", func(p *core.Policy) { p.Dedup.Store = store; bad(p) }))
		if !errors.Is(err, core.ErrPermanent) || !strings.Contains(err.Error(), "Dedup") {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := core.NewClient(newFake(driver.Each), core.Options{})
	_, err := c.StartBatch(t.Context(), core.Subscription{From: core.Queue("in")}, 2, func(context.Context, []*core.Delivery) error { return nil },
		edit("dedup", func(p *core.Policy) { p.Dedup.Store = store }))
	if !errors.Is(err, core.ErrPermanent) || !strings.Contains(err.Error(), "Dedup") {
		t.Errorf("batch: %v", err)
	}
}

// slowStore answers a claim late, whatever becomes of its ctx.
type slowStore struct {
	*keeper
	after time.Duration
}

func (s slowStore) Claim(ctx context.Context, scope string, id [32]byte, lease time.Duration) (string, time.Duration, error) {
	time.Sleep(s.after)
	return s.keeper.Claim(context.WithoutCancel(ctx), scope, id, lease)
}

// The subscription ends while the store is asked: the handler is not called, and the claim
// that comes all the same is given up. Nor is one left behind by a handler that ends its
// goroutine.
func TestDedupAskedAtTheEnd(t *testing.T) {
	t.Parallel()
	dedupModes(t, func(t *testing.T, mode driver.SettleMode, order core.Order) {
		f, k := newFake(mode), newKeeper()
		ran := false
		bubble(t, f, func(context.Context, *core.Delivery) error { ran = true; return nil }, func(s *core.Consumer) {
			f.push(msg("a", "k"))
			time.Sleep(time.Second)
			if err := s.Drain(context.Background()); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Second)
			if _, state := claims(t, k.DedupStore, "in", "a", time.Minute); state != "ours" || ran {
				t.Errorf("%s, ran %v", state, ran)
			}
		}, deduping(slowStore{k, 5 * time.Second}, func(p *core.Policy) { p.Order, p.DrainTimeout = order, time.Second }))
	})
	f, k := newFake(driver.Each), newKeeper()
	h := func(_ context.Context, d *core.Delivery) error {
		if d.Attempt == 1 {
			runtime.Goexit()
		}
		return nil
	}
	bubble(t, f, h, func(*core.Consumer) {
		f.push(msg("a", ""))
		time.Sleep(time.Second)
		if got := k.told(); got != "claim, release, claim, done" {
			t.Errorf("after Goexit: %s", got)
		}
	}, deduping(k))
}
