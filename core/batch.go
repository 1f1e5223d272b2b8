package core

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// BatchHandler handles several deliveries in one call: under ByKey the next ones of one
// key, in order; else whatever is ready. nil acknowledges all. FailedAt(i, err)
// acknowledges what stands before index i, fails that one with err, and leaves what is
// behind it untried: it comes again, its attempt not counted. Any other error is
// FailedAt(0, err). What a delivery was decided to be (Ack, Nack, Return, Reject) stands,
// under ByKey as long as everything before it in the batch ended well.
//
// ctx ends for the whole batch as soon as one of its deliveries is no longer ours.
// Otherwise everything said of Handler holds.
type BatchHandler func(ctx context.Context, batch []*Delivery) error

// batchFailure is the error of FailedAt.
type batchFailure struct {
	index int
	err   error
}

func (e *batchFailure) Error() string {
	return fmt.Sprintf("message %d of the batch: %v", e.index, e.err)
}
func (e *batchFailure) Unwrap() error { return e.err }

// FailedAt is the error of a BatchHandler that has handled what stands before index i and
// failed at that one.
func FailedAt(i int, err error) error {
	if err == nil {
		err = errors.New("the handler gave no reason")
	}
	return &batchFailure{index: i, err: err}
}

// StartBatch is Start for a BatchHandler, which gets at most limit deliveries at once. It
// waits for no batch to fill: what is there is handed over. Layers that wrap the handler
// (Wrap, Log, Recover) and AckFirst are about single deliveries and are refused.
func (c *Client) StartBatch(ctx context.Context, sub Subscription, limit int, h BatchHandler, layers ...Layer) (*Consumer, error) {
	if h == nil {
		return nil, driver.Errorf("subscribe "+sub.name(), driver.Permanent, "the handler is nil")
	}
	one := func(ctx context.Context, d *Delivery) error { return h(ctx, []*Delivery{d}) }
	batch := Layer{Name: "Batch", Edit: func(p *Policy) error {
		if limit < 1 || limit > maxReceive {
			return driver.Errorf("policy", driver.Permanent, "limit: a batch of %d is not within 1 and %d", limit, maxReceive)
		}
		p.batch, p.batchLimit = h, limit
		return nil
	}}
	return c.Start(ctx, sub, one, append(layers[:len(layers):len(layers)], batch)...)
}

// ConsumeBatch is StartBatch and Wait, as Consume is Start and Wait.
func (c *Client) ConsumeBatch(ctx context.Context, sub Subscription, limit int, h BatchHandler, layers ...Layer) error {
	s, err := c.StartBatch(ctx, sub, limit, h, layers...)
	if err != nil {
		return unlessCancelled(ctx, err)
	}
	return s.Wait()
}

// batchRun is one call of a BatchHandler.
type batchRun struct {
	flights  []*flight // they share the slot of the first
	attempts []*attempt
	lane     *lane // of all of them, nil = none
	start    time.Time
	failedAt int
	err      error // of that one
	stack    []byte
}

// gather takes more flights to go with one that is about to run. Callers hold mu.
func (s *Consumer) gather(first *flight) *batchRun {
	b := &batchRun{flights: []*flight{first}, lane: first.lane}
	more := s.queue.Together(first.lane, s.p.batchLimit-1, func(f *flight) bool {
		return f.state == stateQueued && f.phase == phaseHandle
	})
	for _, f := range more {
		f.lane, f.state, f.age = first.lane, stateRunning, 0
		f.rung, f.seen = f.rung&rungStalled, 0
		f.asg.running++
		b.flights = append(b.flights, f)
	}
	return b
}

// handleBatch is handle for a BatchHandler. mu is held on entry and on return.
func (s *Consumer) handleBatch(first *flight, a *arena) {
	b := s.gather(first)
	ctx, cancel := context.WithCancelCause(s.hctx)
	defer cancel(context.Canceled)
	if s.p.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, s.p.Timeout, ErrTimeout)
		defer stop()
	}
	deliveries := make([]*Delivery, len(b.flights))
	for i, f := range b.flights {
		t := a.attempt()
		t.ctx.parent, t.others = ctx, cancel //nolint:fatcontext // each attempt is new: nothing nests
		f.run, deliveries[i] = t, &t.d
		b.attempts = append(b.attempts, t)
	}
	s.mu.Unlock()

	for i, f := range b.flights {
		s.fill(deliveries[i], f, a)
	}
	b.start = time.Now()
	a.batch = b
	b.judge(s.callBatch(ctx, b, deliveries))
	a.batch = nil
	s.endBatch(b)
}

// callBatch runs the handler, and turns a panic into a failure.
func (s *Consumer) callBatch(ctx context.Context, b *batchRun, deliveries []*Delivery) (err error) {
	if s.p.PanicCrashes {
		return s.p.batch(ctx, deliveries)
	}
	defer func() {
		if r := recover(); r != nil {
			b.stack = debug.Stack()
			err = &panicError{value: fmt.Sprint(r)}
		}
	}()
	return s.p.batch(ctx, deliveries)
}

// judge takes the handler's word for which message failed.
func (b *batchRun) judge(err error) {
	b.failedAt = len(b.flights)
	if err == nil {
		return
	}
	b.failedAt, b.err = 0, err
	if f, ok := errors.AsType[*batchFailure](err); ok && f.index >= 0 && f.index < len(b.flights) {
		b.failedAt, b.err = f.index, f.err
	}
}

// endBatch draws the conclusions, in order. It returns with mu held.
func (s *Consumer) endBatch(b *batchRun) {
	took := time.Since(b.start)
	told := make([]AttemptInfo, len(b.flights))
	s.mu.Lock()
	for i, f := range b.flights {
		switch {
		case b.lane == nil && i > b.failedAt && !b.decided(i):
			s.putBack(b, i, i+1)
			continue
		case i == b.failedAt && b.lane != nil:
			// Before the conclusion: should it end the failed one, its key goes on with these.
			s.putBack(b, i+1, len(b.flights))
		}
		told[i] = AttemptInfo{Subscription: s.name, Started: b.start, Duration: took, Queued: b.start.Sub(s.arrival(f)), Err: b.errOf(i)}
		var over bool
		told[i].Outcome, over = s.endOne(b, i)
		if i == b.failedAt && b.lane != nil {
			break
		}
		if !over && b.lane != nil { // what is behind was handled, and is settled once this has ended
			s.putBack(b, i+1, len(b.flights))
			break
		}
	}
	s.running--
	s.checkQuiet()
	if o := s.c.o.Observer; o != nil {
		s.mu.Unlock()
		for i := range told {
			if told[i].Outcome != "" {
				o.Attempted(&b.attempts[i].d, told[i])
			}
		}
		s.mu.Lock()
	}
	s.wakeWorker()
}

func (b *batchRun) errOf(i int) error {
	if i == b.failedAt {
		return b.err
	}
	return nil
}

// decided reports whether the handler settled the i-th delivery itself.
func (b *batchRun) decided(i int) bool { return b.attempts[i].d.fate.Load() == fateDecided }

// endOne concludes one message of a batch; over tells that it is done for good. Callers
// hold mu.
func (s *Consumer) endOne(b *batchRun, i int) (outcome string, over bool) {
	f, t := b.flights[i], b.attempts[i]
	cause := t.ctx.ended()
	dec, decided := t.d.end(fateOver)
	f.run = nil
	if i == b.failedAt {
		f.trouble().stack = b.stack
	}
	s.counts.Handled++
	outcome = s.conclude(f, b.errOf(i), cause, dec, decided, t.d.takeHeld())
	over = f.over
	s.leftRun(f)
	if f.state == stateGone {
		s.recycle(f)
	}
	return outcome, over
}

// leftRun takes a flight of a batch off its assignment's count of attempts. At once, and
// not with the slot: once its settlement is answered it may be another's. Callers hold mu.
func (s *Consumer) leftRun(f *flight) {
	s.unsuspect(f)
	a := f.asg
	if a.running--; a.running == 0 && a.idle != nil {
		close(a.idle)
		a.idle = nil
	}
}

// putBack returns messages to where they were taken from, untried. What was handled there
// all the same only has to send what it published, once its turn comes. Callers hold mu.
func (s *Consumer) putBack(b *batchRun, from, to int) {
	var back []*flight
	for i := from; i < to; i++ {
		f, t := b.flights[i], b.attempts[i]
		dec, decided := t.d.end(fateOver)
		if i < b.failedAt && (!decided || dec.disposition == driver.Ack) {
			s.counts.Handled++
			f.phase, f.trouble().emit = phaseEmit, t.d.takeHeld()
		}
		f.run = nil
		s.leftRun(f)
		if s.draining || f.asg.drain || f.lost {
			f.state = stateGone
			s.release(f)
			s.advance(f.lane) // it shared it
			f.lane = nil
			continue
		}
		f.lane, f.state = nil, stateQueued
		back = append(back, f)
	}
	s.queue.PutBack(b.lane, back)
}
