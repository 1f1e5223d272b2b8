package sessions_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

// BenchmarkSlow drains a preloaded queue with a handler of 1 ms: 1,000 keys in order,
// 1,024 places, 16,384 in flight, 100 bytes. Every message's place in its key is checked.
// Run it with -benchtime 1x.
func BenchmarkSlow(b *testing.B) {
	const keys, perRun = 1000, 400_000
	for _, broker := range names() {
		b.Run(broker, func(b *testing.B) {
			c, err := adapters.Open(b.Context(), adapters.Config{URL: brokers[broker](b), Provision: core.ProvisionCreate})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = c.Close(context.WithoutCancel(b.Context())) }()
			for run := 0; b.Loop(); run++ {
				from := core.Queue(fmt.Sprint("slow-", run)).Keyed(12)
				b.StopTimer()
				preload(b, c, from, keys, perRun)
				b.StartTimer()
				rate := drain(b, c, from, keys, perRun)
				b.ReportMetric(rate, "msg/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// preload publishes n numbered messages, in turn of each key.
func preload(b *testing.B, c *core.Client, to core.Destination, keys, n int) {
	b.Helper()
	for from := 0; from < n; from += 10_000 {
		var batch []*core.Message
		for i := from; i < min(from+10_000, n); i++ {
			body := make([]byte, 100)
			copy(body, fmt.Sprint(i/keys))
			batch = append(batch, &core.Message{Key: fmt.Sprint("k", i%keys), Body: body})
		}
		if err := c.Publish(b.Context(), to, batch...); err != nil {
			b.Fatal(err)
		}
	}
}

// drain handles them all and returns messages per second from the first one on.
func drain(b *testing.B, c *core.Client, from core.Destination, keys, n int) float64 {
	b.Helper()
	var (
		mu    sync.Mutex
		next  = make(map[string]int, keys)
		done  atomic.Int64
		start atomic.Int64
		all   = make(chan struct{})
	)
	s, err := c.Start(b.Context(), core.Subscription{From: from, Group: "slow", Start: core.Position{Kind: core.Earliest}}, func(_ context.Context, d *core.Delivery) error {
		start.CompareAndSwap(0, time.Now().UnixNano())
		time.Sleep(time.Millisecond)
		mu.Lock()
		want := next[d.Key]
		next[d.Key]++
		mu.Unlock()
		if got := string(d.Body[:len(fmt.Sprint(want))]); got != fmt.Sprint(want) {
			b.Errorf("key %s: %s where %d was due", d.Key, got, want)
		}
		if done.Add(1) == int64(n) {
			close(all)
		}
		return nil
	}, middleware.SessionOrder(1024), middleware.Prefetch(16_384))
	if err != nil {
		b.Fatal(err)
	}
	select {
	case <-all:
	case <-s.Done():
		b.Fatal(s.Wait())
	case <-time.After(2 * time.Minute):
		b.Fatalf("%d of %d: %+v", done.Load(), n, s.Status())
	}
	took := time.Duration(time.Now().UnixNano() - start.Load())
	if err := s.Drain(b.Context()); err != nil {
		b.Error(err)
	}
	return float64(n) / took.Seconds()
}
