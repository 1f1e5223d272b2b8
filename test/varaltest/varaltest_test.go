package varaltest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
	"github.com/varal-go/varal/test/varaltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	tickets = core.Queue("tickets").Keyed(4)
	pizzas  = core.Topic("pizzas")
	dlq     = core.Queue("tickets.dlq")
)

// cook stands for an application's handler.
func cook(_ context.Context, d *core.Delivery) error {
	if string(d.Body) == "pineapple" {
		return core.Permanent(errors.New("not here"))
	}
	d.Publish(pizzas, &core.Message{Key: d.Key, Body: d.Body})
	return nil
}

func TestHarness(t *testing.T) {
	t.Parallel()
	h := varaltest.New(t)
	h.Run(core.Subscription{From: tickets, Group: "kitchen"}, cook, middleware.SessionOrder(4), middleware.DeadLetter(dlq))
	h.Send(tickets, &core.Message{Key: "table-7", Body: []byte("margherita")}, &core.Message{Key: "table-7", Body: []byte("pineapple")},
		&core.Message{Key: "table-7", Body: []byte("marinara")})
	varaltest.Eventually(t, func() bool { return len(h.Published(pizzas)) == 2 }, "two pizzas")
	varaltest.Expect(t, h.Published(pizzas), "margherita", "marinara")
	varaltest.Expect(t, h.Published(dlq), "pineapple")
}

// TestSynctest: ten minutes of back-off in no time.
func TestSynctest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := varaltest.New(t)
		var tries atomic.Int32
		start := time.Now()
		h.Run(core.Subscription{From: tickets}, func(context.Context, *core.Delivery) error {
			if tries.Add(1) < 4 {
				return core.RetryAfter(3*time.Second, errors.New("not yet"))
			}
			return nil
		}, middleware.SessionOrder(1))
		h.Send(tickets, &core.Message{Key: "k"})
		varaltest.Eventually(t, func() bool { return tries.Load() == 4 }, "four attempts")
		if took := time.Since(start); took < 9*time.Second {
			t.Errorf("three waits of 3 s took %v", took)
		}
	})
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	var r varaltest.Recorder
	m := &core.Message{Body: []byte("one")}
	if err := r.Publish(t.Context(), pizzas, m); err != nil {
		t.Fatal(err)
	}
	m.Body[0] = 'X' // the record must not change with it
	r.Expect(t, pizzas, "one")
	r.Expect(t, core.Queue("pizzas"))
	broken := errors.New("broken")
	r.FailWith(broken)
	if err := r.Publish(t.Context(), pizzas, m); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if r.Count() != 1 {
		t.Errorf("%d messages", r.Count())
	}
	r.Reset()
	r.Expect(t, pizzas)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Publish(ctx, pizzas, m); !errors.Is(err, context.Canceled) {
		t.Errorf("ended ctx: %v", err)
	}
}

// failed records what a test would have said.
type failed struct {
	testing.TB
	text []string
}

func (f *failed) Helper()                   {}
func (f *failed) Errorf(s string, a ...any) { f.text = append(f.text, fmt.Sprintf(s, a...)) }
func (f *failed) Fatalf(s string, a ...any) { f.Errorf(s, a...) }

// TestAssertionsFail: an assertion that cannot fail proves nothing.
func TestAssertionsFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &failed{TB: t}
		varaltest.Expect(f, []core.Message{{Body: []byte("a")}}, "b")
		varaltest.Expect(f, nil, "b")
		varaltest.Eventually(f, func() bool { return false }, "the %s", "moon")
		if len(f.text) != 3 || !strings.Contains(f.text[2], "the moon") {
			t.Errorf("got %q", f.text)
		}
	})
}

func ExampleRecorder() {
	// sell is the code under test: it takes a core.Publisher.
	sell := func(ctx context.Context, p core.Publisher, pizza string) error {
		return p.Publish(ctx, tickets, &core.Message{Key: "table-7", Body: []byte(pizza)})
	}
	var r varaltest.Recorder
	if err := sell(context.Background(), &r, "margherita"); err != nil {
		fmt.Println(err)
	}
	for _, m := range r.Published(tickets) {
		fmt.Println(m.Key, string(m.Body))
	}
	// Output: table-7 margherita
}

func ExampleNew() {
	// In a test, t is its argument.
	_ = func(t *testing.T) {
		h := varaltest.New(t)
		h.Run(core.Subscription{From: tickets, Group: "kitchen"}, cook)
		h.Send(tickets, &core.Message{Key: "table-7", Body: []byte("margherita")})
		varaltest.Eventually(t, func() bool { return len(h.Published(pizzas)) == 1 }, "one pizza")
		varaltest.Expect(t, h.Published(pizzas), "margherita")
	}
}
