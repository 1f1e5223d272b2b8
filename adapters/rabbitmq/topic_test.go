package rabbitmq_test

import (
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

func TestTopic(t *testing.T) {
	t.Parallel()
	d := open(t)
	to := fresh(t, d, driver.Topic, 0, "a")
	bound := driver.Resource{Destination: to.ForGroup("bound"), Options: map[string]string{"bind": "order.*, other"}}
	if _, err := d.Admin().Apply(within(t, 10*time.Second), []driver.Resource{bound}, driver.Create); err != nil {
		t.Fatal(err)
	}
	a := subscribe(t, d, driver.Subscription{From: to, Group: "a"})
	b := subscribe(t, d, driver.Subscription{From: to, Group: "b"}) // made here
	o := subscribe(t, d, driver.Subscription{From: to, Group: "bound"})
	tmp := subscribe(t, d, driver.Subscription{From: to, Temporary: true})
	t.Cleanup(func() {
		_, _ = d.Admin().Apply(within(t, 10*time.Second), []driver.Resource{bound, {Destination: to.ForGroup("b")}}, driver.Delete)
	})
	types := []string{"", "order.placed", "order.placed.x", "other"}
	for i, typ := range types {
		m := message(i, "")
		m.Type = typ
		if err := d.Publish(within(t, 10*time.Second), to, []*driver.Message{m}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Publish(within(t, 10*time.Second), to.ForGroup("b"), []*driver.Message{message(9, "")}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		c driver.Consumer
		n int
	}{"a": {a, 4}, "b": {b, 5}, "bound": {o, 2}, "temporary": {tmp, 4}} {
		settle(t, want.c, driver.Ack, receive(t, want.c, want.n, 10)...)
		quiet(t, want.c, 10, 100*time.Millisecond)
		_ = name
	}
}
