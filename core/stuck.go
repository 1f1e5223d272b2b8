package core

import (
	"errors"
	"fmt"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// StuckPolicy is what is done about work that does not end. The zero StuckPolicy warns
// after a minute and does nothing else.
type StuckPolicy struct {
	// Warn after which a run, or the first unfinished message of a log's partition, is
	// reported as SignalStuck, once. 0 = 1 minute, negative = never.
	Warn time.Duration `json:"warn,omitempty"`
	// Cancel after which the context of a run ends with cause ErrStuck; what the handler
	// then returns counts as any failure. 0 = never.
	Cancel time.Duration `json:"cancel,omitempty"`
	// Abandon is how long a cancelled run may go on before its slot is given to another
	// message. Its own message stays unfinished and its key, or partition, held up, for
	// as long as that handler lives: nothing may overtake it. More runs than
	// Policy.Concurrency abandoned at once fail the subscription. 0 = never; needs Cancel.
	Abandon time.Duration `json:"abandon,omitempty"`
	// GapSkip is how long the first unfinished message of a partition may hold up the
	// position while later ones are done, in retry, halted or abandoned, before it is
	// passed over: dead-lettered with the reason "gap_skipped", counted, and logged as the
	// operational failure that it is. 0 = never: no gap is passed. It needs a log and a
	// dead letter.
	GapSkip time.Duration `json:"gap_skip,omitempty"`
}

// ErrStuck is the cause of a handler's context that ended because the run took longer
// than StuckPolicy.Cancel.
var ErrStuck = errors.New("varal: run was stuck")

const defaultWarn = time.Minute

// The steps of the ladder that a run has been through.
const (
	rungWarned    uint8 = 1 << iota
	rungCancelled       // its context has ended
	rungAbandoned       // its slot was given away
	rungStalled         // as the first of its partition it was reported
)

func (p *Policy) validateStuck(bad func(field, format string, args ...any) error) error {
	st := &p.Stuck
	switch {
	case st.Cancel < 0 || st.Abandon < 0 || st.GapSkip < 0:
		return bad("Stuck", "Cancel, Abandon and GapSkip are times from 0 (never) on: %v, %v, %v", st.Cancel, st.Abandon, st.GapSkip)
	case st.Abandon > 0 && st.Cancel == 0:
		return bad("Stuck.Abandon", "a run is cancelled before it is abandoned: set Cancel, too")
	case st.Abandon > 0 && p.batch != nil:
		return bad("Stuck.Abandon", "the messages of a batch share one slot, which cannot be given away for one of them; drop Abandon")
	case st.GapSkip > 0 && p.DeadLetter == (Destination{}):
		return bad("Stuck.GapSkip", "what is passed over needs a place: add DeadLetter(...)")
	}
	return nil
}

// lookEvery is how often the clock looks for stuck work; 0 = never.
func (p *StuckPolicy) lookEvery() time.Duration {
	least := time.Duration(0)
	for _, d := range []time.Duration{p.Warn, p.Cancel, p.Abandon, p.GapSkip} {
		if d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	if least == 0 {
		return 0
	}
	return min(max(least/8, 10*time.Millisecond), time.Second)
}

// stuckReport is one thing to tell once mu is free.
type stuckReport struct {
	kind          SignalKind
	partition, id string
	err           error
}

// findStuck walks all that is in flight and moves what does not end up the ladder. It
// returns when to look again. Callers hold mu; it lets go of it to report.
func (s *Consumer) findStuck(now time.Time) time.Duration {
	every := s.p.Stuck.lookEvery()
	if every == 0 {
		return time.Hour
	}
	var told []stuckReport
	for f := s.flights.head; f != nil; {
		next := f.next // an abandoned one leaves the list
		if f.state == stateRunning && f.phase == phaseHandle && f.run != nil {
			told = s.climb(f, now, told)
		}
		f = next
	}
	if s.caps.Settle == driver.UpTo {
		for _, a := range s.parts {
			told = s.stalled(a, now, told)
		}
	}
	if len(told) > 0 {
		s.later(func() {
			for _, r := range told {
				s.signalled(r.kind, r.partition, r.id, 1, r.err)
			}
		})
	}
	return every
}

// climb does what is due for a run. Its age counts from the first look that saw it, so
// that a run costs no reading of the clock.
func (s *Consumer) climb(f *flight, now time.Time, told []stuckReport) []stuckReport {
	at := now.Sub(s.began)
	if f.seen == 0 {
		f.seen = at
		return told
	}
	age, p := at-f.seen, &s.p.Stuck
	report := func(kind SignalKind, what string) {
		told = append(told, stuckReport{
			kind, f.rec.Receipt.Partition, f.rec.ID,
			fmt.Errorf("attempt %d of key %s has been running for %v%s", f.base+f.failures, quoted(f.rec.Key), age.Round(time.Millisecond), what),
		})
	}
	switch {
	case p.Abandon > 0 && age >= p.Cancel+p.Abandon && f.rung&rungAbandoned == 0:
		f.rung |= rungAbandoned
		report(SignalAbandoned, " and ignores its cancelled context: its slot goes to others, what is behind it waits")
		s.abandonRun(f)
	case p.Cancel > 0 && age >= p.Cancel && f.rung&rungCancelled == 0:
		f.rung |= rungCancelled | rungWarned
		report(SignalStuck, " and is cancelled")
		f.run.cancelStuck()
	case p.Warn > 0 && age >= p.Warn && f.rung&rungWarned == 0:
		f.rung |= rungWarned
		report(SignalStuck, "")
	}
	return told
}

// abandonRun gives the slot of a run away; its flight, its key and its goroutine stay.
// Callers hold mu.
func (s *Consumer) abandonRun(f *flight) {
	s.counts.Abandoned++
	s.strays++
	s.notRunning(f)
	s.spawned-- // its worker comes back when the handler does
	if s.strays > s.p.Concurrency {
		s.failLocked(fmt.Errorf("subscription %s: %d handlers ignore their cancelled context, as many as may run at once: restart the process", s.name, s.strays))
	}
	s.wakeWorker()
}

// strayed takes an abandoned run back whose handler has returned after all. Callers hold
// mu.
func (s *Consumer) strayed() {
	s.strays--
	s.spawned++
}

// stalled looks at what holds up the position of a log: it is reported, and passed over
// where that is allowed and something is gained by it.
func (s *Consumer) stalled(a *assignment, now time.Time, told []stuckReport) []stuckReport {
	var f *flight
	a.ring.Unfinished(func(p place) bool { f = p.f; return false })
	if f == nil || a.drain {
		return told
	}
	age, p := now.Sub(s.arrival(f)), &s.p.Stuck
	if p.Warn > 0 && age >= p.Warn && f.rung&rungStalled == 0 {
		f.rung |= rungStalled
		told = append(told, stuckReport{
			SignalStuck, a.Partition, f.rec.ID,
			fmt.Errorf("offset %d has held up its partition for %v, %d behind it are done: attempt %d, %s", f.rec.Offset, age.Round(time.Second), a.ring.Behind(), f.base+f.failures, s.keyStatus(f).State),
		})
	}
	if p.GapSkip == 0 || age < p.GapSkip || a.ring.Behind() == 0 {
		return told
	}
	if s.skipGap(f) {
		told = append(told, stuckReport{
			SignalGapSkipped, a.Partition, f.rec.ID,
			fmt.Errorf("offset %d is passed over after %v: %w", f.rec.Offset, age.Round(time.Second), errGap(f)),
		})
	}
	return told
}

func errGap(f *flight) error {
	if f.past().cause == nil {
		return errors.New("its handler does not return")
	}
	return f.past().cause
}

// skipGap sends the first unfinished message of a log to the dead letter, after which the
// position goes on, and reports whether it could. Callers hold mu.
func (s *Consumer) skipGap(f *flight) bool {
	switch f.state {
	case stateWaiting:
		if f.past().reason == reasonGap { // its copy is tried again already
			return false
		}
		s.waiting.remove(f)
		f.trouble().due = time.Time{}
	case stateHalted:
		delete(s.halted, f.rec.Key)
	case stateRunning:
		if f.rung&rungAbandoned == 0 || f.lost {
			return false
		}
		f = s.standIn(f)
		s.flights.add(f)
		s.queueGap(f)
		return true
	default:
		return false
	}
	s.queueGap(f)
	return true
}

func (s *Consumer) queueGap(f *flight) {
	s.counts.GapsSkipped++
	f.phase, f.trouble().reason, f.state, f.trouble().tries = phaseDead, reasonGap, stateQueued, 0
	f.trouble().cause = errGap(f)
	s.queue.Again(f, f.lane)
	s.wakeWorker()
}

// standIn ends an abandoned flight in all but its goroutine: another takes over its
// message, its place in the log and its share of the budget. The lane stays with the
// goroutine, so that its key goes on only after it has returned.
func (s *Consumer) standIn(f *flight) *flight {
	g := &flight{rec: f.rec, progress: f.progress, heap: -1}
	g.lane, g.run = nil, nil
	if f.bad != nil { // f's goroutine may add to its own
		bad := *f.bad
		g.bad = &bad
	}
	s.flights.remove(f)
	f.released, f.lost = true, true
	f.asg.ring.Set(f.seq, placeOf(g))
	return g
}

// notRunning takes a flight off the counts of running attempts. Callers hold mu.
func (s *Consumer) notRunning(f *flight) {
	f.asg.running--
	s.running--
	if f.asg.running == 0 && f.asg.idle != nil {
		close(f.asg.idle)
		f.asg.idle = nil
	}
	s.unsuspect(f)
	s.checkQuiet()
}

// cancelStuck ends the context of a run, and of the batch it belongs to.
func (t *attempt) cancelStuck() {
	t.ctx.end(ErrStuck)
	if t.others != nil {
		t.others(ErrStuck)
	}
}
