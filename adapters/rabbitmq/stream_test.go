package rabbitmq_test

import (
	"errors"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

func commit(t *testing.T, c driver.Consumer, r driver.Received, state string) {
	t.Helper()
	e := driver.Settlement{Receipt: r.Receipt, Disposition: driver.Ack}
	if state != "" {
		e.State = []byte(state)
	}
	if err := c.Settle(within(t, 10*time.Second), []driver.Settlement{e}); err != nil {
		t.Fatal(err)
	}
}

func TestStreamGroup(t *testing.T) {
	t.Parallel()
	d := open(t)
	s := fresh(t, d, driver.Stream, 0, "g")
	publish(t, d, s, 0, 50, nil)
	var a assignments
	c := subscribe(t, d, a.sub(driver.Subscription{From: s, Group: "g"}))
	got := receive(t, c, 30, 20+30)
	for i, r := range got {
		if r.Offset != int64(i) || r.ID != message(i, "").ID || r.DeliveryCount != 0 {
			t.Fatalf("message %d: offset %d id %s", i, r.Offset, r.ID)
		}
	}
	commit(t, c, got[9], "")
	commit(t, c, got[19], "half way")
	if err := c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	// A restart goes on after what was committed, with its state and a higher fence.
	var b assignments
	c = subscribe(t, d, b.sub(driver.Subscription{From: s, Group: "g"}))
	got = receive(t, c, 30, 50)
	if got[0].Offset != 20 {
		t.Errorf("goes on at %d, want 20", got[0].Offset)
	}
	x, y := a.all[0], b.all[0]
	if y.Fence <= x.Fence || string(y.State) != "half way" || y.Committed.Offset != 20 || y.Committed.Kind != driver.At {
		t.Errorf("first %+v, then %+v", x, y)
	}
	seek := func(to driver.Position) error {
		return d.Admin().Seek(within(t, 10*time.Second), driver.Resource{Destination: s.ForGroup("g")}, to)
	}
	if err := seek(driver.Position{Kind: driver.Earliest}); !errors.Is(err, driver.Conflict) {
		t.Errorf("seek with a member: %v", err)
	}
	if err := c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		to    driver.Position
		first int64
	}{
		{driver.Position{Kind: driver.At, Offset: 7}, 7},
		{driver.Position{Kind: driver.Earliest}, 0},
		{driver.Position{Kind: driver.Since, Time: time.Now().Add(-time.Hour)}, 0},
	} {
		if err := seek(want.to); err != nil {
			t.Fatal(err)
		}
		var e assignments
		c := subscribe(t, d, e.sub(driver.Subscription{From: s, Group: "g"}))
		if got := receive(t, c, 1, 10); got[0].Offset != want.first {
			t.Errorf("%v: first is %d", want.to, got[0].Offset)
		}
		if e.all[0].Fence <= y.Fence || e.all[0].State != nil {
			t.Errorf("%v: %+v", want.to, e.all[0])
		}
		y = e.all[0]
		if err := c.Close(within(t, 5*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStreamCutAndTakeOver(t *testing.T) {
	t.Parallel()
	d := open(t)
	s := fresh(t, d, driver.Stream, 0, "g")
	publish(t, d, s, 0, 100, nil)
	cut := &cutter{}
	da := open(t, func(c *rabbitmq.Config) { c.Dial = cut.Dial })
	var a, b assignments
	ca := subscribe(t, da, a.sub(driver.Subscription{From: s, Group: "g"}))
	got := receive(t, ca, 40, 50)
	commit(t, ca, got[39], "")
	cb := subscribe(t, d, b.sub(driver.Subscription{From: s, Group: "g"}))
	quiet(t, cb, 50, 300*time.Millisecond) // one partition, and a has it
	began := time.Now()
	cut.Cut()
	next := receive(t, cb, 60, 100)
	t.Logf("taken over after %v", time.Since(began))
	if next[0].Offset != 40 {
		t.Errorf("goes on at %d, want 40", next[0].Offset)
	}
	err := ca.Settle(within(t, 5*time.Second), []driver.Settlement{{Receipt: got[39].Receipt, Disposition: driver.Ack}})
	if err == nil {
		t.Error("a commit of the old owner was accepted")
	}
	commit(t, cb, next[59], "")
}

func TestStreamReaders(t *testing.T) {
	t.Parallel()
	d := open(t)
	s := fresh(t, d, driver.Stream, 0)
	publish(t, d, s, 0, 20, nil)
	latest := subscribe(t, d, driver.Subscription{From: s})
	first := subscribe(t, d, driver.Subscription{From: s, Start: driver.Position{Kind: driver.Earliest}})
	at := subscribe(t, d, driver.Subscription{From: s, Start: driver.Position{Kind: driver.At, Offset: 13}})
	publish(t, d, s, 20, 30, nil)
	for _, want := range []struct {
		c    driver.Consumer
		from int
	}{{latest, 20}, {first, 0}, {at, 13}} {
		got := receive(t, want.c, 30-want.from, 100)
		for i, r := range got {
			if r.Offset != int64(want.from+i) {
				t.Fatalf("from %d: message %d has offset %d", want.from, i, r.Offset)
			}
		}
		commit(t, want.c, got[len(got)-1], "")
	}
	// Credit comes back with the settle: more than the limit flows.
	publish(t, d, s, 30, 500, nil)
	for n := 30; n < 500; {
		got, err := at.Receive(within(t, 10*time.Second), demand(10, 20))
		if err != nil {
			t.Fatal(n, err)
		}
		if got[0].Offset != int64(n) {
			t.Fatalf("offset %d, want %d", got[0].Offset, n)
		}
		n += len(got)
		commit(t, at, got[len(got)-1], "")
	}
	if err := d.Publish(within(t, 5*time.Second), s, []*driver.Message{{ID: "ttl", TTL: time.Second}}); !errors.Is(err, driver.Unsupported) {
		t.Errorf("ttl: %v", err)
	}
	if err := d.Publish(within(t, 5*time.Second), s.ForGroup("g"), []*driver.Message{{ID: "g"}}); !errors.Is(err, driver.Unsupported) {
		t.Errorf("group: %v", err)
	}
}

func TestStreamReaderAfterACut(t *testing.T) {
	t.Parallel()
	cut := &cutter{}
	d := open(t, func(c *rabbitmq.Config) { c.Dial = cut.Dial })
	s := fresh(t, d, driver.Stream, 0)
	publish(t, d, s, 0, 100, nil)
	c := subscribe(t, d, driver.Subscription{From: s, Start: driver.Position{Kind: driver.Earliest}})
	got := receive(t, c, 50, 60)
	commit(t, c, got[29], "")
	cut.Cut()
	for want := int64(30); want < 100; {
		r := receive(t, c, 1, 100)[0]
		if r.Receipt.Epoch == got[0].Receipt.Epoch {
			continue // buffered before the cut: core drops it by its epoch
		}
		if r.Offset != want {
			t.Fatalf("goes on with %d, want %d", r.Offset, want)
		}
		want++
	}
}

// A message that is not done holds the position, not what is behind it.
func TestStreamGoesOnBehindAStuckHead(t *testing.T) {
	t.Parallel()
	d := open(t)
	s := fresh(t, d, driver.Stream, 0, "g")
	publish(t, d, s, 0, 500, nil)
	var a assignments
	c := subscribe(t, d, a.sub(driver.Subscription{From: s, Group: "g"}))
	for i, r := range receive(t, c, 300, 20) {
		if r.Offset != int64(i) {
			t.Fatalf("message %d has offset %d", i, r.Offset)
		}
	}
	for i, r := range receive(t, c, 150, 1) { // the limit changes while nothing is settled
		if r.Offset != int64(300+i) {
			t.Fatalf("message %d has offset %d", 300+i, r.Offset)
		}
	}
	receive(t, c, 50, 64)
}
