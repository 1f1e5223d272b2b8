package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

// latencyGroup is the one group whose rows are no rates: both sides consume what the same
// raw producer sends at one rate, whatever becomes of it, and what is compared is how long
// after it was due a message is handled.
const (
	latencyGroup = "latency"
	latencyRate  = 50_000
	latencyEvery = 2 * time.Millisecond
)

// delays are the latencies of one side.
type delays struct {
	base time.Time
	mu   sync.Mutex
	all  []int64 // nanoseconds; guarded by mu
	seen atomic.Int64
}

// take counts a message that was due at the time its body begins with; 0 = a warm-up.
func (d *delays) take(body []byte) {
	if due := int64(binary.LittleEndian.Uint64(body)); due > 0 { //nolint:gosec // written the same way
		late := int64(time.Since(d.base)) - due
		d.mu.Lock()
		d.all = append(d.all, late)
		d.mu.Unlock()
	}
	d.seen.Add(1)
}

func (d *delays) quantile(q float64) time.Duration {
	return time.Duration(d.all[min(int(q*float64(len(d.all))), len(d.all)-1)])
}

// latency plays pairs of samples and prints a line for each.
func (p printer) latency(ctx context.Context, o options, stderr io.Writer) error {
	length := time.Duration(o.seconds * float64(time.Second))
	_, _ = fmt.Fprintf(stderr, "kafka-latency: %d msg/s for %v, 12 partitions, 1,000 keys; ours in order per key\n", latencyRate, length)
	for pair := range o.pairs {
		for _, side := range []string{"ours", "franz-go"} {
			d, err := sampleLatency(ctx, side == "ours", length)
			if err != nil {
				return fmt.Errorf("kafka-latency, %s: %w", side, err)
			}
			slices.Sort(d.all)
			p50, p99, p999 := d.quantile(0.5), d.quantile(0.99), d.quantile(0.999)
			if p.json {
				p.object(map[string]any{
					"name": "kafka-latency", "side": side, "pair": pair + 1, "messages": len(d.all),
					"p50_ms": p50.Seconds() * 1e3, "p99_ms": p99.Seconds() * 1e3, "p999_ms": p999.Seconds() * 1e3,
				})
				continue
			}
			_, _ = fmt.Fprintf(p.out, "latency kafka-latency %-8s p50 %.1f ms  p99 %.1f ms  p99.9 %.1f ms  (%d messages at %d/s)\n",
				side, p50.Seconds()*1e3, p99.Seconds()*1e3, p999.Seconds()*1e3, len(d.all), latencyRate)
		}
	}
	return nil
}

func sampleLatency(ctx context.Context, ours bool, length time.Duration) (*delays, error) {
	k, err := openKafkaSite()
	if err != nil {
		return nil, err
	}
	topic, err := k.create(ctx, "latency")
	if err != nil {
		k.cl.Close()
		return nil, err
	}
	defer k.drop(context.WithoutCancel(ctx), topic)
	d := &delays{base: time.Now(), all: make([]int64, 0, int(length.Seconds()*latencyRate)+1)}
	var stop func() error
	if ours {
		stop, err = k.varalMember(ctx, topic, d)
	} else {
		stop, err = k.pollingMember(ctx, topic, d)
	}
	if err != nil {
		return nil, err
	}
	err = k.openLoop(ctx, topic, d, length)
	return d, errors.Join(err, stop())
}

// varalMember consumes in order per key.
func (k *kafkaSite) varalMember(ctx context.Context, topic string, d *delays) (stop func() error, err error) {
	c, err := k.client(ctx)
	if err != nil {
		return nil, err
	}
	_, err = c.Start(ctx, core.Subscription{From: core.Stream(topic).Keyed(kafkaPartitions), Group: topic, Start: core.Position{Kind: core.Earliest}},
		func(_ context.Context, m *core.Delivery) error { d.take(m.Body); return nil },
		middleware.Prefetch(kafkaInFlight), middleware.SessionOrder(engineWorkers))
	return func() error { closeClient(ctx, c); k.forget(ctx, topic); return nil }, err
}

// pollingMember consumes with the raw client.
func (k *kafkaSite) pollingMember(ctx context.Context, topic string, d *delays) (stop func() error, err error) {
	cl, err := k.rawMember(topic, topic)
	if err != nil {
		return nil, err
	}
	polling, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { failed <- pollAndCommit(polling, cl, func(r *kgo.Record) { d.take(r.Value) }) }()
	return func() error {
		cancel()
		err := <-failed
		cl.Close()
		k.forget(ctx, topic)
		return err
	}, nil
}

// openLoop sends messages when they are due and waits until all have been taken.
func (k *kafkaSite) openLoop(ctx context.Context, topic string, d *delays, length time.Duration) error {
	src := newSource(kafkaPayload, benchKeys)
	var ids idSource
	var failed atomic.Pointer[error]
	send := func(n int, due func(i int) int64) {
		for i, r := range records(topic, src, &ids, n) {
			body := slices.Clone(r.Value)
			binary.LittleEndian.PutUint64(body, uint64(due(i))) //nolint:gosec // read back the same way
			r.Value = body
			k.cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(&err)
				}
			})
		}
	}
	send(warmUp, func(int) int64 { return 0 })
	if err := d.await(ctx, warmUp); err != nil {
		return err
	}
	begun, total := time.Since(d.base), int(length.Seconds()*latencyRate)
	tick := time.NewTicker(latencyEvery)
	defer tick.Stop()
	for sent := 0; sent < total; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		n := min(total, int((time.Since(d.base)-begun).Seconds()*latencyRate)) - sent
		send(n, func(i int) int64 { return int64(begun) + int64(sent+i)*int64(time.Second)/latencyRate })
		sent += n
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return d.await(ctx, int64(total)+warmUp)
}

// await waits for so many messages.
func (d *delays) await(ctx context.Context, n int64) error {
	for end := time.Now().Add(time.Minute); d.seen.Load() < n; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("%w: %d of %d messages", errStalled, d.seen.Load(), n)
		}
	}
	return ctx.Err()
}
