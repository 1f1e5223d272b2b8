package core

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/backoff"
)

// maxSpan bounds the receipts that one partition keeps behind an unfinished head
// (UpTo): past it the partition is paused, so that a stuck message costs memory only
// up to here.
const maxSpan = 1 << 16

// minLease keeps a lease that was nearly over on receipt from being extended in a hot
// loop.
const minLease = 50 * time.Millisecond

// receiver asks the broker for what there is room for, for as long as the subscription
// runs or until another goroutine has its role; it is a worker from then on.
func (s *Consumer) receiver(r *reception) {
	defer s.unwound(&r.arena, func() {
		if s.serving.role == r {
			s.serving.now, s.serving.run = false, nil
			s.receive(r.ctx)
			s.wakeWorker()
		} else {
			s.workers.Go(s.worker)
		}
	})
	if s.receiveAll(r) {
		close(s.received)
		return
	}
	s.worker()
}

// receiveAll receives, and reports whether r had the role to the end.
func (s *Consumer) receiveAll(r *reception) (mine bool) {
	var rctx context.Context
	cancel := func() {}
	defer func() { cancel() }()
	var gen uint64
	for failures := 0; ; {
		want, now, ok := s.awaitRoom(r.ctx)
		if !ok {
			return true
		}
		if rctx == nil || gen != now || rctx.Err() != nil {
			// One context serves many calls: it is cancelled only to change the Demand
			// of a call that waits.
			cancel()
			rctx, cancel = context.WithCancel(r.ctx) //nolint:fatcontext // from r.ctx each time, never from itself
			gen = now
		}
		if !s.armReceive(gen, cancel) {
			continue
		}
		got, err := s.src.Receive(rctx, want)
		failed := err != nil && rctx.Err() == nil
		at := s.disarmReceive(err, failed)
		if len(got) > 0 {
			failures = 0
			partition := got[0].Receipt.Partition // got is the next receiver's once serve has returned
			stale, limited := s.admit(r, got, at)
			mine = s.serve(r, at)
			s.reportAdmitted(partition, stale, limited)
			if !mine {
				return false
			}
		}
		if failed {
			failures++
			if !s.receiveFailed(r.ctx, err, failures) {
				return true
			}
		}
	}
}

// armReceive lets redemand cancel the call that is about to be made. It reports false
// when the Demand has changed since it was computed: otherwise a change between the
// two would find nothing to cancel, and the call would wait with an old Demand, for a
// paused partition's resume possibly for ever.
func (s *Consumer) armReceive(gen uint64, cancel context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.demandGen != gen {
		return false
	}
	s.cancelRcv = cancel
	return true
}

// disarmReceive takes the outcome of a call and returns the time of its end.
func (s *Consumer) disarmReceive(err error, failed bool) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelRcv = nil
	s.lastRcv = time.Now()
	if failed {
		s.receiveErr = err
	} else if err == nil {
		s.receiveErr = nil
	}
	return s.lastRcv
}

// awaitRoom blocks until there is room, and returns the Demand and its generation;
// ok is false when ctx has ended.
func (s *Consumer) awaitRoom(ctx context.Context) (want driver.Demand, gen uint64, ok bool) {
	for {
		if ctx.Err() != nil {
			return want, 0, false
		}
		s.mu.Lock()
		records, bytes := s.budget.Room()
		if s.worthAsking(records) {
			want = driver.Demand{Records: min(records, s.mostReceived()), Bytes: bytes, Limit: s.budget.MaxRecords, Paused: s.pausedParts()}
			gen = s.demandGen
			s.mu.Unlock()
			return want, gen, true
		}
		s.mu.Unlock()
		select {
		case <-s.roomFree:
		case <-ctx.Done():
		}
	}
}

// maxReceive bounds what one Receive returns, and so how long admit holds mu: with
// 16,000 messages workers waited for more than 1 ms, sync.Mutex then hands itself from
// waiter to waiter, and every message cost a switch of goroutines from there on.
const maxReceive = 1024

// mostReceived bounds one Receive. Where keys or partitions have shares it is one share:
// what a single call brings is in before anybody can be held back.
func (s *Consumer) mostReceived() int {
	if s.p.Order == ByKey || len(s.parts) > 1 {
		return min(maxReceive, max(minShare, s.budget.MaxRecords/4))
	}
	return maxReceive
}

// worthAsking reports whether room for so many messages is worth a Receive. While
// workers have enough to start, a log would otherwise be asked for the one message
// that ended since the last call, and so for each. Callers hold mu.
func (s *Consumer) worthAsking(records int) bool {
	return records > 0 && (records >= min(s.budget.MaxRecords/4, maxReceive) || s.queue.Ready() <= s.p.Concurrency)
}

// pausedParts lists the partitions to return nothing of: all of them while the
// subscription is paused or its breaker open, so that connection and ownership go on.
// Callers hold mu.
func (s *Consumer) pausedParts() (out []string) {
	all := s.paused || !s.breaker.isClosed() && !s.breaker.half
	for name, a := range s.parts {
		if all || a.held() {
			out = append(out, name)
		}
	}
	return out
}

// receiveFailed reports a failed Receive and waits before the next; false = the
// subscription ends.
func (s *Consumer) receiveFailed(ctx context.Context, err error, failures int) bool {
	var after time.Duration
	if e, ok := errors.AsType[*driver.Error](err); ok {
		after = e.After
	}
	switch driver.ClassOf(err) {
	case driver.Transient, driver.Ambiguous, 0:
		if failures == 1 {
			s.signalled(SignalReceiveFailed, "", "", failures, err)
		}
		wait := max(after, backoff.Wait(failures, 100*time.Millisecond, 5*time.Second, backoff.Half, rand.Float64()))
		return sleep(ctx, wait)
	}
	s.signalled(SignalReceiveFailed, "", "", failures, err)
	s.fail(err)
	return false
}

// admit takes received messages into the engine, and returns of how many headers were
// dropped and how many were stale. Who runs them is serve's to say. What needs no lock is
// done before it is taken, since workers wait for it meanwhile.
func (s *Consumer) admit(r *reception, got []driver.Received, now time.Time) (stale, limited int) {
	at := now.Sub(s.began)
	s.newFlights(r, len(got))
	for i, f := range r.fresh {
		f.rec = got[i]
		f.received, f.heap, f.size = at, -1, f.rec.Size()
		if s.inspect(f, now) {
			limited++
		}
	}
	stale = s.enter(r.fresh, now)
	clear(r.fresh) // they belong to the engine
	return stale, limited
}

func (s *Consumer) reportAdmitted(partition string, stale, limited int) {
	if stale > 0 {
		s.signalled(SignalStale, partition, "", stale, nil)
	}
	if limited > 0 {
		s.signalled(SignalLimited, partition, "", limited, nil)
	}
}

// newFlights makes n clean flights r's fresh ones.
func (s *Consumer) newFlights(r *reception, n int) {
	r.fresh = slices.Grow(r.fresh[:0], n)
	s.mu.Lock()
	old := s.free[max(0, len(s.free)-n):]
	r.fresh = append(r.fresh, old...)
	clear(old)
	s.free = s.free[:len(s.free)-len(old)]
	s.mu.Unlock()
	for len(r.fresh) < n {
		r.fresh = append(r.fresh, &flight{})
	}
}

// enter queues flights under the one lock that assigned and revoke take, and returns how
// many were stale: a message is admitted only under the open epoch of its partition.
// Without the epoch, a batch that Receive returned just before a revoke and that is
// admitted just after it would run here while the new owner runs it too.
func (s *Consumer) enter(fresh []*flight, now time.Time) (stale int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var a *assignment
	var name string // of a: most neighbours are of one partition, which spares a look-up each
	for _, f := range fresh {
		r := &f.rec.Receipt
		if a == nil || r.Partition != name {
			name = r.Partition
			a = s.parts[name]
		}
		if a == nil || a.drain || a.Epoch != r.Epoch {
			f.released = true // it never took a share
			s.recycle(f)
			stale++
			continue
		}
		s.enterOne(f, a, now)
	}
	s.counts.Received += int64(len(fresh) - stale)
	s.counts.Stale += int64(stale)
	return stale
}

// enterOne queues one flight. Callers hold mu.
func (s *Consumer) enterOne(f *flight, a *assignment, now time.Time) {
	f.asg = a
	s.entered(a)
	s.budget.Take(f.size)
	s.flights.add(f)
	if s.caps.Settle == driver.UpTo {
		f.seq, f.inRing = a.ring.Add(placeOf(f)), true
		if a.known != nil {
			s.recall(f, a, now)
		}
		if !a.paused && a.ring.Span() >= maxSpan {
			a.paused = true
			s.redemand()
		}
	}
	if !f.rec.Deadline.IsZero() {
		// The length of the lease is what is left of it on receipt. Counted from the start
		// of the call, one second of waiting for the first message would make a lease of
		// one second look like two; extended at half of that, it would end first.
		f.deadline, f.lease = f.rec.Deadline, max(f.rec.Deadline.Sub(now), minLease)
		s.leased(f)
	}
	switch {
	case f.unseen:
		s.finishLocked(f, driver.Settlement{Disposition: driver.Ack})
	case s.holdBack(f, a):
	case s.p.AckFirst:
		s.ackFirst(f)
	case s.p.Order == ByKey && f.rec.Key != "":
		s.crowd(a, s.queue.AddKeyed(f.rec.Key, f))
	default:
		s.queue.Add(f)
	}
}

// inspect reads what the message says about itself and chooses its first phase; limited
// tells that some of its headers were dropped. The flight is not the engine's yet.
func (s *Consumer) inspect(f *flight, now time.Time) (limited bool) {
	f.base = max(f.rec.DeliveryCount, 1)
	if f.rec.Err != nil {
		f.phase, f.trouble().cause, f.trouble().reason = phaseDead, f.rec.Err, reasonUndecodable
		return false
	}
	if limit := s.c.o.Limits.Body; limit > 0 && len(f.rec.Body) > limit {
		f.phase, f.trouble().cause, f.trouble().reason = phaseDead, errBodyLimit(len(f.rec.Body), limit), reasonTooLarge
		return false
	}
	if len(f.rec.Headers) == 0 {
		return false
	}
	headers, dropped := s.c.o.Limits.incoming(f.rec.Headers)
	f.rec.Headers = headers
	info := readHeaders(headers)
	f.base = max(f.base, info.attempts+1)
	switch {
	case info.group != "" && info.group != s.sub.Group && s.caps.Settle == driver.UpTo:
		// A redrive for another group of this log. Elsewhere a group has messages of its
		// own, so the header is a stranger's: believed, it would lose the message.
		f.unseen = true
	case info.due.After(now) && s.caps.Delay > 0: // elsewhere nobody of ours can have written it
		f.phase = phaseHop
	}
	return dropped > 0
}
