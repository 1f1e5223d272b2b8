package core

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// worker runs what the queue says may start. It holds mu but for the time of a step.
func (s *Consumer) worker() {
	var a arena
	defer s.unwound(&a, func() { s.workers.Go(s.worker) })
	s.mu.Lock()
	for {
		f := s.next()
		if f == nil {
			s.mu.Unlock()
			return
		}
		s.step(f, &a)
	}
}

// unwound is deferred by whoever runs handlers. Where a handler has unwound the goroutine
// it ends the attempt and has another goroutine take this one's place; again is called
// with mu held.
func (s *Consumer) unwound(a *arena, again func()) {
	if a.handling == nil && a.batch == nil {
		return
	}
	if r := recover(); r != nil {
		panic(r) // Policy.PanicCrashes: the process ends, and draws no conclusion before
	}
	if a.handling != nil {
		s.exited(a.handling)
	} else {
		a.batch.judge(&panicError{value: "the handler called runtime.Goexit"})
		s.endBatch(a.batch)
	}
	again()
	s.mu.Unlock()
}

// next waits for a flight to start; nil = the worker ends. Callers hold mu.
func (s *Consumer) next() *flight {
	for !s.stopped {
		if s.spawned > s.p.Concurrency { // a receiver that handed its role on made one too many
			s.spawned--
			s.waking = false
			s.wakeWorker() // it may have been woken for what is there
			return nil
		}
		if !s.draining && s.running < s.slots() {
			if f := s.take(); f != nil {
				s.waking = false
				s.wakeWorker()
				return f
			}
		}
		s.idle++
		s.waking = false
		s.work.Wait()
		s.idle--
	}
	return nil
}

// slots is how many handlers may run at once now. Callers hold mu.
func (s *Consumer) slots() int { return s.breaker.slots(min(s.p.Concurrency, s.budget.MaxRecords)) }

// take pops the next live flight off the queue. Callers hold mu.
func (s *Consumer) take() *flight {
	for {
		f, lane, ok := s.queue.Next()
		if !ok {
			return nil
		}
		if s.queue.Ready() == s.p.Concurrency {
			s.roomChanged() // the receiver may have waited for this; see worthAsking
		}
		if f.state != stateQueued { // dropped while it was queued
			s.advance(lane)
			continue
		}
		f.lane, f.state, f.age = lane, stateRunning, 0
		f.rung, f.seen = f.rung&rungStalled, 0
		f.asg.running++
		s.running++
		if len(s.blocked) > 0 {
			s.blockedBy(f)
		}
		return f
	}
}

// wakeWorker gets one more worker to the queue if there is something to start. One
// at a time: each wakes the next when it has found work, so that a burst of cheap
// messages is handled by the workers that are awake anyway instead of by a herd that
// contends for mu. Callers hold mu.
func (s *Consumer) wakeWorker() {
	if s.waking || s.draining || s.serving.now || s.queue.Ready() == 0 {
		return
	}
	switch {
	case s.idle > 0:
		s.waking = true
		s.work.Signal()
	case s.spawned < s.slots():
		s.waking = true
		s.spawned++
		s.workers.Go(s.worker)
	}
}

// step does the next phase of a flight. It is called with mu held and returns with
// mu held.
func (s *Consumer) step(f *flight, a *arena) {
	switch {
	case f.phase == phaseHandle && s.p.batch != nil:
		s.handleBatch(f, a)
		return
	case f.phase == phaseHandle:
		s.handle(f, a)
		return
	}
	s.handOn(f)
	s.mu.Unlock()
	switch f.phase {
	case phaseEmit:
		left, err := s.emit(f.past().emit)
		s.mu.Lock()
		f.trouble().emit = left
		s.emitted(f, err)
	case phaseDead:
		s.mu.Lock()
		s.exhausted(f)
	case phaseHop:
		err := s.sendOn(f)
		s.mu.Lock()
		s.sentOn(f, err)
	case phaseDue:
		s.mu.Lock()
		f.phase = phaseHandle
		s.wait(f, time.Until(f.past().due))
	}
	s.ran(f)
}

// ran ends the running state of a flight. Callers hold mu.
func (s *Consumer) ran(f *flight) {
	if f.rung&rungAbandoned != 0 {
		s.strayed()
	} else {
		s.notRunning(f)
	}
	if f.state == stateGone {
		s.recycle(f)
	}
}

// handle runs the handler once and draws the conclusion. mu is held on entry and on
// return. f is somebody else's once ran has been called.
func (s *Consumer) handle(f *flight, a *arena) {
	if s.p.Dedup.Store != nil && !s.claimed(f, a) {
		return
	}
	t := a.attempt()      // a fresh one: a handler that kept an earlier Delivery must not reach this
	t.ctx.parent = s.hctx //nolint:fatcontext // the attempt is new: nothing nests
	if s.p.Timeout > 0 {
		// Before a revoke can see the attempt: it may ask for the context at once.
		t.ctx.parent, t.cancel = context.WithTimeoutCause(s.hctx, s.p.Timeout, ErrTimeout)
	}
	f.run = t
	sampled := s.sampled(f)
	s.mu.Unlock()

	s.fill(&t.d, f, a)
	var start time.Time
	var queued, took time.Duration
	if s.c.o.Observer != nil || sampled { // reading the clock is 3 % of a message otherwise
		start = time.Now()
		queued = start.Sub(s.arrival(f))
	}
	a.handling = f
	stack, err := s.call(t)
	a.handling = nil
	if sampled {
		took = time.Since(start)
	}
	cause := t.ctx.ended()
	t.ctx.finish()
	dec, decided := t.d.end(fateOver)
	held := t.d.takeHeld()
	s.attempted(f, hadEffect(err, cause, dec, decided), len(held) > 0 && wentWell(err, dec, decided))

	s.mu.Lock()
	f.run = nil
	if stack != nil {
		f.trouble().stack = stack
	}
	if sampled {
		s.judge(f, took, len(held))
	}
	s.counts.Handled++
	outcome := s.conclude(f, err, cause, dec, decided, held)
	s.ran(f)
	if o := s.c.o.Observer; o != nil {
		s.mu.Unlock()
		o.Attempted(&t.d, AttemptInfo{
			Subscription: s.name, Started: start, Duration: time.Since(start),
			Queued: queued, Err: err, Outcome: outcome,
		})
		s.mu.Lock()
	}
}

// call runs the handler, and turns a panic into a failure. It leaves the flight alone: its
// fields belong to mu, but for the message.
func (s *Consumer) call(t *attempt) (stack []byte, err error) {
	if t.cancel != nil {
		defer t.cancel()
	}
	if s.p.PanicCrashes {
		return nil, s.h(&t.ctx, &t.d)
	}
	defer func() {
		if r := recover(); r != nil {
			stack = debug.Stack()
			err = &panicError{value: fmt.Sprint(r)}
		}
	}()
	return nil, s.h(&t.ctx, &t.d)
}

// exited ends the attempt of a handler that called runtime.Goexit (t.FailNow does):
// it unwinds the goroutine without a panic value, so another takes its place, see
// unwound. It returns with mu held.
func (s *Consumer) exited(f *flight) {
	s.attempted(f, false, false)
	s.mu.Lock()
	t := f.run
	f.run, f.trouble().stack = nil, nil
	cause := t.ctx.ended()
	t.ctx.finish()
	t.d.end(fateOver)
	s.conclude(f, &panicError{value: "the handler called runtime.Goexit"}, cause, decision{}, false, nil)
	s.ran(f)
}

// panicError is the failure of an attempt that panicked.
type panicError struct{ value string }

func (e *panicError) Error() string { return "panic: " + e.value }

// fill makes the delivery of one attempt: header and body are copies of its own.
func (s *Consumer) fill(d *Delivery, f *flight, a *arena) {
	d.Message = f.rec.Message
	d.Headers = a.headers(f.rec.Headers)
	d.Body = a.bytes(f.rec.Body)
	d.Source, d.Group = s.sub.From, s.sub.Group
	d.Partition, d.Offset, d.NativeID = f.rec.Receipt.Partition, f.rec.Offset, f.rec.NativeID
	d.Attempt = f.base + f.failures
	d.Fence = f.asg.Fence
	if s.p.iterate {
		d.demand().decided = make(chan struct{})
	}
}

// arena cuts small copies from larger blocks, so that a message costs less than an
// allocation. A handler that keeps a body keeps the block it was cut from.
type arena struct {
	buf      []byte
	hdr      []Header
	attempts []attempt
	handling *flight // whose handler runs now
	batch    *batchRun
}

const (
	arenaBytes   = 16 << 10
	arenaHeaders = 128
	arenaTries   = 16
)

func (a *arena) attempt() *attempt {
	if len(a.attempts) == 0 {
		a.attempts = make([]attempt, arenaTries)
	}
	t := &a.attempts[0]
	a.attempts = a.attempts[1:]
	return t
}

func (a *arena) bytes(b []byte) []byte {
	switch {
	case b == nil:
		return nil
	case len(b) == 0:
		return []byte{}
	case len(b) > arenaBytes/16:
		return append([]byte(nil), b...)
	case cap(a.buf)-len(a.buf) < len(b):
		a.buf = make([]byte, 0, arenaBytes)
	}
	from := len(a.buf)
	a.buf = append(a.buf, b...)
	return a.buf[from:len(a.buf):len(a.buf)]
}

func (a *arena) headers(h []Header) []Header {
	if len(h) == 0 {
		return nil
	}
	if len(h) > arenaHeaders/8 {
		return append([]Header(nil), h...)
	}
	if cap(a.hdr)-len(a.hdr) < len(h) {
		a.hdr = make([]Header, 0, arenaHeaders)
	}
	from := len(a.hdr)
	a.hdr = append(a.hdr, h...)
	return a.hdr[from:len(a.hdr):len(a.hdr)]
}

// release returns a flight's share of the budget. Callers hold mu.
func (s *Consumer) release(f *flight) {
	if f.released {
		return
	}
	f.released = true
	s.unsuspect(f)
	s.orphan(f)
	s.flights.remove(f)
	s.budget.Give(f.size)
	s.left(f.asg)
	s.roomChanged()
}

// roomChanged wakes the receiver if it is worth it. Callers hold mu.
func (s *Consumer) roomChanged() {
	if records, _ := s.budget.Room(); s.worthAsking(records) {
		signal(s.roomFree)
	}
}

// recycle keeps a flight for the next message. It must be out of every list, queue
// and settlement: one dropped while it was queued is left to the garbage collector,
// because the run queue still points to it, and so is one that a log's partition lets go
// of unfinished, because its ring does. The losing interleaving without that: in a revoke
// one attempt fails and is abandoned, a message of another partition takes its flight,
// a last attempt ends; the state beside the final commit then tells of the abandoned
// message what is true of the other one, with its key that it is complete. Callers hold mu.
func (s *Consumer) recycle(f *flight) {
	if f.inRing && !f.asg.closed {
		return
	}
	if !f.released || f.extend || f.heap >= 0 || len(s.free) >= max(maxFreeFlights, min(s.budget.MaxRecords, 64<<10)) {
		return
	}
	f.reset()
	s.free = append(s.free, f)
}

// maxFreeFlights are kept at any rate; more where more may be in flight, since what is
// not kept is allocated again.
const maxFreeFlights = 4096

// finishLocked ends a flight: on a log it counts as done up to the watermark, else
// its disposition goes to the settler. Its lane goes on. Callers hold mu.
func (s *Consumer) finishLocked(f *flight, st driver.Settlement) {
	lane := f.lane
	f.lane = nil
	f.over = !f.asg.closed && !f.lost && (st.Disposition == driver.Ack || st.Disposition == driver.Reject)
	switch {
	case f.asg.closed || f.lost || f.acked:
		f.state = stateGone
		s.release(f)
	case s.caps.Settle == driver.UpTo:
		f.state = stateGone
		if st.Disposition == driver.Ack || st.Disposition == driver.Reject {
			s.markDone(f)
		}
		s.release(f)
	case s.caps.Settle == driver.None:
		f.state = stateGone
		s.release(f)
	default:
		f.state = stateSettling
		s.settle(settleEntry{f: f, disposition: st.Disposition, delay: st.Delay, reason: st.Reason})
	}
	s.advance(lane)
}

// markDone moves the watermark of a log. Callers hold mu.
func (s *Consumer) markDone(f *flight) {
	a := f.asg
	f.inRing = false
	a.version++
	if f.failures+f.restored+int(f.crashes) > 0 {
		a.tried--
	}
	if !a.ring.Done(f.seq) {
		return
	}
	a.moved, a.movedLately = true, true
	if a.paused && a.ring.Span() < maxSpan*7/10 {
		a.paused = false
		s.redemand()
	}
	s.markDirty(a)
}
