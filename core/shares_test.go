package core_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func on(partition string, m driver.Received) driver.Received {
	m.Receipt.Partition = partition
	return m
}

// TestStuckKeysLeaveRoomForOthers: a backlog of one key that waits must not fill what may
// be in flight, whether it is halted or in back-off: other partitions go on.
func TestStuckKeysLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.more = []string{"p1", "p2"}
	var done atomic.Int64
	h := func(_ context.Context, d *core.Delivery) error {
		if d.Key == "hot" {
			return errors.New("no")
		}
		done.Add(1)
		return nil
	}
	bubble(t, f, h, func(s *core.Consumer) {
		for i := range 1000 {
			f.push(on("p1", msg(fmt.Sprint("h", i), "hot")))
		}
		time.Sleep(time.Second)
		for i := range 500 {
			f.push(on("p2", msg(fmt.Sprint("o", i), fmt.Sprint("k", i%50))))
		}
		time.Sleep(10 * time.Second)
		st := s.Status()
		if done.Load() != 500 || st.InFlight > 60 {
			t.Errorf("%d of 500 others were handled, %d in flight", done.Load(), st.InFlight)
		}
		for _, p := range st.Partitions {
			if p.Paused != (p.Partition == "p1") {
				t.Errorf("partition %s paused: %v", p.Partition, p.Paused)
			}
		}
	}, edit("p", func(p *core.Policy) {
		p.Order, p.MaxInFlight, p.Concurrency, p.MaxPerKey = core.ByKey, 100, 1, 30
		p.SetRetry(core.RetryPolicy{Base: time.Hour, Cap: time.Hour, Jitter: core.NoJitter})
	}))
}

// A key that thins out again is asked for, to its last message.
func TestHotKeyGoesOn(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	var done atomic.Int64
	bubble(t, f, func(context.Context, *core.Delivery) error { time.Sleep(time.Millisecond); done.Add(1); return nil }, func(s *core.Consumer) {
		for i := range 1000 {
			f.push(msg(fmt.Sprint("h", i), "hot"))
		}
		time.Sleep(10 * time.Second)
		if done.Load() != 1000 {
			t.Errorf("%d of 1000: %+v", done.Load(), s.Status())
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for i, d := range f.demands {
			if i > 0 && len(d.Paused) > 0 {
				return
			}
		}
		t.Error("the key was never held up: the test shows nothing")
	}, edit("p", func(p *core.Policy) { p.Order, p.MaxPerKey = core.ByKey, 20 }))
}

// TestPartitionKeepsToItsShare: where several partitions have work, one whose messages
// do not end leaves room for the others, and goes on when it is alone.
func TestPartitionKeepsToItsShare(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.more = []string{"slow", "b", "c", "d"}
	release := make(chan struct{})
	var slow, fast atomic.Int64
	bubble(t, f, func(ctx context.Context, d *core.Delivery) error {
		if d.Partition != "slow" {
			time.Sleep(10 * time.Millisecond)
			fast.Add(1)
			return nil
		}
		select {
		case <-release:
		case <-ctx.Done():
			return ctx.Err()
		}
		slow.Add(1)
		return nil
	}, func(s *core.Consumer) {
		release = make(chan struct{}) // of the bubble
		for i := range 300 {
			for _, p := range []string{"b", "c", "d", "slow"} {
				f.push(on(p, msg(fmt.Sprint(p, i), "")))
			}
		}
		time.Sleep(20 * time.Second)
		if fast.Load() != 900 {
			t.Errorf("%d of 900 of the others: %+v", fast.Load(), s.Status())
		}
		close(release)
		time.Sleep(time.Second)
		if slow.Load() != 300 {
			t.Errorf("%d of 300 in the end: %+v", slow.Load(), s.Status())
		}
	}, edit("p", func(p *core.Policy) { p.MaxInFlight, p.Concurrency = 200, 200 }))
}
