package core

import "time"

// RetryBudgetPolicy bounds how many retries a subscription makes, of all its messages
// together. Back-off alone does not: while a dependency is half down, a thousand messages
// that wait a minute each still ask it seventeen times a second more than it can bear. What
// is over the budget is not given up and costs no attempt: it waits longer. The zero
// RetryBudgetPolicy is no bound.
type RetryBudgetPolicy struct {
	// PerSecond retries are allowed whatever happens; those not made in a second are lost.
	// 0 = no budget.
	PerSecond int `json:"per_second,omitempty"`
	// Percent of the messages that succeed allow one retry more each: with 10, ten successes
	// pay for one. 0 = none.
	Percent int `json:"percent,omitempty"`
}

// maxRetryBudget bounds PerSecond.
const maxRetryBudget = 1_000_000

// retryBudget says when retries may be scheduled. It is a token bucket written as the time
// of the next token (the virtual scheduling of the generic cell rate algorithm, ITU-T I.371):
// no token is ever added by a clock.
type retryBudget struct {
	next time.Time // of the next retry, were none saved up
	dry  bool      // the last one had to wait
}

// take schedules one retry and returns how much longer than its back-off it waits.
func (b *retryBudget) take(p RetryBudgetPolicy, now time.Time) time.Duration {
	if p.PerSecond == 0 {
		return 0
	}
	each := time.Second / time.Duration(p.PerSecond)
	if full := now.Add(each - time.Second); b.next.Before(full) {
		b.next = full // a second's worth is saved, no more
	}
	wait := b.next.Sub(now)
	b.next = b.next.Add(each)
	b.dry = wait > 0
	return min(max(wait, 0), maxRetryDelay)
}

// succeeded saves a share of a retry.
func (b *retryBudget) succeeded(p RetryBudgetPolicy) {
	if p.Percent > 0 {
		each := time.Second / time.Duration(p.PerSecond)
		b.next = b.next.Add(-each * time.Duration(p.Percent) / 100)
	}
}

// budgeted is the back-off of a retry with what the budget adds to it. Callers hold mu.
func (s *Consumer) budgeted(wait time.Duration, now time.Time, err error) time.Duration {
	was := s.retries.dry
	more := s.retries.take(s.p.RetryBudget, now)
	if more == 0 {
		return wait
	}
	s.counts.PutOff++
	if !was {
		s.later(func() { s.signalled(SignalRetryBudget, "", "", 1, err) })
	}
	return min(wait+more, maxRetryDelay)
}
