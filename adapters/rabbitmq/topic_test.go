package rabbitmq_test

import (
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/rabbitmq"
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

// A temporary group goes on while the broker still believes in its old connection, and
// leaves nothing behind although its connection lives on.
func TestTemporaryGroup(t *testing.T) {
	t.Parallel()
	pub := open(t)
	to := fresh(t, pub, driver.Topic, 0, "g")
	p := newTCPProxy(t, brokerURL(t))
	d := open(t, func(c *rabbitmq.Config) { c.URLs, c.Heartbeat = []string{p.url}, time.Second })
	var a assignments
	c := subscribe(t, d, a.sub(driver.Subscription{From: to, Temporary: true}))
	publish(t, pub, to, 0, 1, nil)
	settle(t, c, driver.Ack, receive(t, c, 1, 10)...)
	p.freezeOld()
	ctx := within(t, 20*time.Second)
	for i := 1; ; i++ {
		publish(t, pub, to, i, i+1, nil) // what comes meanwhile is gone
		part := within(t, 300*time.Millisecond)
		if got, err := c.Receive(part, demand(10, 10)); err == nil {
			settle(t, c, driver.Ack, got...)
			break
		} else if k := driver.ClassOf(err); part.Err() == nil && k != driver.Transient || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	a.mu.Lock()
	if len(a.all) < 2 || a.revoked != len(a.all)-1 {
		t.Errorf("assignments %+v, %d revoked", a.all, a.revoked)
	}
	a.mu.Unlock()
	unused := subscribe(t, d, driver.Subscription{From: to, Temporary: true})
	for _, c := range []driver.Consumer{c, unused} {
		if err := c.Close(within(t, 5*time.Second)); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the queues go", 20*time.Second, func() bool { // the frozen connection's with it
		return !strings.Contains(ctl(t, "list_queues", "-q", "name"), "varal.temporary:"+to.Name+":")
	})
}
