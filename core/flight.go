package core

import (
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/watermark"
)

// phase is what a flight needs done next.
type phase uint8

const (
	phaseHandle phase = iota // run the handler
	phaseEmit                // the handler succeeded: send what it published, then ack
	phaseDead                // publish the dead-letter copy, then end it
	phaseHop                 // not due yet: send it on with the rest of its delay, then ack
	phaseNack                // back-off over: give it back as failed
	phaseDue                 // failed before this process had it, and not due yet
)

// flightState is where a flight is. It changes only under Consumer.mu.
type flightState uint8

const (
	stateQueued   flightState = iota // in the run queue or behind its key
	stateRunning                     // a worker has it
	stateWaiting                     // in back-off
	stateHalted                      // holds up its key until an operator says how to go on
	stateSettling                    // its disposition is on the way to the broker
	stateGone                        // over, or no longer ours
)

// flight is one received message on its way through the engine. Its fields are
// guarded by Consumer.mu, but for those a worker uses while the state is running.
type flight struct {
	progress
	heap       int     // index in the waiting heap
	prev, next *flight // list of all flights

	rec driver.Received // as it came: never changed, so that no attempt leaks into the next
}

// progress is what the engine knows of a flight beside its message. Apart, so that a
// flight that is used again is cleared without the message's many pointers. Every message
// goes through the caches of two processors with it, so what few messages need is in bad.
type progress struct {
	asg  *assignment
	lane *lane
	run  *attempt // the attempt that runs now
	bad  *trouble // nil = nothing has gone wrong so far; see past and trouble

	state    flightState
	phase    phase
	crashes  uint8 // unclean ends in the middle of a run, by the commit state
	age      uint8 // looks of the settler that the present run has lasted; up to longRun
	rung     uint8 // of the ladder for stuck work: bits, see stuck.go
	noted    bool  // that it is about to run is committed, or about to be
	inRing   bool  // asg.ring points to it, until it is done
	extend   bool  // an Extend is on the way
	lost     bool  // somebody else's by now
	acked    bool  // AckFirst: settled before it ran
	over     bool  // acked or rejected: done for good
	unseen   bool  // of a log, for another group: done without being run
	released bool  // its share of the budget was returned

	base     int           // attempt number of the first run here
	failures int           // failed runs here
	restored int           // failed runs that the commit state told of
	seq      uint64        // in asg.ring (UpTo)
	size     int           // bytes of the budget
	received time.Duration // when it came, since Consumer.began
	seen     time.Duration // when the clock first saw the present run; 0 = not yet

	deadline time.Time     // end of the lease; zero = none
	lease    time.Duration // length of the lease
}

// trouble is what only a message needs that has failed, or cannot run as it is.
type trouble struct {
	first   time.Time // of the first failure here
	last    time.Time // of the last failure
	due     time.Time // end of the back-off; zero = not in one
	cause   error     // why it failed last
	reason  string    // failure reason of the dead-letter record
	blocker string    // id of the message whose failure blocks its key
	stack   []byte    // of a panic
	emit    []heldPublish
	tries   int // failed tries of the phase (dead letter, emit, hop)
}

// past returns what has gone wrong, to be read.
func (f *flight) past() trouble {
	if f.bad == nil {
		return trouble{}
	}
	return *f.bad
}

// trouble returns what has gone wrong, to be changed.
func (f *flight) trouble() *trouble {
	if f.bad == nil {
		f.bad = &trouble{}
	}
	return f.bad
}

// arrival is when a flight was received.
func (s *Consumer) arrival(f *flight) time.Time { return s.began.Add(f.received) }

// reset makes a flight ready for another message. What it keeps of the last one is
// small, and overwritten by the next; bodies and headers must not stay with it.
func (f *flight) reset() {
	f.progress = progress{}
	f.rec.Body, f.rec.Headers, f.rec.Err, f.rec.Receipt.Ref = nil, nil, nil, nil
}

// assignment is one period of ownership of one partition. Guarded by Consumer.mu.
type assignment struct {
	driver.Assignment
	drain   bool // admits nothing any more
	closed  bool // nor settles
	running int  // attempts that run
	pending int  // settlements handed to the settler and not answered
	idle    chan struct{}
	ring    watermark.Ring[place]
	dirty   bool // in Consumer.dirty
	moved   bool // the watermark has, since the settler last committed it
	flights int
	commitState
	guard      guard
	committing driver.Receipt // the watermark that the settler sends
	sending    bool           // an entry for it is with the settler
	covers     int            // AckFirst on a log: so many of acking are covered by that commit
	acking     []*flight      // AckFirst on a log: they run once a commit that covers them is confirmed
	paused     bool           // asked for no more until its span shrinks
	crowded    int            // keys with too many waiting: no more until they shrink
	full       bool           // more than its share is in flight: no more until it shrinks
}
