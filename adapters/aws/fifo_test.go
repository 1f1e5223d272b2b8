package aws_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// TestFIFOOrder: several consumers, one message of a key at a time, each compared with the
// one before.
func TestFIFOOrder(t *testing.T) {
	t.Parallel()
	const n, keys = 200, 10
	d, q := open(t), fresh(t, driver.Queue, 1)
	publish(t, d, q, someKeyed(n, keys)...)
	var mu sync.Mutex
	running, last, done := map[string]bool{}, map[string]string{}, 0
	finished := make(chan struct{})
	handle := func(g driver.Received) (again bool) {
		mu.Lock()
		defer mu.Unlock()
		if running[g.Key] {
			t.Errorf("key %s runs twice at once", g.Key)
		}
		if g.ID <= last[g.Key] {
			t.Errorf("key %s: %s came behind %s", g.Key, g.ID, last[g.Key])
		}
		if g.DeliveryCount == 1 && len(g.ID)%2 == 0 && g.ID[len(g.ID)-1] == '7' {
			return true // fails once
		}
		last[g.Key] = g.ID
		if done++; done == n {
			close(finished)
		}
		return false
	}
	var wg sync.WaitGroup
	ctx := within(t, 60*time.Second)
	for range 4 {
		c := subscribe(t, open(t), driver.Subscription{From: q})
		wg.Go(func() { consumeInOrder(ctx, t, c, finished, handle) })
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	if done != n {
		t.Errorf("%d of %d messages were handled", done, n)
	}
}

// consumeInOrder takes what comes one by one; after a failure it leaves the rest of the key
// alone, which the adapter gives back with the failed one.
func consumeInOrder(ctx context.Context, t *testing.T, c driver.Consumer, finished <-chan struct{}, handle func(driver.Received) bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-finished:
			cancel()
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil {
		got, err := c.Receive(ctx, demand(20))
		if err != nil && ctx.Err() == nil && driver.ClassOf(err) != driver.Transient {
			t.Error(err)
			return
		}
		failed := map[string]bool{}
		for _, g := range got {
			if failed[g.Key] {
				continue
			}
			s := driver.Settlement{Disposition: driver.Ack}
			if failed[g.Key] = handle(g); failed[g.Key] {
				s.Disposition = driver.Nack
			}
			if err := settle(c, s, g); err != nil {
				t.Errorf("%s of %s: %v", s.Disposition, g.ID, err)
			}
		}
	}
}

// TestFIFONackGivesTheRestBack: what came behind a failed message of its key goes back with
// it, and comes again behind it; other keys are left alone.
func TestFIFONackGivesTheRestBack(t *testing.T) {
	t.Parallel()
	d, q := open(t), fresh(t, driver.Queue, 1)
	publish(t, d, q, someKeyed(8, 2)...)
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, 8)
	var even, odd []driver.Received
	for _, g := range got {
		if g.Key == "k0" {
			even = append(even, g)
		} else {
			odd = append(odd, g)
		}
	}
	mustSettle(t, c, driver.Ack, even[0])
	mustSettle(t, c, driver.Nack, even[1])
	for _, behind := range even[2:] {
		if err := settle(c, driver.Settlement{Disposition: driver.Ack}, behind); driver.ClassOf(err) != driver.LeaseLost {
			t.Errorf("acking what went back: %v", err)
		}
	}
	mustSettle(t, c, driver.Ack, odd...)
	again := receive(t, c, 3)
	if want := ids(even[1:]); !slices.Equal(ids(again), want) {
		t.Errorf("after the nack %v came, want %v", ids(again), want)
	}
	mustSettle(t, c, driver.Ack, again...)
	quiet(t, c, lease+time.Second)
}

// TestFIFOExtendsTogether: one extension renews all of the group.
func TestFIFOExtendsTogether(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d, q := openAt(t, p.srv.URL), fresh(t, driver.Queue, 1)
	publish(t, d, q, someKeyed(5, 1)...)
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, 5)
	for range 3 {
		<-time.After(lease * 2 / 3) // the load of the test: three times two thirds of a lease
		mustSettle(t, c, driver.Extend, got[0])
	}
	mustSettle(t, c, driver.Ack, got...) // the last one, too, is still ours
	if n := p.count("ChangeMessageVisibilityBatch"); n != 3 {
		t.Errorf("%d requests for three extensions of a group", n)
	}
}

// TestFIFOGroupIsLostTogether: if the lease of one message of a group is lost, all of it is,
// and nothing of it is deleted.
func TestFIFOGroupIsLostTogether(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d, q := openAt(t, p.srv.URL), fresh(t, driver.Queue, 1)
	publish(t, d, q, someKeyed(6, 2)...)
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, 6)
	var mine, other []driver.Received
	for _, g := range got {
		if g.Key == "k0" {
			mine = append(mine, g)
		} else {
			other = append(other, g)
		}
	}
	p.add(&rule{action: "ChangeMessageVisibilityBatch", times: 1, after: failedEntry{ID: "1", Code: "MessageNotInflight", SenderFault: true}.fail})
	err := settle(c, driver.Settlement{Disposition: driver.Extend}, mine...)
	for i := range mine {
		if driver.ClassOf(driver.ResultAt(err, i)) != driver.LeaseLost {
			t.Errorf("message %d of the group: %v", i, driver.ResultAt(err, i))
		}
	}
	err = settle(c, driver.Settlement{Disposition: driver.Ack}, mine...)
	if driver.ClassOf(driver.ResultAt(err, 0)) != driver.LeaseLost || p.count("DeleteMessageBatch") != 0 {
		t.Errorf("%v, %d deletes", err, p.count("DeleteMessageBatch"))
	}
	mustSettle(t, c, driver.Ack, other...)
	again := receive(t, c, 3) // when the lease has ended
	if !slices.Equal(ids(again), ids(mine)) {
		t.Errorf("%v came again, want %v", ids(again), ids(mine))
	}
}

// TestFIFOPublishOrder: what comes behind a message of its key that failed is not stored.
func TestFIFOPublishOrder(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name string
		rule *rule
		want driver.Class
	}{
		{"throttled", &rule{refuse: refusal(400, "ThrottlingException", "slow down")}, driver.Transient},
		{"answer lost", &rule{after: lostAnswer}, driver.Ambiguous},
		{"entry failed", &rule{after: failedEntry{ID: "0", Code: "InternalError"}.fail}, driver.Transient},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			d, q := openAt(t, p.srv.URL), fresh(t, driver.Queue, 1)
			fault.rule.action, fault.rule.times = "SendMessageBatch", 1
			p.add(fault.rule)
			batch := someKeyed(5, 1)
			err := d.Publish(within(t, 10*time.Second), q, batch)
			for i := range batch {
				want := driver.Transient
				if i == 0 {
					want = fault.want
				}
				if got := driver.ClassOf(driver.ResultAt(err, i)); got != want {
					t.Errorf("message %d: %v, want %v", i, driver.ResultAt(err, i), want)
				}
			}
			publish(t, d, q, batch...) // the same again: stored once, in order
			c := subscribe(t, d, driver.Subscription{From: q})
			got := receive(t, c, 5)
			if !slices.Equal(ids(got), idsOf(batch)) {
				t.Errorf("%v", ids(got))
			}
			mustSettle(t, c, driver.Ack, got...)
			quiet(t, c, lease+time.Second)
		})
	}
}

// TestFIFOCapabilities and the standard queue beside it.
func TestFIFOCapabilities(t *testing.T) {
	t.Parallel()
	d := openAt(t, "http://127.0.0.1:1")
	queue, topic := driver.Destination{Shape: driver.Queue, Name: "q"}, driver.Destination{Shape: driver.Topic, Name: "t"}
	for _, c := range []struct {
		of                 driver.Destination
		order              driver.OrderScope
		delay, nack, dedup time.Duration
		bytes              int
	}{
		{queue, driver.NoOrder, 900 * time.Second, 11 * time.Hour, 0, 783360},
		{queue.Keyed(4), driver.PerKey, 0, 11 * time.Hour, 5 * time.Minute, 783360},
		{topic, driver.NoOrder, 0, 11 * time.Hour, 0, 193536},
		{topic.Keyed(4), driver.PerKey, 0, 11 * time.Hour, 5 * time.Minute, 193536},
		{topic.ForGroup("g"), driver.NoOrder, 900 * time.Second, 11 * time.Hour, 0, 783360},
	} {
		got := d.Capabilities(c.of)
		want := driver.Capabilities{
			Settle: driver.Each, Order: c.order, Durable: true, Counts: true, Delay: c.delay, NackDelay: c.nack,
			Lease: 12 * time.Hour, Dedup: c.dedup, MaxBytes: c.bytes,
		}
		if got != want {
			t.Errorf("%v: %+v, want %+v", c.of, got, want)
		}
	}
	if got := d.Capabilities(driver.Destination{Shape: driver.Stream, Name: "s"}); got != (driver.Capabilities{}) {
		t.Errorf("a stream: %+v", got)
	}
}

// TestFIFODedup: the same message published twice is stored once; equal bodies of two are
// both.
func TestFIFODedup(t *testing.T) {
	t.Parallel()
	d, q := open(t), fresh(t, driver.Queue, 1)
	a, b := keyed(1, 1), keyed(2, 1)
	b.Body = a.Body
	publish(t, d, q, a, b)
	publish(t, d, q, a)
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, 2)
	mustSettle(t, c, driver.Ack, got...)
	quiet(t, c, lease)
	if fmt.Sprint(ids(got)) != "[m-000001 m-000002]" {
		t.Error(ids(got))
	}
}
