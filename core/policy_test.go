package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func nothing(context.Context, *core.Delivery) error { return nil }

func TestStartRefusesByName(t *testing.T) {
	t.Parallel()
	retry := edit("Retry", func(p *core.Policy) { p.SetRetry(core.RetryPolicy{Attempts: 5}) })
	dlq := edit("DeadLetter", func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") })
	ackFirst := edit("AckFirst", func(p *core.Policy) { p.AckFirst = true })
	byKey := edit("SessionOrder", func(p *core.Policy) { p.Order = core.ByKey })
	set := func(f func(*core.Policy)) core.Layer { return edit("set", f) }
	sub := func(f func(*core.Subscription)) core.Subscription {
		s := in
		f(&s)
		return s
	}
	cases := []struct {
		name   string
		sub    core.Subscription
		layers []core.Layer
		caps   func(*driver.Capabilities)
		is     error
		text   string
	}{
		{"no shape", core.Subscription{}, nil, nil, core.ErrPermanent, "Shape"},
		{"no name", core.Subscription{From: core.Queue("")}, nil, nil, core.ErrPermanent, "Name"},
		{"topic without group", core.Subscription{From: core.Topic("t")}, nil, nil, core.ErrPermanent, "Group"},
		{"negative partitions", sub(func(s *core.Subscription) { s.From.Partitions = -1 }), nil, nil, core.ErrPermanent, "Partitions"},
		{"group on the destination", sub(func(s *core.Subscription) { s.From.Group = "g" }), nil, nil, core.ErrPermanent, "Group"},
		{"required ttl", sub(func(s *core.Subscription) { s.Require = []core.Need{core.NeedTTL} }), nil, nil, core.ErrUnsupported, "ttl"},
		{"required replay", sub(func(s *core.Subscription) { s.Require = []core.Need{core.NeedReplay} }), nil, nil, core.ErrUnsupported, "replay"},
		{"order where there is none", in, []core.Layer{byKey}, func(c *driver.Capabilities) { c.Order = driver.NoOrder }, core.ErrUnsupported, "ordered"},
		{"attempts without a place", in, []core.Layer{retry}, nil, core.ErrPermanent, "DeadLetter"},
		{"ack first and retry", in, []core.Layer{ackFirst, retry, dlq}, nil, core.ErrPermanent, "AckFirst"},
		{"ack first and dead letter", in, []core.Layer{dlq, ackFirst}, nil, core.ErrPermanent, "AckFirst"},
		{"ack first and order", in, []core.Layer{byKey, ackFirst}, nil, core.ErrPermanent, "AckFirst"},
		{"dead letter is the source", in, []core.Layer{set(func(p *core.Policy) { p.DeadLetter = core.Queue("in") })}, nil, core.ErrPermanent, "source itself"},
		{"native dead letter that is not there", in, []core.Layer{set(func(p *core.Policy) { p.NativeDeadLetter = true })}, nil, core.ErrUnsupported, "dead-letter"},
		{"a layer twice", in, []core.Layer{retry, dlq, retry}, nil, core.ErrPermanent, "Retry is listed twice"},
		{"too many attempts", in, []core.Layer{dlq, set(func(p *core.Policy) { p.Retry.Attempts = 1001 })}, nil, core.ErrPermanent, "Retry.Attempts"},
		{"negative timeout", in, []core.Layer{set(func(p *core.Policy) { p.Timeout = -time.Second })}, nil, core.ErrPermanent, "Timeout"},
		{"source that settles nothing", in, nil, func(c *driver.Capabilities) { c.Settle = driver.None }, core.ErrUnsupported, "AckFirst"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(driver.Each)
			if c.caps != nil {
				c.caps(&f.caps)
			}
			_, err := client(f).Start(t.Context(), c.sub, nothing, c.layers...)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %q", err, c.is, c.text)
			}
			if f.sub.Assigned != nil {
				t.Error("the adapter was asked before the refusal")
			}
		})
	}
}

func TestListingOrderOfLayersDoesNotMatter(t *testing.T) {
	t.Parallel()
	c := client(newFake(driver.Each))
	wrap := func(name string) core.Layer {
		return edit("Wrap "+name, func(p *core.Policy) {
			p.Wrappers = append(p.Wrappers, core.Wrapper{Name: name, Stage: core.StageUser, Wrap: func(h core.Handler) core.Handler { return h }})
		})
	}
	layers := []core.Layer{
		wrap("b"), edit("r", func(p *core.Policy) { p.SetRetry(core.RetryPolicy{Attempts: 3}) }),
		wrap("a"), edit("d", func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") }),
	}
	want := ""
	permute(layers, func(ls []core.Layer) {
		m, err := c.DescribeSubscription(in, ls...)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(m.Chain, " → ") + " | " + strings.Join(m.Layers, ",")
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("%s\nis not\n%s", got, want)
		}
	})
	if !strings.Contains(want, "a → b") {
		t.Errorf("chain %s", want)
	}
}

func permute(ls []core.Layer, visit func([]core.Layer)) {
	var rec func(int)
	rec = func(n int) {
		if n == len(ls) {
			visit(append([]core.Layer(nil), ls...))
			return
		}
		for i := n; i < len(ls); i++ {
			ls[n], ls[i] = ls[i], ls[n]
			rec(n + 1)
			ls[n], ls[i] = ls[i], ls[n]
		}
	}
	rec(0)
}
