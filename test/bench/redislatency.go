package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

// redisDelays are rows without a peer: how late a message comes where there is nothing
// else to do.
var redisDelays = []struct {
	name, what string
	bar        time.Duration
	every      time.Duration // from one message to the next
	delay      time.Duration // of each
}{
	{"redis-idle-pickup", "one message at a time on an idle queue, from before its publish to its handler", 20 * time.Millisecond, 40 * time.Millisecond, 0},
	{"redis-delay-lateness", "messages with a Delay of 500 ms, from when they are due to their handler", 50 * time.Millisecond, 20 * time.Millisecond, 500 * time.Millisecond},
}

// lateness is the result of one row.
type lateness struct {
	Name     string  `json:"name"`
	What     string  `json:"what"`
	Messages int     `json:"messages"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
	Bar      float64 `json:"bar_ms"`
	Met      bool    `json:"met"`
}

// redisLateness measures every row for as long as all samples of a ratio take.
func (p printer) redisLateness(ctx context.Context, o options, progress io.Writer) error {
	for _, row := range redisDelays {
		if !strings.Contains(row.name, o.only) {
			continue
		}
		_, _ = fmt.Fprintf(progress, "%s: %s\n", row.name, row.what)
		n := max(int(o.seconds*float64(o.pairs)*float64(time.Second)/float64(row.every)), 1)
		d, err := sampleRedisDelay(ctx, n, row.every, row.delay)
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		slices.Sort(d.all)
		ms := func(q float64) float64 { return d.quantile(q).Seconds() * 1e3 }
		r := lateness{Name: row.name, What: row.what, Messages: len(d.all), P50: ms(0.5), P99: ms(0.99), Max: ms(1), Bar: row.bar.Seconds() * 1e3}
		r.Met = r.P99 < r.Bar
		if p.json {
			p.object(r)
			continue
		}
		_, _ = fmt.Fprintf(p.out, "latency %s ours p50 %.1f ms  p99 %.1f ms  max %.1f ms  (%d messages)  bar p99 < %.0f ms: %s\n",
			r.Name, r.P50, r.P99, r.Max, r.Messages, r.Bar, verdict(r.Met))
	}
	return nil
}

// sampleRedisDelay publishes n messages at a pace; each body is when it is due.
func sampleRedisDelay(ctx context.Context, n int, every, delay time.Duration) (*delays, error) {
	r, err := openRedisSite(ctx)
	if err != nil {
		return nil, err
	}
	defer r.close(context.WithoutCancel(ctx))
	if err := r.renew(ctx, newSource(redisPayload, 0), 0); err != nil {
		return nil, err
	}
	c, err := r.client(ctx)
	if err != nil {
		return nil, err
	}
	defer closeClient(ctx, c)
	d := &delays{base: time.Now().Add(-time.Nanosecond)} // no due time is 0, which means warm-up
	done, left := make(chan struct{}), atomic.Int64{}
	left.Store(int64(n) + 1)
	if _, err := c.Start(ctx, core.Subscription{From: core.Queue(r.queue)}, func(_ context.Context, m *core.Delivery) error {
		d.take(m.Body)
		if left.Add(-1) == 0 {
			close(done)
		}
		return nil
	}, middleware.Concurrency(engineWorkers)); err != nil {
		return nil, err
	}
	if err := paced(ctx, c, r.queue, d, n, every, delay); err != nil {
		return nil, err
	}
	select {
	case <-done:
		return d, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(delay + time.Minute):
		return nil, errors.New("messages are missing a minute after they were due")
	}
}

// paced sends a warm-up, waits until it is handled (who consumes looks for the first
// delayed message of a minute less often than for the next), and then sends the messages.
func paced(ctx context.Context, c *core.Client, queue string, d *delays, n int, every, delay time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range n + 1 {
		body := make([]byte, redisPayload)
		if i > 0 {
			binary.LittleEndian.PutUint64(body, uint64(time.Since(d.base)+delay)) //nolint:gosec // a time after base
		}
		if err := c.Publish(ctx, core.Queue(queue), &core.Message{Body: body, Delay: delay}); err != nil {
			return err
		}
		for wait := true; wait; wait = d.seen.Load() == 0 {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}
