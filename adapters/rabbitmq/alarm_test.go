package rabbitmq_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

// Not parallel: the alarm is the whole broker's.
func TestMemoryAlarm(t *testing.T) {
	events := make(chan driver.Event, 100)
	note := func(e driver.Event) {
		select {
		case events <- e:
		default:
		}
	}
	d := open(t, func(c *rabbitmq.Config) { c.Notify = note })
	second, err := rabbitmq.Open(within(t, 10*time.Second), config(t))
	if err != nil {
		t.Fatal(err)
	}
	q := fresh(t, d, driver.Queue, 0)
	publish(t, d, q, 0, 20, nil)
	publish(t, second, q, 20, 21, nil)
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, 10, 10)

	ctl(t, "set_vm_memory_high_watermark", "absolute", "1MB")
	raised := true
	lower := func() {
		if raised {
			ctl(t, "set_vm_memory_high_watermark", "0.4")
			raised = false
		}
	}
	t.Cleanup(lower)
	var wg sync.WaitGroup
	for _, dr := range []driver.Driver{d, second} {
		for range 8 {
			wg.Go(func() {
				for range 3 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					began := time.Now()
					err := dr.Publish(ctx, q, []*driver.Message{{ID: "blocked", Body: make([]byte, 1<<20)}})
					cancel()
					if took := time.Since(began); took > 1500*time.Millisecond {
						t.Errorf("publish returned after %v", took)
					}
					if c := driver.ClassOf(err); c != driver.Transient && c != driver.Ambiguous {
						t.Errorf("publish: %v", err)
					}
				}
			})
		}
	}
	wg.Wait()
	settle(t, c, driver.Ack, got...) // the consume connection is not blocked
	settle(t, c, driver.Ack, receive(t, c, 10, 20)...)
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := second.Close(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 2500*time.Millisecond {
		t.Errorf("close returned after %v", took)
	}
	lower()
	eventually(t, "publishing again", 20*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return d.Publish(ctx, q, []*driver.Message{message(1000, "")}) == nil
	})
	blocked := false
	for len(events) > 0 {
		if e := <-events; e.Kind == driver.Blocked {
			blocked = true
		}
	}
	if !blocked {
		t.Error("no Blocked event")
	}
}

func TestFrozenBroker(t *testing.T) {
	t.Parallel()
	p := newTCPProxy(t, brokerURL(t))
	c := config(t)
	c.URLs, c.Heartbeat = []string{p.url}, 2*time.Second
	d, err := rabbitmq.Open(within(t, 10*time.Second), c)
	if err != nil {
		t.Fatal(err)
	}
	q := fresh(t, d, driver.Queue, 0)
	publish(t, d, q, 0, 5, nil)
	con, err := d.Subscribe(within(t, 10*time.Second), driver.Subscription{From: q})
	if err != nil {
		t.Fatal(err)
	}
	got := receive(t, con, 5, 10)
	p.freeze(true)
	timed := func(what string, f func(context.Context) error, want ...driver.Class) {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := f(ctx)
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s took %v", what, took)
		}
		for _, c := range want {
			if errors.Is(err, c) {
				return
			}
		}
		if len(want) > 0 {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	timed("publish", func(ctx context.Context) error { return d.Publish(ctx, q, []*driver.Message{message(6, "")}) }, driver.Ambiguous)
	timed("receive", func(ctx context.Context) error { _, err := con.Receive(ctx, demand(1, 3)); return err })
	timed("settle", func(ctx context.Context) error {
		return con.Settle(ctx, []driver.Settlement{{Receipt: got[0].Receipt, Disposition: driver.Ack}})
	})
	timed("subscribe", func(ctx context.Context) error {
		_, err := d.Subscribe(ctx, driver.Subscription{From: q})
		return err
	}, driver.Transient)
	timed("stats", func(ctx context.Context) error {
		_, err := d.Admin().Stats(ctx, driver.Resource{Destination: q})
		return err
	}, driver.Transient)
	timed("close consumer", con.Close)
	timed("close", d.Close)
	p.freeze(false)
}
