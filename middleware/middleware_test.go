package middleware_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
	"github.com/varal-go/varal/test/varaltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func nothing(context.Context, *core.Delivery) error { return nil }

var keyed = core.Subscription{From: core.Queue("tickets").Keyed(4), Group: "kitchen"}

func TestLayersEditThePolicy(t *testing.T) {
	t.Parallel()
	c := varaltest.New(t).Client
	m, err := c.DescribeSubscription(keyed,
		middleware.SessionOrder(7), middleware.Prefetch(99), middleware.PrefetchBytes(1<<20),
		middleware.Retry(middleware.Exponential{Base: time.Second, Cap: time.Minute, Attempts: 5}),
		middleware.DeadLetter(core.Queue("dlq")), middleware.Timeout(3*time.Second), middleware.Drain(4*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if m.Order != "by key" || m.Concurrency != 7 || m.MaxInFlight != 99 || m.MaxInFlightBytes != 1<<20 ||
		m.Retry.Attempts != 5 || m.DeadLetter != "queue dlq" || m.Timeout != 3*time.Second || m.DrainTimeout != 4*time.Second {
		t.Errorf("manifest %+v", m)
	}
}

func TestLayersRefuseWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	c := varaltest.New(t).Client
	for name, tc := range map[string]struct {
		layers []core.Layer
		text   string
	}{
		"prefetch 0":              {[]core.Layer{middleware.Prefetch(0)}, "Prefetch(0)"},
		"negative bytes":          {[]core.Layer{middleware.PrefetchBytes(-1)}, "PrefetchBytes(-1)"},
		"no keys":                 {[]core.Layer{middleware.SessionOrder(0)}, "SessionOrder(0)"},
		"no handlers":             {[]core.Layer{middleware.Concurrency(-3)}, "Concurrency(-3)"},
		"timeout 0":               {[]core.Layer{middleware.Timeout(0)}, "Timeout"},
		"dead letter nowhere":     {[]core.Layer{middleware.DeadLetter(core.Queue(""))}, "no name"},
		"two bounds":              {[]core.Layer{middleware.SessionOrder(4), middleware.Concurrency(8)}, "SessionOrder and Concurrency"},
		"two bounds, other way":   {[]core.Layer{middleware.Concurrency(8), middleware.SessionOrder(4)}, "SessionOrder and Concurrency"},
		"ack first and retry":     {[]core.Layer{middleware.AckFirst(), middleware.Retry(middleware.Exponential{})}, "AckFirst"},
		"attempts, then nowhere":  {[]core.Layer{middleware.Retry(middleware.Exponential{Attempts: 2})}, "DeadLetter"},
		"dead letter and discard": {[]core.Layer{middleware.DeadLetter(core.Queue("d")), middleware.OnExhausted(core.ExhaustedDiscard)}, "discard"},
	} {
		if _, err := c.DescribeSubscription(keyed, tc.layers...); !errors.Is(err, core.ErrPermanent) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v, want %q", name, err, tc.text)
		}
	}
}

func TestRecoverSeesThePanic(t *testing.T) {
	t.Parallel()
	h := varaltest.New(t)
	var value atomic.Value
	var runs atomic.Int32
	sub := core.Subscription{From: core.Queue("q")}
	s, err := h.Client.Start(t.Context(), sub, func(context.Context, *core.Delivery) error {
		if runs.Add(1) == 1 {
			panic("boom")
		}
		return nil
	}, middleware.Retry(middleware.Exponential{Base: time.Millisecond}),
		middleware.Recover(func(_ context.Context, _ *core.Delivery, v any, stack []byte) error {
			if len(stack) == 0 {
				t.Error("no stack")
			}
			value.Store(v)
			return nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Drain(context.Background()) }()
	if err := h.Client.Publish(t.Context(), sub.From, &core.Message{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	varaltest.Eventually(t, func() bool { return runs.Load() == 2 && value.Load() == "boom" })
}

func TestLogWritesNeitherBodyNorHeaderNorALineOfTheMessages(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p := &core.Policy{}
	layer := middleware.Log(l)
	if err := layer.Edit(p); err != nil {
		t.Fatal(err)
	}
	d := core.NewDelivery(core.Queue("q"), core.Message{
		ID: "id\nlevel=ERROR forged", Key: "secret-key", Body: []byte("secret-body"),
		Headers: []core.Header{{Key: "h", Value: "secret-header"}},
	})
	if err := p.Wrappers[0].Wrap(nothing)(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if strings.Contains(text, "secret") || strings.Count(text, "\n") != 1 || !strings.Contains(text, "attempt=1") {
		t.Errorf("log: %s", text)
	}
}

// TestEveryListingRunsTheSameOrIsRefused: all permutations of the layers a user lists
// give one pipeline, or one refusal.
func TestEveryListingRunsTheSameOrIsRefused(t *testing.T) {
	t.Parallel()
	c := varaltest.New(t).Client
	all := []core.Layer{
		middleware.Retry(middleware.Exponential{Attempts: 3}), middleware.DeadLetter(core.Queue("dlq")), middleware.AckFirst(),
		middleware.SessionOrder(4), middleware.Timeout(time.Second), middleware.Log(nil),
		middleware.Recover(func(context.Context, *core.Delivery, any, []byte) error { return nil }),
	}
	seen := map[string]string{}
	var pick func(chosen []int)
	pick = func(chosen []int) {
		if len(chosen) > 0 {
			compare(t, c, all, chosen, seen)
		}
		if len(chosen) == 5 {
			return
		}
		for i := range all {
			if !contains(chosen, i) {
				pick(append(chosen[:len(chosen):len(chosen)], i))
			}
		}
	}
	pick(nil)
}

func contains(s []int, v int) bool {
	for _, x := range s {
		if x == v {
			return true
		}
	}
	return false
}

func compare(t *testing.T, c *core.Client, all []core.Layer, chosen []int, seen map[string]string) {
	t.Helper()
	var layers []core.Layer
	set := make([]byte, len(all))
	for _, i := range chosen {
		layers = append(layers, all[i])
		set[i] = 1
	}
	m, err := c.DescribeSubscription(keyed, layers...)
	got := strings.Join(m.Chain, ",")
	if err != nil {
		got = "refused: " + err.Error()
	}
	if want, ok := seen[string(set)]; ok && want != got {
		t.Errorf("listing %v: %s\nanother listing: %s", chosen, got, want)
	}
	seen[string(set)] = got
	lossy := set[2] == 1 && (set[0] == 1 || set[1] == 1 || set[3] == 1)
	if lossy != (err != nil) && (set[0] != 1 || set[1] != 0) {
		t.Errorf("listing %v: error %v, loses messages %v", chosen, err, lossy)
	}
}
