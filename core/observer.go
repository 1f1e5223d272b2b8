package core

import "time"

// Observer is told what the engine does: the hook for metrics and traces. A nil
// Observer costs nothing. Methods are called concurrently, must not block and must
// not keep pointers they are given. Label metrics by destination and subscription
// only, never by anything that comes from a message.
type Observer interface {
	// Published is called after each Client.Publish, once for all its messages.
	Published(PublishInfo)
	// Attempted is called after each run of a handler.
	Attempted(d *Delivery, a AttemptInfo)
	// Settled is called after each Settle the broker answered.
	Settled(SettleInfo)
	// Signalled is called for what an operator should know.
	Signalled(Signal)
}

// PublishInfo describes one Publish call.
type PublishInfo struct {
	// To is where the Messages, a count, were to go.
	To       Destination
	Messages int
	Failed   int // Indeterminate ones included
	// Duration includes waiting for confirmation; Err is what Publish returned.
	Duration time.Duration
	Err      error
}

// AttemptInfo describes one run of a handler.
type AttemptInfo struct {
	// Subscription is its name.
	Subscription string
	// Started and Duration are those of the run.
	Started  time.Time
	Duration time.Duration
	Queued   time.Duration // from receipt to start
	// Err is what the handler returned, or made of its panic.
	Err     error
	Outcome string // ack, retry, dead-letter, return, halt, halt key, discard, revoked
}

// SettleInfo describes one Settle call.
type SettleInfo struct {
	// Subscription is its name.
	Subscription string
	// Entries were in the call, of which the broker did not take Failed.
	Entries int
	Failed  int
	// Duration is of the broker's call; Err is its error, nil when all was settled.
	Duration time.Duration
	Err      error
}

// SignalKind names an operational event.
type SignalKind string

// The signals.
const (
	SignalLeaseLost        SignalKind = "lease_lost"
	SignalDeadLettered     SignalKind = "dead_lettered"
	SignalDeadLetterFailed SignalKind = "dead_letter_failed"
	SignalDiscarded        SignalKind = "discarded"
	SignalHalted           SignalKind = "halted"
	SignalKeyHalted        SignalKind = "key_halted" // until an operator says how it goes on
	SignalReceiveFailed    SignalKind = "receive_failed"
	SignalSettleFailed     SignalKind = "settle_failed"
	SignalRevoked          SignalKind = "revoked"
	SignalOverlap          SignalKind = "order_overlap_risk" // attempts may run beside the next owner's
	SignalStale            SignalKind = "stale_dropped"
	SignalAbandoned        SignalKind = "abandoned"
	SignalStuck            SignalKind = "stuck"       // a run, or what holds up a partition
	SignalGapSkipped       SignalKind = "gap_skipped" // an operational failure
	SignalLimited          SignalKind = "header_limit"
	SignalBreakerOpen      SignalKind = "breaker_open"         // so many attempts in a row have failed
	SignalBreakerClosed    SignalKind = "breaker_closed"       // one has succeeded again
	SignalDedupDown        SignalKind = "dedup_down"           // the store does not answer; what it says is unknown
	SignalDedupMarkLost    SignalKind = "dedup_mark_lost"      // it may be handled again if it comes again
	SignalRetryBudget      SignalKind = "retry_budget"         // retries wait for it from now on
	SignalStateIgnored     SignalKind = "commit_state_ignored" // what it covered is handled again
)

// Signal is an operational event.
type Signal struct {
	// Subscription is its name.
	Subscription string
	// Kind is what happened.
	Kind SignalKind
	// Partition and ID tell where and to which message; "" when it is about several.
	Partition string
	ID        string
	// Count is how many messages, partitions or failed tries in a row it is about.
	Count int
	// Err is the cause, nil where there is none.
	Err error
}
