package aws_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// TestRequestsPerMessage measures what a message costs when there are many, 1 KiB each.
func TestRequestsPerMessage(t *testing.T) {
	t.Parallel()
	const n, publishers = 3000, 30
	p, d, q := behind(t, 0, func(c *aws.Config) { c.Lease = 30 * time.Second })
	cl := core.NewClient(d, core.Options{Provision: core.ProvisionNone})
	body := []byte(strings.Repeat("x", 1<<10))
	errs := make(chan error, publishers)
	for range publishers {
		go func() {
			for range n / publishers / 10 {
				var batch []*core.Message
				for range 10 {
					batch = append(batch, &core.Message{Body: body})
				}
				if err := cl.Publish(within(t, 60*time.Second), q, batch...); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range publishers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	var handled atomic.Int64
	done := make(chan struct{})
	s, err := cl.Start(context.Background(), core.Subscription{From: q}, func(context.Context, *core.Delivery) error {
		if handled.Add(1) == n {
			close(done)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatalf("%d of %d", handled.Load(), n)
	}
	if err := s.Drain(within(t, 30*time.Second)); err != nil {
		t.Error(err)
	}
	per := float64(p.count("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch")) / n
	t.Logf("%.3f requests a message: %d sends, %d receives, %d deletes, %d extensions", per,
		p.count("SendMessageBatch"), p.count("ReceiveMessage"), p.count("DeleteMessageBatch"), p.count("ChangeMessageVisibilityBatch"))
	if per > 0.35 {
		t.Errorf("%.3f requests a message, the bar is 0.35", per)
	}
}

// TestSingleSendersShareRequests: thirty publishers of one message at a time.
func TestSingleSendersShareRequests(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0)
	const publishers, each = 30, 20
	errs := make(chan error, publishers)
	for range publishers {
		go func() {
			var err error
			for i := range each {
				err = errors.Join(err, d.Publish(within(t, 30*time.Second), q, some(i, i+1)))
			}
			errs <- err
		}()
	}
	for range publishers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	per := float64(p.count("SendMessageBatch")) / (publishers * each)
	t.Logf("%.3f sends a message", per)
	if per > 0.35 {
		t.Errorf("%.3f sends a message from %d publishers", per, publishers)
	}
}

// TestIdleRequests measures what an idle subscription costs after a burst, with the default
// wait: one request in 20 s.
func TestIdleRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("it watches for 40 s")
	}
	t.Parallel()
	p, d, q := behind(t, 0, func(c *aws.Config) { c.Lease, c.Wait = 30*time.Second, 0 })
	publish(t, d, q, some(0, 300)...)
	c := subscribe(t, d, driver.Subscription{From: q})
	for range 30 {
		mustSettle(t, c, driver.Ack, receive(t, c, 10)...)
	}
	quiet(t, c, 21*time.Second) // what the burst has begun is over
	before, watch := p.count(), 40*time.Second
	quiet(t, c, watch)
	per := float64(p.count()-before) / watch.Seconds()
	t.Logf("%.3f requests a second", per)
	if per > 0.06 {
		t.Errorf("%.3f requests a second, the bar is 0.06", per)
	}
	cut, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(cut)
}

// TestExtensionsAreFew: a handler that ends within half a lease needs none, a longer one no
// more than one for each half, and none comes after the message was deleted.
func TestExtensionsAreFew(t *testing.T) {
	t.Parallel()
	for run, most := range map[time.Duration]int{500 * time.Millisecond: 0, 3 * lease / 2: 3} {
		p, d, q := behind(t, 0)
		publish(t, d, q, message(1))
		cl := core.NewClient(d, core.Options{Provision: core.ProvisionNone})
		ended := make(chan struct{}, 10)
		s, err := cl.Start(context.Background(), core.Subscription{From: q}, func(context.Context, *core.Delivery) error {
			<-time.After(run) // the load of the test
			ended <- struct{}{}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		<-ended
		<-time.After(2 * lease)
		if n := p.count("ChangeMessageVisibilityBatch"); n > most || n == 0 && most > 0 {
			t.Errorf("a run of %v and two leases after it took %d extensions, at most %d", run, n, most)
		}
		if err := s.Drain(within(t, 10*time.Second)); err != nil {
			t.Error(err)
		}
		if len(ended) != 0 {
			t.Errorf("the message was handled %d times more", len(ended))
		}
	}
}

// TestRequestsAreCounted: what a Requests says is what came out of the process, by name.
func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	var requests aws.Requests
	p, d, q := behind(t, 0, func(c *aws.Config) { c.Requests = &requests })
	publish(t, d, q, some(0, 25)...)
	c := subscribe(t, d, driver.Subscription{From: q})
	mustSettle(t, c, driver.Ack, receive(t, c, 25)...)
	if err := c.Close(within(t, 10*time.Second)); err != nil {
		t.Error(err)
	}
	topic := fresh(t, driver.Topic, 0)
	publish(t, d, topic, message(1))
	counts, sum := requests.Counts(), int64(0)
	for _, name := range []string{"SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch"} {
		if got, want := counts["SQS."+name], int64(p.count(name)); got != want || got == 0 {
			t.Errorf("%s: %d counted, %d made", name, got, want)
		}
	}
	for _, n := range counts {
		sum += n
	}
	if all := int64(p.count()); sum != all || counts["SNS.PublishBatch"] != 1 {
		t.Errorf("%v: %d in all, %d were made", counts, sum, all)
	}
	counts["SQS.SendMessageBatch"] = 0 // the caller's
	if requests.Counts()["SQS.SendMessageBatch"] == 0 {
		t.Error("a caller changed the counter")
	}
}
