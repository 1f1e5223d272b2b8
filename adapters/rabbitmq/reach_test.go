package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

// gone waits until a stream of small segments has lost its oldest ones, and returns the
// oldest offset it still holds.
func gone(t *testing.T, d driver.Driver, s driver.Destination) (oldest int64) {
	t.Helper()
	for n := 0; oldest == 0; n += 100 {
		if n > 5000 {
			t.Fatal("the broker removes nothing")
		}
		for i := n; i < n+100; i += 10 { // small chunks: a large one would be removed at once
			publish(t, d, s, i, i+10, nil)
		}
		c := subscribe(t, d, driver.Subscription{From: s, Start: driver.Position{Kind: driver.Earliest}})
		oldest = receive(t, c, 1, 10)[0].Offset
		if err := c.Close(within(t, 5*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	return oldest
}

// TestStreamReset: a position that was removed, and one that is beyond the end because
// the stream was made anew.
func TestStreamReset(t *testing.T) {
	t.Parallel()
	d := open(t)
	small := smallSegments(t, d, "4000", "below")
	gone(t, d, small)
	fresh10 := fresh(t, d, driver.Stream, 0, "beyond")
	publish(t, d, fresh10, 0, 10, nil)
	for _, tc := range []struct {
		s    driver.Destination
		at   int64
		name string
	}{{small, 0, "below"}, {fresh10, 1000, "beyond"}} {
		for _, group := range []string{"", tc.name} {
			for _, reset := range []driver.PositionKind{driver.Default, driver.Earliest, driver.Latest} {
				at := driver.Position{Kind: driver.At, Offset: tc.at}
				if group != "" {
					seekTo(t, d, tc.s, group, tc.at)
				}
				checkReset(t, d, driver.Subscription{From: tc.s, Group: group, Start: at, Reset: reset})
			}
		}
	}
}

func checkReset(t *testing.T, d driver.Driver, sub driver.Subscription) {
	t.Helper()
	what := fmt.Sprintf("group %q, at %d, reset %v", sub.Group, sub.Start.Offset, sub.Reset)
	probe := subscribe(t, d, driver.Subscription{From: sub.From, Start: driver.Position{Kind: driver.Earliest}})
	oldest := receive(t, probe, 1, 10)[0].Offset
	events := make(chan driver.Event, 100)
	opened := make(chan driver.Assignment, 100)
	sub.Notify = func(e driver.Event) { events <- e }
	sub.Assigned = func(a driver.Assignment) { opened <- a }
	c := subscribe(t, d, sub)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan driver.Received, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if r, err := c.Receive(ctx, demand(1, 10)); err == nil {
			got <- r[0]
		}
	}()
	select {
	case <-opened:
	case <-time.After(10 * time.Second):
		t.Fatal(what, "not assigned")
	}
	if e := <-events; e.Kind != driver.OutOfRange || e.Err == nil {
		t.Errorf("%s: %+v", what, e)
	}
	publish(t, d, sub.From, 9000, 9001, nil)
	wait := 10 * time.Second
	if sub.Reset == driver.Default {
		wait = 300 * time.Millisecond
	}
	select {
	case r := <-got:
		newest := r.ID == message(9000, "").ID
		if sub.Reset == driver.Default || newest != (sub.Reset == driver.Latest) || !newest && r.Offset != oldest {
			t.Errorf("%s: goes on with %s at %d, the oldest is %d", what, r.ID, r.Offset, oldest)
		}
	case <-time.After(wait):
		if sub.Reset != driver.Default {
			t.Errorf("%s: nothing comes", what)
		}
	}
	cancel()
	<-done
	for _, c := range []driver.Consumer{c, probe} {
		if err := c.Close(within(t, 10*time.Second)); err != nil {
			t.Error(what, err)
		}
	}
}

// TestLatestIsKept: what came after the first look at the end and is not settled comes
// again, to whoever comes next.
func TestLatestIsKept(t *testing.T) {
	t.Parallel()
	pub := open(t)
	for _, group := range []string{"", "g"} {
		cut := &cutter{}
		d := open(t, func(c *rabbitmq.Config) { c.Dial = cut.Dial })
		s := fresh(t, d, driver.Stream, 0, "g")
		publish(t, d, s, 0, 10, nil)
		opened := make(chan driver.Assignment, 10)
		c := subscribe(t, d, driver.Subscription{
			From: s, Group: group, Start: driver.Position{Kind: driver.Latest},
			Assigned: func(a driver.Assignment) { opened <- a },
		})
		quiet(t, c, 10, 100*time.Millisecond)
		for len(opened) == 0 { // a group has no owner before the first Receive
			quiet(t, c, 10, 50*time.Millisecond)
		}
		cut.Cut() // before any message
		publish(t, pub, s, 10, 20, nil)
		first := receive(t, c, 10, 10)[0]
		if first.Offset != 10 {
			t.Fatalf("group %q: begins at %d", group, first.Offset)
		}
		cut.Cut() // after some, none of them settled
		for {
			r := receive(t, c, 1, 10)[0]
			if r.Receipt.Epoch == first.Receipt.Epoch {
				continue // buffered before the cut: core drops it by its epoch
			}
			if r.Offset != 10 {
				t.Errorf("group %q: goes on at %d", group, r.Offset)
			}
			break
		}
		if err := c.Close(within(t, 10*time.Second)); err != nil {
			t.Error(err)
		}
	}
}

func TestSeekLatestIsNow(t *testing.T) {
	t.Parallel()
	d := open(t)
	s := fresh(t, d, driver.Stream, 0, "g")
	publish(t, d, s, 0, 10, nil)
	if err := d.Admin().Seek(within(t, 10*time.Second), driver.Resource{Destination: s.ForGroup("g")}, driver.Position{Kind: driver.Latest}); err != nil {
		t.Fatal(err)
	}
	publish(t, d, s, 10, 12, nil)
	c := subscribe(t, d, driver.Subscription{From: s, Group: "g"})
	if got := receive(t, c, 1, 10); got[0].Offset != 10 {
		t.Errorf("goes on at %d", got[0].Offset)
	}
}

// TestManyRecords: an owner that commits often while its partition is revoked leaves more
// records behind than the next one is given at once.
func TestManyRecords(t *testing.T) {
	t.Parallel()
	d := open(t)
	s := fresh(t, d, driver.Stream, 0, "g")
	publish(t, d, s, 0, 200, nil)
	var c driver.Consumer
	var got []driver.Received
	c = subscribe(t, d, driver.Subscription{From: s, Group: "g", Revoke: func(context.Context, []string) {
		for _, r := range got {
			commit(t, c, r, "")
		}
	}})
	got = receive(t, c, 100, 200)
	if err := c.Close(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	var a assignments
	c = subscribe(t, d, a.sub(driver.Subscription{From: s, Group: "g"}))
	if r := receive(t, c, 1, 200)[0]; r.Offset != 100 || a.all[0].Committed.Offset != 100 {
		t.Errorf("goes on at %d, %+v", r.Offset, a.all[0])
	}
}

// TestStreamPartitions: partitions of a stream are shared, moved and kept in order as
// shards are.
func TestStreamPartitions(t *testing.T) {
	t.Parallel()
	d := open(t)
	s := fresh(t, d, driver.Stream, 8, "g")
	w := newWatch()
	key := func(i int) string { return fmt.Sprint("key-", i%37) }
	const n = 1500
	publish(t, d, s, 0, n/3, key)
	a := join(t, w, "a", s)
	eventually(t, "a has all", 10*time.Second, func() bool { return w.balanced("a") })
	b := join(t, w, "b", s)
	publish(t, d, s, n/3, 2*n/3, key)
	eventually(t, "a and b", 10*time.Second, func() bool { return w.balanced("a", "b") })
	w.Loosen() // its owner does not know yet
	a.Stop()
	a.Net.Cut()
	publish(t, d, s, 2*n/3, n, key)
	a.Leave()
	eventually(t, "b after a was cut", 10*time.Second, func() bool { return w.balanced("b") })
	eventually(t, "all handled", 30*time.Second, func() bool { return w.count() == n })
	w.Check(t)
	for _, m := range []*adaptertest.Member{a, b} {
		if errs := m.Errs(); len(errs) > 0 {
			t.Error(m.Name, errs)
		}
	}
	part := driver.Resource{Destination: s.ForGroup("g")}
	to := driver.Position{Kind: driver.Earliest, Partition: "3"}
	if err := d.Admin().Seek(within(t, 10*time.Second), part, to); !errors.Is(err, driver.Conflict) {
		t.Errorf("seek with a member: %v", err)
	}
	b.Leave()
	if err := d.Admin().Seek(within(t, 10*time.Second), part, to); err != nil {
		t.Fatal(err)
	}
	c := subscribe(t, d, driver.Subscription{From: s, Group: "g"})
	if r := receive(t, c, 1, 100)[0]; r.Receipt.Partition != "3" || r.Offset != 0 {
		t.Errorf("after a seek of partition 3: %d of %q", r.Offset, r.Receipt.Partition)
	}
}

// TestStreamPartitionsReader: a reader without a group reads every partition, each from
// its own place.
func TestStreamPartitionsReader(t *testing.T) {
	t.Parallel()
	d := open(t)
	s := fresh(t, d, driver.Stream, 4)
	key := func(i int) string { return fmt.Sprint("key-", i%37) }
	const n = 400
	publish(t, d, s, 0, n/2, key)
	latest := subscribe(t, d, driver.Subscription{From: s})
	publish(t, d, s, n/2, n, key)
	all := subscribe(t, d, driver.Subscription{From: s, Start: driver.Position{Kind: driver.Earliest}})
	whole := map[string][]driver.Received{}
	for _, r := range receive(t, all, n, 4*n) {
		whole[r.Receipt.Partition] = append(whole[r.Receipt.Partition], r)
	}
	for p, rs := range whole {
		for i, r := range rs {
			if fmt.Sprint(driver.PartitionOf(r.Key, 4)) != p || i > 0 && r.Offset <= rs[i-1].Offset {
				t.Fatalf("partition %s: %s with key %s at %d", p, r.ID, r.Key, r.Offset)
			}
		}
	}
	for _, r := range receive(t, latest, n/2, 4*n) {
		if r.ID < message(n/2, "").ID {
			t.Errorf("latest: %s", r.ID)
		}
	}
	// A start of one partition: the others begin as without one.
	one := subscribe(t, d, driver.Subscription{From: s, Start: driver.Position{Kind: driver.At, Partition: "2", Offset: 5}})
	publish(t, d, s, n, n+50, key)
	old := whole["2"][5:]
	for _, r := range receive(t, one, len(old)+50, 4*n) {
		switch {
		case r.ID >= message(n, "").ID:
		case len(old) > 0 && r.ID == old[0].ID:
			old = old[1:]
		default:
			t.Fatalf("partition 2 from 5: %s of partition %s at %d", r.ID, r.Receipt.Partition, r.Offset)
		}
	}
	quiet(t, one, 4*n, 100*time.Millisecond)
}
