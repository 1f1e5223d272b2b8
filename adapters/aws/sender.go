package aws

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
)

const (
	maxEntries = 10 // of one request
	maxSends   = 16 // requests to one queue or topic under way at once
)

// item is one message on its way.
type item struct {
	parcel *parcel
	at     int // index in its batch
	rec    record
	group  string // FIFO only
	dedup  string
	delay  int32 // seconds
	since  time.Time
}

// parcel is one call of Publish.
type parcel struct {
	op   string
	errs []error // the sender's until done is closed
	open int     // items without an outcome
	done chan struct{}
}

// sender gathers the messages of concurrent calls for one queue or topic into batches. A
// flusher lives only while there is something to send.
//
// On FIFO a request has one message of a group and no second request is under way with
// that group. Two of a group in one request would be cheaper, but the service answers for
// each by itself: if it fails the first and stores the second, the first, sent again, comes
// behind it.
type sender struct {
	b     *broker
	fifo  bool
	limit int // bytes of one request
	send  func(ctx context.Context, batch []*item) []error
	full  chan struct{} // wakes a flusher that lingers

	mu      sync.Mutex
	queue   []*item
	busy    map[string]struct{} // groups that are under way
	running int                 // flushers
	sending int                 // of them, with a request under way
}

func newSender(b *broker, fifo bool, limit int, send func(ctx context.Context, batch []*item) []error) *sender {
	return &sender{b: b, fifo: fifo, limit: limit, send: send, full: make(chan struct{}, 1), busy: map[string]struct{}{}}
}

// publish returns the outcome of a parcel, by index; an error holds for all of it.
func (s *sender) publish(ctx context.Context, p *parcel, items []*item) error {
	now := time.Now()
	for _, it := range items {
		it.since = now
	}
	p.open, p.done = len(items), make(chan struct{})
	s.mu.Lock()
	s.queue = append(s.queue, items...)
	if !s.spawn() && s.running == 0 {
		s.queue = s.queue[:len(s.queue)-len(items)]
		s.mu.Unlock()
		return errClosed(p.op)
	}
	s.mu.Unlock()
	select {
	case <-p.done:
	case <-ctx.Done():
		s.leave(p, context.Cause(ctx))
	}
	return driver.Batch(p.errs)
}

// spawn starts as many flushers as there are batches, and reports whether it could. Callers
// hold mu.
func (s *sender) spawn() bool {
	want := min(maxSends, s.sending+(s.ready()+maxEntries-1)/maxEntries)
	for s.running < want {
		if !s.b.begin(s.flush) {
			return false
		}
		s.running++
	}
	if len(s.queue) >= maxEntries {
		select {
		case s.full <- struct{}{}:
		default:
		}
	}
	return true
}

// ready is how many messages could go now. Callers hold mu.
func (s *sender) ready() int {
	if !s.fifo {
		return len(s.queue)
	}
	groups := map[string]struct{}{}
	for _, it := range s.queue {
		if _, under := s.busy[it.group]; !under {
			groups[it.group] = struct{}{}
		}
	}
	return len(groups)
}

// leave ends a parcel whose caller has gone. The lock decides: an item is either still in
// the queue and never sent, or may have been.
func (s *sender) leave(p *parcel, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-p.done:
		return
	default:
	}
	for _, it := range s.queue {
		if it.parcel == p {
			p.errs[it.at] = driver.Errorf(p.op, driver.Transient, "nothing was sent: %w", cause)
		}
	}
	s.queue = slices.DeleteFunc(s.queue, func(it *item) bool { return it.parcel == p })
	errs := slices.Clone(p.errs)
	for i, err := range errs {
		if err == errPending { //nolint:errorlint // the very value
			errs[i] = driver.Errorf(p.op, driver.Ambiguous, "the service has not confirmed yet: %w", cause)
		}
	}
	p.errs = errs // what a flusher still writes goes to nobody
	p.open = -1
}

// errPending stands in a parcel for an outcome that is not there yet.
var errPending = driver.Errorf("publish", driver.Ambiguous, "no outcome yet")

func (s *sender) flush() {
	for {
		batch, wait := s.next(time.Now())
		switch {
		case wait > 0:
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-s.full:
			case <-s.b.life.Done():
			}
			t.Stop()
		case len(batch) == 0:
			return
		default:
			errs := s.send(s.b.life, batch)
			s.finish(batch, errs)
		}
	}
}

// next returns a batch to send, or how long to wait for it to grow; neither ends the
// flusher. All is decided under one lock: otherwise a call could add its messages, see a
// flusher that has found nothing and is about to end, start none, and wait for ever.
func (s *sender) next(now time.Time) (batch []*item, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	picked := s.pick()
	if len(picked) == 0 {
		s.running--
		return nil, 0
	}
	oldest := s.queue[picked[0]].since
	if left := s.b.cfg.Linger - now.Sub(oldest); len(picked) < maxEntries && len(picked) == len(s.queue) && left > 0 && s.b.life.Err() == nil {
		return nil, left
	}
	for k := len(picked) - 1; k >= 0; k-- {
		batch = append(batch, s.queue[picked[k]])
		s.queue = slices.Delete(s.queue, picked[k], picked[k]+1)
	}
	slices.Reverse(batch)
	if s.fifo {
		for _, it := range batch {
			s.busy[it.group] = struct{}{}
		}
	}
	s.sending++
	return batch, 0
}

// pick returns the indexes of what can go together now, in order. Callers hold mu.
func (s *sender) pick() (picked []int) {
	size := 0
	seen := map[string]struct{}{}
	for i, it := range s.queue {
		if s.fifo {
			_, under := s.busy[it.group]
			_, twice := seen[it.group]
			if seen[it.group] = struct{}{}; under || twice {
				continue
			}
		}
		if len(picked) == maxEntries || len(picked) > 0 && size+it.rec.size > s.limit {
			break
		}
		size += it.rec.size
		picked = append(picked, i)
	}
	return picked
}

// finish notes the outcomes of a batch.
func (s *sender) finish(batch []*item, errs []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending--
	for i, it := range batch {
		delete(s.busy, it.group)
		s.outcome(it, errs[i])
		if c := driver.ClassOf(errs[i]); s.fifo && (c == driver.Transient || c == driver.Ambiguous) {
			s.holdBack(it)
		}
	}
	s.spawn()
}

// holdBack refuses what is left of a call behind a failed message of its group. Callers
// hold mu.
func (s *sender) holdBack(failed *item) {
	s.queue = slices.DeleteFunc(s.queue, func(it *item) bool {
		if it.parcel != failed.parcel || it.group != failed.group {
			return false
		}
		s.outcome(it, driver.Errorf(it.parcel.op, driver.Transient, "it was not sent: an earlier message of its key failed"))
		return true
	})
}

// outcome notes the result of one message. Callers hold mu.
func (s *sender) outcome(it *item, err error) {
	p := it.parcel
	if p.open < 0 { // its caller has gone
		return
	}
	p.errs[it.at] = err
	if p.open--; p.open == 0 {
		close(p.done)
	}
}
