package memory_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

func commit(t testing.TB, c driver.Consumer, r driver.Received, state []byte) error {
	t.Helper()
	return c.Settle(t.Context(), []driver.Settlement{{Receipt: r.Receipt, Disposition: driver.Ack, State: state}})
}

func TestStreamCommitsUpTo(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, stream("s"))
	publish(t, d, stream("s"), msg("0"), msg("1"), msg("2"), msg("3"))
	sub := driver.Subscription{From: stream("s"), Group: "g"}
	c, k := subscribe(t, d, sub)
	if a := k.all[0]; a.Partition != "0" || a.Committed.Offset != 0 || a.High.Offset != 4 || a.High.Kind != driver.At || a.Fence != 1 {
		t.Errorf("assignment %+v", a)
	}
	got := receive(t, c, 9)
	want(t, got, "0", "1", "2", "3")
	if got[2].Offset != 2 || got[2].DeliveryCount != 0 || !got[2].Deadline.IsZero() {
		t.Errorf("received %+v", got[2])
	}
	if err := commit(t, c, got[2], []byte("state")); err != nil {
		t.Fatal(err)
	}
	if err := commit(t, c, got[0], []byte("old")); err != nil { // behind what is committed
		t.Fatal(err)
	}
	settle(t, c, driver.Return, got[3])
	wantClass(t, trySettle(c, driver.Nack, 0, got[3]), driver.Unsupported)
	wantClass(t, trySettle(c, driver.Extend, 0, got[3]), driver.Unsupported)
	wantClass(t, commit(t, c, got[3], make([]byte, 64<<10+1)), driver.TooLarge)
	never := got[3]
	never.Receipt.Seq = 4
	wantClass(t, commit(t, c, never, nil), driver.Permanent)
	closeNow(t, c)

	c, k = subscribe(t, d, sub)
	if a := k.all[0]; a.Committed.Offset != 3 || string(a.State) != "state" || a.Fence != 2 {
		t.Errorf("assignment after the restart %+v", a)
	}
	wantClass(t, commit(t, c, got[3], nil), driver.LeaseLost) // an epoch of the first consumer
	want(t, receive(t, c, 9), "3")
}

func TestStreamStarts(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, stream("s"))
	base := time.Unix(1000, 0)
	for i := range 5 {
		publish(t, d, stream("s"), &driver.Message{ID: fmt.Sprint(i), Time: base.Add(time.Duration(i) * time.Second)})
	}
	for i, c := range []struct {
		group string
		start driver.Position
		first string // "" = only what comes
	}{
		{"a", driver.Position{}, "0"},
		{"", driver.Position{}, ""},
		{"b", driver.Position{Kind: driver.Earliest}, "0"},
		{"", driver.Position{Kind: driver.Earliest}, "0"},
		{"c", driver.Position{Kind: driver.Latest}, ""},
		{"d", driver.Position{Kind: driver.At, Offset: 3}, "3"},
		{"", driver.Position{Kind: driver.At, Offset: 5}, ""},
		{"e", driver.Position{Kind: driver.Since, Time: base.Add(1500 * time.Millisecond)}, "2"},
		{"f", driver.Position{Kind: driver.Since, Time: base.Add(2 * time.Second), Partition: "0"}, "2"},
	} {
		t.Run(fmt.Sprintf("%d %s", i, c.start.Kind), func(t *testing.T) {
			s, _ := subscribe(t, d, driver.Subscription{From: stream("s"), Group: c.group, Start: c.start})
			if c.first == "" {
				nothing(t, s, 5*time.Millisecond)
				return
			}
			if got := receive(t, s, 1); got[0].ID != c.first {
				t.Errorf("first is %s, want %s", got[0].ID, c.first)
			}
			closeNow(t, s)
		})
	}
	_, err := d.Subscribe(t.Context(), driver.Subscription{From: stream("s"), Group: "x", Start: driver.Position{Kind: driver.Earliest, Partition: "7"}})
	wantClass(t, err, driver.NotFound)
	_, err = d.Subscribe(t.Context(), driver.Subscription{From: stream("s"), Group: "x", Start: driver.Position{Kind: driver.At, ID: "1-0"}})
	wantClass(t, err, driver.Unsupported)
}

func TestStreamWithoutGroup(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, stream("s").Keyed(3))
	start := driver.Position{Kind: driver.Earliest}
	a, ka := subscribe(t, d, driver.Subscription{From: stream("s"), Start: start})
	b, kb := subscribe(t, d, driver.Subscription{From: stream("s"), Start: start})
	if len(ka.owned()) != 3 || len(kb.owned()) != 3 {
		t.Errorf("they own %v and %v, want everything each", ka.owned(), kb.owned())
	}
	publish(t, d, stream("s"), msg("1"), msg("2"), msg("3"))
	for _, c := range []driver.Consumer{a, b} {
		got := receive(t, c, 9)
		if len(got) != 3 {
			t.Errorf("received %v", ids(got))
		}
		settle(t, c, driver.Ack, got...) // taken, and forgotten
		closeNow(t, c)
	}
	c, _ := subscribe(t, d, driver.Subscription{From: stream("s"), Start: start})
	if got := receive(t, c, 9); len(got) != 3 {
		t.Errorf("a new reader received %v", ids(got))
	}
}

func TestSeek(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, stream("s"), queue("q"))
	publish(t, d, stream("s"), msg("0"), msg("1"), msg("2"))
	of := driver.Resource{Destination: stream("s").ForGroup("g")}
	seek := func(to driver.Position) error { return d.Admin().Seek(t.Context(), of, to) }
	wantClass(t, seek(driver.Position{Kind: driver.Earliest}), driver.NotFound)
	sub := driver.Subscription{From: stream("s"), Group: "g"}
	c, _ := subscribe(t, d, sub)
	if err := commit(t, c, receive(t, c, 9)[2], []byte("x")); err != nil {
		t.Fatal(err)
	}
	wantClass(t, seek(driver.Position{Kind: driver.Earliest}), driver.Conflict)
	closeNow(t, c)
	if err := seek(driver.Position{Kind: driver.At, Offset: 1}); err != nil {
		t.Fatal(err)
	}
	c, k := subscribe(t, d, sub)
	want(t, receive(t, c, 9), "1", "2")
	if k.all[0].State != nil {
		t.Error("Seek kept the State of another position")
	}
	wantClass(t, d.Admin().Seek(t.Context(), driver.Resource{Destination: queue("q").ForGroup("g")}, driver.Position{}), driver.Unsupported)
	wantClass(t, d.Admin().Seek(t.Context(), driver.Resource{Destination: stream("s")}, driver.Position{}), driver.Permanent)
}

func TestStreamOutOfRange(t *testing.T) {
	t.Parallel()
	for _, reset := range []driver.PositionKind{driver.Default, driver.Earliest, driver.Latest} {
		t.Run(reset.String(), func(t *testing.T) {
			t.Parallel()
			to := stream("s").Keyed(2)
			d := open(t, memory.Config{MaxMessages: 6}, to) // three a partition
			sub := driver.Subscription{From: to, Group: "g", Reset: reset}
			c, _ := subscribe(t, d, sub)
			closeNow(t, c) // the group is at 0 of both
			var key [2]string
			for i := 0; key[0] == "" || key[1] == ""; i++ {
				key[driver.PartitionOf(fmt.Sprint(i), 2)] = fmt.Sprint(i)
			}
			for i := range 5 {
				publish(t, d, to, keyed(key[1], fmt.Sprint(i)))
			}
			publish(t, d, to, keyed(key[0], "other"))
			c, k := subscribe(t, d, sub)
			var got []string
			for !slices.Contains(got, "end") || reset != driver.Default && !slices.Contains(got, "new") {
				r := receive(t, c, 9)
				got = append(got, ids(r)...)
				settle(t, c, driver.Ack, r...)
				if slices.Contains(got, "other") && !slices.Contains(got, "end") {
					publish(t, d, to, keyed(key[1], "new"), keyed(key[0], "end"))
				}
			}
			slices.Sort(got)
			want := map[driver.PositionKind][]string{
				driver.Default:  {"end", "other"}, // that partition stops, the other goes on
				driver.Earliest: {"2", "3", "4", "end", "new", "other"},
				driver.Latest:   {"end", "new", "other"},
			}[reset]
			if !slices.Equal(slices.Compact(got), want) {
				t.Errorf("received %v, want %v", got, want)
			}
			if len(k.events) != 1 || k.events[0].Kind != driver.OutOfRange || k.events[0].Partition != "1" || k.events[0].Err == nil {
				t.Errorf("events %v", k.events)
			}
		})
	}
}

func TestStreamRetentionByAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memory.Config{Retention: time.Minute}, stream("s"))
		publish(t, d, stream("s"), msg("old"))
		time.Sleep(40 * time.Second)
		publish(t, d, stream("s"), msg("new"))
		time.Sleep(20 * time.Second)
		c, k := subscribe(t, d, driver.Subscription{From: stream("s"), Group: "g"})
		want(t, receive(t, c, 9), "new")
		if k.all[0].Committed.Offset != 1 {
			t.Errorf("the group began at %d", k.all[0].Committed.Offset)
		}
	})
}

func TestStreamPausedPartition(t *testing.T) {
	t.Parallel()
	to := stream("s").Keyed(2)
	d := open(t, memory.Config{}, to)
	c, _ := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
	publish(t, d, to, msg("0"), msg("1"), msg("2"), msg("3"))
	w := demand(9)
	w.Paused = []string{"0"}
	got, err := c.Receive(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	want(t, got, "1", "3")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if got, err := c.Receive(ctx, w); err == nil {
		t.Errorf("received %v of a paused partition", ids(got))
	}
	want(t, receive(t, c, 9), "0", "2") // resumed by a new Demand, without anything published
}
