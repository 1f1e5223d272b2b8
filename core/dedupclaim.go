package core

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/backoff"
)

// DedupPolicy runs the handler of a message whose id has had its effect before no more: it
// is acknowledged as a duplicate. Mark and effect are two systems' here, so a crash between
// them lets the message run again: fewer repeats, not once. Where the effect is a
// transaction, keep the mark in it (the inbox pattern). The zero DedupPolicy is none.
type DedupPolicy struct {
	// Store keeps the marks. nil = no dedup.
	Store DedupStore
	// Key names the business event. It must not come from the delivery (a number in a
	// log, a time) or be a weak hash of the body. nil = Message.ID. "" = run it, whatever.
	Key func(*Delivery) string
	// Scope keeps consumers with different effects apart; a new one has everything run
	// again. "" = the group, or the name of the source where there is none.
	Scope string
	// Lease is how long a claim outlives a process that ended without a word; it is
	// extended while a handler runs. 0 = 30 s. At least 1 s.
	Lease time.Duration
	// Keep is how long a mark is remembered: longer than the source's retention, the time
	// until dead letters are sent again, and the longest outage. 0 = 7 days.
	Keep time.Duration
	// FailOpen handles messages while the store does not answer, with the repeats that may
	// bring. Otherwise they wait for it, and no attempt is counted.
	FailOpen bool
}

const (
	defaultDedupLease = 30 * time.Second
	defaultDedupKeep  = 7 * 24 * time.Hour
	storeTimeout      = 2 * time.Second // of one call
	markTries         = 3
	// maxExtends is how many claims are extended at once. One after the other, a thousand
	// handlers and a store that takes 15 ms would need longer than there is for it.
	maxExtends = 16
)

// claim is ours while a handler runs, or while what it published is being confirmed.
type claim struct {
	id    [32]byte
	token string
	lost  bool // somebody has taken it over; guarded by Consumer.mu
}

// dedup is what a subscription with a DedupPolicy knows. Guarded by Consumer.mu, but for
// wake, life and end.
type dedup struct {
	claims  map[*flight]*claim
	orphans []*claim // of flights that have left; to be released
	wake    chan struct{}
	life    context.Context //nolint:containedctx // of the keeper's calls, until the clock ends
	end     context.CancelFunc
	down    int // calls in a row that the store did not answer
}

func (p *Policy) validateDedup(bad func(field, format string, args ...any) error) error {
	d := &p.Dedup
	switch {
	case d.Store == nil && (d.Key != nil || d.Scope != "" || d.Lease != 0 || d.Keep != 0 || d.FailOpen):
		return bad("Dedup.Store", "nothing keeps the marks: set a DedupStore")
	case d.Store == nil:
		return nil
	case d.Lease != 0 && d.Lease < time.Second:
		return bad("Dedup.Lease", "%v is less than a second", d.Lease)
	case d.Keep < 0:
		return bad("Dedup.Keep", "%v is negative", d.Keep)
	case p.AckFirst:
		return bad("Dedup", "AckFirst settles before the handler runs, so nothing is handled twice; drop one of them")
	case p.batch != nil:
		return bad("Dedup", "it is about single messages, and a batch could not say which of them had been handled; handle single messages, or drop Dedup")
	}
	return nil
}

// dedupKeyOf names the message of a flight; a panic of Policy.Dedup.Key is an error.
func (s *Consumer) dedupKeyOf(f *flight, d *Delivery) (key string, stack []byte, err error) {
	if s.p.Dedup.Key == nil {
		return f.rec.ID, nil, nil
	}
	defer func() {
		if r := recover(); r != nil {
			stack, err = debug.Stack(), &panicError{value: fmt.Sprint("Dedup.Key: ", r)}
		}
	}()
	return s.p.Dedup.Key(d), nil, nil
}

func (s *Consumer) dedupScope() string {
	switch {
	case s.p.Dedup.Scope != "":
		return s.p.Dedup.Scope
	case s.sub.Group != "":
		return s.sub.Group
	}
	return s.from.Name
}

// claimed reports whether the handler of a flight may run. If not, it has decided what
// becomes of the flight. mu is held on entry and on return.
//
// To ask is an attempt of its own, so that it can be cancelled, and so that a store that
// hangs uses up nothing of Policy.Timeout: the handler would begin with what is left, fail
// by it, and the message would end as a dead letter because of the store.
func (s *Consumer) claimed(f *flight, a *arena) bool {
	t := a.attempt()
	t.ctx.parent = s.hctx //nolint:fatcontext // the attempt is new: nothing nests
	f.run = t
	s.mu.Unlock()
	a.handling = f
	c, held, stack, err := s.ask(f, t, a)
	a.handling = nil
	s.mu.Lock()
	switch answered := c != nil && err == nil; {
	case answered:
		s.dedup.down = 0
	case c != nil && goOn(t.ctx.ended()) == nil:
		s.storeFailed(err) // lets go of mu: a revoke meanwhile must find the attempt
	}
	ended := s.asked(f, t)
	switch {
	case c == nil && err != nil:
		f.trouble().stack = stack
		s.conclude(f, err, nil, decision{}, false, nil)
		s.ran(f)
		return false
	case ended == nil && s.mayRun(f, c, err):
		return true
	case c == nil:
		err = ended
	case err == nil && c.token != "": // revoked, or told to stop, while we asked
		s.mu.Unlock()
		s.unclaim(context.Background(), c) // the subscription may have ended already
		s.mu.Lock()
		err = ended
	}
	s.unclaimed(f, held, err)
	s.ran(f)
	return false
}

// ask asks the store for the id of a message. c is nil where it has none; then err is of
// Policy.Dedup.Key. mu is not held.
func (s *Consumer) ask(f *flight, t *attempt, a *arena) (c *claim, held time.Duration, stack []byte, err error) {
	if s.p.Dedup.Key != nil {
		s.fill(&t.d, f, a)
	}
	key, stack, err := s.dedupKeyOf(f, &t.d)
	if err != nil || key == "" {
		return nil, 0, stack, err
	}
	c = &claim{id: sha256.Sum256([]byte(key))}
	ctx, cancel := context.WithTimeout(&t.ctx, storeTimeout)
	defer cancel()
	c.token, held, err = s.p.Dedup.Store.Claim(ctx, s.dedupScope(), c.id, s.p.Dedup.Lease)
	return c, held, nil, err
}

// mayRun reports whether the answer to a claim lets the handler run; c nil = none was asked
// for. Callers hold mu.
func (s *Consumer) mayRun(f *flight, c *claim, err error) bool {
	switch {
	case c == nil:
		return true
	case err == nil && c.token != "":
		s.dedup.claims[f] = c
		return true
	case err != nil && s.p.Dedup.FailOpen:
		s.counts.DedupUnknown++
		return true
	}
	return false
}

// asked ends the attempt of a claim, and returns why we should not go on, nil = nothing.
// Callers hold mu.
func (s *Consumer) asked(f *flight, t *attempt) error {
	f.run = nil
	ended := t.ctx.ended()
	t.ctx.finish()
	t.d.end(fateOver)
	if f.rung&rungAbandoned != 0 {
		return ended // its slot is another's
	}
	f.rung, f.seen = f.rung&rungStalled, 0 // the handler's time begins now
	return goOn(ended)
}

// goOn is why a claim was cancelled, nil where only the store took long: StuckPolicy is about
// handlers.
func goOn(ended error) error {
	if errors.Is(ended, ErrStuck) {
		return nil
	}
	return ended
}

// unclaimed decides about a flight that is not ours to run: done before, claimed by
// somebody else, or the store does not say. Only the first is a duplicate. Callers hold mu.
func (s *Consumer) unclaimed(f *flight, held time.Duration, err error) {
	switch {
	case f.asg.closed || f.lost:
		s.finishLocked(f, driver.Settlement{})
	case s.draining || f.asg.drain:
		s.giveBack(f, err)
	case err != nil:
		s.wait(f, backoff.Wait(max(s.dedup.down, 1), s.p.Retry.Base, maxStoreWait, backoff.Half, rand.Float64()))
	case held > 0:
		s.wait(f, held)
	default:
		s.counts.Duplicates++
		s.finishLocked(f, driver.Settlement{Disposition: driver.Ack})
	}
}

// maxStoreWait is how long a message waits at most before the store is asked again.
const maxStoreWait = 5 * time.Second

// storeFailed counts a call that the store did not answer, and signals the first in a row.
// Callers hold mu.
func (s *Consumer) storeFailed(err error) {
	if s.dedup.down++; s.dedup.down == 1 {
		s.later(func() { s.signalled(SignalDedupDown, "", "", 1, err) })
	}
}

// takeClaim takes the claim of a flight out of the keeper's hands; nil = it has none.
// Callers hold mu.
func (s *Consumer) takeClaim(f *flight) *claim {
	if len(s.dedup.claims) == 0 { // without a DedupPolicy, always
		return nil
	}
	c := s.dedup.claims[f]
	delete(s.dedup.claims, f)
	return c
}

// attempted marks the id of a message whose handler had its whole effect, and frees that
// of one that had none, before anything else is decided: the next attempt must not find
// our own claim. What the handler published is a part of the effect, and comes first. mu
// is not held.
func (s *Consumer) attempted(f *flight, done, publishes bool) {
	if s.p.Dedup.Store == nil {
		return
	}
	s.mu.Lock()
	var c *claim
	if !done || !publishes {
		c = s.takeClaim(f)
	}
	s.mu.Unlock()
	switch {
	case c == nil:
	case done:
		s.mark(c)
	default:
		s.unclaim(s.pctx, c)
	}
}

// mark notes that a message has had its effect. If that fails the message is acknowledged
// all the same: not to would make the repeat certain. mu is not held.
func (s *Consumer) mark(c *claim) {
	var err error
	for try := range markTries {
		if try > 0 && !sleep(s.pctx, backoff.Wait(try, 50*time.Millisecond, time.Second, backoff.Half, rand.Float64())) {
			break
		}
		ctx, cancel := context.WithTimeout(s.pctx, storeTimeout)
		err = s.p.Dedup.Store.Done(ctx, s.dedupScope(), c.id, c.token, s.p.Dedup.Keep)
		cancel()
		if err == nil {
			return
		}
		if errors.Is(err, ErrLeaseLost) {
			break
		}
	}
	s.mu.Lock()
	s.counts.MarksLost++
	s.later(func() { s.signalled(SignalDedupMarkLost, "", "", 1, err) })
	s.mu.Unlock()
}

// unclaim frees an id. If that fails its lease ends by itself. mu is not held.
func (s *Consumer) unclaim(ctx context.Context, c *claim) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	_ = s.p.Dedup.Store.Release(ctx, s.dedupScope(), c.id, c.token)
}

// orphan has the keeper free the claim of a flight that leaves. Callers hold mu.
func (s *Consumer) orphan(f *flight) {
	if c := s.takeClaim(f); c != nil {
		s.dedup.orphans = append(s.dedup.orphans, c)
		signal(s.dedup.wake)
	}
}

// keepClaims extends the claims of what runs and frees those that were left behind.
func (s *Consumer) keepClaims() {
	t := time.NewTicker(s.p.Dedup.Lease / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.extendClaims(s.dedup.life)
		case <-s.dedup.wake:
			s.freeOrphans(s.dedup.life)
		case <-s.clockEnd:
			// What a store that hangs does not free ends with its lease: the end of the
			// subscription waits for one call, and not for one of every claim.
			ctx, cancel := context.WithTimeout(s.pctx, storeTimeout)
			s.freeOrphans(ctx)
			cancel()
			return
		}
	}
}

// freeOrphans frees what was left behind, as long as ctx lasts.
func (s *Consumer) freeOrphans(ctx context.Context) {
	for {
		s.mu.Lock()
		n := len(s.dedup.orphans)
		if n == 0 || ctx.Err() != nil {
			s.mu.Unlock()
			return
		}
		c := s.dedup.orphans[n-1]
		s.dedup.orphans[n-1] = nil
		s.dedup.orphans = s.dedup.orphans[:n-1]
		s.mu.Unlock()
		s.unclaim(ctx, c)
	}
}

// extendClaims gives every claim a new lease. A store that does not answer is asked again
// at the next tick: there are three in a lease.
func (s *Consumer) extendClaims(ctx context.Context) {
	s.mu.Lock()
	claims := make([]*claim, 0, len(s.dedup.claims))
	for _, c := range s.dedup.claims {
		if !c.lost {
			claims = append(claims, c)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.p.Dedup.Lease/3)
	defer cancel()
	next := make(chan *claim)
	var beside sync.WaitGroup
	for range min(maxExtends, len(claims)) {
		beside.Go(func() {
			for c := range next {
				if !s.extendClaim(ctx, c) {
					cancel()
				}
			}
		})
	}
	for _, c := range claims {
		next <- c // taken in any case: what comes after ctx has ended is not asked for
	}
	close(next)
	beside.Wait()
}

// extendClaim extends one claim, and reports false if the store did not answer.
func (s *Consumer) extendClaim(ctx context.Context, c *claim) bool {
	if ctx.Err() != nil {
		return false
	}
	err := s.p.Dedup.Store.Extend(ctx, s.dedupScope(), c.id, c.token, s.p.Dedup.Lease)
	if errors.Is(err, ErrLeaseLost) { // or it was done or released meanwhile, which is as well
		s.mu.Lock()
		c.lost = true
		s.mu.Unlock()
		return true
	}
	return err == nil
}
