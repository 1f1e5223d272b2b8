package core

import "time"

// BreakerPolicy stops a subscription whose attempts all fail: a dependency that is down
// would cost every message its attempts, and be asked all the time. The zero BreakerPolicy
// is none.
type BreakerPolicy struct {
	// Failures in a row that open it, of whatever messages; those that are Permanent do not
	// count, since they say something about the message. 0 = no breaker.
	Failures int `json:"failures,omitempty"`
	// OpenFor is how long nothing starts then, and nothing more is received. After it one
	// attempt is made: if it succeeds all goes on, else the breaker stays open for twice as
	// long, up to ten times OpenFor. 0 = 5 s.
	OpenFor time.Duration `json:"open_for,omitempty"`
}

const (
	defaultOpenFor = 5 * time.Second
	maxOpenings    = 10 // times OpenFor
)

// breaker is the state of one. Without a clock of its own: whoever calls says when.
type breaker struct {
	row    int           // failures in a row while it is closed
	length time.Duration // of the present opening
	until  time.Time     // end of the opening; zero = it is closed
	half   bool          // the opening is over, and one attempt decides
	beside int           // attempts that ran at that time: one that hangs must not be waited for
}

func (b *breaker) isClosed() bool { return b.until.IsZero() }

// failed counts a failure and reports whether it opens the breaker. What had started before
// an opening and fails in it changes nothing.
func (b *breaker) failed(p BreakerPolicy, now time.Time) (opens bool) {
	switch {
	case p.Failures == 0, !b.isClosed() && !b.half:
		return false
	case b.isClosed():
		if b.row++; b.row < p.Failures {
			return false
		}
		b.length = p.OpenFor
	default:
		b.length = min(2*b.length, maxOpenings*p.OpenFor)
	}
	b.row, b.half, b.until = 0, false, now.Add(b.length)
	return true
}

// succeeded reports whether a success closes the breaker. In an opening it does not: it
// began before.
func (b *breaker) succeeded() (closes bool) {
	b.row = 0
	if b.isClosed() || !b.half {
		return false
	}
	*b = breaker{}
	return true
}

// tick reports whether an opening is over now, while so many attempts run.
func (b *breaker) tick(now time.Time, running int) (over bool) {
	if b.isClosed() || b.half || now.Before(b.until) {
		return false
	}
	b.half, b.beside = true, running
	return true
}

// slots is how many of n attempts may run at once.
func (b *breaker) slots(n int) int {
	switch {
	case b.isClosed():
		return n
	case b.half:
		return min(n, b.beside+1)
	}
	return 0
}

// attemptFailed has the breaker count a failure that may be the dependency's. Callers hold
// mu.
func (s *Consumer) attemptFailed(now time.Time, err error) {
	if !s.breaker.failed(s.p.Breaker, now) {
		return
	}
	n := s.p.Breaker.Failures
	s.later(func() { s.signalled(SignalBreakerOpen, "", "", n, err) })
	s.redemand()
	signal(s.clockWake)
}

// attemptSucceeded is the other outcome. Callers hold mu.
func (s *Consumer) attemptSucceeded() {
	s.retries.succeeded(s.p.RetryBudget)
	if s.breaker.row == 0 && s.breaker.isClosed() || !s.breaker.succeeded() {
		return
	}
	s.later(func() { s.signalled(SignalBreakerClosed, "", "", 1, nil) })
	s.redemand()
	s.wakeWorker()
}

// tryAgain lets one attempt start once an opening is over. Callers hold mu.
func (s *Consumer) tryAgain(now time.Time) {
	if s.breaker.tick(now, s.running) {
		s.redemand() // there may be nothing here to try
		s.wakeWorker()
	}
}
