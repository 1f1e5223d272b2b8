package core

import "github.com/varal-go/varal/core/driver"

// ackFirst settles a flight before its handler runs: at most once. Callers hold mu.
func (s *Consumer) ackFirst(f *flight) {
	if s.caps.Settle == driver.None {
		s.queueAcked(f)
		return
	}
	f.state = stateSettling
	if s.caps.Settle == driver.UpTo {
		f.asg.acking = append(f.asg.acking, f)
		s.markDone(f)
		return
	}
	s.settle(settleEntry{f: f, disposition: driver.Ack})
}

// queueAcked lets a flight run whose ack has been confirmed. Callers hold mu.
func (s *Consumer) queueAcked(f *flight) {
	if f.asg.closed || s.draining {
		// Settled and not run: this is the loss that AckFirst accepts by name.
		f.state = stateGone
		s.release(f)
		return
	}
	f.state, f.acked = stateQueued, true
	s.queue.Add(f)
	s.wakeWorker()
}
