package core_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// slow is a broker that answers no Subscribe before the caller has had enough.
type slow struct {
	*fake
	err error // what it answers then; nil = the cause
}

func (s slow) Subscribe(ctx context.Context, _ driver.Subscription) (driver.Consumer, error) {
	<-ctx.Done()
	err := s.err
	if err == nil {
		err = context.Cause(ctx)
	}
	return nil, &driver.Error{Op: "subscribe to queue in", Class: driver.Transient, Err: err}
}

// A service that is told to stop while it starts has not failed.
func TestToldToStopWhileItStarts(t *testing.T) {
	t.Parallel()
	signalled := errors.New("terminated signal received")
	broken := errors.New("no route to host")
	from := core.Subscription{From: core.Queue("in")}
	handle := func(context.Context, *core.Delivery) error { return nil }
	ways := map[string]func(context.Context, *core.Client) error{
		"Consume": func(ctx context.Context, c *core.Client) error { return c.Consume(ctx, from, handle) },
		"ConsumeBatch": func(ctx context.Context, c *core.Client) error {
			return c.ConsumeBatch(ctx, from, 2, func(context.Context, []*core.Delivery) error { return nil })
		},
		"Run": func(ctx context.Context, c *core.Client) error {
			return c.Run(ctx, core.Binding{Subscription: from, Handler: handle})
		},
		"Messages": func(ctx context.Context, c *core.Client) error {
			for _, err := range c.Messages(ctx, from) {
				return err
			}
			return nil
		},
	}
	cases := []struct {
		name        string
		cause, says error // of ctx; of the broker
		want        error
	}{
		{"cancelled", context.Canceled, nil, nil},
		{"signal", signalled, nil, nil},
		{"the broker says why", signalled, fmt.Errorf("dial: %w", context.Canceled), nil},
		{"cancelled, and broken", signalled, broken, broken},
		{"deadline", context.DeadlineExceeded, nil, context.DeadlineExceeded},
	}
	for name, way := range ways {
		for _, tc := range cases {
			t.Run(name+"/"+tc.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancelCause(t.Context())
					if tc.cause == context.DeadlineExceeded { //nolint:errorlint // the table's own value
						var stop context.CancelFunc
						ctx, stop = context.WithTimeout(ctx, time.Second)
						defer stop()
					} else {
						time.AfterFunc(time.Second, func() { cancel(tc.cause) })
					}
					defer cancel(nil)
					err := way(ctx, core.NewClient(slow{newFake(driver.Each), tc.says}, core.Options{}))
					if !errors.Is(err, tc.want) {
						t.Errorf("got %v, want %v", err, tc.want)
					}
				})
			})
		}
	}
}
