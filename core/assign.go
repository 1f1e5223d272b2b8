package core

import (
	"context"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// assigned opens a partition: the adapter's Subscription.Assigned.
func (s *Consumer) assigned(a driver.Assignment) {
	fresh := &assignment{Assignment: a}
	if err := s.remember(fresh); err != nil {
		s.signalled(SignalStateIgnored, a.Partition, "", 1, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.parts[a.Partition]; old != nil {
		// An adapter that forgot to revoke: what the old epoch holds can no longer be
		// settled, so it must not stay admitted under the same name.
		s.closeLocked(old)
		s.cancelRunning(old, ErrRevoked)
	}
	s.parts[a.Partition] = fresh
	if s.paused || !s.breaker.isClosed() {
		s.redemand() // the new partition is not yet in the Demand's list of paused ones
	}
}

// revoke lets go of partitions: the adapter's Subscription.Revoke. It starts nothing
// more of them, drops what has not started (it comes to the next owner, in order),
// waits for running attempts, settles what they achieved, and fences. Half-way to
// ctx's deadline the attempts are cancelled. An ended ctx means that they are lost:
// attempts are cancelled, nothing is settled.
func (s *Consumer) revoke(ctx context.Context, partitions []string) {
	var closing []*assignment
	s.mu.Lock()
	for _, name := range partitions {
		a := s.parts[name]
		if a == nil {
			continue
		}
		closing = append(closing, a)
		s.dropUnstarted(a)
	}
	s.mu.Unlock()
	if len(closing) == 0 {
		return
	}
	lost := ctx.Err() != nil
	if lost {
		s.lose(closing)
		return
	}
	s.awaitRunning(ctx, closing)
	s.lastWord(closing)
	s.flush(ctx, closing)
	s.mu.Lock()
	before := s.counts.Overlaps
	for _, a := range closing {
		s.closeLocked(a)
		s.cancelRunning(a, ErrRevoked) // only those that outlived ctx
	}
	draining, overlaps := s.draining, int(s.counts.Overlaps-before)
	s.mu.Unlock()
	s.forget(closing)
	s.overlapped(closing[0], overlaps)
	if !draining { // letting go at our own end is no news
		s.signalled(SignalRevoked, partitions[0], "", len(partitions), nil)
	}
}

// lose handles ownership that is already gone.
func (s *Consumer) lose(closing []*assignment) {
	s.mu.Lock()
	before := s.counts.Overlaps
	for _, a := range closing {
		s.closeLocked(a)
		s.cancelRunning(a, ErrRevoked)
	}
	overlaps := int(s.counts.Overlaps - before)
	s.mu.Unlock()
	s.overlapped(closing[0], overlaps)
	// The adapter waits for us, so a handler that ignores its context may not hold it
	// up for long: its outcome is refused by the closed assignment anyway.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.awaitRunning(ctx, closing)
	s.forget(closing)
	s.signalled(SignalRevoked, closing[0].Partition, "", len(closing), ErrLeaseLost)
}

// overlapped reports attempts that may run beside those of the next owner: handlers that
// outlived a Revoke, or ran when a partition was lost. A store that takes Delivery.Fence
// refuses the late one.
func (s *Consumer) overlapped(a *assignment, n int) {
	if n > 0 {
		s.signalled(SignalOverlap, a.Partition, "", n, nil)
	}
}

// forget removes closed assignments that nobody has replaced.
func (s *Consumer) forget(closing []*assignment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range closing {
		if s.parts[a.Partition] == a {
			delete(s.parts, a.Partition)
		}
	}
}

// closeLocked fences an assignment: nothing of it is admitted or settled any more.
func (s *Consumer) closeLocked(a *assignment) {
	if a.closed {
		return
	}
	s.dropUnstarted(a)
	for _, f := range a.acking { // their commit will not be sent
		s.drop(f)
	}
	a.acking, a.covers = nil, 0
	a.closed = true
	s.openGuard(a) // nothing of it is left to run
	for f := s.flights.head; f != nil; f = f.next {
		if f.asg == a && f.state == stateRunning { // the next owner may run it, too
			s.counts.Overlaps++
		}
	}
	if a.held() { // the Receive under way must not go on leaving out this partition's next epoch
		a.paused = false
		s.redemand()
	}
}

// dropUnstarted discards what has been received from a and has not started. It is
// neither settled nor committed, so the next owner gets it.
func (s *Consumer) dropUnstarted(a *assignment) {
	a.drain = true
	for f := s.flights.head; f != nil; {
		next := f.next
		if f.asg == a && (f.state == stateQueued || f.state == stateWaiting || f.state == stateHalted) {
			s.drop(f)
		}
		f = next
	}
}

// drop takes a flight out of the engine without an outcome. A queued one stays in the
// run queue as a husk that Next passes over.
func (s *Consumer) drop(f *flight) {
	switch f.state {
	case stateQueued:
		f.state = stateGone
	case stateWaiting:
		s.waiting.remove(f)
		f.state = stateGone
		s.advance(f.lane)
	case stateHalted:
		delete(s.halted, f.rec.Key)
		f.state = stateGone
		s.advance(f.lane)
	default:
		f.state = stateGone
	}
	s.release(f)
}

// cancelRunning ends the attempts of a that run, with a cause.
func (s *Consumer) cancelRunning(a *assignment, cause error) {
	for f := s.flights.head; f != nil; f = f.next {
		if f.asg == a && f.state == stateRunning && f.run != nil {
			f.run.end(cause)
		}
	}
}

// awaitRunning waits until no attempt of the assignments runs, or ctx ends; at half
// of the time to ctx's deadline it cancels them.
func (s *Consumer) awaitRunning(ctx context.Context, closing []*assignment) {
	var soft <-chan time.Time
	if deadline, ok := ctx.Deadline(); ok {
		t := time.NewTimer(time.Until(deadline) / 2)
		defer t.Stop()
		soft = t.C
	}
	for _, a := range closing {
		for {
			s.mu.Lock()
			if a.running == 0 || s.abandoned {
				s.mu.Unlock()
				break
			}
			if a.idle == nil {
				a.idle = make(chan struct{})
			}
			idle := a.idle
			s.mu.Unlock()
			select {
			case <-idle:
			case <-soft:
				s.mu.Lock()
				for _, a := range closing {
					s.cancelRunning(a, ErrRevoked)
				}
				s.mu.Unlock()
			case <-ctx.Done():
				return
			}
		}
	}
}
