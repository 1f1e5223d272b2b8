package core

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/backoff"
)

// How long the settler lets settlements gather. A log commits a position for all its
// messages at once, so it can wait longer; what a crash repeats grows with it.
const (
	lingerEach = 2 * time.Millisecond
	lingerUpTo = 50 * time.Millisecond

	maxSettleBatch = 512
	settleTimeout  = 10 * time.Second
)

// settleEntry is one settlement on its way to the broker. The receipt stays where it
// is, in the flight or in the assignment, until the batch is put together.
type settleEntry struct {
	f           *flight     // nil for the commit of a log
	a           *assignment // of a commit
	disposition driver.Disposition
	delay       time.Duration
	reason      error
}

// settlement is the entry as the adapter gets it.
func (e *settleEntry) settlement(final bool) driver.Settlement {
	if e.f == nil {
		return e.a.settlement(final)
	}
	return driver.Settlement{Receipt: e.f.rec.Receipt, Disposition: e.disposition, Delay: e.delay, Reason: e.reason, Final: final}
}

func (e *settleEntry) asg() *assignment {
	if e.f != nil {
		return e.f.asg
	}
	return e.a
}

// settle hands an entry to the settler. Callers hold mu.
func (s *Consumer) settle(e settleEntry) {
	e.asg().pending++
	s.settling = append(s.settling, e)
	if records, _ := s.budget.Room(); records == 0 || len(s.settling) >= min(maxSettleBatch, max(1, s.budget.MaxRecords/4)) {
		signal(s.settleNow)
	}
	if len(s.settling) == 1 { // the settler takes all there are, so the first one wakes it for the rest
		signal(s.settleSome)
	}
}

// settler is the one caller of Settle. It gathers what comes in a short while, so
// that a broker is asked once for many messages.
func (s *Consumer) settler() {
	linger := lingerEach
	if s.caps.Settle == driver.UpTo {
		linger = lingerUpTo
	}
	t := time.NewTimer(linger)
	defer t.Stop()
	var look <-chan time.Time
	if s.keepsState() {
		every := time.NewTicker(stateEvery)
		defer every.Stop()
		look = every.C
	}
	var spare, left []settleEntry
	var wire []driver.Settlement
	for failures := 0; ; {
		wait := linger
		if len(left) > 0 {
			failures++
			wait = backoff.Wait(failures, 50*time.Millisecond, 2*time.Second, backoff.Half, rand.Float64())
		} else {
			failures = 0
			select {
			case <-s.settleSome:
			case <-look:
				s.lookAround()
				continue
			case <-s.settleEnd:
				return
			}
		}
		t.Reset(wait)
		select {
		case <-t.C:
		case <-s.settleNow:
		case <-s.settleEnd:
			return
		}
		left, spare = s.settleRound(left, spare, &wire)
	}
}

// settleRound settles what is there: first what an earlier round left, since the
// entries of one partition take effect in order. It returns what has to be sent again
// and a buffer to use again.
func (s *Consumer) settleRound(left, spare []settleEntry, wire *[]driver.Settlement) (again, buf []settleEntry) {
	s.mu.Lock()
	s.endGuards(time.Now())              // while commits fail nobody looks around
	round := append(left, s.settling...) //nolint:gocritic // left is given up by the caller
	clear(s.settling)
	s.settling = s.settling[:0]
	round = s.commits(round)
	round = s.living(round)
	flushers, final := s.flushers, s.draining
	s.flushers = nil
	s.mu.Unlock()

	// Without the lock: what is on its way to the broker is the settler's alone, its
	// flight settling and its assignment sending.
	batch := slices.Grow((*wire)[:0], len(round))
	for i := range round {
		batch = append(batch, round[i].settlement(final))
	}
	*wire = batch

	if len(round) > 0 {
		again = s.sendSettle(round, spare, batch)
	}
	for _, ch := range flushers {
		close(ch)
	}
	clear(round)
	return again, round[:0]
}

// commits adds one entry for each log that has something to commit. Callers hold mu.
func (s *Consumer) commits(round []settleEntry) []settleEntry {
	now, kept := time.Now(), 0
	for _, a := range s.dirty {
		a.dirty = false
		if a.closed {
			continue
		}
		send, later := s.stage(a, now)
		if later { // the next look around finds it
			a.dirty = true
			s.dirty[kept] = a
			kept++
		}
		if !send || a.sending { // an earlier round left it, and it will say the newer position
			continue
		}
		a.pending++
		a.sending = true
		round = append(round, settleEntry{a: a, disposition: driver.Ack})
	}
	clear(s.dirty[kept:])
	s.dirty = s.dirty[:kept]
	return round
}

// living drops entries that can no longer take effect. Callers hold mu.
func (s *Consumer) living(round []settleEntry) []settleEntry {
	n := 0
	for _, e := range round {
		f := e.f
		switch {
		case e.asg().closed:
			s.settledLocked(&e, driver.LeaseLost, time.Time{})
		case f != nil && f.lost && e.disposition != driver.Extend:
			// Its loss was found after its outcome was handed in. It was counted then.
			s.dropEntry(&e)
		case e.disposition == driver.Extend && (f.released || f.state == stateSettling):
			s.settledLocked(&e, nil, time.Time{})
		default:
			round[n] = e
			n++
		}
	}
	clear(round[n:])
	return round[:n]
}

// sendSettle makes one Settle call and draws the conclusions, entry by entry.
func (s *Consumer) sendSettle(round, again []settleEntry, batch []driver.Settlement) []settleEntry {
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	err := s.src.Settle(ctx, batch)
	cancel()
	defer clear(batch) // what it points to is not ours to keep
	again = again[:0]
	failed, lost := 0, 0
	s.mu.Lock()
	for i := range round {
		e := &round[i]
		res := driver.ResultAt(err, i)
		switch class := driver.ClassOf(res); {
		case res == nil:
			s.settledLocked(e, nil, start)
		case e.f == nil && s.refusedState(e.a, class):
			again = append(again, *e)
		case (class == driver.Transient || class == driver.Ambiguous || class == 0) && !e.asg().closed:
			failed++
			again = append(again, *e)
		case e.f == nil && e.a.hold: // only a state: nothing was committed and nothing is lost
			e.a.limit = 0
			s.settledLocked(e, nil, start)
		default:
			failed++
			lost++
			s.settledLocked(e, res, start)
		}
	}
	s.mu.Unlock()
	s.reportSettle(len(round), failed, lost, time.Since(start), err)
	return again
}

func (s *Consumer) reportSettle(entries, failed, lost int, took time.Duration, err error) {
	if o := s.c.o.Observer; o != nil {
		o.Settled(SettleInfo{Subscription: s.name, Entries: entries, Failed: failed, Duration: took, Err: err})
	}
	if lost > 0 {
		s.signalled(SignalLeaseLost, "", "", lost, err)
	} else if failed > 0 {
		s.signalled(SignalSettleFailed, "", "", failed, err)
	}
}

// settledLocked draws the conclusion of one answered (or dropped) settlement. Callers
// hold mu.
func (s *Consumer) settledLocked(e *settleEntry, err error, sent time.Time) {
	a := e.asg()
	a.pending--
	f := e.f
	switch {
	case f == nil:
		a.sending = false
		s.committed(a, err)
	case e.disposition == driver.Extend:
		s.extended(f, sent, err)
	case s.p.AckFirst && err == nil && !a.closed:
		s.queueAcked(f)
	default:
		if err != nil {
			s.counts.LeaseLost++
		}
		f.state = stateGone
		s.release(f)
		s.recycle(f)
	}
}

// dropEntry ends a settlement that is not sent because the message was lost before.
// Callers hold mu.
func (s *Consumer) dropEntry(e *settleEntry) {
	e.f.asg.pending--
	e.f.state = stateGone
	s.release(e.f)
	s.recycle(e.f)
}

// extended takes the outcome of a lease extension. The new lease runs from before the
// request left.
func (s *Consumer) extended(f *flight, sent time.Time, err error) {
	f.extend = false
	if err == nil {
		f.deadline = sent.Add(f.lease)
		return
	}
	if f.released {
		return
	}
	s.counts.LeaseLost++
	f.lost = true
	s.dropBehind(f)
	switch f.state {
	case stateRunning:
		if f.run != nil {
			f.run.end(ErrLeaseLost)
		}
	case stateQueued, stateWaiting, stateHalted:
		s.drop(f)
	}
}

// dropBehind lets go of what waits behind a lost message in its key. The lost one comes
// again when the broker says; run now, those behind it would be in front of it. Their
// leases are not extended any more, so they come again, too. Callers hold mu.
func (s *Consumer) dropBehind(lost *flight) {
	if s.p.Order != ByKey || lost.rec.Key == "" || lost.state == stateSettling {
		return
	}
	for f := lost.next; f != nil; {
		next := f.next
		if f.asg == lost.asg && f.rec.Key == lost.rec.Key && f.state == stateQueued {
			s.drop(f)
		}
		f = next
	}
}

// committed takes the outcome of a log's commit.
func (s *Consumer) committed(a *assignment, err error) {
	if f := a.noted; f != nil && !a.closed {
		a.noted = nil
		s.noteConfirmed(f)
	}
	if err != nil {
		s.counts.LeaseLost++
		return
	}
	// Not all of acking: what was admitted while this commit was on its way is not covered
	// by it, and would come again after a crash although it has run.
	for _, f := range a.acking[:a.covers] {
		s.queueAcked(f)
	}
	a.acking = slices.Delete(a.acking, 0, a.covers)
	a.covers = 0
}

// flush waits until everything handed to the settler for the assignments so far has
// been answered, or ctx ends.
func (s *Consumer) flush(ctx context.Context, of []*assignment) {
	for rounds := 0; ctx.Err() == nil; rounds++ {
		if rounds > 0 && !sleep(ctx, 20*time.Millisecond) { // the last round left some: not a hot loop
			return
		}
		s.mu.Lock()
		open := false
		for _, a := range of {
			open = open || a.pending > 0 || a.dirty
		}
		if !open {
			s.mu.Unlock()
			return
		}
		ch := make(chan struct{})
		s.flushers = append(s.flushers, ch)
		signal(s.settleNow)
		signal(s.settleSome)
		s.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
		}
	}
}
