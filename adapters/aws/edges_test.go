package aws_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core/driver"
)

// oneGroup publishes n messages of one key and receives them all.
func oneGroup(t *testing.T, d driver.Driver, q driver.Destination, n int) (driver.Consumer, []driver.Received) {
	t.Helper()
	for i := range n {
		publish(t, d, q, keyed(i, 1))
	}
	c := subscribe(t, d, driver.Subscription{From: q})
	return c, receive(t, c, n)
}

// A Nack gives back with a message what came behind it. An extension in the same call must
// not say that this one is still ours: its handler would go on beside the next hand-out.
func TestExtendOfWhatGoesBackWithAnother(t *testing.T) {
	t.Parallel()
	d, q := open(t), fresh(t, driver.Queue, 1)
	c, got := oneGroup(t, d, q, 2)
	err := c.Settle(within(t, 5*time.Second), []driver.Settlement{
		{Receipt: got[0].Receipt, Disposition: driver.Nack},
		{Receipt: got[1].Receipt, Disposition: driver.Extend},
	})
	if res := driver.ResultAt(err, 0); res != nil {
		t.Error(res)
	}
	if res := driver.ResultAt(err, 1); driver.ClassOf(res) != driver.LeaseLost {
		t.Errorf("the extension ended with %v", res)
	}
}

// A private group ends with its consumer, also when that has to hurry: nobody else would
// ever delete its queue.
func TestTemporaryGroupOfAHurriedClose(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Topic, 0)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var err error
	for try := range 10 { // a busy emulator may take longer than such a Close has
		group := fmt.Sprintf("mine-%d", try)
		c := subscribe(t, d, driver.Subscription{From: to, Group: group, Temporary: true})
		if _, err := d.Admin().Stats(within(t, 5*time.Second), driver.Resource{Destination: to.ForGroup(group)}); err != nil {
			t.Fatal(err)
		}
		if err = c.Close(over); errors.Is(err, context.DeadlineExceeded) {
			continue
		}
		if _, err := open(t).Admin().Stats(within(t, 5*time.Second), driver.Resource{Destination: to.ForGroup(group)}); driver.ClassOf(err) != driver.NotFound {
			t.Errorf("its queue is still there: %v", err)
		}
		return
	}
	t.Errorf("no Close of ten has deleted its queue: %v", err)
}

// A message is acknowledged while the renewal of the time that it had waited here is under
// way. The renewal fails, and that is no loss: what is behind it in its group stays ours.
func TestRenewalOverTakenByAnAck(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 1, func(c *aws.Config) { c.Lease = 4 * time.Second })
	c := subscribe(t, d, driver.Subscription{From: q})
	publish(t, open(t), q, someKeyed(3, 1)...)
	asked, answer := make(chan struct{}), make(chan struct{})
	p.add(&rule{action: "ReceiveMessage", times: 1, before: func() { close(asked); <-answer }})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-asked; cancel() }() // what comes now waits for the next Receive
	if got, err := c.Receive(ctx, demand(3)); err == nil {
		t.Fatalf("%d messages that were not answered yet", len(got))
	}
	held, release := make(chan struct{}), make(chan struct{})
	p.add(&rule{action: "ChangeMessageVisibilityBatch", times: 1, before: func() { close(held); <-release }})
	close(answer)
	select {
	case <-held: // the keeper renews what waits
	case <-within(t, 20*time.Second).Done():
		t.Fatal("what waits is not renewed")
	}
	var got []driver.Received
	for len(got) < 3 {
		more, err := c.Receive(within(t, 5*time.Second), demand(3-len(got)))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, more...)
	}
	mustSettle(t, c, driver.Ack, got[0])
	close(release)
	time.Sleep(300 * time.Millisecond) // for the answer
	mustSettle(t, c, driver.Ack, got[1:]...)
}
