package rabbitmq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// What an owner gives back at its end comes to the next one in order: the head that it has
// not finished, what it holds behind it, and what the broker had still on its way to it.
func TestAnOwnerGivesBackInOrder(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]map[int]driver.Disposition{
		"the last ack":          {0: driver.Ack},
		"the head and one more": {0: driver.Ack, 1: driver.Return, 5: driver.Nack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testGivesBack(t, last)
		})
	}
}

func testGivesBack(t *testing.T, last map[int]driver.Disposition) {
	t.Helper()
	const n, size, held = 400, 64 << 10, 20
	d := open(t)
	q := fresh(t, d, driver.Queue, 1)
	var batch []*driver.Message
	for i := range n { // more than the connection takes at once
		batch = append(batch, &driver.Message{ID: fmt.Sprintf("m-%06d", i), Key: "k", Body: make([]byte, size), Time: time.Now()})
	}
	if err := d.Publish(within(t, 30*time.Second), q, batch); err != nil {
		t.Fatal(err)
	}
	var a, b assignments
	first := subscribe(t, d, a.sub(driver.Subscription{From: q}))
	var end []driver.Settlement
	for i, r := range receive(t, first, held, n) {
		if what := last[i]; what != 0 {
			end = append(end, driver.Settlement{Receipt: r.Receipt, Disposition: what, Final: true})
		}
	}
	if err := first.Settle(within(t, 10*time.Second), end); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	for i, r := range receive(t, subscribe(t, d, b.sub(driver.Subscription{From: q})), n-1, n) {
		if want := fmt.Sprintf("m-%06d", i+1); r.ID != want {
			t.Fatalf("%s came at the place of %s", r.ID, want)
		}
	}
}
