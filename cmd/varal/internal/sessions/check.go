package sessions

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
)

// checker judges every attempt while the round runs, and keeps a log of them that
// verdict judges again at the end, by another method.
type checker struct {
	lines  []line
	owners atomic.Uint64 // grows when partitions change hands
	ended  atomic.Int64  // messages that came to their end, each counted once

	violations atomic.Int64
	duplicates atomic.Int64
	attempts   atomic.Int64

	mu    sync.Mutex
	notes []string // the first few violations in words; guarded by mu
}

// line is the record of one session.
type line struct {
	mu      sync.Mutex
	running int
	next    uint32 // every message before it has ended
	high    uint32 // highest that has started
	last    uint32 // started last
	try     int    // attempts of last, in a row
	owners  uint64 // of the checker, when the last lawful repetition began
	ahead   map[uint32]bool
	passed  map[uint32]bool // overtaken, and counted
	log     []uint32        // n<<2 | event, in order
	warm    uint32          // up to it is warm-up
	latency []int64         // nanoseconds, beyond warm
	end     int64           // of the last message, nanoseconds since the round began
	handed  uint32          // confirmed up to here; the feeder's own while it runs
	_       [16]byte        // a line is written by one core at a time, and shares none
}

// The events of a log.
const (
	logStarted = iota + 1
	logFailed
	logEnded
)

// maxNumber is the highest number of a message that fits a log.
const maxNumber = 1<<30 - 1

const maxNotes = 8

func newChecker(sessions int) *checker {
	c := &checker{lines: make([]line, sessions)}
	for i := range c.lines {
		c.lines[i].next = 1
	}
	return c
}

// revoked notes that partitions change hands: what had ended and was not committed
// may come again.
func (c *checker) revoked() { c.owners.Add(1) }

func (c *checker) violation(format string, args ...any) {
	c.violations.Add(1)
	c.note(format, args...)
}

func (c *checker) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.notes) < maxNotes {
		c.notes = append(c.notes, fmt.Sprintf(format, args...))
	}
}

// knows reports whether a ticket may be of this round; another is a violation.
func (c *checker) knows(t ticket.Ticket) bool {
	if int(t.Session) < len(c.lines) && t.N >= 1 && t.N <= maxNumber {
		return true
	}
	c.violation("a message of session %d, number %d: nobody published it", t.Session, t.N)
	return false
}

// begin is the start of an attempt; it returns which of its message's it is, from 1.
func (c *checker) begin(session, n uint32) (try int) {
	c.attempts.Add(1)
	l := &c.lines[session]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = append(l.log, n<<2|logStarted)
	if l.running++; l.running > 1 {
		c.violation("session %d: %d started while another attempt of the session ran", session, n)
	}
	switch {
	case n < l.next || l.ahead[n]:
		c.repeated(l, session, n)
	case n > l.next:
		c.overtook(l, session, n)
	}
	if l.try++; n != l.last {
		l.try = 1
	}
	l.last, l.high = n, max(l.high, n)
	return l.try
}

// overtook counts every unfinished message before n, once. Those below the highest that
// has started were counted when that one started. l.mu is held.
func (c *checker) overtook(l *line, session, n uint32) {
	for m := max(l.next, l.high); m < n; m++ {
		if l.ahead[m] || l.passed[m] {
			continue
		}
		if l.passed == nil {
			l.passed = map[uint32]bool{}
		}
		l.passed[m] = true
		c.violation("session %d: %d started before %d had ended", session, n, m)
	}
}

// repeated judges the start of a message that has ended. After partitions changed hands
// a session may begin again before what had ended, and must then go on in sequence.
// l.mu is held.
func (c *checker) repeated(l *line, session, n uint32) {
	if now := c.owners.Load(); l.owners != now {
		l.owners = now
		return
	}
	if l.owners > 0 && l.last < l.next && (n == l.last || n == l.last+1) {
		return
	}
	c.violation("session %d: %d started again after it had ended", session, n)
}

// finish is the end of an attempt; first tells that its message has come to its end now
// and not before. at is nanoseconds since the round began.
func (c *checker) finish(t ticket.Ticket, ok bool, at int64) (first bool) {
	l := &c.lines[t.Session]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if !ok {
		l.log = append(l.log, t.N<<2|logFailed)
		return false
	}
	l.log = append(l.log, t.N<<2|logEnded)
	switch {
	case t.N < l.next || l.ahead[t.N]:
		c.duplicates.Add(1)
		return false
	case t.N == l.next:
		l.next++
		for l.ahead[l.next] {
			delete(l.ahead, l.next)
			l.next++
		}
	default:
		if l.ahead == nil {
			l.ahead = map[uint32]bool{}
		}
		l.ahead[t.N] = true
	}
	if t.N > l.warm {
		l.latency = append(l.latency, at-t.Stamp)
	}
	l.end = at
	return true
}

// warmed ends the warm-up: what was handed over by now does not count in the figures.
// Nothing may run.
func (c *checker) warmed(perSession int) {
	for i := range c.lines {
		l := &c.lines[i]
		l.warm = l.handed
		l.latency = make([]int64, 0, perSession)
	}
}
