package soak

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
)

// outcome of an attempt.
type outcome uint8

const (
	failed outcome = iota // it will be tried again
	done
	dead // failed for good: a dead letter is owed
)

// hindsight is how long after an event the news may come that explains it: a member that
// was cut off finds out later than the one that has taken over.
const hindsight = 15 * time.Second

const maxNotes = 8

// judge sees the start and the end of every attempt, of all members in one order, and keeps
// a few bytes a session. A start that nothing has explained within hindsight is a violation.
//
// What it takes for granted: an attempt runs only after begin has returned, and is over
// before end is called. So two attempts that overlap here need not have, but two that do
// not overlap here did not.
type judge struct {
	lines []line
	first atomic.Int64 // messages that came to their end, each counted once

	attempts, faults, duplicates, overlaps, losses, letters atomic.Int64

	mu       sync.Mutex
	members  []uint64 // by number: how often it was killed or lost what it had
	suspects []suspect
	broken   int64
	notes    []string // the first few violations in words
	owed     map[ticket.Ticket]bool
}

// line is the record of one session.
type line struct {
	mu      sync.Mutex
	done    uint32 // every message up to it has ended, but for missing
	running []attempt
	ended   []span // who ended what, ascending; the last few
	again   span   // what was worked off again last, [from, to]
	missing map[uint32]bool
}

type attempt struct {
	member int
	epoch  uint64 // of the member when it began
	n      uint32
}

// span is a run of messages that a member ended.
type span struct {
	member   int
	epoch    uint64
	from, to uint32
}

// maxSpans bounds what is kept of a session. What is older was ended by members that handed
// over since, and may not come again: it counts as ended by nobody.
const maxSpans = 16

// suspect is a start that is lawful only if something has happened to a member.
type suspect struct {
	member int
	epoch  uint64
	at     time.Duration
	text   string
}

func newJudge(sessions int) *judge {
	return &judge{lines: make([]line, sessions), owed: map[ticket.Ticket]bool{}}
}

// join makes a member known and returns its number.
func (j *judge) join() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.members = append(j.members, 0)
	return len(j.members) - 1
}

// killed tells that a member is about to be killed: from here on, what it did may be done
// again. What came before is not explained by it.
func (j *judge) killed(member int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.members[member]++
}

// buried tells that a member that was killed has said its last: what it was doing has ended
// with it.
func (j *judge) buried(member int) {
	j.killed(member) // what it said on its way out may come again as well
	for i := range j.lines {
		l := &j.lines[i]
		l.mu.Lock()
		l.stop(member)
		l.mu.Unlock()
	}
}

// lostAll tells that a member has lost what it had: what it was doing may be done beside it,
// and what it did may be done again. It may have found out late, so that explains what was
// seen before.
func (j *judge) lostAll(member int) {
	j.losses.Add(1)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.members[member]++
	j.suspects = slices.DeleteFunc(j.suspects, func(s suspect) bool { return s.member == member })
}

// stop forgets what a dead member was doing. l.mu is held.
func (l *line) stop(member int) {
	l.running = slices.DeleteFunc(l.running, func(a attempt) bool { return a.member == member })
}

func (j *judge) epoch(member int) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.members[member]
}

func (j *judge) violation(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.breaks(fmt.Sprintf(format, args...))
}

// breaks counts a violation. j.mu is held.
func (j *judge) breaks(text string) {
	j.broken++
	if len(j.notes) < maxNotes {
		j.notes = append(j.notes, text)
	}
}

// suspicion notes a start that only a member's end or loss since epoch can explain.
func (j *judge) suspicion(member int, epoch uint64, now time.Duration, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if member >= 0 && j.members[member] > epoch {
		return
	}
	j.suspects = append(j.suspects, suspect{member, epoch, now, fmt.Sprintf(format, args...)})
}

// sweep makes violations of what nothing has explained in time, at the end of all there is.
func (j *judge) sweep(now time.Duration, end bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	kept := j.suspects[:0]
	for _, s := range j.suspects {
		if end || now-s.at > hindsight {
			j.breaks(s.text)
			continue
		}
		kept = append(kept, s)
	}
	j.suspects = kept
}

// knows reports whether a ticket may be of this run; another is a violation.
func (j *judge) knows(t ticket.Ticket) bool {
	if int(t.Session) < len(j.lines) && t.N >= 1 {
		return true
	}
	j.violation("session %d, message %d: nobody published it", t.Session, t.N)
	return false
}

// begin is the start of an attempt.
func (j *judge) begin(member int, t ticket.Ticket, now time.Duration) {
	if !j.knows(t) {
		return
	}
	j.attempts.Add(1)
	epoch := j.epoch(member)
	l := &j.lines[t.Session]
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.running {
		j.overlaps.Add(1)
		j.suspicion(a.member, a.epoch, now, "session %d: member %d started %d while %d ran at member %d", t.Session, member, t.N, a.n, a.member)
	}
	l.running = append(l.running, attempt{member, epoch, t.N})
	switch {
	case t.N <= l.done && !l.missing[t.N]:
		s := l.endedBy(t.N)
		j.suspicion(s.member, s.epoch, now, "session %d: %d started again at member %d after member %d had ended it", t.Session, t.N, member, s.member)
	case t.N > l.done+1:
		j.violation("session %d: %d started at member %d before %d had ended", t.Session, t.N, member, l.done+1)
		l.pass(t.N)
	}
}

// pass notes what was overtaken, so that it is told once. l.mu is held.
func (l *line) pass(n uint32) {
	if l.missing == nil {
		l.missing = map[uint32]bool{}
	}
	for m := l.done + 1; m <= n; m++ {
		l.missing[m] = true
	}
	l.done = n
}

// endedBy returns who ended n last; member -1 = nobody who could do it again.
func (l *line) endedBy(n uint32) span {
	if l.again.from <= n && n <= l.again.to {
		return l.again
	}
	for i := len(l.ended) - 1; i >= 0; i-- {
		if s := l.ended[i]; s.from <= n && n <= s.to {
			return s
		}
	}
	return span{member: -1}
}

// end is the end of an attempt.
func (j *judge) end(member int, t ticket.Ticket, o outcome) {
	if int(t.Session) >= len(j.lines) {
		return
	}
	epoch := j.epoch(member)
	l := &j.lines[t.Session]
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, a := range l.running {
		if a.member == member && a.n == t.N {
			l.running = append(l.running[:i], l.running[i+1:]...)
			break
		}
	}
	if o == failed {
		j.faults.Add(1)
		return
	}
	if o == dead {
		j.owe(t)
	}
	switch {
	case l.missing[t.N]:
		delete(l.missing, t.N)
	case t.N <= l.done:
		j.duplicates.Add(1)
		l.repeated(member, epoch, t.N)
		return
	default:
		l.done = t.N
	}
	j.first.Add(1)
	l.extend(member, epoch, t.N)
}

// extend notes who has ended the next message. l.mu is held.
func (l *line) extend(member int, epoch uint64, n uint32) {
	if k := len(l.ended); k > 0 && l.ended[k-1].member == member && l.ended[k-1].epoch == epoch && l.ended[k-1].to+1 == n {
		l.ended[k-1].to = n
		return
	}
	if len(l.ended) == maxSpans {
		l.ended = append(l.ended[:0], l.ended[1:]...)
	}
	l.ended = append(l.ended, span{member, epoch, n, n})
}

// repeated notes who has worked a message off again. l.mu is held.
func (l *line) repeated(member int, epoch uint64, n uint32) {
	if a := &l.again; a.member == member && a.epoch == epoch && a.to+1 == n {
		a.to = n
		return
	}
	l.again = span{member, epoch, n, n}
}

// owe notes that a dead letter must be there at the end.
func (j *judge) owe(t ticket.Ticket) {
	t.Stamp = 0
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, known := j.owed[t]; !known {
		j.owed[t] = true
	}
}

// letter is a dead letter that has come. One that nobody owes was made by a member that was
// killed before it could say that its message had failed.
func (j *judge) letter(t ticket.Ticket) {
	t.Stamp = 0
	j.letters.Add(1)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.owed[t] = false
}

// due counts the dead letters that have not come.
func (j *judge) due() (n int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, missing := range j.owed {
		if missing {
			n++
		}
	}
	return n
}

// lost counts what never came to an end, of sessions that were sent so many messages.
func (j *judge) lost(sent []uint32) (n int64) {
	for i := range j.lines {
		l := &j.lines[i]
		l.mu.Lock()
		n += int64(len(l.missing))
		if sent[i] > l.done {
			n += int64(sent[i] - l.done)
		}
		if l.done > sent[i] {
			j.violation("session %d: %d ended, and %d were published", i, l.done, sent[i])
		}
		l.mu.Unlock()
	}
	return n
}

// verdict returns the number of violations so far, and the first few in words.
func (j *judge) verdict() (violations int64, notes []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.broken, append([]string(nil), j.notes...)
}
