package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

type order struct {
	Table int    `json:"table"`
	Dish  string `json:"dish"`
}

func TestTypedDecodesAndRefusesGarbageForGood(t *testing.T) {
	t.Parallel()
	m, err := core.NewMessage(core.JSON[order]{}, "table-7", order{7, "margherita"})
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Body) != `{"table":7,"dish":"margherita"}` || m.Key != "table-7" {
		t.Errorf("message %q key %q", m.Body, m.Key)
	}
	var got order
	h := core.Typed(core.JSON[order]{}, func(_ context.Context, o order, _ *core.Delivery) error { got = o; return nil })
	if err := h(t.Context(), core.NewDelivery(core.Queue("q"), *m)); err != nil || got != (order{7, "margherita"}) {
		t.Errorf("%v %v", got, err)
	}
	m.Body = []byte("{")
	err = h(t.Context(), core.NewDelivery(core.Queue("q"), *m))
	if err == nil || !strings.Contains(err.Error(), "decode body") {
		t.Errorf("error %v", err)
	}
}

func TestMuxDispatchesByType(t *testing.T) {
	t.Parallel()
	var mux core.Mux
	got := ""
	mux.Handle("a", func(context.Context, *core.Delivery) error { got = "a"; return nil })
	call := func(typ string) error {
		return mux.Serve(t.Context(), core.NewDelivery(core.Queue("q"), core.Message{Type: typ}))
	}
	if err := call("a"); err != nil || got != "a" {
		t.Errorf("%q %v", got, err)
	}
	if err := call("b"); err == nil || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("unknown type: %v", err)
	}
	mux.Otherwise(func(context.Context, *core.Delivery) error { got = "other"; return nil })
	if err := call("b"); err != nil || got != "other" {
		t.Errorf("%q %v", got, err)
	}
}

// TestHandlerErrorsSteer states what each kind of error does to its message.
func TestHandlerErrorsSteer(t *testing.T) {
	t.Parallel()
	plain := errors.New("plain")
	for _, c := range []struct {
		name string
		err  error
		dead bool
		runs int
		last driver.Disposition
	}{
		{"nil", nil, false, 1, driver.Ack},
		{"plain, until the attempts run out", plain, true, 3, driver.Reject},
		{"Permanent", core.Permanent(plain), true, 1, driver.Reject},
		{"wrapped Permanent", fmt.Errorf("x: %w", core.Permanent(plain)), true, 1, driver.Reject},
		{"Ignore", core.Ignore(plain), false, 1, driver.Ack},
		{"Ignore of a Permanent", core.Ignore(core.Permanent(plain)), false, 1, driver.Ack},
		{"RetryAfter", core.RetryAfter(time.Minute, plain), true, 3, driver.Reject},
		{"class TooLarge", driver.Errorf("x", driver.TooLarge, "x"), true, 1, driver.Reject},
		{"class Transient", driver.Errorf("x", driver.Transient, "x"), true, 3, driver.Reject},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(driver.Each)
			runs := 0
			bubble(t, f, func(context.Context, *core.Delivery) error { runs++; return c.err }, func(*core.Consumer) {
				f.push(msg("m", ""))
				time.Sleep(time.Hour)
			}, edit("p", func(p *core.Policy) {
				p.SetRetry(core.RetryPolicy{Attempts: 3})
				p.DeadLetter = core.Queue("dlq")
			}))
			final, _ := f.settlements()
			if runs != c.runs || len(final) != 1 || final[0].Disposition != c.last || (len(f.sent("dlq")) == 1) != c.dead {
				t.Errorf("runs %d, settled %v, dead %d", runs, final, len(f.sent("dlq")))
			}
		})
	}
}

func TestReturnGivesBackUncounted(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	bubble(t, f, func(context.Context, *core.Delivery) error { return core.Return(errors.New("not me")) }, func(*core.Consumer) {
		f.push(msg("m", ""))
		time.Sleep(time.Minute)
	})
	if final, _ := f.settlements(); len(final) != 1 || final[0].Disposition != driver.Return {
		t.Errorf("settled %v", final)
	}
}

func TestBrokerCountsAttemptsWhereItCan(t *testing.T) {
	t.Parallel()
	for _, native := range []bool{true, false} {
		f := newFake(driver.Each)
		f.caps.Counts = true
		wait := time.Duration(0)
		if native {
			f.caps.NackDelay = time.Hour
		}
		synctest.Test(t, func(t *testing.T) {
			f.wake = make(chan struct{}, 1)
			c := client(f)
			s, err := c.Start(t.Context(), in, func(_ context.Context, d *core.Delivery) error {
				if d.Attempt != 2 {
					t.Errorf("attempt %d, want the broker's 2", d.Attempt)
				}
				return core.RetryAfter(time.Minute, errors.New("later"))
			})
			if err != nil {
				t.Fatal(err)
			}
			m := msg("m", "")
			m.DeliveryCount = 2
			f.push(m)
			start := time.Now()
			for {
				time.Sleep(time.Second)
				if final, _ := f.settlements(); len(final) > 0 {
					wait = time.Since(start)
					if final[0].Disposition != driver.Nack || native != (final[0].Delay >= time.Minute) {
						t.Errorf("native %v: settled %+v", native, final[0])
					}
					break
				}
			}
			_ = s.Drain(context.Background())
		})
		if native && wait > 2*time.Second || !native && wait < time.Minute {
			t.Errorf("native %v: settled after %v", native, wait)
		}
	}
}

func TestForwardDropsOurHeaders(t *testing.T) {
	t.Parallel()
	d := core.NewDelivery(core.Queue("q"), core.Message{
		ID: "1", Key: "k", Type: "t", Body: []byte("b"),
		Headers: []core.Header{{Key: "mine", Value: "1"}, {Key: driver.HeaderAttempts, Value: "3"}},
	})
	m := d.Forward()
	if m.ID != "" || m.Key != "k" || m.Type != "t" || string(m.Body) != "b" || len(m.Headers) != 1 || m.Headers[0].Key != "mine" {
		t.Errorf("forwarded %+v", m)
	}
}

func TestPermanentCanBeAskedFor(t *testing.T) {
	t.Parallel()
	cause := errors.New("no such table")
	err := core.Permanent(cause)
	if !errors.Is(err, core.ErrPermanent) || !errors.Is(err, cause) {
		t.Errorf("%v is neither permanent nor its cause", err)
	}
	for _, other := range []error{core.Ignore(cause), core.Return(cause), core.Halt(cause), core.RetryAfter(time.Second, cause), cause} {
		if errors.Is(other, core.ErrPermanent) {
			t.Errorf("%v counts as permanent", other)
		}
	}
}

func TestADiscardKeepsNoCopyAnywhere(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	bubble(t, f, func(context.Context, *core.Delivery) error { return core.Permanent(errors.New("no")) }, func(*core.Consumer) {
		f.push(msg("m", ""))
		time.Sleep(time.Minute)
	}, edit("discard", func(p *core.Policy) { p.Exhausted = core.ExhaustedDiscard }))
	if final, _ := f.settlements(); len(final) != 1 || final[0].Disposition != driver.Ack {
		t.Errorf("settled %v, want one ack: a reject may leave a copy in the broker's own dead letter", final)
	}
}
