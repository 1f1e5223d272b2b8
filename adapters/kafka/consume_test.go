package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

func TestOrderPerKey(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 4)
		const n, keys = 4000, 37
		batch := messages(n, keys)
		for i := 0; i < n; i += 500 {
			publish(t, d, to, batch[i:i+500])
		}
		last := make(map[string]int)
		for _, m := range consume(t, d, to, "").collect(t, n) {
			var i int
			_, _ = fmt.Sscan(string(m.Body), &i)
			if prev, ok := last[m.Key]; ok && i != prev+keys {
				t.Fatalf("key %s: %d after %d", m.Key, i, prev)
			}
			last[m.Key] = i
		}
		if len(last) != keys {
			t.Fatalf("%d keys", len(last))
		}
	})
}

// Two groups each get everything; two members of one group share it.
func TestGroups(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Topic, 4)
		_, err := d.Subscribe(t.Context(), driver.Subscription{From: to})
		wantClass(t, err, driver.Permanent)
		one := consume(t, d, to, to.Name+"-a")
		one.owns(t, 4)
		two := consume(t, d, to, to.Name+"-a")
		go func() { _, _ = one.Receive(t.Context(), driver.Demand{Records: 1, Bytes: 1}) }()
		other := consume(t, d, to, to.Name+"-b")
		two.owns(t, 2)
		one.owns(t, 2)
		other.owns(t, 4)
		publish(t, d, to, messages(400, 100))
		if got := other.collect(t, 400); len(got) != 400 {
			t.Fatal(len(got))
		}
		for _, m := range two.collect(t, 20) {
			if !two.admits(m) {
				t.Fatalf("received %s, which is not ours", m.Receipt.Partition)
			}
		}
	})
}

// tally counts what was handled, over all members.
type tally struct {
	mu      sync.Mutex
	handled map[string]int
	last    map[string]int64 // partition -> offset
	back    int
	done    chan struct{}
	want    int
}

func (k *tally) add(m driver.Received) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handled[m.ID]++
	if last, ok := k.last[m.Receipt.Partition]; ok && m.Offset <= last {
		k.back++
	}
	k.last[m.Receipt.Partition] = m.Offset
	if len(k.handled) == k.want {
		close(k.done)
		k.want = -1
	}
}

// work is what core does: admit by epoch, handle, settle, and let go only between.
func (k *desk) work(ctx context.Context, t *testing.T, all *tally) (stale int) {
	for {
		batch, err := k.Receive(ctx, driver.Demand{Records: 50, Bytes: 1 << 20, Limit: 1000})
		if err != nil {
			return stale
		}
		time.Sleep(2 * time.Millisecond) // the gap between Receive and admission, in which a rebalance may fall
		k.busy.Lock()
		var got []driver.Received
		for _, m := range batch {
			if !k.admits(m) {
				stale++
				continue
			}
			all.add(m)
			got = append(got, m)
		}
		if len(got) > 0 {
			k.ack(t, got, nil)
		}
		k.busy.Unlock()
	}
}

// Members join and leave while everything is handled: nothing is lost, handled twice
// or out of order, though nothing holds the rebalance up.
func TestRebalance(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 6)
		const n = 6000
		all := &tally{handled: make(map[string]int), last: make(map[string]int64), done: make(chan struct{}), want: n}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		start := func() *desk {
			k := consume(t, d, to, "")
			wg.Go(func() { k.work(ctx, t, all) })
			return k
		}
		first := start()
		first.owns(t, 6)
		wg.Go(func() {
			batch := messages(n, 60)
			for i := 0; i < n; i += 200 {
				publish(t, d, to, batch[i:i+200])
				time.Sleep(20 * time.Millisecond) // load over time, so that rebalances fall into it
			}
		})
		second := start()
		second.until(t, "its first partition", func() bool { return len(second.open) > 0 })
		third := start()
		third.until(t, "its first partition", func() bool { return len(third.open) > 0 })
		shut(t, first)
		shut(t, third)
		select {
		case <-all.done:
		case <-time.After(2 * patience):
		}
		cancel()
		wg.Wait()
		twice := 0
		for _, c := range all.handled {
			if c > 1 {
				twice++
			}
		}
		if len(all.handled) != n || twice > 0 || all.back > 0 {
			t.Errorf("handled %d of %d, %d twice, %d out of order", len(all.handled), n, twice, all.back)
		}
		for _, k := range []*desk{first, second, third} {
			for i, a := range k.history {
				if a.Fence == 0 || a.Epoch == 0 || i > 0 && a.Epoch <= k.history[i-1].Epoch {
					t.Errorf("assignment %+v", a)
				}
			}
			if k.lost > 0 {
				t.Errorf("%d partitions were lost instead of revoked", k.lost)
			}
		}
	})
}

// A group goes on where it committed, with its state; what was not committed comes
// again, and a receipt of an earlier life is worth nothing.
func TestCommitAndRestart(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 1)
		publish(t, d, to, messages(10, 1))
		k := consume(t, d, to, "")
		got := k.collect(t, 10)
		if a := k.history[0]; a.Committed.Offset != 0 || a.High.Offset != 10 || a.State != nil {
			t.Errorf("first assignment %+v", a)
		}
		state := random(kafka.StateBytes)
		k.ack(t, got[:6], state)
		err := k.Settle(t.Context(), []driver.Settlement{
			{Receipt: got[7].Receipt, Disposition: driver.Ack, State: random(kafka.StateBytes + 1)},
			{Receipt: driver.Receipt{Partition: got[0].Receipt.Partition, Epoch: 99}, Disposition: driver.Ack},
			{Receipt: got[6].Receipt, Disposition: driver.Nack},
			{Receipt: got[6].Receipt, Disposition: driver.Return},
		})
		for i, want := range []driver.Class{driver.TooLarge, driver.LeaseLost, driver.Unsupported, 0} {
			wantClass(t, driver.ResultAt(err, i), want)
		}
		shut(t, k)
		if k.lost != 0 || k.revoked != 1 {
			t.Errorf("Close revoked %d, lost %d", k.revoked, k.lost)
		}
		_, err = k.Receive(t.Context(), driver.Demand{Records: 1, Bytes: 1})
		wantClass(t, err, driver.Closed)
		wantClass(t, k.Settle(t.Context(), nil), driver.Closed)
		again := consume(t, d, to, "")
		if m := again.collect(t, 4)[0]; m.ID != "m6" {
			t.Errorf("went on with %s, want m6", m.ID)
		}
		a := again.history[0]
		if a.Committed.Offset != 6 || !bytes.Equal(a.State, state) || a.Fence <= k.history[0].Fence {
			t.Errorf("committed %d, %d bytes of state, fence %d after %d", a.Committed.Offset, len(a.State), a.Fence, k.history[0].Fence)
		}
		err = again.Settle(t.Context(), []driver.Settlement{{Receipt: driver.Receipt{Partition: got[0].Receipt.Partition, Epoch: 5, Seq: 9}, Disposition: driver.Ack}})
		wantClass(t, driver.ResultAt(err, 0), driver.LeaseLost)
	})
}

// State that somebody else wrote is no state.
func TestForeignState(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 1)
		cl, err := kgo.NewClient(kgo.SeedBrokers(b.conf.Brokers...))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		meta, err := kadm.NewClient(cl).Metadata(t.Context(), to.Name)
		if err != nil {
			t.Fatal(err)
		}
		offsets := make(kadm.Offsets)
		offsets.Add(kadm.Offset{Topic: to.Name, TopicID: meta.Topics[to.Name].ID, Partition: 0, At: 0, LeaderEpoch: -1, Metadata: "some-member-7c9e"})
		if err := kadm.NewClient(cl).CommitAllOffsets(t.Context(), to.Name, offsets); err != nil {
			t.Fatal(err)
		}
		k := consume(t, d, to, "")
		k.owns(t, 1)
		if a := k.history[0]; a.State != nil || a.Committed.Kind != driver.At {
			t.Errorf("%+v", a)
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Topic, 2)
		k := consume(t, d, to, to.Name+"-g")
		k.owns(t, 2)
		paused := to.Name + "/0"
		k.quiet(t, 300*time.Millisecond, paused)
		publish(t, d, to, messages(200, 50))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first := 0
		for {
			got, err := k.Receive(ctx, driver.Demand{Records: 1000, Bytes: 1 << 30, Paused: []string{paused}})
			if err != nil {
				break
			}
			for _, m := range got {
				if m.Receipt.Partition == paused {
					t.Fatalf("%s is paused and %s of it came", paused, m.ID)
				}
				first++
			}
		}
		start := time.Now()
		rest := k.collect(t, 1)
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("the first message after resume took %v", took)
		}
		rest = append(rest, k.collect(t, 200-first-1)...)
		for i, m := range rest {
			if m.Receipt.Partition != paused || i > 0 && m.Offset != rest[i-1].Offset+1 {
				t.Fatalf("after resume %s at %d", m.Receipt.Partition, m.Offset)
			}
		}
	})
}

// A cancelled Receive ends soon and loses nothing; the demand of the next one counts.
func TestCancelLosesNothing(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 3)
		const n = 3000
		var wg sync.WaitGroup
		defer wg.Wait()
		batch := messages(n, 100)
		wg.Go(func() {
			for i := 0; i < n; i += 100 {
				publish(t, d, to, batch[i:i+100])
			}
		})
		k := consume(t, d, to, "")
		seen := make(map[string]int)
		for i, end := 0, time.Now().Add(patience); len(seen) < n && time.Now().Before(end); i++ {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%5)*time.Millisecond)
			got, err := k.Receive(ctx, driver.Demand{Records: 1 + i%7*20, Bytes: 1 << 20})
			cancel()
			if err != nil && ctx.Err() == nil {
				t.Fatal(err)
			}
			for _, m := range got {
				seen[m.ID]++
			}
		}
		for id, c := range seen {
			if c != 1 {
				t.Errorf("%s came %d times", id, c)
			}
		}
		if len(seen) != n {
			t.Errorf("%d of %d", len(seen), n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var ended time.Time
		wg.Go(func() { _, _ = k.Receive(ctx, driver.Demand{Records: 1, Bytes: 1}); ended = time.Now() })
		time.Sleep(100 * time.Millisecond) // Receive waits by now; if not, the test is only weaker
		cut := time.Now()
		cancel()
		wg.Wait()
		if took := ended.Sub(cut); took > 500*time.Millisecond {
			t.Errorf("a cancelled Receive took %v", took)
		}
	})
}

// Bytes bound a Receive; a message larger than that comes alone.
func TestDemandInBytes(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 1)
		batch := messages(6, 1)
		for i, m := range batch {
			m.Body = make([]byte, 1000)
			if i == 3 {
				m.Body = make([]byte, 5000)
			}
		}
		publish(t, d, to, batch)
		k := consume(t, d, to, "")
		var sizes []int
		for n := 0; n < 6; {
			got, err := k.Receive(t.Context(), driver.Demand{Records: 100, Bytes: 2500})
			if err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, len(got))
			n += len(got)
		}
		if !slices.Equal(sizes, []int{2, 1, 1, 2}) {
			t.Errorf("batches of %v", sizes)
		}
	})
}

// No partition waits for the end of another's backlog.
func TestFairness(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 4)
		for range 4 {
			publish(t, d, to, messages(2000, 200))
		}
		k := consume(t, d, to, "")
		k.owns(t, 4)
		k.collect(t, 1) // the first fetch is here
		// Read partition by partition the last would come after 6,000. That the first fetch may
		// bring one partition alone, and the next the others, is the broker's choice.
		seen, n := make(map[string]bool), 1
		for ; len(seen) < 4 && n <= 4000; n += 100 {
			for _, m := range k.collect(t, 100) {
				seen[m.Receipt.Partition] = true
			}
		}
		if len(seen) != 4 {
			t.Errorf("the first %d of 8000 messages are of %d of 4 partitions", n, len(seen))
		}
	})
}

func TestSubscribeRefusals(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		_, err := d.Subscribe(t.Context(), newDesk().subscription(driver.Destination{Shape: driver.Queue, Name: "no-such-topic"}, ""))
		wantClass(t, err, driver.NotFound)
		to := topic(t, d, driver.Queue, 1)
		k := consume(t, d, to, "")
		shut(t, d)
		_, err = k.Receive(t.Context(), driver.Demand{Records: 1, Bytes: 1})
		wantClass(t, err, driver.Closed)
		_, err = d.Subscribe(t.Context(), newDesk().subscription(to, ""))
		wantClass(t, err, driver.Closed)
	})
}
