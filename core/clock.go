package core

import (
	"time"

	"github.com/varal-go/varal/core/driver"
)

// clock ends back-offs, looks for stuck work, and extends leases, whether their message
// runs, waits for a worker or waits in back-off.
func (s *Consumer) clock() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		s.mu.Lock()
		now := time.Now()
		s.endWaits(now)
		s.tryAgain(now)
		if s.leases && !now.Before(s.scan) {
			s.scan = now.Add(s.extendLeases(now))
		}
		overlooking := s.serving.watched && s.overlook(now) // before findStuck, which may give up a run of the receiver
		if !now.Before(s.stuckScan) {
			s.stuckScan = now.Add(s.findStuck(now))
		}
		next := s.stuckScan
		if at := now.Add(overlookEvery); overlooking && at.Before(next) {
			next = at
		}
		if len(s.waiting) > 0 && s.waiting[0].bad.due.Before(next) {
			next = s.waiting[0].bad.due
		}
		if s.leases && s.scan.Before(next) {
			next = s.scan
		}
		if b := &s.breaker; !b.isClosed() && !b.half && b.until.Before(next) {
			next = b.until
		}
		s.mu.Unlock()
		t.Reset(max(time.Until(next), 0))
		select {
		case <-t.C:
		case <-s.clockWake:
		case <-s.clockEnd:
			return
		}
	}
}

// wait puts a flight into back-off. Its worker is free; its key is not. Callers hold
// mu.
func (s *Consumer) wait(f *flight, d time.Duration) {
	f.state = stateWaiting
	f.trouble().due = time.Now().Add(d)
	s.waiting.push(f)
	if f.heap == 0 {
		signal(s.clockWake)
	}
}

// endWaits queues every flight whose back-off is over. Callers hold mu.
func (s *Consumer) endWaits(now time.Time) {
	for len(s.waiting) > 0 && !s.waiting[0].bad.due.After(now) {
		f := s.waiting.pop()
		f.trouble().due = time.Time{}
		if f.phase == phaseNack {
			s.finishLocked(f, driver.Settlement{Disposition: driver.Nack, Reason: f.past().cause})
			continue
		}
		f.state = stateQueued
		s.queue.Again(f, f.lane)
		s.wakeWorker()
	}
}

// leased takes note of a lease. The losing interleaving without it: nothing is in flight,
// so the clock looks again in 3.75 s; a message with a lease of 1 s arrives, and runs for
// two; its lease ends before the clock looks. Callers hold mu.
func (s *Consumer) leased(f *flight) {
	due := f.deadline.Add(-f.lease / 2)
	if s.leases && !due.Before(s.scan) {
		return
	}
	s.leases, s.scan = true, due
	signal(s.clockWake)
}

// extendLeases asks for a longer lease for everything in flight that has used up half
// of its own, and returns when to look again. Callers hold mu.
func (s *Consumer) extendLeases(now time.Time) time.Duration {
	shortest := 30 * time.Second
	for f := s.flights.head; f != nil; f = f.next {
		if f.deadline.IsZero() || f.lost || f.acked {
			continue
		}
		shortest = min(shortest, f.lease)
		if f.extend || f.state == stateSettling || f.state == stateGone || now.Before(f.deadline.Add(-f.lease/2)) {
			continue
		}
		f.extend = true
		s.settle(settleEntry{f: f, disposition: driver.Extend})
	}
	return max(shortest/8, 5*time.Millisecond)
}
