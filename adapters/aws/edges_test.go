package aws_test

import (
	"testing"
	"time"

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
