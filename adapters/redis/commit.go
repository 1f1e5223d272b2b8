package redis

import (
	"context"
	"runtime"
	"slices"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

const (
	flushers     = 2   // pipelines under way at once: one is written while the other is answered
	shareRecords = 128 // of several calls in one pipeline
	shareBytes   = 128 << 10
	chunkRecords = 512 // of one call in one pipeline
	chunkBytes   = 1 << 20
)

// committer is the group commit of publishing: whatever calls wait when a pipeline can
// start go together, without waiting for more. A flusher lives only while there is
// something to send.
type committer struct {
	b     *broker
	calls sync.WaitGroup // flushers, and requests that outlived their caller

	mu      sync.Mutex
	queue   []*parcel
	running int
	stopped bool
}

func newCommitter(b *broker) *committer { return &committer{b: b} }

// send returns nil when p is done: p.errs has the outcomes. An error holds for all of p,
// which is the committer's from then on.
func (c *committer) send(ctx context.Context, p *parcel) error {
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return errClosed(p.op)
	}
	c.queue = append(c.queue, p)
	if c.running < flushers {
		c.running++
		c.calls.Go(c.flush)
	}
	c.mu.Unlock()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.taken {
		// The lock decides: a flusher takes p under it, so it is either still here and
		// never sent, or may have been.
		c.queue = slices.DeleteFunc(c.queue, func(q *parcel) bool { return q == p })
		return driver.Errorf(p.op, driver.Transient, "nothing was sent: %w", context.Cause(ctx))
	}
	select {
	case <-p.done:
		return nil
	default:
		return driver.Errorf(p.op, driver.Ambiguous, "the server has not confirmed yet: %w", context.Cause(ctx))
	}
}

// begin runs f beside, unless the driver is closed. The lock makes every Add come before
// the Wait of stop.
func (c *committer) begin(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.calls.Go(f)
	return true
}

// stop refuses what comes from here on and waits by ctx for what is under way; then it
// calls cut, which closes the connections, and what is left ends.
func (c *committer) stop(ctx context.Context, cut func()) {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	idle := make(chan struct{})
	go func() { // joined below
		defer close(idle)
		c.calls.Wait()
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	cut()
	<-idle
}

func (c *committer) flush() {
	for {
		// An answer wakes the callers of its whole pipeline. They go first: taken at once,
		// the next pipeline would carry the one call that was quickest.
		runtime.Gosched()
		ps := c.take()
		if len(ps) == 0 {
			return
		}
		if len(ps) == 1 {
			c.whole(ps[0])
		} else {
			c.shared(ps)
		}
		for _, p := range ps {
			close(p.done)
		}
	}
}

// take returns what goes together now; none ends the flusher. Both are decided under one
// lock: otherwise a call could add its parcel, see a flusher that has found nothing and is
// about to end, start none, and wait for ever.
func (c *committer) take() []*parcel {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, records, bytes := 0, 0, 0
	for _, p := range c.queue {
		records += len(p.items)
		bytes += p.size
		if n > 0 && (p.tied || c.queue[0].tied || records > shareRecords || bytes > shareBytes) {
			break
		}
		p.taken = true
		n++
	}
	ps := slices.Clone(c.queue[:n])
	clear(c.queue[:n])
	c.queue = c.queue[n:]
	if n == 0 {
		c.queue = nil
		c.running--
	}
	return ps
}

// shared sends several calls in one pipeline.
func (c *committer) shared(ps []*parcel) {
	var items []*item
	for _, p := range ps {
		for i := range p.items {
			items = append(items, &p.items[i])
		}
	}
	answers := c.exec(items, false)
	n := 0
	for _, p := range ps {
		for i := range p.items {
			p.outcome(&p.items[i], answers[n])
			n++
		}
	}
}

// whole sends one call, in chunks if it is large.
func (c *committer) whole(p *parcel) {
	failed := map[string]bool{}
	for rest := p.items; len(rest) > 0; {
		chunk := p.chunk(rest, failed)
		rest = rest[len(chunk.span):]
		if len(chunk.send) == 0 {
			continue
		}
		if !c.part(p, chunk.send, failed) {
			for i := range rest {
				p.errs[rest[i].at] = driver.Errorf(p.op, driver.Transient, "it was not sent: the connection was lost before its turn")
			}
			return
		}
	}
}

// portion is a run of items, and those of it that may be sent.
type portion struct {
	span []item
	send []*item
}

func (p *parcel) chunk(rest []item, failed map[string]bool) portion {
	var out portion
	n, bytes := 0, 0
	for n < len(rest) && n < chunkRecords && (n == 0 || bytes+rest[n].size <= chunkBytes) {
		bytes += rest[n].size
		if k := rest[n].key; k != "" && failed[k] {
			p.errs[rest[n].at] = driver.Errorf(p.op, driver.Transient, "it was not sent: an earlier message of its key failed")
		} else {
			out.send = append(out.send, &rest[n])
		}
		n++
	}
	out.span = rest[:n]
	return out
}

// part sends items and reports whether the connection held. Where a key comes twice they
// are one transaction: without memory the server would refuse one message of a key and,
// a moment later, take the next.
func (c *committer) part(p *parcel, items []*item, failed map[string]bool) bool {
	held := true
	for i, a := range c.exec(items, p.tied) {
		it := items[i]
		p.outcome(it, a)
		if p.errs[it.at] != nil {
			failed[it.key] = true
			held = held && !offline(a.cmd.Err())
		}
	}
	return held
}

func (it *item) queue(pipe goredis.Pipeliner) {
	ctx := context.Background() // Exec's counts
	if it.delay > 0 {
		pipe.Eval(ctx, scheduleText, []string{it.sched, it.log}, append([]any{it.delay, it.token}, it.args...)...)
		return
	}
	head := []any{"XADD", it.log, "NOMKSTREAM", "*"}
	if it.keep != "" {
		head = []any{"XADD", it.log, "NOMKSTREAM", "MINID", "~", it.keep, "*"}
	}
	pipe.Do(ctx, append(head, it.args...)...)
}
