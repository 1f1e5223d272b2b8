package redis_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

func TestKeyedPartitionsAreFixed(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Queue, 4)
	plain := fresh(t, driver.Queue)
	ctx := within(t, 10*time.Second)
	for what, wrong := range map[string]driver.Destination{"other": to.Keyed(5), "unkeyed": to.Keyed(0), "keyed": plain.Keyed(4)} {
		_, sub := d.Subscribe(ctx, driver.Subscription{From: wrong})
		_, apply := d.Admin().Apply(ctx, []driver.Resource{{Destination: wrong}}, driver.Create)
		_, verify := d.Admin().Apply(ctx, []driver.Resource{{Destination: wrong}}, driver.Verify)
		_, remove := d.Admin().Apply(ctx, []driver.Resource{{Destination: wrong}}, driver.Delete)
		for verb, err := range map[string]error{"publish": driver.ResultAt(d.Publish(ctx, wrong, []*driver.Message{message(1)}), 0), "subscribe": sub, "apply": apply, "verify": verify, "delete": remove} {
			if !errors.Is(err, driver.Conflict) || !strings.Contains(err.Error(), "Keyed") {
				t.Errorf("%s, %s: %v", what, verb, err)
			}
		}
	}
	if _, err := d.Subscribe(ctx, driver.Subscription{From: to.Keyed(5000)}); !errors.Is(err, driver.Permanent) {
		t.Errorf("5000 partitions: %v", err)
	}
}

func TestKeyedPublishRefusesWhatWouldBreakTheOrder(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Topic, 2, "g")
	ctx := within(t, 10*time.Second)
	late := message(1)
	late.Delay = time.Second
	if err := driver.ResultAt(d.Publish(ctx, to, []*driver.Message{late}), 0); !errors.Is(err, driver.Unsupported) || !strings.Contains(err.Error(), driver.NeedSchedule.String()) {
		t.Errorf("with a delay: %v", err)
	}
	if err := driver.ResultAt(d.Publish(ctx, to.ForGroup("g"), []*driver.Message{message(1)}), 0); !errors.Is(err, driver.Unsupported) {
		t.Errorf("to one group: %v", err)
	}
	if c := d.Capabilities(to); c.Delay != 0 || c.NackDelay != 0 || c.Lease != 0 || c.Order != driver.PerPartition || c.Settle != driver.Each || !c.Counts {
		t.Errorf("%+v", c)
	}
}

// Half of a destination, left by an Apply that was cut off, is reported and completed.
func TestKeyedApplyCompletesWhatIsMissing(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Stream, 3, "g")
	ctx := within(t, 10*time.Second)
	if err := raw(t).Del(ctx, "varal:{"+to.Name+"/1}:shard").Err(); err != nil {
		t.Fatal(err)
	}
	want := []driver.Resource{{Destination: to.ForGroup("g")}}
	for i, mode := range []driver.Mode{driver.Verify, driver.Create, driver.Verify} {
		changes, err := d.Admin().Apply(ctx, want, mode)
		if err != nil || len(changes) != []int{2, 2, 0}[i] { // the stream, and the group in it
			t.Errorf("%v: %v, %v", mode, changes, err)
		}
	}
}

func TestKeyedSeek(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Stream, 2, "g")
	ctx := within(t, 20*time.Second)
	var keys [2]string // one of each partition
	for _, k := range keysOf(20) {
		keys[driver.PartitionOf(k, 2)] = k
	}
	oneKey(t, d, to, keys[0], 0, 4)
	oneKey(t, d, to, keys[1], 0, 4)
	m := rawMember(t, d, driver.Subscription{From: to, Group: "g"})
	got := receive(t, m.c, 8)
	mustSettle(t, m.c, driver.Ack, got...)
	of := driver.Resource{Destination: to.ForGroup("g")}
	if err := d.Admin().Seek(ctx, of, driver.Position{Kind: driver.Earliest}); !errors.Is(err, driver.Conflict) {
		t.Errorf("beside a member: %v", err)
	}
	if err := m.c.Close(ctx); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(got, func(r driver.Received) bool { return r.ID == id(keys[1], 2) })
	if err := d.Admin().Seek(ctx, of, driver.Position{Kind: driver.At, Partition: "1", Offset: got[i].Offset}); err != nil {
		t.Fatal(err)
	}
	c := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
	for n, r := range receive(t, c, 2) {
		if r.ID != id(keys[1], n+2) || r.Receipt.Partition != "1" {
			t.Errorf("%s of partition %s came", r.ID, r.Receipt.Partition)
		}
	}
	quiet(t, c, 100*time.Millisecond)
	for what, err := range map[string]error{
		"a partition that is not there": d.Admin().Seek(ctx, of, driver.Position{Kind: driver.At, Partition: "2", Offset: 1}),
		"a group that is not there":     d.Admin().Seek(ctx, driver.Resource{Destination: to.ForGroup("h")}, driver.Position{Kind: driver.Earliest}),
	} {
		if !errors.Is(err, driver.NotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestKeyedTemporaryGroupLeavesNothing(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Topic, 2)
	c := subscribe(t, d, driver.Subscription{From: to, Group: "t", Temporary: true, Start: driver.Position{Kind: driver.Latest}})
	oneKey(t, d, to, "k", 0, 1)
	receive(t, c, 1)
	if _, err := d.Subscribe(within(t, 5*time.Second), driver.Subscription{From: to, Group: "t", Temporary: true}); !errors.Is(err, driver.Conflict) {
		t.Errorf("a second one gave %v", err)
	}
	if err := c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	keys := raw(t).Keys(context.Background(), "varal:{"+to.Name+"*").Val()
	if slices.Sort(keys); len(keys) != 3 { // two streams, meta
		t.Errorf("%v are left", keys)
	}
}

func TestKeyedMessagesWithoutAKeyAreSpread(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Queue, 4)
	publish(t, d, to, 0, 40)
	for p, s := range stats(t, d, to).Partitions {
		if s.Ready != 10 {
			t.Errorf("partition %s has %d of 40", p, s.Ready)
		}
	}
	if s := stats(t, d, to); s.Ready != 40 || s.Lag != 40 || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}
