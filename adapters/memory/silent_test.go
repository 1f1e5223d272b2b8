package memory_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

func TestSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := memory.NewBroker()
		d := open(t, memory.Config{Broker: b, Lease: time.Hour}, queue("q"))
		c, k := subscribe(t, d, driver.Subscription{From: queue("q")})
		publish(t, d, queue("q"), msg("1"), msg("2"))
		got := receive(t, c, 2)
		b.SetSilent(true)
		b.SetSilent(true)
		brief := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		start := time.Now()
		wantClass(t, d.Publish(brief(), queue("q"), []*driver.Message{msg("3")}), driver.Ambiguous) // swallowed
		wantClass(t, d.Publish(brief(), queue("q"), []*driver.Message{msg("4")}), driver.Ambiguous) // stored
		wantClass(t, c.Settle(brief(), []driver.Settlement{{Receipt: got[0].Receipt, Disposition: driver.Nack}}), driver.Ambiguous)
		wantClass(t, c.Settle(brief(), []driver.Settlement{{Receipt: got[1].Receipt, Disposition: driver.Ack}}), driver.Ambiguous)
		if took := time.Since(start); took != 400*time.Millisecond {
			t.Errorf("four calls of 100 ms each hung for %v", took)
		}
		_, err := c.Receive(t.Context(), demand(9))
		wantClass(t, err, driver.Transient)
		if took := time.Since(start); took != 500*time.Millisecond {
			t.Errorf("the consumer noticed after %v", took)
		}
		for range 2 { // whichever is let through
			_, err = d.Subscribe(brief(), driver.Subscription{From: queue("q")})
			wantClass(t, err, driver.Ambiguous)
			_, err = d.Admin().Apply(brief(), []driver.Resource{{Destination: queue("new")}}, driver.Create)
			wantClass(t, err, driver.Ambiguous)
			_, err = d.Admin().Stats(brief(), driver.Resource{Destination: queue("q")})
			wantClass(t, err, driver.Ambiguous)
		}
		hung := make(chan error, 1)
		go func() { hung <- d.Publish(t.Context(), queue("q"), []*driver.Message{msg("5")}) }()
		synctest.Wait()
		b.SetSilent(false)
		b.SetSilent(false)
		wantClass(t, <-hung, driver.Ambiguous)
		want(t, receive(t, c, 9), "4")
		settle(t, c, driver.Ack, got[0])                                    // its nack was swallowed
		wantClass(t, trySettle(c, driver.Ack, 0, got[1]), driver.LeaseLost) // its ack was not
		if len(k.events) != 2 || k.events[0].Kind != driver.Disconnected || k.events[1].Kind != driver.Connected {
			t.Errorf("events of the subscription %v", k.events)
		}
	})
}

func TestCloseEndsWhatHangs(t *testing.T) {
	t.Parallel()
	b := memory.NewBroker()
	d := open(t, memory.Config{Broker: b}, queue("q"))
	b.SetSilent(true)
	hung := make(chan error, 1)
	go func() { hung <- d.Publish(t.Context(), queue("q"), []*driver.Message{msg("1")}) }()
	closed := d.Close(t.Context())
	if err := <-hung; driver.ClassOf(err) != driver.Ambiguous && driver.ClassOf(err) != driver.Closed || closed != nil {
		t.Errorf("the publish ended with %v, Close with %v", err, closed)
	}
}
