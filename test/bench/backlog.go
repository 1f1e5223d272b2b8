package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

// A backlog must not move into memory: what a consumer takes is bounded by what it has in
// flight. The consumer runs in a process of its own, the program again with the backlog in
// this variable, because whoever filled the queue has a heap from that.
const backlogEnv = "VARAL_BENCH_BACKLOG"

// backlog is one measurement. Messages of Body bytes wait; handlers take 10 ms.
type backlog struct {
	Queue    string        `json:"queue"`
	Messages int           `json:"messages"`
	Body     int           `json:"body"`
	InFlight int           `json:"in_flight"`
	Workers  int           `json:"workers"`
	For      time.Duration `json:"for_ns"`
}

// slackMiB is what a process may grow by whatever it has in flight: the collector's share, buffers of
// connections, stacks.
const slackMiB = 64

// resident is what the consumer's process saw of itself.
type resident struct {
	Start   int64 `json:"start_bytes"` // connected, before the first message
	Peak    int64 `json:"peak_bytes"`  // at any time
	Handled int64 `json:"handled"`
}

// bound is the most that a process which started like that may have resident.
func (b backlog) bound(start int64) int64 {
	return start + int64(b.InFlight)*int64(b.Body)*3 + slackMiB<<20
}

// backlogRow is the outcome as the bench prints it.
type backlogRow struct {
	Name string `json:"name"`
	backlog
	resident
	Bound int64 `json:"bound_bytes"`
	Met   bool  `json:"met"`
}

// redisBacklog is the row without a peer: a million messages, a minute.
func (p printer) redisBacklog(ctx context.Context, o options, progress io.Writer) error {
	const name = "redis-backlog-memory"
	if !strings.Contains(name, o.only) {
		return nil
	}
	b := backlog{Messages: 1_000_000, Body: redisPayload, InFlight: redisPrefetch, Workers: 256, For: time.Minute}
	_, _ = fmt.Fprintf(progress, "%s: %d messages wait, handlers of 10 ms work for %v\n", name, b.Messages, b.For)
	got, err := measureBacklog(ctx, b)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	row := backlogRow{Name: name, backlog: b, resident: got, Bound: b.bound(got.Start)}
	row.Met = got.Peak <= row.Bound
	if p.json {
		p.object(row)
		return nil
	}
	_, _ = fmt.Fprintf(p.out, "memory %s ours start %.1f MiB  peak %.1f MiB  (%d of %d messages handled)  bar <= %.1f MiB: %s\n",
		name, mib(got.Start), mib(got.Peak), got.Handled, b.Messages, mib(row.Bound), verdict(row.Met))
	return nil
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// measureBacklog fills a queue and lets a process of its own work on it. env is added to
// that process's.
func measureBacklog(ctx context.Context, b backlog, env ...string) (resident, error) {
	var got resident
	r, err := openRedisSite(ctx)
	if err != nil {
		return got, err
	}
	defer r.close(context.WithoutCancel(ctx))
	if err := r.renew(ctx, newSource(b.Body, 0), b.Messages); err != nil {
		return got, err
	}
	b.Queue = r.queue
	arg, err := json.Marshal(b)
	if err != nil {
		return got, err
	}
	self, err := os.Executable()
	if err != nil {
		return got, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.For+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self) //nolint:gosec // this program
	cmd.Env = append(append(os.Environ(), backlogEnv+"="+string(arg)), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return got, fmt.Errorf("the consumer's process: %w", err)
	}
	return got, json.Unmarshal(out, &got)
}

// backlogChild is the main of the consumer's process. wrap goes around the driver; nil =
// nothing.
func backlogChild(ctx context.Context, arg string, wrap func(driver.Driver) driver.Driver, out io.Writer) error {
	var b backlog
	if err := json.Unmarshal([]byte(arg), &b); err != nil {
		return err
	}
	r, err := openRedisSite(ctx)
	if err != nil {
		return err
	}
	d := r.drv
	if wrap != nil {
		d = wrap(d)
	}
	c := core.NewClient(d, core.Options{Logger: quiet})
	defer closeClient(ctx, c)
	defer r.cl.Close() //nolint:errcheck // nothing was asked of it
	var got resident
	if got.Start, err = memoryOf("VmRSS"); err != nil {
		return err
	}
	var handled atomic.Int64
	if _, err := c.Start(ctx, core.Subscription{From: core.Queue(b.Queue)}, func(ctx context.Context, _ *core.Delivery) error {
		select {
		case <-time.After(10 * time.Millisecond):
			handled.Add(1)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, middleware.Prefetch(b.InFlight), middleware.Concurrency(b.Workers)); err != nil {
		return err
	}
	select {
	case <-time.After(b.For):
	case <-ctx.Done():
		return ctx.Err()
	}
	got.Handled = handled.Load()
	if got.Peak, err = memoryOf("VmHWM"); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(got)
}

// memoryOf reads a field of this process's status, in bytes.
func memoryOf(field string) (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("resident memory is read where Linux tells it: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == field {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no %s", field)
}
