package core

import (
	"context"
	"time"
)

// The receiver runs handlers itself while they are quick. To hand a message over to a
// worker means that another processor fetches all that this one wrote about it, and that
// both take turns at mu: for a handler of less than a microsecond that is more work than
// all the rest, and two processors were slower with it than one. What a worker must be
// there for is a handler that takes its time; so the receiver serves only where samples
// say that handlers are quick, and where one is not after all, the clock gives the
// receiver's role to another goroutine and the one that is held up becomes a worker.

const (
	// quickRun is the longest run that counts as quick: what a hand-over costs.
	quickRun = time.Microsecond
	// quickRuns is how many more samples must have been quick than slow, and mostQuick how
	// many count: one that is slow for a foreign reason, a collection of garbage say, ends
	// nothing.
	quickRuns, mostQuick = 4, 8
	// sampleEvery run is timed: reading the clock is 3 % of a message.
	sampleEvery = 8
	// The time of every lookEvery served messages is looked at. More than servedRun for
	// each, engine and all, and slack once, raises a doubt: either the goroutine did not
	// run, or a handler that is quick as a rule has waited. So the runs that follow are
	// timed, one for every quickRun lost, and one of slowRun proves it. The receiver then
	// serves nothing for restShare times what it cost, so that for all but a small share of
	// the time workers run that handler side by side.
	lookEvery, servedRun, slack = 32, 5 * time.Microsecond, 100 * time.Microsecond
	slowRun, restShare          = 100 * time.Microsecond, 16
	// overlookEvery is how often the clock looks at a receiver that serves; it is relieved
	// when a look finds it in the run that the last one found it in.
	overlookEvery = 5 * time.Millisecond
	// slowRest is how long the receiver serves nothing after it was relieved.
	slowRest = 250 * time.Millisecond
)

// serving is what the receiver's serving is decided by. Guarded by Consumer.mu.
type serving struct {
	now     bool          // the receiver serves: workers are not woken
	role    *reception    // who receives
	run     *flight       // what it runs, if it serves
	runs    uint64        // started by a receiver
	seen    uint64        // runs at the clock's last look
	watched bool          // the clock looks
	quick   int           // samples that were quick, less twice those that were not; 0 to mostQuick
	doubt   int           // so many of the next served runs are timed
	lost    time.Duration // to what raised the doubt
	looked  time.Time     // when the time was last looked at
	rest    time.Time     // nothing is served before; zero = at once
}

// reception is one goroutine's time as the receiver.
type reception struct {
	ctx   context.Context //nolint:containedctx // life of the role, whoever has it
	arena arena
	fresh []*flight // of the batch that is admitted, used again
}

// sampled reports whether the run of f that is about to start is timed. Callers hold mu.
func (s *Consumer) sampled(f *flight) bool {
	return s.counts.Handled%sampleEvery == 0 || s.serving.doubt > 0 && s.serving.run == f
}

// judge takes a sample: the time of a run of f. Callers hold mu.
func (s *Consumer) judge(f *flight, took time.Duration, held int) {
	if s.serving.doubt > 0 && s.serving.run == f {
		s.serving.clear(took)
	}
	if took > quickRun || held > 0 { // what a handler published is sent, and waited for
		s.serving.quick = max(s.serving.quick-2, 0)
		return
	}
	s.serving.quick = min(s.serving.quick+1, mostQuick)
}

// serves reports whether the receiver, which has just put messages into the queue, is to
// run them itself: not where a run waits for something else than the handler. Callers hold
// mu.
func (s *Consumer) serves(now time.Time) bool {
	return s.serving.quick >= quickRuns && !now.Before(s.serving.rest) &&
		s.p.batch == nil && s.p.Dedup.Store == nil && !s.p.iterate && s.mayStart()
}

// mayStart reports whether the receiver may run one more message. Callers hold mu.
func (s *Consumer) mayStart() bool {
	return s.serving.quick >= quickRuns && !s.draining && !s.stopping && s.running < s.slots()
}

// serve runs what is in the queue, at most as much as one Receive brings, or has a worker
// do it. It reports whether r still has the receiver's role.
func (s *Consumer) serve(r *reception, now time.Time) (mine bool) {
	s.mu.Lock()
	v := &s.serving
	if !s.serves(now) {
		s.wakeWorker()
		s.mu.Unlock()
		return true
	}
	v.now = true
	if !v.watched {
		v.watched = true
		signal(s.clockWake)
	}
	v.looked = time.Now()
	n := 0
	for n < maxReceive && s.mayStart() {
		if v.run = s.take(); v.run == nil {
			break
		}
		v.runs++
		n++
		s.step(v.run, &r.arena)
		if v.role != r {
			s.mu.Unlock()
			return false
		}
		if n%lookEvery == 0 {
			v.look(lookEvery)
		}
	}
	v.look(n % lookEvery)
	v.now, v.run = false, nil
	s.wakeWorker() // for what is left
	s.mu.Unlock()  // not deferred: a handler that unwinds the goroutine has let go of it
	return true
}

// look raises a doubt if the last n served messages took too long.
func (v *serving) look(n int) {
	now := time.Now()
	took := now.Sub(v.looked)
	v.looked = now
	if took > time.Duration(n)*servedRun+slack {
		v.lost += took
		v.doubt = max(v.doubt, int(min(took/quickRun, 1<<20)))
	}
}

// clear takes the time of a run in doubt.
func (v *serving) clear(took time.Duration) {
	v.doubt--
	if took >= slowRun {
		// Most of what was lost may be the machine's: a run proves no more than a few of its kind.
		v.rest = time.Now().Add((took + min(v.lost, 4*took)) * restShare)
		v.quick, v.doubt = 0, 0
	}
	if v.doubt == 0 {
		v.lost = 0
	}
}

// overlook looks at a receiver that serves and reports whether to look again. Callers hold
// mu.
//
// The losing interleaving without it: a handler that was quick for an hour waits for a
// connection that hangs; the receiver runs it, so nobody receives, and nobody wakes the
// workers for what is in the queue.
func (s *Consumer) overlook(now time.Time) bool {
	v := &s.serving
	switch {
	case v.runs != v.seen:
		v.seen = v.runs
	case !v.now:
		v.watched = false
	default:
		v.rest = now.Add(slowRest)
		s.pass()
	}
	return v.watched
}

// handOn passes the receiver's role on where it is the receiver that runs f: what comes
// next waits for a broker. Callers hold mu.
func (s *Consumer) handOn(f *flight) {
	if s.serving.now && s.serving.run == f {
		s.pass()
	}
}

// pass makes another goroutine the receiver; the one that is goes on as a worker, see
// receiver. Callers hold mu.
func (s *Consumer) pass() {
	s.serving.now, s.serving.run = false, nil
	s.spawned++
	s.receive(s.serving.role.ctx)
	s.wakeWorker()
}

// receive makes a goroutine the receiver. Callers hold mu.
func (s *Consumer) receive(ctx context.Context) {
	r := &reception{ctx: ctx}
	s.serving.role = r
	s.workers.Go(func() { s.receiver(r) })
}
