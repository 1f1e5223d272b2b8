package core

import (
	"slices"
	"time"
)

// A message that ends its process at once leaves no trace of having run: nothing is
// committed between its start and the end. So whoever takes a partition over commits that
// it is about to begin with the first message, and begins when the commit is confirmed. If
// the next owner finds that note it was an unclean end, and the first message is suspect,
// or one of those that ran beside it. From the last end but one that Policy.Quarantine
// allows on, the partition's messages run one at a time, each noted before, until enough
// of them have ended or some time has passed: the next note then names the culprit.

// guardFor bounds how long messages run one at a time, and how long one waits for the
// commit of its beginning: while commits fail the work goes on unguarded.
const guardFor = 5 * time.Second

// guard is what an assignment keeps of this. Guarded by Consumer.mu.
type guard struct {
	begun  bool      // the first message was seen
	closed bool      // what is admitted waits in held
	held   []*flight // in order
	noting *flight   // its beginning is being committed; nil = nobody's
	alone  int       // so many ran one at a time; -1 = they do not
	until  time.Time // it opens by itself
}

// guards tells whether beginnings are noted at all.
func (s *Consumer) guards() bool { return s.keepsState() && s.p.Quarantine > 0 && s.hasDeadLetter() }

func (s *Consumer) hasDeadLetter() bool {
	return s.p.NativeDeadLetter || s.p.DeadLetter != (Destination{})
}

// holdBack keeps an admitted flight until the beginning of its assignment, or its own, is
// committed, and reports whether it did. Callers hold mu.
func (s *Consumer) holdBack(f *flight, a *assignment) bool {
	g := &a.guard
	if !g.begun && f.phase == phaseHandle && f.rec.Offset >= 0 && s.guards() && (f.crashes > 0 || !a.knowsBeyond(f.rec.Offset)) {
		g.begun, g.closed, g.alone, g.until = true, true, -1, time.Now().Add(guardFor)
		s.guarded = append(s.guarded, a)
		if int(f.crashes) >= max(1, s.p.Quarantine-1) {
			g.alone = 0
			s.suspects = append(s.suspects, a)
		} else {
			s.note(f)
		}
	}
	if !g.closed {
		return false
	}
	g.held = append(g.held, f)
	if g.alone >= 0 {
		s.nextSuspect()
	}
	return true
}

// note has the settler commit, at once, that f is about to run.
func (s *Consumer) note(f *flight) {
	f.noted, f.asg.guard.noting = true, f
	f.asg.version++
	s.markDirty(f.asg)
	signal(s.settleNow)
	signal(s.settleSome)
}

// noteConfirmed lets go of what waited for the commit of f's beginning. Another may have
// taken its turn meanwhile: that one waits for a commit of its own. Callers hold mu.
func (s *Consumer) noteConfirmed(f *flight) {
	a := f.asg
	g := &a.guard
	if g.noting != f {
		return
	}
	g.noting = nil
	if g.alone < 0 {
		s.openGuard(a)
		return
	}
	g.held = slices.DeleteFunc(g.held, func(h *flight) bool { return h == f })
	s.enqueue(f)
}

// openGuard lets everything run that was held back, and what comes after it. Nobody waits
// for a note any more: when the commit that carries one is answered at last, its message may
// have ended and its flight be another's. Callers hold mu.
func (s *Consumer) openGuard(a *assignment) {
	held := a.guard.held
	a.noted = nil
	a.guard.closed, a.guard.held, a.guard.alone, a.guard.noting = false, nil, -1, nil
	same := func(o *assignment) bool { return o == a }
	s.suspects, s.guarded = slices.DeleteFunc(s.suspects, same), slices.DeleteFunc(s.guarded, same)
	for _, f := range held {
		s.enqueue(f)
	}
}

// enqueue hands a flight that was held back to the run queue, unless it was dropped.
func (s *Consumer) enqueue(f *flight) {
	if f.state != stateQueued {
		return
	}
	if s.p.Order == ByKey && f.rec.Key != "" {
		s.crowd(f.asg, s.queue.AddKeyed(f.rec.Key, f))
	} else {
		s.queue.Add(f)
	}
	s.wakeWorker()
}

// nextSuspect lets the next message under suspicion run, alone in this process. Callers
// hold mu.
func (s *Consumer) nextSuspect() {
	for s.suspect == nil && len(s.suspects) > 0 && !s.draining {
		a := s.suspects[0]
		g := &a.guard
		if a.drain || g.alone > s.budget.MaxRecords || !time.Now().Before(g.until) {
			s.openGuard(a)
			continue
		}
		g.held = slices.DeleteFunc(g.held, func(f *flight) bool { return f.state != stateQueued })
		if len(g.held) == 0 { // it has nothing yet: another one's turn
			i := slices.IndexFunc(s.suspects, func(o *assignment) bool { return len(o.guard.held) > 0 })
			if i < 0 {
				return
			}
			s.suspects[0], s.suspects[i] = s.suspects[i], s.suspects[0]
			continue
		}
		f := g.held[0]
		if f.phase != phaseHandle { // it will not run: nothing to fear
			g.held = g.held[1:]
			s.enqueue(f)
			continue
		}
		g.alone++
		s.suspect = f
		s.note(f)
	}
}

// unsuspect takes note that a flight has ended its run, or its time here. Callers hold mu.
func (s *Consumer) unsuspect(f *flight) {
	if f.noted && f.state != stateQueued {
		f.noted = false
		if f.asg.saidNote && !f.asg.closed { // it has not ended the process: to be taken back
			f.asg.noteOver = true
			s.markDirty(f.asg)
		}
	}
	if f == s.suspect {
		s.suspect = nil
		s.nextSuspect()
	}
}

// endGuards opens the guards whose time is over. Callers hold mu.
func (s *Consumer) endGuards(now time.Time) {
	for i := 0; i < len(s.guarded); {
		a := s.guarded[i]
		if now.Before(a.guard.until) {
			i++
			continue
		}
		if s.suspect != nil && s.suspect.asg == a {
			s.suspect = nil
		}
		s.openGuard(a) // takes it off the list
	}
	s.nextSuspect()
}
