package core_test

import (
	"context"
	"errors"
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
	refused := true
	f.onPublish = func(driver.Destination, []*driver.Message) error {
		if refused {
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
		refused = false
		if err := s.ReplayKey("k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if ran != 2 || s.Status().InFlight != 0 || len(f.sent("out")) != 1 {
			t.Errorf("ran %d times, %+v; the store was asked %s", ran, s.Status(), k.told())
		}
	}, deduping(k, func(p *core.Policy) { p.Order, p.AfterTerminal = core.ByKey, core.HaltKey }))
}
