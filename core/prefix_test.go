package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// TestPrefixSeparatesEnvironments: every name that reaches the broker carries it, and
// none that the handler sees.
func TestPrefixSeparatesEnvironments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(driver.Each)
		f.wake = make(chan struct{}, 1)
		c := core.NewClient(f, core.Options{Logger: quiet, Prefix: "dev-"})
		h := func(_ context.Context, d *core.Delivery) error {
			if d.Source.Name != "in" || d.Group != "kitchen" {
				t.Errorf("the handler sees %s, group %s", d.Source, d.Group)
			}
			d.Publish(core.Topic("out"), &core.Message{})
			if d.ID == "bad" {
				return core.Permanent(errors.New("bad"))
			}
			return nil
		}
		sub := core.Subscription{From: core.Topic("in"), Group: "kitchen"}
		s, err := c.Start(t.Context(), sub, h, edit("dlq", func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") }))
		if err != nil {
			t.Fatal(err)
		}
		if f.sub.From.Name != "dev-in" || f.sub.Group != "dev-kitchen" {
			t.Errorf("subscribed to %s, group %s", f.sub.From, f.sub.Group)
		}
		f.push(msg("good", ""), msg("bad", ""))
		time.Sleep(time.Minute)
		if len(f.sent("dev-out")) != 1 || len(f.sent("dev-dlq")) != 1 {
			t.Errorf("published %v", f.published)
		}
		_ = s.Drain(context.Background())
		_ = c.Close(context.Background())
	})
}
