package redis_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

func freshKeyed(t *testing.T, shape driver.Shape, n int, groups ...string) driver.Destination {
	t.Helper()
	return freshOf(t, driver.Destination{Shape: shape, Partitions: n}, groups...)
}

func TestKeyedMembersComeAndGo(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, shardsOfTests)
	w, keys := newWatch(), keysOf(23)
	const each = 400
	fed := feed(t, to, each, keys)
	join(t, w, "a", to)
	eventually(t, "a has all", 15*time.Second, func() bool { return w.balanced("a") })
	b := join(t, w, "b", to)
	eventually(t, "a and b", 15*time.Second, func() bool { return w.balanced("a", "b") })
	c := join(t, w, "c", to)
	eventually(t, "a, b and c", 15*time.Second, func() bool { return w.balanced("a", "b", "c") })
	b.Leave()
	eventually(t, "a and c", 15*time.Second, func() bool { return w.balanced("a", "c") })
	c.Leave()
	eventually(t, "a alone", 15*time.Second, func() bool { return w.balanced("a") })
	<-fed
	w.all(t, each*len(keys))
	w.check(t, each, keys...)
	before := w.Changes()
	if before < 8+4+2+2 {
		t.Errorf("only %d changes of owner: this test has shown little", before)
	}
	time.Sleep(2 * lease) // what must not happen has no signal
	if n := w.Changes(); n != before {
		t.Errorf("%d changes of owner while balanced", n-before)
	}
}

func TestKeyedShardsOfTheKilledAreTakenOver(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Stream, shardsOfTests, "g")
	w, keys := newWatch(), keysOf(23)
	const each = 400
	fed := feed(t, to, each, keys)
	join(t, w, "a", to)
	b := join(t, w, "b", to)
	join(t, w, "c", to)
	eventually(t, "a, b and c", 10*time.Second, func() bool { return w.balanced("a", "b", "c") })
	w.Loosen()
	began := time.Now()
	b.kill()
	eventually(t, "a and c", 10*time.Second, func() bool { return w.balanced("a", "c") })
	took := time.Since(began)
	t.Logf("taken over after %v, the lease is %v", took, lease)
	if took > lease+time.Second {
		t.Errorf("it took %v", took)
	}
	<-fed
	w.all(t, each*len(keys))
	w.check(t, each, keys...)
	if w.replays > 2*10 {
		t.Errorf("%d messages came again, and one member with 10 at most was killed", w.replays)
	}
}

// rawKeyed is a consumer without core's part.
type rawKeyed struct {
	t  *testing.T
	c  driver.Consumer
	mu sync.Mutex
	// hold is called by Revoke.
	hold   func(ctx context.Context)
	own    map[string]driver.Assignment
	opened int
	ends   []bool      // of each Revoke: was its ctx over when it began
	at     []time.Time // of each Revoke
	gone   events
}

func rawMember(t *testing.T, d driver.Driver, sub driver.Subscription) *rawKeyed {
	t.Helper()
	m := &rawKeyed{t: t, own: map[string]driver.Assignment{}}
	sub.Notify = m.gone.tell
	sub.Assigned = func(a driver.Assignment) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.own[a.Partition] = a
		m.opened++
	}
	sub.Revoke = func(ctx context.Context, parts []string) {
		m.mu.Lock()
		hold := m.hold
		m.ends, m.at = append(m.ends, ctx.Err() != nil), append(m.at, time.Now())
		m.mu.Unlock()
		if hold != nil {
			hold(ctx)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, p := range parts {
			delete(m.own, p)
		}
	}
	m.c = subscribe(t, d, sub)
	return m
}

func (m *rawKeyed) owns(n int) func() bool {
	return func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.own) == n
	}
}

// oneKey publishes messages from to end-1 of key k.
func oneKey(t *testing.T, d driver.Driver, to driver.Destination, k string, from, end int) {
	t.Helper()
	var batch []*driver.Message
	for i := from; i < end; i++ {
		batch = append(batch, &driver.Message{ID: id(k, i), Key: k, Body: []byte("x"), Time: time.Now()})
	}
	if err := d.Publish(within(t, 10*time.Second), to, batch); err != nil {
		t.Fatal(err)
	}
}

func inOrder(t *testing.T, what string, rs []driver.Received, count int, want ...int) {
	t.Helper()
	var got []int
	for _, r := range rs {
		got = append(got, number(r.ID))
		if r.DeliveryCount != count {
			t.Errorf("%s: %s is delivery %d, want %d", what, r.ID, r.DeliveryCount, count)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v came, want %v", what, got, want)
	}
}

func TestKeyedHandOverGivesWhatIsPendingFirst(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Queue, 1)
	a := rawMember(t, d, driver.Subscription{From: to})
	oneKey(t, d, to, "k", 0, 8)
	got := receive(t, a.c, 6)
	inOrder(t, "first owner", got, 1, 0, 1, 2, 3, 4, 5)
	mustSettle(t, a.c, driver.Ack, got[1], got[3])
	mustSettle(t, a.c, driver.Nack, got[4]) // tried: it counts
	if err := a.c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	b := rawMember(t, d, driver.Subscription{From: to})
	again := receive(t, b.c, 6)
	for i, r := range again {
		want := 1
		if number(r.ID) == 4 {
			want = 2
		}
		if n := []int{0, 2, 4, 5, 6, 7}[i]; number(r.ID) != n || r.DeliveryCount != want {
			t.Errorf("%s, delivery %d, came in place of %d, delivery %d", r.ID, r.DeliveryCount, n, want)
		}
	}
	if err := settle(a.c, driver.Settlement{Disposition: driver.Ack}, got[0]); driver.ClassOf(driver.ResultAt(err, 0)) != driver.Closed && driver.ClassOf(err) != driver.Closed {
		t.Errorf("the first owner settled after its end: %v", err)
	}
	mustSettle(t, b.c, driver.Ack, again...)
	quiet(t, b.c, 100*time.Millisecond)
	if s := stats(t, d, to); s.Ready != 0 || s.InFlight != 0 {
		t.Errorf("%+v is left", s)
	}
}

func TestKeyedNackAndReturnComeAgainInPlace(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Topic, 1, "g")
	c := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
	oneKey(t, d, to, "k", 0, 10)
	got := receive(t, c, 4)
	if err := settle(c, driver.Settlement{Disposition: driver.Nack, Delay: time.Second}, got[0]); driver.ClassOf(driver.ResultAt(err, 0)) != driver.Unsupported || !strings.Contains(err.Error(), driver.NeedDelayNack.String()) {
		t.Errorf("a nack with a delay, which later messages would pass, ended with %v", err)
	}
	mustSettle(t, c, driver.Nack, got[2], got[1])
	mustSettle(t, c, driver.Return, got[3], got[0])
	again := receive(t, c, 6)
	var ids, counts []int
	for _, r := range again {
		ids, counts = append(ids, number(r.ID)), append(counts, r.DeliveryCount)
	}
	if !slices.Equal(ids, []int{0, 1, 2, 3, 4, 5}) || !slices.Equal(counts, []int{1, 2, 2, 1, 1, 1}) {
		t.Errorf("%v came, deliveries %v", ids, counts)
	}
	// A settlement of the first hand-out, repeated late, touches nothing of the second.
	mustSettle(t, c, driver.Nack, got[1])
	mustSettle(t, c, driver.Return, got[2])
	if s := stats(t, d, to); s.InFlight != 6 || s.Ready != 4 {
		t.Errorf("%+v after it, want 6 out and 4 ready", s)
	}
	mustSettle(t, c, driver.Ack, again...)
	inOrder(t, "the rest", receive(t, c, 4), 1, 6, 7, 8, 9)
}

// A message that goes back while a Receive waits wakes it.
func TestKeyedNackWakesAWaitingReceive(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Queue, 4)
	c := subscribe(t, d, driver.Subscription{From: to})
	oneKey(t, d, to, "k", 0, 1)
	for range 20 {
		r := receive(t, c, 1)
		back := make(chan []driver.Received, 1)
		go func() {
			got, _ := c.Receive(within(t, 5*time.Second), demand(5))
			back <- got
		}()
		time.Sleep(10 * time.Millisecond) // it waits: the case
		began := time.Now()
		mustSettle(t, c, driver.Nack, r...)
		got := <-back
		if took := time.Since(began); len(got) != 1 || took > 500*time.Millisecond {
			t.Fatalf("%d messages %v after the nack", len(got), took)
		}
		mustSettle(t, c, driver.Return, got...)
	}
}

func TestKeyedDemandHoldsOverAllShards(t *testing.T) {
	t.Parallel()
	d, to, keys := open(t), freshKeyed(t, driver.Queue, shardsOfTests), keysOf(40)
	for _, k := range keys {
		oneKey(t, d, to, k, 0, 5)
	}
	m := rawMember(t, d, driver.Subscription{From: to})
	eventually(t, "all shards", 5*time.Second, m.owns(shardsOfTests))
	var paused []string
	for i := range shardsOfTests / 2 {
		paused = append(paused, strconv.Itoa(i))
	}
	ctx := within(t, 20*time.Second)
	var out []driver.Received
	for _, room := range []int{3, 1, 5, 2, 9, 4, 30, 1} {
		got, err := m.c.Receive(ctx, driver.Demand{Records: room, Bytes: 1 << 30, Limit: room, Paused: paused})
		if err != nil || len(got) > room {
			t.Fatalf("%d messages for a demand of %d, %v", len(got), room, err)
		}
		out = append(out, got...)
		if s := stats(t, d, to); s.InFlight != int64(len(out)) {
			t.Fatalf("the server counts %d as out, %d were handed over", s.InFlight, len(out))
		}
	}
	seen := map[string]bool{}
	for _, r := range out {
		if seen[r.Receipt.Partition] = true; slices.Contains(paused, r.Receipt.Partition) {
			t.Errorf("%s is of partition %s, which is paused", r.ID, r.Receipt.Partition)
		}
	}
	if len(seen) != shardsOfTests/2 {
		t.Errorf("%d messages of the partitions %v only", len(out), slices.Sorted(maps.Keys(seen)))
	}
	per := stats(t, d, to).Partitions
	for _, p := range paused {
		if per[p].InFlight != 0 {
			t.Errorf("partition %s is paused and has %d out", p, per[p].InFlight)
		}
	}
}

// What was asked for and has not been returned goes back when its partition is paused.
func TestKeyedPauseGivesBackWhatWaits(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Queue, 1)
	c := subscribe(t, d, driver.Subscription{From: to})
	heavy(t, d, to, c, 5)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if got, err := c.Receive(ctx, driver.Demand{Records: 10, Bytes: 1 << 20, Limit: 10, Paused: []string{"0"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%d messages of a paused partition, %v", len(got), err)
	}
	if s := stats(t, d, to); s.InFlight != 0 || s.Ready != 3 {
		t.Errorf("%+v while paused", s)
	}
	for i, r := range receive(t, c, 3) {
		if r.ID != message(i+2).ID || r.DeliveryCount != 1 {
			t.Errorf("%s, delivery %d, came in place of %d", r.ID, r.DeliveryCount, i+2)
		}
	}
}

// Two groups of a topic have owners of their own, and the log is not trimmed under the
// slower one.
func TestKeyedGroupsOfATopic(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Topic, 2, "fast", "slow")
	oneKey(t, d, to, "k", 0, 1200)
	fast := rawMember(t, d, driver.Subscription{From: to, Group: "fast"})
	slow := rawMember(t, d, driver.Subscription{From: to, Group: "slow"})
	for i := range 4 {
		got := receive(t, fast.c, 300)
		if n := number(got[0].ID); n != 300*i {
			t.Errorf("%d came in place of %d", n, 300*i)
		}
		mustSettle(t, fast.c, driver.Ack, got...)
	}
	for i, r := range receive(t, slow.c, 1200) {
		if number(r.ID) != i {
			t.Fatalf("%s came in place of %d", r.ID, i)
		}
		mustSettle(t, slow.c, driver.Ack, r)
	}
	eventually(t, "both with all shards", 5*time.Second, func() bool { return fast.owns(2)() && slow.owns(2)() })
	if err := fast.c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := slow.c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if n := raw(t).XLen(context.Background(), "varal:{"+to.Name+"/"+strconv.Itoa(driver.PartitionOf("k", 2))+"}:shard").Val(); n > 200 {
		t.Errorf("%d entries are left in the log, and both groups have done with all of them", n)
	}
}

// A shard that always has something does not keep the consumer from the others.
func TestKeyedBusyShardStarvesNoOther(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Queue, 2)
	var keys [2]string // one of each partition
	for _, k := range keysOf(20) {
		keys[driver.PartitionOf(k, 2)] = k
	}
	m := rawMember(t, d, driver.Subscription{From: to})
	eventually(t, "both shards", 5*time.Second, m.owns(2))
	quiet(t, m.c, 100*time.Millisecond) // both are known to be empty
	oneKey(t, d, to, keys[0], 0, 2000)
	mustSettle(t, m.c, driver.Ack, receive(t, m.c, 5)...)
	oneKey(t, d, to, keys[1], 0, 1)
	for end := time.Now().Add(500 * time.Millisecond); ; {
		got := receive(t, m.c, 1) // one at a time: the backlog lasts
		mustSettle(t, m.c, driver.Ack, got...)
		if got[0].Key == keys[1] {
			return
		}
		if time.Now().After(end) || number(got[0].ID) == 1999 {
			t.Fatalf("after %s of the busy shard nothing has come of the other", got[0].ID)
		}
	}
}
