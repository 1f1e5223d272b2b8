package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

func TestGroupConfig(t *testing.T) {
	t.Parallel()
	c, err := kafka.ParseURL("kafka://h?assignor=range&instance_id=oven-1")
	if err != nil || c.Assignor != "range" || c.InstanceID != "oven-1" {
		t.Errorf("%+v, %v", c, err)
	}
	for raw, want := range map[string]string{
		"assignor=pizza":                          "assignor: use cooperative-sticky",
		"assignor=":                               `"assignor": use cooperative-sticky`,
		"instance_id=":                            `"instance_id": use 1 to 249`,
		"instance_id=a/b":                         "instance_id: use 1 to 249",
		"instance_id=..":                          "instance_id: use 1 to 249",
		"assignor=range&rebalance_timeout=6s":     "rebalance_timeout: with an eager assignor",
		"instance_id=" + strings.Repeat("x", 250): "instance_id: use 1 to 249",
	} {
		if _, err := kafka.ParseURL("kafka://h?" + raw); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want something about %s", raw, err, want)
		}
	}
	if _, err := kafka.ParseURL("kafka://h?rebalance_timeout=6s"); err != nil {
		t.Errorf("cooperative: %v", err)
	}
}

var assignors = []string{"cooperative-sticky", "sticky", "range", "roundrobin", "server"}

// Under every assignor two members hand over to each other in good order: nothing is
// lost, nothing comes twice, and no two owners of a partition have one fence.
func TestAssignors(t *testing.T) {
	t.Parallel()
	for _, name := range assignors {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, b broker) {
				testAssignor(t, b.open(t, func(c *kafka.Config) { c.Assignor = name }))
			})
		})
	}
}

func testAssignor(t *testing.T, d driver.Driver) {
	to := topic(t, d, driver.Queue, 6)
	const n = 3000
	all := &tally{handled: make(map[string]int), last: make(map[string]int64), done: make(chan struct{}), want: n}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	start := func() *desk {
		k := consume(t, d, to, "")
		wg.Go(func() { k.work(ctx, t, all) })
		return k
	}
	first := start()
	first.owns(t, 6)
	wg.Go(func() {
		batch := messages(n, 60)
		for i := 0; i < n; i += 100 {
			publish(t, d, to, batch[i:i+100])
			time.Sleep(20 * time.Millisecond) // load over time, so that rebalances fall into it
		}
	})
	second := start()
	second.owns(t, 3)
	first.owns(t, 3)
	shut(t, first)
	second.owns(t, 6)
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
	if lost := losses(first, second); len(all.handled) != n || twice > 0 || all.back > 0 || lost > 0 {
		t.Errorf("handled %d of %d, %d twice, %d out of order; %d partitions lost", len(all.handled), n, twice, all.back, lost)
	}
	wantFences(t, first, second)
}

// wantFences checks that the fence of a partition tells its owners apart.
func wantFences(t *testing.T, owners ...*desk) {
	t.Helper()
	by := make(map[string]*desk)
	for _, k := range owners {
		last := make(map[string]uint64)
		k.mu.Lock()
		history := slices.Clone(k.history)
		k.mu.Unlock()
		for _, a := range history {
			at := fmt.Sprint(a.Partition, " ", a.Fence)
			if a.Fence == 0 || a.Fence < last[a.Partition] || by[at] != nil && by[at] != k {
				t.Errorf("the fence does not tell this owner from others: %+v", a)
			}
			by[at], last[a.Partition] = k, a.Fence
		}
	}
}

// losses is how many partitions desks have lost.
func losses(desks ...*desk) (n int) {
	for _, k := range desks {
		k.mu.Lock()
		n += k.lost
		k.mu.Unlock()
	}
	return n
}

// An eager assignor gives partitions away at the rebalance timeout, whether they have been
// let go of or not. A Revoke that takes as long as it may has ended by then.
func TestEagerRevokeEndsInTime(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		session := shortest(b)
		d := b.open(t, func(c *kafka.Config) {
			c.Assignor, c.SessionTimeout, c.RebalanceTimeout = "range", session, session+2*time.Second
		})
		to := topic(t, d, driver.Queue, 4)
		var ended atomic.Int64
		first := join(t, d, func(k *desk) driver.Subscription {
			k.onRevoke = func(ctx context.Context, _ []string) {
				<-ctx.Done()
				ended.CompareAndSwap(0, time.Now().UnixNano())
			}
			return k.subscription(to, "")
		})
		first.owns(t, 4)
		second := consume(t, d, to, "")
		second.until(t, "its first partition", func() bool { return len(second.open) > 0 })
		if ended.Load() == 0 {
			t.Error("the second member has partitions that the first has not let go of")
		}
		wantFences(t, first, second)
	})
}

// A member that is put out while an eager rebalance waits for it hears of it, though its
// client would not listen before the Revoke has ended.
func TestPutOutInAnEagerRevoke(t *testing.T) {
	t.Parallel()
	b := fake(t)
	d := b.open(t, func(c *kafka.Config) { c.Assignor = "sticky" })
	var out atomic.Bool
	b.fake.ControlKey(int16(kmsg.Heartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.fake.KeepControl()
		if !out.Load() {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.UnknownMemberID.Code
		return resp, nil, true
	})
	to := topic(t, d, driver.Queue, 2)
	took := make(chan time.Duration, 1)
	var once sync.Once
	first := join(t, d, func(k *desk) driver.Subscription {
		k.onRevoke = func(ctx context.Context, _ []string) {
			once.Do(func() {
				out.Store(true)
				start := time.Now()
				<-ctx.Done()
				out.Store(false)
				took <- time.Since(start)
			})
		}
		return k.subscription(to, "")
	})
	first.owns(t, 2)
	second := consume(t, d, to, "")
	if d := <-took; d > 3*time.Second {
		t.Errorf("it heard of it after %v", d)
	}
	second.owns(t, 1)
	first.owns(t, 1)
}

// static opens a driver whose consumers are static members.
func (b broker) static(t *testing.T, id string) driver.Driver {
	t.Helper()
	return b.open(t, func(c *kafka.Config) { c.InstanceID, c.SessionTimeout = id, 6*time.Second })
}

// The partitions of a static member wait for it. When it is back its fences are higher,
// and what it had not committed comes again.
func TestStaticMemberComesBack(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		near, far := b.static(t, "near"), b.static(t, "far")
		to := topic(t, near, driver.Queue, 4)
		one := consume(t, near, to, "")
		one.owns(t, 4)
		_, err := near.Subscribe(t.Context(), newDesk().subscription(to, ""))
		wantClass(t, err, driver.Conflict)
		two := consume(t, far, to, "")
		two.owns(t, 2)
		one.owns(t, 2)
		publish(t, near, to, messages(80, 80))
		got := two.collect(t, 10)
		two.ack(t, got, nil)
		shut(t, two)
		one.owns(t, 2)
		time.Sleep(time.Second) // a member that left would have been replaced by now
		one.owns(t, 2)
		again := consume(t, far, to, "")
		again.owns(t, 2)
		one.owns(t, 2)
		wantFences(t, one, two, again)
		seen := make(map[string]bool)
		for _, m := range got {
			seen[m.ID] = true
		}
		rest := append(again.collect(t, 1), one.collect(t, 1)...)
		for n := 80 - len(got) - len(rest); n > 0; {
			for _, k := range []*desk{again, one} {
				more := k.some(t)
				rest, n = append(rest, more...), n-len(more)
			}
		}
		for _, m := range rest {
			if seen[m.ID] {
				t.Errorf("%s came again", m.ID)
			}
			seen[m.ID] = true
		}
		if lost := losses(one, two, again); len(seen) != 80 || lost > 0 {
			t.Errorf("%d of 80 messages, %d partitions lost", len(seen), lost)
		}
	})
}

// some receives what comes within a moment.
func (k *desk) some(t *testing.T) []driver.Received {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	got, _ := k.Receive(ctx, driver.Demand{Records: 100, Bytes: 1 << 30, Limit: 100})
	return slices.Clone(got)
}

// Of two consumers with one instance id one ends, and is told why.
func TestInstanceTakenOver(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		near, far := b.static(t, "same"), b.static(t, "same")
		to := topic(t, near, driver.Queue, 2)
		ended := make(chan error, 2)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for _, d := range []driver.Driver{near, far} {
			k := consume(t, d, to, "")
			if d == near {
				k.owns(t, 2)
			}
			go func() {
				for {
					_, err := k.Receive(ctx, driver.Demand{Records: 1, Bytes: 1})
					if driver.ClassOf(err) != driver.Transient {
						ended <- err
						return
					}
				}
			}()
		}
		err := <-ended
		wantClass(t, err, driver.Permanent)
		if !strings.Contains(err.Error(), "instance_id") {
			t.Error(err)
		}
		cancel()
		if err := <-ended; driver.ClassOf(err) == driver.Permanent {
			t.Errorf("the other ended too: %v", err)
		}
	})
}
