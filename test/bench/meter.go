package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// meter counts messages as handlers see them and times the steady part: from message
// warmUp on, for the length of the sample or up to message total, whichever is first.
type meter struct {
	n       atomic.Int64
	total   int64 // 0 = there is always more
	started chan struct{}
	all     chan struct{}
	tick    chan struct{} // cap 1: another tickEvery messages were handled
	from    time.Time     // written before started is closed
	to      time.Time     // written before all is closed
}

func newMeter(total int64) *meter {
	return &meter{total: total, started: make(chan struct{}), all: make(chan struct{}), tick: make(chan struct{}, 1)}
}

// tickEvery is how often the meter wakes a publisher that waits: seldom enough to cost
// neither side anything, and often within what may be outstanding.
const tickEvery = 64

// hit counts one message.
func (m *meter) hit() { m.hits(1) }

// hits counts k messages.
func (m *meter) hits(k int64) {
	now := m.n.Add(k)
	if now/tickEvery != (now-k)/tickEvery {
		select {
		case m.tick <- struct{}{}:
		default:
		}
	}
	if was := now - k; was < warmUp && now >= warmUp {
		m.from = time.Now()
		close(m.started)
	} else if m.total > 0 && was < m.total && now >= m.total {
		m.to = time.Now()
		close(m.all)
	}
}

var errStalled = errors.New("no message came")

// watch waits for the steady part and measures it for d.
func (m *meter) watch(ctx context.Context, d time.Duration) (measure, error) {
	select {
	case <-m.started:
	case <-ctx.Done():
		return measure{}, ctx.Err()
	case <-time.After(time.Minute):
		return measure{}, fmt.Errorf("%w within a minute", errStalled)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := cpuTime()
	from, first := time.Now(), m.n.Load()
	t := time.NewTimer(d)
	defer t.Stop()
	end := time.Time{}
	select {
	case <-m.all:
		end = m.to
	case <-t.C:
	case <-ctx.Done():
		return measure{}, ctx.Err()
	}
	last := m.n.Load()
	if end.IsZero() {
		end = time.Now()
	}
	if m.total > 0 {
		last = min(last, m.total)
	}
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	return measure{cpu: cpu, messages: last - first, elapsed: end.Sub(from), allocs: after.Mallocs - before.Mallocs}, nil
}

// cpuTime is what this process has used so far, user and system. On a machine shared
// with others it tells more than the clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// publishing measures a closed loop: call sends one batch, waits for it and returns its
// size. warm sends a little before the clock starts.
func publishing(ctx context.Context, d time.Duration, warm func() error, call func() (int, error)) (m measure, err error) {
	if err := warm(); err != nil {
		return m, fmt.Errorf("warm-up: %w", err)
	}
	cpu := cpuTime()
	defer func() { m.cpu = cpuTime() - cpu }()
	for from := time.Now(); m.elapsed < d; m.elapsed = time.Since(from) {
		if err := ctx.Err(); err != nil {
			return m, err
		}
		n, err := call()
		if err != nil {
			return m, err
		}
		m.messages += int64(n)
	}
	return m, nil
}

// callers is publishing with many callers of one message each at the same time.
func callers(ctx context.Context, d time.Duration, n int, warm func() error, one func() error) (measure, error) {
	if err := warm(); err != nil {
		return measure{}, fmt.Errorf("warm-up: %w", err)
	}
	var (
		sent atomic.Int64
		errs = make(chan error, n)
		from = time.Now()
		cpu  = cpuTime()
	)
	for range n {
		go func() {
			for time.Since(from) < d && ctx.Err() == nil {
				if err := one(); err != nil {
					errs <- err
					return
				}
				sent.Add(1)
			}
			errs <- ctx.Err()
		}()
	}
	var failed error
	for range n {
		failed = errors.Join(failed, <-errs)
	}
	return measure{messages: sent.Load(), elapsed: time.Since(from), cpu: cpuTime() - cpu}, failed
}
