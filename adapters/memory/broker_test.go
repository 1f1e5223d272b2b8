package memory_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

func TestDown(t *testing.T) {
	t.Parallel()
	b := memory.NewBroker()
	var mu sync.Mutex
	var events []driver.EventKind
	d := open(t, memory.Config{Broker: b, Notify: func(e driver.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e.Kind)
	}}, queue("q"))
	c, k := subscribe(t, d, driver.Subscription{From: queue("q")})
	publish(t, d, queue("q"), msg("1"))
	got := receive(t, c, 1)
	waiting := make(chan error)
	go func() {
		_, err := c.Receive(t.Context(), demand(1))
		waiting <- err
	}()
	b.SetDown(true)
	wantClass(t, <-waiting, driver.Transient)
	wantClass(t, d.Publish(t.Context(), queue("q"), []*driver.Message{msg("2")}), driver.Transient)
	wantClass(t, trySettle(c, driver.Ack, 0, got...), driver.Transient)
	_, err := d.Subscribe(t.Context(), driver.Subscription{From: queue("q")})
	wantClass(t, err, driver.Transient)
	_, err = d.Admin().Apply(t.Context(), nil, driver.Verify)
	wantClass(t, err, driver.Transient)
	b.SetDown(false)
	settle(t, c, driver.Ack, got...)
	publish(t, d, queue("q"), msg("3"))
	want(t, receive(t, c, 9), "3")
	kinds := []driver.EventKind{driver.Connected, driver.Disconnected, driver.Connected}
	if !slices.Equal(events, kinds) {
		t.Errorf("events of the driver %v", events)
	}
	if len(k.events) != 2 || k.events[0].Kind != driver.Disconnected || k.events[1].Kind != driver.Connected {
		t.Errorf("events of the subscription %v", k.events)
	}
}

func TestRestartVoidsReceiptsAndKeepsContent(t *testing.T) {
	t.Parallel()
	for _, to := range []driver.Destination{queue("x"), queue("x").Keyed(2), topic("x"), stream("x")} {
		t.Run(to.String(), func(t *testing.T) {
			t.Parallel()
			b := memory.NewBroker()
			d := open(t, memory.Config{Broker: b}, to)
			c, k := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
			publish(t, d, to, msg("1"))
			old := receive(t, c, 9)
			waiting := make(chan []driver.Received)
			go func() { waiting <- receive(t, c, 9) }()
			b.Restart()
			got := <-waiting
			want(t, got, "1")
			if !k.admits(&got[0]) || k.admits(&old[0]) {
				t.Error("the epochs did not change")
			}
			if len(k.lost) != len(k.revoked) || len(k.lost) == 0 {
				t.Errorf("revoked %v, of these lost %v", k.revoked, k.lost)
			}
			wantClass(t, trySettle(c, driver.Ack, 0, old...), driver.LeaseLost)
			settle(t, c, driver.Ack, got...)
		})
	}
}

func TestEvict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := memory.NewBroker()
		plain, shards, log := queue("plain"), queue("shards").Keyed(2), stream("log")
		alive := open(t, memory.Config{Broker: b}, plain, shards, log)
		dead := open(t, memory.Config{Broker: b, Lease: 5 * time.Second})
		for _, to := range []driver.Destination{plain, shards, log} {
			publish(t, alive, to, keyed("k", "1"))
			c, _ := subscribe(t, dead, driver.Subscription{From: to, Group: "g"})
			want(t, receive(t, c, 9), "1")
		}
		b.Evict(dead)
		start := time.Now()
		for i, to := range []driver.Destination{shards, log, plain} {
			c, _ := subscribe(t, alive, driver.Subscription{From: to, Group: "g"})
			want(t, receive(t, c, 9), "1")
			wantAfter := []time.Duration{0, 0, 5 * time.Second}[i] // the lease, where there is no owner
			if d := time.Since(start); d != wantAfter {
				t.Errorf("%s came back after %v, want %v", to, d, wantAfter)
			}
		}
	})
}

func TestCloseIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := queue("q").Keyed(2)
		d := open(t, memory.Config{}, to)
		c, k := subscribe(t, d, driver.Subscription{From: to})
		publish(t, d, to, msg("1"), msg("2"))
		receive(t, c, 9)
		k.onRevoke = func(ctx context.Context, _ []string) { <-ctx.Done() } // handlers that do not end
		other, _ := subscribe(t, d, driver.Subscription{From: to})          // starts a Revoke
		synctest.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_ = c.Close(ctx)
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("Close took %v", d)
		}
		if got := receive(t, other, 9); len(got) != 2 {
			t.Errorf("the other member received %v", ids(got))
		}
	})
}

func TestConsumersJoinAndLeaveAtOnce(t *testing.T) {
	t.Parallel()
	b := memory.NewBroker()
	to := queue("q").Keyed(4)
	open(t, memory.Config{Broker: b}, to)
	var wg sync.WaitGroup
	for range 8 {
		d := open(t, memory.Config{Broker: b})
		wg.Go(func() {
			for range 20 {
				c, _ := subscribe(t, d, driver.Subscription{From: to})
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				_, _ = c.Receive(ctx, demand(9))
				cancel()
				closeNow(t, c)
			}
		})
		wg.Go(func() {
			for range 20 {
				publish(t, d, to, msg("x"), msg("y"))
				b.Restart()
			}
		})
	}
	wg.Wait()
	d := open(t, memory.Config{Broker: b})
	c, k := subscribe(t, d, driver.Subscription{From: to})
	for n := 0; n < 320; {
		got := receive(t, c, 100)
		n += len(got)
		settle(t, c, driver.Ack, got...)
	}
	if len(k.owned()) != 4 {
		t.Errorf("the last member owns %v", k.owned())
	}
}
