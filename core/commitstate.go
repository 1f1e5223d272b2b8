package core

import (
	"errors"
	"slices"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/state"
)

// How often a log's commit state is renewed while its position stands still, and how
// often a large one may be: each costs the broker up to three bytes a byte for as long
// as it keeps commits.
const (
	stateEvery = 250 * time.Millisecond
	largeEvery = 2 * time.Second
	largeState = 480
	minState   = 32 // less holds nothing

	// minBehind is from how many completed messages behind the position a commit that
	// moves it carries a state. A few are behind it at any time; to repeat them after a
	// crash costs less than to say so twenty times a second.
	minBehind = 64

	// keyOfMessage names Message.Key as the key of a state: state.Snapshot.KeyFn.
	keyOfMessage = 1

	// maxCrashes is the most unclean ends that are told apart.
	maxCrashes = 1<<crashBits - 1
	crashBits  = 3
)

// place is a delivery of a log in its watermark.Ring: what is needed of its receipt to
// commit it after its flight was used again, and the flight while it is unfinished.
type place struct {
	seq, aux int64
	id       string
	ref      any
	offset   int64
	f        *flight
}

func placeOf(f *flight) place {
	r := &f.rec.Receipt
	return place{seq: r.Seq, aux: r.Aux, id: r.ID, ref: r.Ref, offset: f.rec.Offset, f: f}
}

func (p *place) receipt(a *assignment) driver.Receipt {
	return driver.Receipt{Partition: a.Partition, Epoch: a.Epoch, Seq: p.seq, Aux: p.aux, ID: p.id, Ref: p.ref}
}

// commitState is what an assignment keeps for its commit state. Guarded by Consumer.mu,
// but for what the settler alone uses.
type commitState struct {
	known       *state.Completed // what was completed before, nil = nothing; dropped once passed
	version     uint64           // grows with every completion and failure
	saved       uint64           // the version committed last
	noted       *flight          // that commit says that it is about to run; nil = nobody
	saidNote    bool             // and that has not been taken back
	noteOver    bool             // and is to be
	unsaid      bool             // that commit did not say what is completed behind it
	tried       int              // unfinished ones that have failed
	longRuns    int              // runs that have lasted
	movedLately bool             // the watermark has, since the settler last looked around

	// The settler's own.
	snap      state.Snapshot // goes with committing
	stateful  bool           // snap is of this commit
	hold      bool           // committing is of the first unfinished one: nothing is done yet
	limit     int            // bytes of a state; halved when the broker refuses one
	nextState time.Time      // no state before
	nextLarge time.Time
}

// keepsState tells whether commits of this subscription carry a state.
func (s *Consumer) keepsState() bool {
	return s.caps.Settle == driver.UpTo && s.caps.StateBytes > 0 && !s.p.AckFirst
}

// stateName names the log in a state's checksum.
func (s *Consumer) stateName() string { return s.from.Shape.String() + " " + s.from.Name }

// remember reads the state beside the committed position of a new assignment. What is
// not exactly of this log at this position is ignored: completed messages are handled
// again, none is passed over.
func (s *Consumer) remember(a *assignment) error {
	if !s.keepsState() {
		return nil
	}
	a.limit = s.caps.StateBytes
	raw := a.State
	a.State = nil
	if len(raw) == 0 || a.Committed.Kind != driver.At {
		return nil
	}
	var high int64
	if a.High.Kind == driver.At {
		high = a.High.Offset
	}
	known, err := state.Decode(raw, s.stateName(), a.Partition, a.Committed.Offset, high, keyOfMessage)
	switch {
	case errors.Is(err, state.Foreign): // other tools keep notes of their own there
		return nil
	case err != nil:
		return err
	}
	a.known = known
	return nil
}

// recall applies what the state says about a message that comes again. Callers hold mu.
func (s *Consumer) recall(f *flight, a *assignment, now time.Time) {
	at := f.rec.Offset
	if at > a.known.Last() {
		a.known = nil
		return
	}
	if a.known.Done(at, f.rec.Key, f.rec.Key != "") {
		f.unseen = true
		s.counts.Skipped++
		return
	}
	attempts, due := a.known.Attempts(at)
	if attempts > 0 {
		f.restored, f.crashes = attempts>>crashBits, uint8(attempts&maxCrashes)
		f.base += f.restored // an unclean end may have been a lost partition: it is no failed attempt
		a.tried++
	}
	switch until := time.Unix(due, 0); {
	case f.phase != phaseHandle:
	case s.p.Quarantine > 0 && int(f.crashes) >= s.p.Quarantine && s.hasDeadLetter():
		f.phase, f.trouble().reason = phaseDead, reasonQuarantined
		f.trouble().cause = driver.Errorf("handle", driver.Permanent, "the process ended without a word %d times while this message was handled", f.crashes)
	case due > 0 && until.After(now):
		f.phase, f.trouble().due = phaseDue, until
	}
}

// failedAttempts is what a state keeps of a flight: failures and unclean ends. A run
// under way counts as an unclean end once it has lasted: should the process end now, it
// will have been one; if it does not, a later commit says so.
func (f *flight) failedAttempts() int {
	crashes := int(f.crashes)
	switch {
	case f.noted && (f.state == stateRunning || f == f.asg.guard.noting):
		crashes++
	case f.state == stateRunning && f.phase == phaseHandle && f.age >= longRun:
		crashes++
	}
	return (f.restored+f.failures)<<crashBits | min(crashes, maxCrashes)
}

// longRun is how many looks of the settler a run must have lasted to be remarkable.
const longRun = 2

// snapshot describes an assignment whose position base is about to be committed.
// Callers hold mu.
func (s *Consumer) snapshot(a *assignment, base int64) state.Snapshot {
	snap := state.Snapshot{
		Source: s.stateName(), Partition: a.Partition, Base: base, KeyFn: keyOfMessage,
		Ordered: s.p.Order == ByKey, Known: a.known, Pending: slices.Grow(a.snap.Pending[:0], a.ring.Span()-a.ring.Behind()),
	}
	snap.High, _ = a.lastRead()
	a.ring.Unfinished(func(p place) bool {
		f := p.f
		n := state.Pending{Position: p.offset, Key: f.rec.Key, HasKey: f.rec.Key != "", Attempts: f.failedAttempts()}
		a.saidNote = a.saidNote || f.noted
		if !f.past().due.IsZero() {
			// Never early. And not a second later with every owner that passes it on: one that
			// read it from a state is of whole seconds.
			n.Due = f.past().due.Add(time.Second - 1).Unix()
		}
		snap.Pending = append(snap.Pending, n)
		return true
	})
	return snap
}

// worthState tells whether a commit of a should carry a state. Callers hold mu.
func (s *Consumer) worthState(a *assignment, final bool) bool {
	last, ok := a.lastRead()
	if !ok || a.limit < minState {
		return false
	}
	behind := a.ring.Behind()
	return a.tried > 0 || a.longRuns > 0 || behind >= minBehind || behind > 0 && (final || !a.moved) || a.knowsBeyond(last)
}

// lastRead is the highest offset that has been admitted; ok is false while none has, and
// where messages have none.
func (a *assignment) lastRead() (offset int64, ok bool) {
	last, ok := a.ring.Last()
	if !ok {
		last, ok = a.ring.Watermark()
	}
	return last.offset, ok && last.offset >= 0
}

// knowsBeyond reports whether the state that a was given tells of positions behind offset:
// a commit without a state would forget them.
func (a *assignment) knowsBeyond(offset int64) bool { return a.known != nil && offset < a.known.Last() }

// stage puts the commit of one log together and reports whether there is one to send
// now. A commit that moves the position goes out by itself, a state with it when it is
// worth one; a state alone when there is news. Callers hold mu.
func (s *Consumer) stage(a *assignment, now time.Time) (send, later bool) {
	final := a.drain || s.draining
	noted := a.guard.noting
	if final {
		noted = nil
	}
	noting := noted != nil
	stateful := noting || s.worthState(a, final)
	if stateful && !final && !noting && now.Before(a.nextState) {
		return false, true
	}
	if takeBack := a.saidNote && (final || a.noteOver); !stateful && !a.moved && !takeBack {
		a.saved, a.unsaid = a.version, false
		return false, false
	}
	r, done := a.ring.Watermark()
	base := r.offset + 1
	if !done {
		found := false
		a.ring.Unfinished(func(p place) bool { r, found = p, true; return false })
		if !found { // a stale note, and nothing left to say it beside
			return false, false
		}
		base = r.offset
	}
	a.hold, a.committing, a.covers = !done, r.receipt(a), len(a.acking)
	a.saidNote, a.noteOver = false, false
	if a.stateful = stateful; stateful {
		a.snap = s.snapshot(a, base)
	}
	a.moved, a.saved, a.unsaid = false, a.version, !stateful && a.ring.Behind() > 0
	a.noted = noted
	return true, false
}

// settlement is the commit as the adapter gets it. The settler's own: without mu.
func (a *assignment) settlement(final bool) driver.Settlement {
	st := driver.Settlement{Receipt: a.committing, Disposition: driver.Ack, Final: final}
	if a.hold {
		st.Disposition = driver.Hold
	}
	if !a.stateful {
		return st
	}
	now, limit := time.Now(), a.limit
	if !final && now.Before(a.nextLarge) {
		limit = min(limit, largeState)
	}
	st.State = state.Encode(a.snap, limit)
	a.nextState = now.Add(stateEvery)
	if len(st.State) > largeState {
		a.nextLarge = now.Add(largeEvery)
	}
	return st
}

// lookAround is the settler's look at what has changed without moving a position:
// completed behind a stuck head, failures, runs that take long.
func (s *Consumer) lookAround() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.parts {
		a.longRuns = 0
	}
	for f := s.flights.head; f != nil; f = f.next {
		if f.state != stateRunning {
			continue
		}
		if f.age < longRun {
			if f.age++; f.age == longRun {
				f.asg.version++
			}
		}
		if f.age == longRun {
			f.asg.longRuns++
		}
	}
	s.endGuards(time.Now()) // a suspect may run for long, with nothing to settle
	for _, a := range s.parts {
		if (a.version != a.saved || a.unsaid) && !a.drain && (!a.movedLately || a.tried > 0 || a.longRuns > 0) {
			s.markDirty(a)
		}
		a.movedLately = false
	}
	if len(s.dirty) > 0 {
		signal(s.settleSome)
	}
}

// lastWord has the settler commit what has changed, for those who come next.
func (s *Consumer) lastWord(of []*assignment) {
	if !s.keepsState() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range of {
		if (a.version != a.saved || a.unsaid || a.saidNote) && !a.closed {
			s.markDirty(a)
		}
	}
}

// markDirty has the settler look at a. Callers hold mu.
func (s *Consumer) markDirty(a *assignment) {
	if !a.dirty {
		a.dirty = true
		s.dirty = append(s.dirty, a)
		signal(s.settleSome)
	}
}

// refusedState takes note of a commit whose state the broker did not take, and reports
// whether it is worth sending again with less. Callers hold mu.
func (s *Consumer) refusedState(a *assignment, class driver.Class) bool {
	if class != driver.TooLarge || !a.stateful || a.closed {
		return false
	}
	a.limit /= 2
	return true
}
