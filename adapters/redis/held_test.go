package redis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// heavy publishes n messages and receives two of them: sizes are not known before a
// message is there, so the consumer has more in its hands than the bytes asked for.
func heavy(t *testing.T, d driver.Driver, to driver.Destination, c driver.Consumer, n int) {
	t.Helper()
	for i := range n {
		m := message(i)
		m.Body = make([]byte, 100<<10)
		if err := d.Publish(within(t, 5*time.Second), to, []*driver.Message{m}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Receive(within(t, 5*time.Second), driver.Demand{Records: 10, Bytes: 210 << 10, Limit: 10})
	if err != nil || len(got) != 2 {
		t.Fatalf("%d messages within 210 KiB, %v", len(got), err)
	}
	mustSettle(t, c, driver.Ack, got...)
	if s := stats(t, d, to); s.InFlight != int64(n-2) {
		t.Fatalf("%+v: nothing waits in the consumer, so this test shows nothing", s)
	}
}

// Nobody else extends the lease of what core has not seen.
func TestWhatWaitsInTheConsumerIsRenewed(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second // what is left of it below must be more than a busy machine takes
	d, to := open(t, func(c *redis.Config) { c.Lease = lease }), fresh(t, driver.Queue)
	a := subscribe(t, d, driver.Subscription{From: to})
	heavy(t, d, to, a, 5)
	time.Sleep(lease * 6 / 10) // most of the lease is used up: the case
	for _, r := range receive(t, a, 3) {
		if left := time.Until(r.Deadline); left < lease/2 || r.DeliveryCount != 1 {
			t.Errorf("%s, delivery %d, is handed out with %v left", r.ID, r.DeliveryCount, left)
		}
		mustSettle(t, a, driver.Ack, r)
	}
}

// What waited for longer than its lease belongs to whoever took it over.
func TestWhatWaitedTooLongIsNotHandedOut(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	a, b := subscribe(t, d, driver.Subscription{From: to}), subscribe(t, d, driver.Subscription{From: to})
	heavy(t, d, to, a, 5)
	came := receive(t, b, 3) // after the lease of a
	for _, r := range came {
		if r.DeliveryCount != 2 {
			t.Errorf("%s: delivery %d", r.ID, r.DeliveryCount)
		}
	}
	quiet(t, a, 100*time.Millisecond)
	for _, r := range came {
		mustSettle(t, b, driver.Ack, r)
	}
}

func TestCloseGivesBackWhatWaits(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	a, b := subscribe(t, d, driver.Subscription{From: to}), subscribe(t, d, driver.Subscription{From: to})
	heavy(t, d, to, a, 5)
	if err := a.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, r := range receive(t, b, 3) {
		if r.DeliveryCount != 1 || r.ID == fmt.Sprintf("m-%06d", 0) {
			t.Errorf("%s: delivery %d", r.ID, r.DeliveryCount)
		}
	}
	if took := time.Since(began); took > lease/2 {
		t.Errorf("it came after %v", took)
	}
}

// TestDelayedOneByOne: a delayed message that was moved as soon as it was seen is a sign
// that another may come, as one that still waits is.
func TestDelayedOneByOne(t *testing.T) {
	t.Parallel()
	// A short lease would make the consumer look often for its own sake.
	d, to := open(t, func(c *redis.Config) { c.Lease = 30 * time.Second }), fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	for i := range 3 {
		m := message(i)
		m.Delay = 50 * time.Millisecond
		due := make(chan time.Time, 1)
		// While the consumer waits: a Receive that begins would see it at once.
		time.AfterFunc(100*time.Millisecond, func() {
			due <- time.Now().Add(m.Delay)
			if err := d.Publish(within(t, 5*time.Second), to, []*driver.Message{m}); err != nil {
				t.Error(err)
			}
		})
		got, err := c.Receive(within(t, 10*time.Second), demand(10)) // with room for one it looks often
		if err != nil {
			t.Fatal(err)
		}
		if late := time.Since(<-due); i > 0 && late > 500*time.Millisecond {
			t.Errorf("message %d came %v late; only the first may", i, late)
		}
		mustSettle(t, c, driver.Ack, got...)
	}
}
