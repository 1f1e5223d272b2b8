package core

import (
	"context"
	"errors"
	"time"

	"github.com/varal-go/varal/core/driver"
)

const (
	// cancelGrace is how long a handler may take after its context was cancelled.
	cancelGrace = 500 * time.Millisecond
	// cutGrace is how long a Drain whose context has ended waits for the end.
	cutGrace = 450 * time.Millisecond
	// closeTimeout bounds the last settle and the adapter's Close.
	closeTimeout = 10 * time.Second
)

// supervise runs the subscription from start to end. Its end has three phases: stop
// receiving; let running handlers finish and settle; close the source, which gives
// the rest back. Nothing outlives it.
func (s *Consumer) supervise(ctx context.Context) {
	rctx, cancel := context.WithCancel(context.Background())
	s.mu.Lock()
	s.receive(rctx)
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		s.fail(nil)
	case <-s.stop:
	}
	cancel()
	<-s.received
	s.giveBackUnstarted()
	clean := s.awaitHandlers()
	s.closeSource()
	s.finish(clean)
}

// giveBackUnstarted starts nothing more and returns what has not started. Under order
// by key it says nothing about those: a broker puts a returned message behind the
// ones it still has, so the adapter gives them back in order when it lets go of the
// partition.
func (s *Consumer) giveBackUnstarted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	s.state = "draining"
	for f := s.flights.head; f != nil; {
		next := f.next
		if f.state == stateQueued || f.state == stateWaiting || f.state == stateHalted {
			s.giveBackOne(f)
		}
		f = next
	}
	s.checkQuiet()
	s.work.Broadcast()
}

// checkQuiet tells the supervisor, once, that no handler runs and none will start.
// Callers hold mu.
func (s *Consumer) checkQuiet() {
	if s.draining && s.running == 0 && !s.isQuiet {
		s.isQuiet = true
		close(s.quiet)
	}
}

// giveBackOne returns one flight that does not run. Callers hold mu.
func (s *Consumer) giveBackOne(f *flight) {
	if f.acked || s.caps.Settle != driver.Each || s.p.Order == ByKey {
		s.drop(f)
		return
	}
	st := driver.Settlement{Disposition: driver.Return}
	if f.state == stateWaiting {
		s.waiting.remove(f)
		if f.phase == phaseNack { // its attempt did fail: it must stay counted
			st = driver.Settlement{Disposition: driver.Nack, Reason: f.past().cause}
		}
	}
	s.finishLocked(f, st)
}

// awaitHandlers lets running handlers finish within DrainTimeout, then cancels them.
// It reports false when one ignored even that.
func (s *Consumer) awaitHandlers() (clean bool) {
	t := time.NewTimer(max(s.p.DrainTimeout, 0))
	defer t.Stop()
	select {
	case <-s.quiet:
		return true
	case <-t.C:
	case <-s.hctx.Done():
	}
	s.hcancel(ErrDrained)
	// What the engine itself publishes for a handler that has ended (its own publishes, a
	// dead letter) may take a little longer, so that a success is still recorded as one.
	for range 2 {
		t.Reset(cancelGrace / 2)
		select {
		case <-s.quiet:
			return true
		case <-t.C:
			s.pcancel()
		}
	}
	return s.abandonRunning()
}

// abandonRunning gives up on handlers that ignore their context: their messages stay
// unsettled, so the broker hands them out again. Nobody waits for them any more, a
// Revoke without a deadline least of all.
func (s *Consumer) abandonRunning() bool {
	s.mu.Lock()
	n := s.running
	s.counts.Abandoned += int64(n)
	s.abandoned = true
	for f := s.flights.head; f != nil; f = f.next {
		if f.state != stateRunning {
			continue
		}
		f.lost = true
		if f.run != nil {
			f.run.d.fate.CompareAndSwap(fateOpen, fateClosed)
		}
		if f.asg.idle != nil {
			close(f.asg.idle)
			f.asg.idle = nil
		}
	}
	s.mu.Unlock()
	if n == 0 {
		return true
	}
	s.signalled(SignalAbandoned, "", "", n, ErrDrained)
	return false
}

// closeSource settles what is left and closes the adapter's consumer. The settler
// runs on until Close has returned: Close may call Revoke, which waits for it.
func (s *Consumer) closeSource() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	defer context.AfterFunc(s.hurried, func() {
		if sleep(ctx, cutGrace/2) {
			cancel()
		}
	})()
	s.mu.Lock()
	open := make([]*assignment, 0, len(s.parts))
	for _, a := range s.parts {
		open = append(open, a)
	}
	s.mu.Unlock()
	s.lastWord(open)
	s.flush(ctx, open)
	err := s.src.Close(ctx)
	close(s.settleEnd)
	close(s.clockEnd)
	s.dedup.end() // a call of the keeper that hangs
	s.actors.Wait()
	if err != nil && !errors.Is(err, driver.Closed) {
		s.mu.Lock()
		s.err = errors.Join(s.err, err)
		s.mu.Unlock()
	}
}

// finish ends the workers and tells whoever waits.
func (s *Consumer) finish(clean bool) {
	s.mu.Lock()
	s.stopped = true
	s.state = "stopped"
	if s.err != nil {
		s.state = "failed"
	}
	for _, a := range s.parts {
		a.closed = true
	}
	clean = clean && s.strays == 0
	for f := s.flights.head; f != nil; f = f.next {
		if f.run != nil { // a stray: what it decides now is nobody's
			f.run.d.fate.CompareAndSwap(fateOpen, fateClosed)
		}
	}
	s.work.Broadcast()
	s.mu.Unlock()
	if clean {
		s.workers.Wait()
	}
	s.hcancel(driver.Errorf("handler", driver.Closed, "the subscription has ended"))
	s.pcancel()
	s.hurry() // releases its context
	s.c.unregister(s)
	if s.err != nil { // nobody writes it any more
		s.c.mu.Lock()
		s.c.failed[s.name] = s.err
		s.c.mu.Unlock()
	}
	close(s.done)
}
