package rabbitmq_test

import (
	"errors"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// A basic.nack says that a queue refused the message. On a topic another group's queue
// may have taken it.
func TestNackOfTheBroker(t *testing.T) {
	t.Parallel()
	d := open(t)
	to := fresh(t, d, driver.Topic, 0, "open")
	full := map[string]string{"max-length": "1", "overflow": "reject-publish"}
	small := driver.Resource{Destination: to.ForGroup("full"), Options: full}
	queue := driver.Resource{Destination: driver.Destination{Shape: driver.Queue, Name: to.Name + ".q"}, Options: full}
	own := []driver.Resource{small, queue}
	if _, err := d.Admin().Apply(within(t, 10*time.Second), own, driver.Create); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = d.Admin().Apply(within(t, 10*time.Second), own, driver.Delete) }()
	for _, tc := range []struct {
		to   driver.Destination
		want driver.Class
	}{{to, driver.Ambiguous}, {small.Destination, driver.Transient}, {queue.Destination, driver.Transient}} {
		var err error
		for i := 0; i < 1000 && err == nil; i++ { // the broker counts with a delay
			err = d.Publish(within(t, 10*time.Second), tc.to, []*driver.Message{message(i, "")})
		}
		if !errors.Is(err, tc.want) {
			t.Errorf("%v: %v, want %v", tc.to, err, tc.want)
		}
	}
}

// A message that has outlived its TTL is not handed out, a younger one is.
func TestTTL(t *testing.T) {
	t.Parallel()
	d := open(t)
	for _, partitions := range []int{0, 2} {
		q := fresh(t, d, driver.Queue, partitions)
		if !d.Capabilities(q).TTL {
			t.Fatal("no TTL")
		}
		short, long := message(1, "k"), message(2, "k")
		short.TTL, long.TTL = 50*time.Millisecond, time.Hour
		if err := d.Publish(within(t, 10*time.Second), q, []*driver.Message{short, long}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the short one expires", 10*time.Second, func() bool { return ready(t, d, q) == 1 })
		c := subscribe(t, d, driver.Subscription{From: q})
		got := receive(t, c, 1, 10)
		if got[0].ID != long.ID || got[0].TTL != time.Hour {
			t.Errorf("%d partitions: %s with TTL %v", partitions, got[0].ID, got[0].TTL)
		}
		settle(t, c, driver.Ack, got...)
		quiet(t, c, 10, 100*time.Millisecond)
	}
	to := fresh(t, d, driver.Topic, 0, "g")
	m := message(1, "")
	m.TTL = 50 * time.Millisecond
	if err := d.Publish(within(t, 10*time.Second), to, []*driver.Message{m}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the copy of a group expires", 10*time.Second, func() bool { return ready(t, d, to.ForGroup("g")) == 0 })
}
