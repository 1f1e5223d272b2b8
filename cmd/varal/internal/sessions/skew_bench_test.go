package sessions_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

// BenchmarkTable works 10,000 messages off, each of which takes up to 5 ms, with 100 places
// and more and more keys. What is reported beside the time is its ratio to the ideal: 25 s
// of work over keys or places, whichever are fewer. Run it with -benchtime 1x.
func BenchmarkTable(b *testing.B) {
	const messages, places = 10_000, 100
	for _, keys := range []int{1, 10, 100, 1000, 10_000} {
		b.Run(fmt.Sprint("keys=", keys), func(b *testing.B) {
			c := open(b, "memory")
			for run := 0; b.Loop(); run++ {
				from := core.Queue(fmt.Sprint("table-", run)).Keyed(12)
				b.StopTimer()
				preload(b, c, from, keys, messages)
				rnd := rand.New(rand.NewPCG(1, uint64(keys)))
				work := make([]time.Duration, messages)
				for i := range work {
					work[i] = time.Duration(rnd.Int64N(int64(5 * time.Millisecond)))
				}
				b.StartTimer()
				took := workOff(b, c, from, work, places)
				b.ReportMetric(took.Seconds(), "s")
				b.ReportMetric(took.Seconds()/max(25/float64(keys), 25/float64(places)), "of-ideal")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func open(b *testing.B, broker string) *core.Client {
	b.Helper()
	c, err := adapters.Open(b.Context(), adapters.Config{URL: brokers[broker](b), Provision: core.ProvisionCreate})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close(context.WithoutCancel(b.Context())) })
	return c
}

// workOff returns how long it takes to handle len(work) messages, each in its time.
func workOff(b *testing.B, c *core.Client, from core.Destination, work []time.Duration, places int) time.Duration {
	b.Helper()
	var n atomic.Int64
	all := make(chan struct{})
	begun := time.Now()
	s, err := c.Start(b.Context(), core.Subscription{From: from, Group: "table", Start: core.Position{Kind: core.Earliest}}, func(context.Context, *core.Delivery) error {
		i := n.Add(1)
		time.Sleep(work[i-1])
		if i == int64(len(work)) {
			close(all)
		}
		return nil
	}, middleware.SessionOrder(places), middleware.Prefetch(16_384))
	if err != nil {
		b.Fatal(err)
	}
	<-all
	took := time.Since(begun)
	if err := s.Drain(b.Context()); err != nil {
		b.Error(err)
	}
	return took
}

// BenchmarkSkew is 10,000 messages a second for five seconds, their keys drawn from 1,000 by
// Zipf's law with 1.1, with and without one key whose first message does not end. What is
// reported is how late the messages of the other keys were handled. Run it with
// -benchtime 1x.
func BenchmarkSkew(b *testing.B) {
	for _, broker := range names() {
		for _, stuck := range []int{-1, 100} { // rank of the key; -1 = none
			b.Run(fmt.Sprintf("%s/stuck=%v", broker, stuck >= 0), func(b *testing.B) {
				c := open(b, broker)
				for run := 0; b.Loop(); run++ {
					late := skewed(b, c, core.Queue(fmt.Sprint("skew-", run)).Keyed(12), stuck)
					for _, q := range []float64{0.5, 0.99} {
						b.ReportMetric(late[int(q*float64(len(late)))].Seconds()*1e3, fmt.Sprintf("p%g-ms", 100*q))
					}
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func skewed(b *testing.B, c *core.Client, to core.Destination, stuck int) (late []time.Duration) {
	b.Helper()
	const rate, seconds, batch = 10_000, 5, 20
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, 999)
	var mu sync.Mutex
	var handled atomic.Int64
	begun, held := time.Now(), fmt.Sprint("k", stuck)
	s, err := c.Start(b.Context(), core.Subscription{From: to, Group: "skew", Start: core.Position{Kind: core.Earliest}}, func(ctx context.Context, d *core.Delivery) error {
		if d.Key == held {
			<-ctx.Done()
			return ctx.Err()
		}
		took := time.Since(begun) - time.Duration(binary.LittleEndian.Uint64(d.Body))
		mu.Lock()
		late = append(late, took)
		mu.Unlock()
		handled.Add(1)
		return nil
	}, middleware.SessionOrder(64), middleware.Prefetch(16_384), middleware.Drain(-1))
	if err != nil {
		b.Fatal(err)
	}
	expected := int64(0)
	for i := 0; i < rate*seconds; i += batch {
		due := time.Duration(i) * time.Second / rate
		time.Sleep(time.Until(begun.Add(due)))
		msgs := make([]*core.Message, batch)
		for k := range msgs {
			rank := int(zipf.Uint64())
			if rank != stuck {
				expected++
			}
			msgs[k] = &core.Message{Key: fmt.Sprint("k", rank), Body: binary.LittleEndian.AppendUint64(nil, uint64(due))}
		}
		if err := c.Publish(b.Context(), to, msgs...); err != nil {
			b.Fatal(err)
		}
	}
	for end := time.Now().Add(30 * time.Second); handled.Load() < expected; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("%d of %d messages beside the stuck key", handled.Load(), expected)
		}
	}
	_ = s.Drain(b.Context()) // the stuck one is given up
	slices.Sort(late)
	return late
}
