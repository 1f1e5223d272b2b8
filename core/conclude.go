package core

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/backoff"
)

// Reasons of a dead-letter record.
const (
	reasonExhausted   = "exhausted"
	reasonPermanent   = "permanent"
	reasonPanic       = "panic"
	reasonUndecodable = "undecodable"
	reasonTooLarge    = "too_large"
	reasonQuarantined = "quarantined"
	reasonBlocked     = "blocked"
	reasonSkipped     = "skipped"
	reasonGap         = "gap_skipped"
)

func errBodyLimit(size, limit int) error {
	return driver.Errorf("receive", driver.TooLarge, "body of %d bytes; the limit is %d (Limits.Body)", size, limit)
}

// takeHeld returns what the handler published through the delivery.
func (d *Delivery) takeHeld() []heldPublish {
	m := d.more.Load()
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	held := m.held
	m.held = nil
	return held
}

// conclude decides what an attempt's end means for its flight, and says so in one
// word for the Observer. Callers hold mu.
func (s *Consumer) conclude(f *flight, err, cause error, dec decision, decided bool, held []heldPublish) string {
	if f.asg.closed || f.lost {
		s.finishLocked(f, driver.Settlement{})
		return "revoked"
	}
	if wentWell(err, dec, decided) {
		s.attemptSucceeded()
		return s.succeeded(f, held)
	}
	v, after := classify(err)
	switch {
	case decided:
		err, after = dec.err, dec.delay
		v = map[driver.Disposition]verdict{driver.Nack: verdictRetry, driver.Return: verdictReturn, driver.Reject: verdictPermanent}[dec.disposition]
	case isShutdown(cause):
		v = verdictReturn
	case v == verdictRetry && errors.Is(cause, ErrTimeout):
		err = fmt.Errorf("%w: %w", ErrTimeout, err)
	case v == verdictRetry && errors.Is(cause, ErrStuck):
		err = fmt.Errorf("%w: %w", ErrStuck, err)
	}
	if err == nil {
		err = errors.New("the handler gave no reason")
	}
	switch v {
	case verdictIgnore:
		s.finishLocked(f, driver.Settlement{Disposition: driver.Ack, Reason: err})
		return "ignored"
	case verdictReturn:
		s.giveBack(f, err)
		return "return"
	case verdictHalt:
		s.halt(f, err)
		return "halt"
	}
	return s.failed(f, v, after, err)
}

// wentWell reports whether an attempt succeeded: what its handler published is sent.
func wentWell(err error, dec decision, decided bool) bool {
	return decided && dec.disposition == driver.Ack || !decided && err == nil
}

// hadEffect reports whether an attempt ended so that its message is done: nothing will be
// tried again. It says what conclude will do. The losing case where it does not: the drain
// cancels a handler that answers Ignore(ctx.Err()); the message goes back, and whoever gets
// it next finds its id marked and acknowledges it as a duplicate.
func hadEffect(err, cause error, dec decision, decided bool) bool {
	if wentWell(err, dec, decided) {
		return true
	}
	v, _ := classify(err)
	return !decided && v == verdictIgnore && !isShutdown(cause)
}

// succeeded acknowledges, after what the handler published has been confirmed.
func (s *Consumer) succeeded(f *flight, held []heldPublish) string {
	if len(held) == 0 {
		s.finishLocked(f, driver.Settlement{Disposition: driver.Ack})
		return "ack"
	}
	f.phase = phaseEmit
	s.handOn(f)
	s.mu.Unlock()
	left, err := s.emit(held)
	s.mu.Lock()
	if len(left) > 0 {
		f.trouble().emit = left
	}
	s.emitted(f, err)
	return "ack"
}

// failed counts a failed attempt and chooses between another one and the end.
func (s *Consumer) failed(f *flight, v verdict, after time.Duration, err error) string {
	now := time.Now()
	s.counts.Failed++
	t := f.trouble()
	t.cause, t.last = err, now
	if v == verdictRetry {
		s.attemptFailed(now, err)
	}
	_, panicked := errors.AsType[*panicError](err)
	if !panicked {
		t.stack = nil // of an earlier attempt: the record would show it beside another error
	}
	if t.first.IsZero() {
		t.first = now
	}
	attempt := f.base + f.failures
	if s.caps.Settle == driver.UpTo {
		f.asg.version++
		if f.failures+f.restored+int(f.crashes) == 0 {
			f.asg.tried++
		}
	}
	f.failures++
	wait := max(after, backoff.Wait(f.failures+f.base-1, s.p.Retry.Base, s.p.Retry.Cap, backoff.Shape(s.p.Retry.Jitter), rand.Float64()))
	r := &s.p.Retry
	switch {
	case f.acked, v == verdictPermanent:
		t.reason = reasonPermanent
	case r.Attempts > 0 && attempt >= r.Attempts,
		r.MaxElapsed > 0 && now.Add(wait).Sub(t.first) > r.MaxElapsed:
		t.reason = reasonExhausted
		if panicked {
			t.reason = reasonPanic
		}
	default:
		s.retry(f, s.budgeted(wait, now, err))
		return "retry"
	}
	return s.exhausted(f)
}

// retry arranges the next attempt. A log and a keyed order hold the message here:
// its key, not its worker, waits. Elsewhere it goes back as failed, so that the
// broker counts the attempt and a restart keeps the count; the delay is the broker's
// where it has one and is waited here where it has not.
func (s *Consumer) retry(f *flight, wait time.Duration) {
	counted := s.brokerCounts()
	switch {
	case f.asg.drain && s.caps.Settle == driver.UpTo, f.asg.drain && s.p.Order == ByKey:
		f.trouble().due = time.Now().Add(wait)
		s.abandon(f) // the next owner tries, in order
	case counted && (s.caps.NackDelay >= wait || s.draining):
		s.finishLocked(f, driver.Settlement{Disposition: driver.Nack, Delay: min(wait, s.caps.NackDelay), Reason: f.past().cause})
	case s.draining || f.asg.drain:
		s.giveBack(f, f.past().cause)
	case counted:
		f.phase = phaseNack
		s.wait(f, wait)
	default:
		f.phase = phaseHandle
		s.wait(f, wait)
	}
}

// brokerCounts reports whether failed attempts go back to the broker, which counts them.
// MaxElapsed needs the time of the first failure, which no broker tells: those messages
// are held here.
func (s *Consumer) brokerCounts() bool {
	return s.caps.Settle == driver.Each && s.p.Order != ByKey && s.caps.Counts && s.p.Retry.MaxElapsed == 0
}

// abandon lets a flight go without a word to the broker, whose next owner reads it
// again. Callers hold mu.
func (s *Consumer) abandon(f *flight) {
	lane := f.lane
	f.lane, f.state = nil, stateGone
	s.release(f)
	s.advance(lane)
}

// giveBack returns a flight untried. A log has no such word: the message is tried
// again here a little later, or read again by the next owner. Under order by key the
// word must not be used either: the broker may put the returned message behind later
// ones of its key that are with us and go back only when the source is closed.
func (s *Consumer) giveBack(f *flight, err error) {
	s.counts.Returned++
	switch {
	case f.acked:
		s.finishLocked(f, driver.Settlement{})
	case s.caps.Settle == driver.Each && s.p.Order != ByKey:
		s.finishLocked(f, driver.Settlement{Disposition: driver.Return, Reason: err})
	case s.draining || f.asg.drain:
		s.abandon(f)
	default:
		f.phase = phaseHandle
		s.wait(f, s.p.Retry.Base)
	}
}

// halt stops the subscription because of one message, which stays with the broker.
func (s *Consumer) halt(f *flight, err error) {
	s.failLocked(fmt.Errorf("subscription %s halted at message %s: %w", s.name, quoted(f.rec.ID), err))
	s.draining = true // nothing behind it may start, or a later success would pass it
	s.later(func() { s.signalled(SignalHalted, f.rec.Receipt.Partition, f.rec.ID, 1, err) })
	s.giveBack(f, err)
}

// later runs a report without mu.
func (s *Consumer) later(report func()) {
	s.mu.Unlock()
	report()
	s.mu.Lock()
}

// exhausted ends a message that no attempt will mend.
func (s *Consumer) exhausted(f *flight) string {
	switch {
	case s.haltKey(f):
		return "halt key"
	case s.p.NativeDeadLetter:
		s.counts.DeadLettered++
		s.finishLocked(f, driver.Settlement{Disposition: driver.Reject, Reason: f.past().cause})
		return "dead-letter"
	case f.acked && s.p.Exhausted != ExhaustedHalt:
		// Settled before it ran: there is nothing left to give back. At most once, by
		// the name of the layer.
		s.counts.Discarded++
		s.later(func() { s.signalled(SignalDiscarded, f.rec.Receipt.Partition, f.rec.ID, 1, f.past().cause) })
		s.finishLocked(f, driver.Settlement{})
		return "discard"
	case s.p.DeadLetter != (Destination{}):
		f.phase = phaseDead
		if t := f.trouble(); t.last.IsZero() { // it never ran
			t.last = time.Now()
			t.first = t.last
		}
		s.handOn(f)
		s.mu.Unlock()
		err := s.deadLetter(f)
		s.mu.Lock()
		s.deadLettered(f, err)
		return "dead-letter"
	case s.p.Exhausted == ExhaustedDiscard, f.past().reason == reasonSkipped:
		s.counts.Discarded++
		s.later(func() { s.signalled(SignalDiscarded, f.rec.Receipt.Partition, f.rec.ID, 1, f.past().cause) })
		// Not Reject: nobody holds a copy, and a broker's own dead letter would keep one.
		s.finishLocked(f, driver.Settlement{Disposition: driver.Ack, Reason: f.past().cause})
		return "discard"
	}
	err := f.past().cause
	if s.p.Exhausted == ExhaustedDefault {
		err = fmt.Errorf("%w (there is no place for it: add middleware.DeadLetter(...), or say OnExhausted(Discard))", err)
	}
	s.halt(f, err)
	return "halt"
}

// emit publishes what a handler that succeeded has held, in order, and returns what is left
// of it.
func (s *Consumer) emit(held []heldPublish) (left []heldPublish, err error) {
	for len(held) > 0 {
		e := &held[0]
		if err := s.c.publish(s.pctx, e.to, e.msgs, true); err != nil {
			e.msgs = unsent(e.msgs, err)
			return held, err
		}
		held = held[1:]
	}
	return nil, nil
}

// unsent keeps the messages of a publish that were not confirmed.
func unsent(msgs []*Message, err error) (out []*Message) {
	for i, m := range msgs {
		if driver.ResultAt(err, i) != nil {
			out = append(out, m)
		}
	}
	return out
}

// emitted acks after a confirmed emit. A failed one is tried again by itself: the
// handler has succeeded and does not run again for it.
func (s *Consumer) emitted(f *flight, err error) {
	s.keepOrEnd(s.takeClaim(f), f, err)
	switch v, after := classify(err); {
	case f.asg.closed || f.lost:
		s.finishLocked(f, driver.Settlement{})
	case err == nil:
		s.finishLocked(f, driver.Settlement{Disposition: driver.Ack})
	case v == verdictPermanent:
		s.failed(f, v, 0, fmt.Errorf("publish from the handler: %w", err))
	default:
		s.again(f, max(after, s.p.Retry.Base), err)
	}
}

// keepOrEnd decides about a claim once what the handler published was sent, or was not: it
// is kept only where the publish is tried again here. Otherwise the message may run again,
// here or elsewhere, and must not find our own claim, which we would extend meanwhile: a
// key that halts and is replayed would wait for ever. Callers hold mu.
func (s *Consumer) keepOrEnd(c *claim, f *flight, err error) {
	v, _ := classify(err)
	if c == nil {
		return
	}
	if err != nil && v != verdictPermanent && !s.draining && !f.asg.drain {
		s.dedup.claims[f] = c
		return
	}
	s.mu.Unlock()
	if err == nil {
		s.mark(c)
	} else {
		s.unclaim(s.pctx, c)
	}
	s.mu.Lock()
}

// again waits and repeats the phase of a flight; while draining it gives it back.
func (s *Consumer) again(f *flight, least time.Duration, err error) {
	t := f.trouble()
	t.tries++
	t.cause = err
	if s.draining || f.asg.drain {
		s.giveBack(f, err)
		return
	}
	s.wait(f, max(least, backoff.Wait(t.tries, s.p.Retry.Base, s.p.Retry.Cap, backoff.Half, rand.Float64())))
}
