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

func TestOrderedCloseDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{onCall: after(time.Second, nil)}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: 1, Queue: 2})
		calls := []<-chan error{
			start(t.Context(), p, keyed("1", "a")), start(t.Context(), p, keyed("2", "a")),
			start(t.Context(), p, keyed("3", "a"), keyed("4", "a"), keyed("5", "a")), // some of it waits for room
		}
		begin := time.Now()
		closeOrdered(t, p)
		if time.Since(begin) != 5*time.Second {
			t.Errorf("took %v", time.Since(begin))
		}
		for _, c := range calls {
			if err := <-c; err != nil {
				t.Error(err)
			}
		}
		if err := p.Publish(t.Context(), orders, keyed("6", "a")); !errors.Is(err, core.ErrClosed) {
			t.Error(err)
		}
		closeOrdered(t, p) // again
	})
}

func TestOrderedCloseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := &below{onCall: func(ctx context.Context, _ []*core.Message) error {
				if deaf {
					time.Sleep(time.Hour)
					return nil
				}
				<-ctx.Done()
				return driver.Errorf("p", driver.Ambiguous, "%w", ctx.Err())
			}}
			p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: 1, Queue: 1, SendTimeout: time.Hour})
			flying := start(t.Context(), p, keyed("1", "a"))
			waiting := start(t.Context(), p, keyed("2", "b"))
			outside := start(t.Context(), p, keyed("3", "c"))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begin := time.Now()
			if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if took := time.Since(begin); took > 1500*time.Millisecond || !deaf && took != time.Second {
				t.Errorf("Close took %v", took)
			}
			if err := <-flying; !errors.Is(err, core.ErrIndeterminate) {
				t.Errorf("in flight: %v", err)
			}
			for _, c := range []<-chan error{waiting, outside} {
				if err := <-c; !errors.Is(err, core.ErrClosed) || errors.Is(err, core.ErrIndeterminate) {
					t.Errorf("waiting: %v", err)
				}
			}
			if got := p.Blocked(); len(got) != 1 || got[0].Key != "a" {
				t.Errorf("blocked %+v", got)
			}
			time.Sleep(time.Hour)
			if len(b.calls) != 1 {
				t.Errorf("%d calls, want 1", len(b.calls))
			}
		})
	}
}

func TestOrderedASendIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{onCall: func(ctx context.Context, _ []*core.Message) error {
			<-ctx.Done()
			return driver.Errorf("p", driver.Ambiguous, "%w", ctx.Err())
		}}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{SendTimeout: 7 * time.Second})
		defer closeOrdered(t, p)
		begin := time.Now()
		if err := p.Publish(context.Background(), orders, keyed("1", "a")); !errors.Is(err, core.ErrIndeterminate) || time.Since(begin) != 7*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}

func TestOrderedAPanicBelowIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{onCall: func(context.Context, []*core.Message) error { panic("oven\non fire") }}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{})
		defer closeOrdered(t, p)
		if err := p.Publish(t.Context(), orders, keyed("1", "a")); !errors.Is(err, core.ErrIndeterminate) {
			t.Error(err)
		}
	})
}

func TestOrderedChecksTheCall(t *testing.T) {
	t.Parallel()
	b := &below{}
	p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: -1, Queue: -1})
	defer closeOrdered(t, p)
	if err := p.Publish(t.Context(), orders); err != nil {
		t.Error("no message:", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := p.Publish(ctx, orders, keyed("1", "a"))
	if notSent(t, err); !errors.Is(err, context.Canceled) || len(b.calls) != 0 {
		t.Errorf("an ended ctx: %v, %d calls", err, len(b.calls))
	}
	if err := p.Publish(t.Context(), orders, nil); !errors.Is(err, core.ErrPermanent) {
		t.Error("nil:", err)
	}
	m := &core.Message{Key: "a"}
	err = p.Publish(t.Context(), orders, nil, m)
	if !errors.Is(driver.ResultAt(err, 0), core.ErrPermanent) || driver.ResultAt(err, 1) != nil {
		t.Error(err)
	}
	if m.ID == "" || m.Time.IsZero() || b.stored()[0] != m.ID {
		t.Errorf("the caller sees %+v, stored was %v", m, b.stored())
	}
}
