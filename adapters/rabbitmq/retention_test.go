package rabbitmq_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// smallSegments makes a stream anew with segments of 2 kB.
func smallSegments(t *testing.T, d driver.Driver, keep string, groups ...string) driver.Destination {
	t.Helper()
	s := fresh(t, d, driver.Stream, 0, groups...)
	again := []driver.Resource{{Destination: s, Options: map[string]string{"max-length-bytes": keep, "stream-max-segment-size": "2000"}}}
	for _, mode := range []driver.Mode{driver.Delete, driver.Create} {
		if _, err := d.Admin().Apply(within(t, 20*time.Second), again, mode); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func seekTo(t *testing.T, d driver.Driver, s driver.Destination, group string, at int64) {
	t.Helper()
	to := driver.Position{Kind: driver.At, Offset: at}
	if err := d.Admin().Seek(within(t, 20*time.Second), driver.Resource{Destination: s.ForGroup(group)}, to); err != nil {
		t.Fatal(err)
	}
}

// outOfRange notes the events about a position that is gone.
func outOfRange(sub driver.Subscription) (driver.Subscription, chan driver.Event) {
	events := make(chan driver.Event, 100)
	sub.Notify = func(e driver.Event) {
		if e.Kind == driver.OutOfRange {
			events <- e
		}
	}
	return sub, events
}

// The broker takes an offset for itself when it begins a segment: a reader that is to go
// on there has lost nothing.
func TestOffsetsWithoutAMessage(t *testing.T) {
	t.Parallel()
	d := open(t)
	s := smallSegments(t, d, "100000000", "g")
	for i := 0; i < 100; i += 10 {
		publish(t, d, s, i, i+10, nil)
	}
	all := receive(t, subscribe(t, d, driver.Subscription{From: s, Start: driver.Position{Kind: driver.Earliest}}), 100, 200)
	hole := -1
	for i, r := range all[1:] {
		if r.Offset > all[i].Offset+1 {
			hole = i
		}
	}
	if hole < 0 {
		t.Skip("this broker counts nothing but messages")
	}
	at, next := all[hole].Offset+1, all[hole+1]
	seekTo(t, d, s, "g", at)
	for _, group := range []string{"", "g"} {
		var a assignments
		sub, events := outOfRange(a.sub(driver.Subscription{From: s, Group: group, Start: driver.Position{Kind: driver.At, Offset: at}}))
		c := subscribe(t, d, sub)
		got := receive(t, c, 100-hole-1, 200)
		for i, r := range got {
			if r.ID != all[hole+1+i].ID {
				t.Fatalf("group %q at %d: message %d is %s, want %s", group, at, i, r.ID, all[hole+1+i].ID)
			}
		}
		if got[0].Offset != next.Offset || len(events) > 0 || len(a.all) != 1 {
			t.Errorf("group %q at %d: goes on at %d, %d events, %+v", group, at, got[0].Offset, len(events), a.all)
		}
		if err := c.Close(within(t, 10*time.Second)); err != nil {
			t.Error(err)
		}
	}
}

// empty publishes until retention has removed everything, and returns how much that was
// and, of what c has read meanwhile, the last one.
func empty(t *testing.T, d driver.Driver, s driver.Destination, c driver.Consumer) (n int, last driver.Received) {
	t.Helper()
	for n = 0; n < 2000; {
		publish(t, d, s, n, n+100, nil)
		n += 100
		for end := within(t, 2*time.Second); last.ID != message(n-1, "").ID && end.Err() == nil; {
			if got, err := c.Receive(end, demand(100, 1000)); err == nil {
				last = got[len(got)-1]
				commit(t, c, last, "")
			}
		}
		probe := subscribe(t, d, driver.Subscription{From: s, Start: driver.Position{Kind: driver.Earliest}})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := probe.Receive(ctx, demand(1, 10))
		cancel()
		if cerr := probe.Close(within(t, 10*time.Second)); cerr != nil {
			t.Fatal(cerr)
		}
		if err != nil && last.ID == message(n-1, "").ID {
			return n, last
		}
	}
	t.Skip("this broker does not remove everything")
	return 0, last
}

// A stream whose retention has removed everything says nothing about its end.
func TestEmptiedStream(t *testing.T) {
	t.Parallel()
	d := open(t)
	s := smallSegments(t, d, "4000", "done", "below", "beyond")
	c := subscribe(t, d, driver.Subscription{From: s, Group: "done"})
	n, last := empty(t, d, s, c)
	if err := c.Close(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	seekTo(t, d, s, "below", 1)
	seekTo(t, d, s, "beyond", 1_000_000)
	type reader struct {
		name   string
		c      driver.Consumer
		events chan driver.Event
		lost   bool
		comes  bool
	}
	var all []reader
	for _, tc := range []struct {
		group string
		start driver.Position
		reset driver.PositionKind
		lost  bool
	}{
		{"", driver.Position{Kind: driver.Latest}, driver.Default, false},
		{"", driver.Position{Kind: driver.At, Offset: last.Offset + 1}, driver.Default, false},
		{"", driver.Position{Kind: driver.At, Offset: 1}, driver.Default, true},
		{"", driver.Position{Kind: driver.At, Offset: 1}, driver.Earliest, true},
		{"", driver.Position{Kind: driver.At, Offset: 1_000_000}, driver.Earliest, true},
		{"done", driver.Position{}, driver.Default, false},
		{"below", driver.Position{}, driver.Earliest, true},
		{"beyond", driver.Position{}, driver.Earliest, true},
	} {
		sub, events := outOfRange(driver.Subscription{From: s, Group: tc.group, Start: tc.start, Reset: tc.reset})
		r := reader{fmt.Sprintf("group %q, start %+v, reset %v", tc.group, tc.start, tc.reset), subscribe(t, d, sub), events, tc.lost, !tc.lost || tc.reset != driver.Default}
		quiet(t, r.c, 10, time.Second) // it has opened
		all = append(all, r)
	}
	publish(t, d, s, n, n+1, nil)
	want := message(n, "").ID
	for _, r := range all {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if !r.comes {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		}
		for {
			got, err := r.c.Receive(ctx, demand(10, 10))
			if err != nil && ctx.Err() == nil && driver.ClassOf(err) == driver.Transient {
				continue
			}
			if (err == nil) != r.comes || err == nil && got[0].ID != want {
				t.Errorf("%s: %v %v", r.name, got, err)
			}
			break
		}
		cancel()
		if (len(r.events) > 0) != r.lost {
			t.Errorf("%s: %d events", r.name, len(r.events))
		}
	}
}
