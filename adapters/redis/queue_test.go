package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

func TestAMessageIsKeptAsItIs(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	m := &driver.Message{
		ID: "id", Key: "k", Type: "pizza", Body: []byte("\x00\xff"), Time: time.Now(),
		Headers: []driver.Header{{Key: "a", Value: "\x00"}, {Key: "a", Value: ""}},
	}
	if err := d.Publish(within(t, 5*time.Second), to, []*driver.Message{m}); err != nil {
		t.Fatal(err)
	}
	c := subscribe(t, d, driver.Subscription{From: to})
	r := receive(t, c, 1)[0]
	if r.ID != m.ID || r.Key != m.Key || r.Type != m.Type || !bytes.Equal(r.Body, m.Body) || !r.Time.Equal(m.Time) ||
		len(r.Headers) != 2 || r.Headers[0] != m.Headers[0] || r.Headers[1] != m.Headers[1] || r.DeliveryCount != 1 || r.Offset != -1 {
		t.Errorf("%+v", r)
	}
	if left := time.Until(r.Deadline); left <= 0 || left > lease {
		t.Errorf("the lease ends in %v", left)
	}
}

func TestNeverMoreThanTheDemand(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	publish(t, d, to, 0, 20)
	first := receive(t, c, 5)
	if err := settle(c, driver.Settlement{Disposition: driver.Nack}, first[:3]...); err != nil {
		t.Fatal(err)
	}
	// Both streams have messages now, and COUNT of Redis holds for each of them.
	for n := 2; n < 8; n++ {
		got, err := c.Receive(within(t, 5*time.Second), demand(1))
		if err != nil || len(got) != 1 {
			t.Fatalf("%d messages for a demand of one, %v", len(got), err)
		}
		if s := stats(t, d, to); s.InFlight != int64(n+1) {
			t.Fatalf("%d in flight, want %d", s.InFlight, n+1)
		}
	}
}

func TestNackCountsAndKeepsTheID(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	publish(t, d, to, 0, 1)
	first := receive(t, c, 1)[0]
	for n := 2; n < 5; n++ {
		before := first
		if err := settle(c, driver.Settlement{Disposition: driver.Nack, Reason: errors.New("burnt\nblack")}, before); err != nil {
			t.Fatal(err)
		}
		first = receive(t, c, 1)[0]
		if first.DeliveryCount != n || first.NativeID != before.NativeID || first.ID != before.ID {
			t.Errorf("delivery %d: %+v", n, first)
		}
	}
	mustSettle(t, c, driver.Ack, first)
	if s := stats(t, d, to); s.Ready != 0 || s.InFlight != 0 || s.Delayed != 0 || s.Lag != 0 {
		t.Errorf("%+v", s)
	}
	quiet(t, c, 300*time.Millisecond)
}

func TestNackWithDelayIsNeverEarly(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	publish(t, d, to, 0, 1)
	r := receive(t, c, 1)[0]
	const wait = 400 * time.Millisecond
	began := time.Now()
	if err := settle(c, driver.Settlement{Disposition: driver.Nack, Delay: wait}, r); err != nil {
		t.Fatal(err)
	}
	if s := stats(t, d, to); s.Delayed != 1 || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
	r = receive(t, c, 1)[0]
	if took := time.Since(began); took < wait || r.DeliveryCount != 2 {
		t.Errorf("delivery %d came after %v", r.DeliveryCount, took)
	}
}

func TestReturnIsNotCounted(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	a := subscribe(t, d, driver.Subscription{From: to})
	publish(t, d, to, 0, 4)
	got := receive(t, a, 4)
	mustSettle(t, a, driver.Return, got...)
	if s := stats(t, d, to); s.Ready != 4 || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
	b := subscribe(t, d, driver.Subscription{From: to})
	began := time.Now()
	for _, r := range receive(t, b, 4) {
		if r.DeliveryCount != 1 {
			t.Errorf("%s: delivery %d, want 1", r.ID, r.DeliveryCount)
		}
		mustSettle(t, b, driver.Ack, r)
	}
	if took := time.Since(began); took > lease/2 {
		t.Errorf("what was given back came after %v", took)
	}
	for _, r := range got {
		if err := settle(a, driver.Settlement{Disposition: driver.Extend}, r); !errors.Is(err, driver.LeaseLost) {
			t.Errorf("a lease that was given back was extended: %v", err)
		}
	}
}

func TestALeaseThatEndsIsTakenOver(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	a, b := subscribe(t, d, driver.Subscription{From: to}), subscribe(t, d, driver.Subscription{From: to})
	publish(t, d, to, 0, 2)
	old := receive(t, a, 2)
	mustSettle(t, a, driver.Ack, old[1])
	began := time.Now()
	r := receive(t, b, 1)[0]
	if took := time.Since(began); took > lease+1500*time.Millisecond || took < lease/2 || r.DeliveryCount != 2 {
		t.Errorf("delivery %d came after %v with a lease of %v", r.DeliveryCount, took, lease)
	}
	for _, what := range []driver.Disposition{driver.Extend, driver.Ack, driver.Nack, driver.Return, driver.Reject} {
		if err := settle(a, driver.Settlement{Disposition: what}, old[0]); !errors.Is(err, driver.LeaseLost) {
			t.Errorf("%v by the old owner gave %v", what, err)
		}
	}
	if s := stats(t, d, to); s.InFlight != 1 {
		t.Errorf("the old owner took the message away: %+v", s)
	}
	mustSettle(t, b, driver.Ack, r)
}

func TestTheSameConsumerTakesOverFromItself(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	publish(t, d, to, 0, 1)
	old := receive(t, c, 1)[0]
	r := receive(t, c, 1)[0] // its lease has ended
	if err := settle(c, driver.Settlement{Disposition: driver.Ack}, old); !errors.Is(err, driver.LeaseLost) {
		t.Errorf("the ack of the first delivery gave %v", err)
	}
	mustSettle(t, c, driver.Ack, r)
}

func TestExtendHolds(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	a, b := subscribe(t, d, driver.Subscription{From: to}), subscribe(t, d, driver.Subscription{From: to})
	publish(t, d, to, 0, 1)
	r := receive(t, a, 1)[0]
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for tick := time.NewTicker(lease / 4); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				if err := settle(a, driver.Settlement{Disposition: driver.Extend}, r); err != nil {
					t.Errorf("extend: %v", err)
				}
			}
		}
	})
	quiet(t, b, 3*lease)
	close(stop)
	wg.Wait()
	mustSettle(t, a, driver.Ack, r)
	if err := settle(a, driver.Settlement{Disposition: driver.Extend, Delay: 2 * lease}, r); !errors.Is(err, driver.Unsupported) {
		t.Errorf("an extension over the lease gave %v", err)
	}
}

func TestCloseIsPromptAndGivesBack(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Receive(context.Background(), demand(10))
		waiting <- err
	}()
	time.Sleep(100 * time.Millisecond) // into the blocked read
	began := time.Now()
	if err := c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 400*time.Millisecond {
		t.Errorf("Close of a consumer that waits took %v", took)
	}
	if err := <-waiting; driver.ClassOf(err) != driver.Closed {
		t.Errorf("Receive ended with %v", err)
	}
	if n, err := raw(t).XInfoConsumers(within(t, time.Second), "varal:{"+to.Name+"}:s", "queue").Result(); err != nil || len(n) != 0 {
		t.Errorf("the group still has %d consumers, %v", len(n), err)
	}
}

func TestACancelledReceiveLosesNothing(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	got := map[string]int{}
	var sent sync.WaitGroup
	defer sent.Wait()
	for i := range 60 {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Duration(i%7)*time.Millisecond, cancel)
		sent.Go(func() {
			if err := d.Publish(context.Background(), to, []*driver.Message{message(i)}); err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		rs, _ := c.Receive(ctx, demand(10))
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("a cancelled Receive returned after %v", took)
		}
		cancel()
		for _, r := range rs {
			got[r.ID]++
			mustSettle(t, c, driver.Ack, r)
		}
	}
	for len(got) < 60 {
		for _, r := range receive(t, c, 1) {
			got[r.ID]++
			mustSettle(t, c, driver.Ack, r)
		}
	}
	for id, n := range got {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

func TestSpaceIsGivenBack(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	for i := range 6 {
		publish(t, d, to, i*500, i*500+500)
		mustSettle(t, c, driver.Ack, receive(t, c, 500)...)
	}
	if n := raw(t).XLen(within(t, time.Second), "varal:{"+to.Name+"}:s").Val(); n > 1500 {
		t.Errorf("%d entries are left of 3000 that were acknowledged", n)
	}
	publish(t, d, to, 9000, 9010)
	if got := receive(t, c, 10); len(got) != 10 {
		t.Errorf("%d after the trim", len(got))
	}
}

func TestScheduledAndExpiring(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	late, dead, now := message(1), message(2), message(3)
	late.Delay, dead.TTL = 300*time.Millisecond, time.Millisecond
	dead.Time = time.Now().Add(-time.Second)
	began := time.Now()
	if err := d.Publish(within(t, 5*time.Second), to, []*driver.Message{late, dead, now}); err != nil {
		t.Fatal(err)
	}
	if r := receive(t, c, 1)[0]; r.ID != now.ID {
		t.Errorf("%s came first", r.ID)
	}
	if r := receive(t, c, 1)[0]; r.ID != late.ID || time.Since(began) < late.Delay {
		t.Errorf("%s came after %v", r.ID, time.Since(began))
	}
	quiet(t, c, 200*time.Millisecond)
	if s := stats(t, d, to); s.InFlight != 2 || s.Ready != 0 {
		t.Errorf("the expired message is still there: %+v", s)
	}
}

func TestPublishTellsWhatBecameOfEach(t *testing.T) {
	t.Parallel()
	d, to := open(t, func(c *redis.Config) { c.MaxBytes = 1000 }), fresh(t, driver.Queue)
	batch := []*driver.Message{message(0), message(1), message(2), message(3)}
	batch[1].Body = make([]byte, 1001)
	batch[2].Priority = 1
	err := d.Publish(within(t, 5*time.Second), to, batch)
	for i, want := range []driver.Class{0, driver.TooLarge, driver.Unsupported, 0} {
		if got := driver.ResultAt(err, i); driver.ClassOf(got) != want {
			t.Errorf("message %d: %v, want %v", i, got, want)
		}
	}
	if !strings.Contains(err.Error(), "1000") {
		t.Errorf("%v does not name the limit", err)
	}
	c := subscribe(t, d, driver.Subscription{From: to})
	if got := ids(receive(t, c, 2)); got[0] != batch[0].ID || got[1] != batch[3].ID {
		t.Errorf("%v arrived", got)
	}
}

func TestPublishFromMany(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	const callers, each = 40, 25
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range each {
				m := message(i*each + j)
				m.Key = fmt.Sprint(i)
				if err := d.Publish(within(t, 10*time.Second), to, []*driver.Message{m}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	c := subscribe(t, d, driver.Subscription{From: to})
	last := map[string]string{}
	for range callers * each / 100 {
		rs := receive(t, c, 100)
		for _, r := range rs {
			if r.ID <= last[r.Key] {
				t.Errorf("%s came after %s", r.ID, last[r.Key])
			}
			last[r.Key] = r.ID
		}
		mustSettle(t, c, driver.Ack, rs...)
	}
}

func TestWhatIsNotThereIsRefused(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, driver.Queue)
	ctx := within(t, 10*time.Second)
	one := []*driver.Message{message(1)}
	keyed := q.Keyed(4)
	missing := driver.Destination{Shape: driver.Topic, Name: "there-is-none"}
	as := driver.Destination{Shape: driver.Stream, Name: q.Name}
	for what, c := range map[string]struct {
		err  error
		want driver.Class
	}{
		"publish keyed":      {d.Publish(ctx, keyed, one), driver.Conflict},
		"publish missing":    {d.Publish(ctx, missing, one), driver.NotFound},
		"publish as stream":  {d.Publish(ctx, as, one), driver.Conflict},
		"publish with brace": {d.Publish(ctx, driver.Destination{Shape: driver.Queue, Name: "a}b"}, one), driver.Permanent},
		"seek a queue":       {d.Admin().Seek(ctx, driver.Resource{Destination: q}, driver.Position{Kind: driver.Earliest}), driver.Unsupported},
	} {
		if got := driver.ClassOf(driver.ResultAt(c.err, 0)); got != c.want {
			t.Errorf("%s: %v, want %v", what, c.err, c.want)
		}
	}
	for _, s := range []driver.Subscription{{From: q, Start: driver.Position{Kind: driver.Latest}}, {From: q, Temporary: true}} {
		if _, err := d.Subscribe(ctx, s); !errors.Is(err, driver.Unsupported) {
			t.Errorf("%+v: %v", s.From, err)
		}
	}
}
