package adaptertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

const (
	publishLimit   = 30 * time.Second
	subscribeLimit = 20 * time.Second
	receiveLimit   = 15 * time.Second
	settleLimit    = 10 * time.Second
)

// Message is number i. Their ids sort as their numbers do.
func Message(i int) *driver.Message {
	return &driver.Message{ID: fmt.Sprintf("m-%06d", i), Body: fmt.Appendf(nil, "body %d", i), Time: time.Now()}
}

// Messages are those from number from up to end, without end.
func Messages(from, end int) (batch []*driver.Message) {
	for i := from; i < end; i++ {
		batch = append(batch, Message(i))
	}
	return batch
}

// Publish publishes a batch, of which no message may fail.
func Publish(t testing.TB, d driver.Driver, to driver.Destination, batch ...*driver.Message) {
	t.Helper()
	if err := d.Publish(Within(t, publishLimit), to, batch); err != nil {
		t.Fatal(err)
	}
}

// Subscribe subscribes until the end of the test. The test may close the Consumer before.
func Subscribe(t testing.TB, d driver.Driver, s driver.Subscription) driver.Consumer {
	t.Helper()
	c, err := d.Subscribe(Within(t, subscribeLimit), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(Within(t, closeLimit)) })
	return c
}

// Demand is for n messages of any size, where none is held yet.
func Demand(n int) driver.Demand { return driver.Demand{Records: n, Bytes: 1 << 30, Limit: n} }

// Receive collects n messages, going on after Transient as core does.
func Receive(t testing.TB, c driver.Consumer, n int) []driver.Received {
	t.Helper()
	ctx := Within(t, receiveLimit)
	var out []driver.Received
	for len(out) < n {
		got, err := c.Receive(ctx, Demand(n-len(out)))
		if err != nil && (ctx.Err() != nil || driver.ClassOf(err) != driver.Transient) {
			t.Fatalf("received %d of %d: %v", len(out), n, err)
		}
		if len(got) > n-len(out) {
			t.Fatalf("%d messages for a demand of %d", len(got), n-len(out))
		}
		out = append(out, got...)
	}
	return out
}

// Quiet fails the test if anything comes before d is over, an error as well.
func Quiet(t testing.TB, c driver.Consumer, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	got, err := c.Receive(ctx, Demand(10))
	if err == nil {
		t.Fatalf("unexpected %d messages, first %q", len(got), got[0].ID)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// Settle settles each of rs as s says, whose own Receipt does not count.
func Settle(c driver.Consumer, s driver.Settlement, rs ...driver.Received) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	var batch []driver.Settlement
	for _, r := range rs {
		s.Receipt = r.Receipt
		batch = append(batch, s)
	}
	return c.Settle(ctx, batch)
}

// MustSettle settles rs, of which none may fail.
func MustSettle(t testing.TB, c driver.Consumer, what driver.Disposition, rs ...driver.Received) {
	t.Helper()
	if err := Settle(c, driver.Settlement{Disposition: what}, rs...); err != nil {
		t.Fatal(err)
	}
}

// IDs are those of rs, in their order.
func IDs(rs []driver.Received) []string {
	var out []string
	for _, r := range rs {
		out = append(out, r.ID)
	}
	return out
}
