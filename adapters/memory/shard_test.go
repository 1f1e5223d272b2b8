package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

// pump receives in the background until the consumer is closed.
func pump(t *testing.T, c driver.Consumer, each func([]driver.Received)) (stop func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			got, err := c.Receive(context.Background(), demand(10))
			if driver.ClassOf(err) == driver.Closed {
				return
			}
			if err != nil {
				t.Errorf("receive: %v", err)
				return
			}
			each(got)
		}
	})
	return func() { closeNow(t, c); wg.Wait() }
}

func TestPartitionsAreBalanced(t *testing.T) {
	t.Parallel()
	for _, to := range []driver.Destination{queue("x").Keyed(8), topic("x").Keyed(8), stream("x").Keyed(8)} {
		t.Run(to.Shape.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := open(t, memory.Config{}, to)
				var cores []*core
				var stops []func()
				sizes := func() []int {
					synctest.Wait()
					var n []int
					all := map[string]bool{}
					for _, k := range cores {
						n = append(n, len(k.owned()))
						for _, p := range k.owned() {
							all[p] = true
						}
					}
					if len(all) != 8 {
						t.Errorf("%d of 8 partitions have an owner", len(all))
					}
					slices.Sort(n)
					return n
				}
				join := func() {
					c, k := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
					cores = append(cores, k)
					stops = append(stops, pump(t, c, func([]driver.Received) {}))
				}
				for _, want := range [][]int{{8}, {4, 4}, {2, 3, 3}, {2, 2, 2, 2}, {1, 1, 2, 2, 2}} {
					join()
					if got := sizes(); !slices.Equal(got, want) {
						t.Errorf("%d members own %v, want %v", len(cores), got, want)
					}
				}
				before := len(cores[0].all)
				for _, want := range [][]int{{2, 2, 2, 2}, {2, 3, 3}} {
					stops[len(stops)-1]()
					stops, cores = stops[:len(stops)-1], cores[:len(cores)-1]
					if got := sizes(); !slices.Equal(got, want) {
						t.Errorf("%d members own %v, want %v", len(cores), got, want)
					}
				}
				if n := len(cores[0].all) - before; n > 2 {
					t.Errorf("a member that stayed was assigned %d partitions anew", n)
				}
				for _, stop := range stops {
					stop()
				}
			})
		})
	}
}

// A partition moves only after the old owner's Revoke returned; the rest flows meanwhile.
func TestRevokeHoldsThePartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := queue("q").Keyed(2)
		d := open(t, memory.Config{}, to)
		a, ka := subscribe(t, d, driver.Subscription{From: to})
		publish(t, d, to, msg("1"), msg("2"), msg("3"), msg("4")) // round: 0 1 0 1
		held := receive(t, a, 10)
		if len(held) != 4 {
			t.Fatalf("received %v", ids(held))
		}
		let := make(chan struct{})
		ka.onRevoke = func(ctx context.Context, ps []string) {
			if _, ok := ctx.Deadline(); ok {
				t.Error("Revoke has a deadline")
			}
			select {
			case <-let:
			case <-ctx.Done():
				t.Error("ownership ended early")
			}
			for _, r := range held { // settling in the Revoke is in time, for all but one
				if slices.Contains(ps, r.Receipt.Partition) && r.ID < "3" {
					settle(t, a, driver.Ack, r)
				}
			}
		}
		b, kb := subscribe(t, d, driver.Subscription{From: to})
		nothing(t, b, time.Hour/200) // under the lease
		if len(kb.owned()) != 0 {
			t.Fatalf("the new member owns %v while Revoke runs", kb.owned())
		}
		kept := ka.all[0].Partition
		publish(t, d, to, msg("5"), msg("6"))
		got := receive(t, a, 10)
		if len(got) != 1 || got[0].Receipt.Partition != kept {
			t.Errorf("during the Revoke: %v, want one of partition %s", ids(got), kept)
		}
		close(let)
		moved := receive(t, b, 10)
		if len(moved) != 2 || moved[0].ID > moved[1].ID || moved[0].DeliveryCount != 2 {
			t.Errorf("after it: %v, count %d; want what was unsettled, then the new one", ids(moved), moved[0].DeliveryCount)
		}
		if kb.all[0].Fence != 2 {
			t.Errorf("fence is %d after the second owner came", kb.all[0].Fence)
		}
		var stale []driver.Received
		for _, r := range held {
			if r.Receipt.Partition != kept {
				stale = append(stale, r)
			}
		}
		wantClass(t, trySettle(a, driver.Ack, 0, stale...), driver.LeaseLost)
		synctest.Wait()
		ka.onRevoke = nil // Close is another matter
	})
}

func TestWhatComesBackToAPartitionGoesFirst(t *testing.T) {
	t.Parallel()
	to := queue("q").Keyed(1)
	d := open(t, memory.Config{}, to)
	c, _ := subscribe(t, d, driver.Subscription{From: to})
	for i := range 6 {
		publish(t, d, to, keyed("k", strconv.Itoa(i)))
	}
	got := receive(t, c, 4)
	wantClass(t, trySettle(c, driver.Nack, time.Second, got[0]), driver.Unsupported)
	settle(t, c, driver.Ack, got[1])
	settle(t, c, driver.Return, got[3])
	settle(t, c, driver.Nack, got[2])
	settle(t, c, driver.Nack, got[0])
	want(t, receive(t, c, 10), "0", "2", "3", "4", "5")
}

func TestLeaseLostTakesThePartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := queue("q").Keyed(2)
		d := open(t, memory.Config{Lease: time.Second}, to)
		frozen, kf := subscribe(t, d, driver.Subscription{From: to})
		publish(t, d, to, keyed("k", "1"), keyed("k", "2"), keyed("k", "3"))
		held := receive(t, frozen, 2)
		b, kb := subscribe(t, d, driver.Subscription{From: to})
		time.Sleep(999 * time.Millisecond)
		got := receive(t, b, 10)
		want(t, got, "1", "2", "3")
		if got[0].DeliveryCount != 2 || got[2].DeliveryCount != 1 {
			t.Errorf("counts %d, %d", got[0].DeliveryCount, got[2].DeliveryCount)
		}
		wantClass(t, trySettle(frozen, driver.Ack, 0, held...), driver.LeaseLost)
		synctest.Wait()
		if len(kf.owned()) != 0 || len(kf.lost) == 0 {
			t.Errorf("the frozen member owns %v, lost %v", kf.owned(), kf.lost)
		}
		settle(t, b, driver.Ack, got...)
		stop := pump(t, frozen, func([]driver.Received) {}) // it thaws
		stopB := pump(t, b, func([]driver.Received) {})
		synctest.Wait()
		if len(kf.owned()) != 1 || len(kb.owned()) != 1 {
			t.Errorf("after the thaw: %v and %v", kf.owned(), kb.owned())
		}
		stop()
		stopB()
	})
}

// churn checks order and single ownership over all members of one group.
type churn struct {
	d    driver.Driver
	to   driver.Destination
	seed uint64

	mu    sync.Mutex
	done  map[string]int // key → next
	owner map[string]*core
	fence map[string]uint64
	total atomic.Int64
}

func (c *churn) assigned(t *testing.T, k *core, a driver.Assignment) {
	c.mu.Lock()
	if o := c.owner[a.Partition]; o != nil {
		t.Errorf("partition %s has two owners", a.Partition)
	}
	if a.Fence <= c.fence[a.Partition] {
		t.Errorf("fence of %s went from %d to %d", a.Partition, c.fence[a.Partition], a.Fence)
	}
	c.owner[a.Partition], c.fence[a.Partition] = k, a.Fence
	c.mu.Unlock()
	k.assigned(a)
}

func (c *churn) revoke(ctx context.Context, k *core, parts []string) {
	k.revoke(ctx, parts)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range parts {
		c.owner[p] = nil
	}
}

// settle does so for one delivery, in step with what it checks.
func (c *churn) settle(t *testing.T, from driver.Consumer, how driver.Disposition, r *driver.Received) {
	seq, _ := strconv.Atoi(r.ID)
	c.mu.Lock()
	err := trySettle(from, how, 0, *r)
	if err == nil && how == driver.Ack {
		if c.done[r.Key] != seq {
			t.Errorf("key %s: %d after %d", r.Key, seq, c.done[r.Key]-1)
		}
		c.done[r.Key] = seq + 1
		c.total.Add(1)
	}
	c.mu.Unlock()
	if err != nil && !errors.Is(err, driver.LeaseLost) && !errors.Is(err, driver.Closed) { // both: not done
		t.Error(err)
	}
}

// member joins the group; it leaves it with stop.
func (c *churn) member(t *testing.T, n uint64) (stop func()) {
	rnd := rand.New(rand.NewPCG(c.seed, n))
	k := &core{}
	sub := driver.Subscription{From: c.to, Notify: k.notify}
	sub.Assigned = func(a driver.Assignment) { c.assigned(t, k, a) }
	sub.Revoke = func(ctx context.Context, parts []string) { c.revoke(ctx, k, parts) }
	from, err := c.d.Subscribe(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.check(t) })
	return pump(t, from, func(got []driver.Received) {
		blocked := map[string]bool{} // of a partition nothing later once one went back
		for i := range got {
			r := &got[i]
			if !k.admits(r) {
				continue
			}
			how := driver.Ack
			if blocked[r.Receipt.Partition] {
				how = driver.Return
			} else if rnd.IntN(10) == 0 {
				how = driver.Nack
			}
			if how != driver.Ack {
				blocked[r.Receipt.Partition] = true
			}
			c.settle(t, from, how, r)
		}
	})
}

// Order and single ownership, checked over all members while they come and go and
// messages come back in every way.
func TestShardOrderUnderChurn(t *testing.T) {
	t.Parallel()
	const keys, perKey, partitions = 20, 150, 6
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	to := queue("q").Keyed(partitions)
	d := open(t, memory.Config{}, to)
	c := &churn{d: d, to: to, seed: seed, done: map[string]int{}, owner: map[string]*core{}, fence: map[string]uint64{}}
	stops := []func(){c.member(t, 0), c.member(t, 1)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range perKey {
			var batch []*driver.Message
			for k := range keys {
				batch = append(batch, keyed(fmt.Sprint("k", k), strconv.Itoa(i)))
			}
			if err := d.Publish(context.Background(), to, batch); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
	})
	rnd := rand.New(rand.NewPCG(seed, 99))
	for n := uint64(2); n < 30; n++ {
		time.Sleep(time.Duration(rnd.IntN(8)) * time.Millisecond)
		if i := rnd.IntN(len(stops)); len(stops) > 4 || len(stops) > 1 && rnd.IntN(2) == 0 {
			stops[i]()
			stops = slices.Delete(stops, i, i+1)
			continue
		}
		stops = append(stops, c.member(t, n))
	}
	wg.Wait()
	eventually(t, "all messages are done", func() bool { return c.total.Load() == keys*perKey })
	for _, stop := range stops {
		stop()
	}
}
