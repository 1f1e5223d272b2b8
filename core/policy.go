package core

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Order is how deliveries of one subscription are scheduled.
type Order uint8

// The orders.
const (
	Unordered Order = iota // any message may run beside any other
	ByKey                  // one message per key at a time, in order, through retries
)

// String returns "unordered" or "by key".
func (o Order) String() string {
	if o == ByKey {
		return "by key"
	}
	return "unordered"
}

// Exhausted says what becomes of a message whose attempts have run out.
type Exhausted uint8

// The choices.
const (
	// ExhaustedDefault is the dead letter where one is declared, else Halt.
	ExhaustedDefault Exhausted = iota
	// ExhaustedHalt stops the subscription; the message stays with the broker.
	ExhaustedHalt
	// ExhaustedDiscard drops the message, counted and logged.
	ExhaustedDiscard
)

// String returns the choice in lower case.
func (e Exhausted) String() string {
	return [...]string{"dead letter, else halt", "halt", "discard"}[min(e, 2)]
}

// Jitter spreads the waits between attempts.
type Jitter uint8

// The jitters.
const (
	FullJitter Jitter = iota // uniform in [0, wait)
	HalfJitter               // uniform in [wait/2, wait*3/2)
	NoJitter
)

// RetryPolicy is exponential back-off: before attempt n+1 it waits
// min(Cap, Base·2^(n-1)), with jitter.
type RetryPolicy struct {
	// Base is the first wait. 0 = 100 ms.
	Base time.Duration `json:"base,omitempty"`
	// Cap is the longest wait. 0 = 1 minute. At most 7 days.
	Cap time.Duration `json:"cap,omitempty"`
	// Attempts in all, the first included. 0 = no limit. At most 1000.
	Attempts int `json:"attempts,omitempty"`
	// MaxElapsed is the longest time from the first failure seen by this process to
	// the start of another attempt. 0 = no limit.
	MaxElapsed time.Duration `json:"max_elapsed,omitempty"`
	// Jitter. 0 = FullJitter.
	Jitter Jitter `json:"jitter,omitempty"`
}

// Stage places a Wrapper: lower stages run further out.
type Stage uint8

// The stages, outermost first.
const (
	StageTrace Stage = iota * 10
	StageLog
	StageGuard
	StageUser
)

// Wrapper is a handler wrapper of a Layer. Wrappers run by Stage, then by Name,
// whatever the order of listing.
type Wrapper struct {
	// Name is shown in the chain of the manifest.
	Name string
	// Stage is the place in the chain.
	Stage Stage
	// Wrap is called once, at start; the Handler it returns runs for every attempt.
	Wrap func(Handler) Handler
}

// Layer edits the policy of a subscription. The same Name twice is refused at
// start. An error from Edit is returned by Start.
type Layer struct {
	// Name is shown in the manifest.
	Name string
	// Edit changes the policy before the subscription starts.
	Edit func(*Policy) error
}

// Policy is everything about a subscription that is not its handler. Plain data;
// the zero Policy is valid: 256 in flight, 16 handlers at once, no order, retry
// without limit, no dead letter.
type Policy struct {
	// MaxInFlight is the most messages received and not settled. 0 = 256.
	MaxInFlight int
	// MaxInFlightBytes is the same in bytes of headers and body; a larger message
	// comes alone. 0 = 64 MiB.
	MaxInFlightBytes int64
	// MaxPerKey is how many messages of one key may wait under ByKey; from there on its
	// partition is asked for no more until half of them are done, and other partitions go
	// on. 0 = a quarter of MaxInFlight, once half of that is taken.
	MaxPerKey int
	// Concurrency is the most handlers at once. 0 = 16. MaxInFlight bounds it too, as
	// Consumer.SetLimit last set it.
	Concurrency int
	// Order. 0 = Unordered. ByKey needs a source with Capabilities.Order.
	Order Order
	// AfterTerminal says what becomes of a key behind a message that failed for good. 0 =
	// ContinueKey. The others need ByKey; DeadLetterKey needs a dead letter.
	AfterTerminal AfterTerminal
	// BlockFor is how long DeadLetterKey lasts, counted from the failure. 0 = 1 hour.
	BlockFor time.Duration
	// Retry. Zero = without limit, 100 ms doubling to 1 minute.
	Retry RetryPolicy
	// DeadLetter is where messages go that cannot be handled. Zero = nowhere. It
	// must exist at start (or Provision must be allowed to create it).
	DeadLetter Destination
	// NativeDeadLetter uses the broker's own dead letter (Capabilities.DeadLetter).
	NativeDeadLetter bool
	// Exhausted. 0 = DeadLetter if there is one, else Halt.
	Exhausted Exhausted
	// Quarantine dead-letters a message without running it again once the process has
	// ended without a word so many times while it was handled: a message that kills its
	// consumer. One that does so at once costs up to twice as many, since it has to be told
	// from those beside it. 0 = 3, negative =
	// never. At most 7. It needs a dead letter and a log whose commits carry a state
	// (Capabilities.StateBytes); elsewhere the broker's own limit is the one.
	Quarantine int
	// Timeout of one attempt; its context ends with cause ErrTimeout and the attempt
	// counts as failed. 0 = none.
	Timeout time.Duration
	// Breaker stops everything for a while when all attempts fail. Zero = none.
	Breaker BreakerPolicy
	// RetryBudget bounds the retries of all messages together. Zero = no bound.
	RetryBudget RetryBudgetPolicy
	// Dedup acknowledges a message that has had its effect before unseen. Zero = no.
	Dedup DedupPolicy
	// Stuck is what is done about work that does not end. Zero = a warning after a minute.
	Stuck StuckPolicy
	// DrainTimeout is how long running handlers may take after Consume's ctx ended,
	// before their own ctx is cancelled. 0 = 30 s. Negative = at once.
	DrainTimeout time.Duration
	// AckFirst settles before the handler runs: at most once. Not with Retry, DeadLetter
	// or ByKey.
	AckFirst bool
	// PanicCrashes lets a panic of the handler or of Dedup.Store crash the process, instead
	// of counting as a failed attempt or as a call without an answer.
	PanicCrashes bool
	// Wrappers around the handler.
	Wrappers []Wrapper

	layers     []string     // names of the layers applied, for Describe and conflict errors
	retry      bool         // Retry was asked for by a layer
	batch      BatchHandler // Client.StartBatch; nil = the handler gets one delivery at a time
	batchLimit int
	iterate    bool // Client.Messages: a delivery is open until the loop settles it
}

// LayerNames returns the names of the layers that edited this policy, sorted.
func (p *Policy) LayerNames() []string { return append([]string(nil), p.layers...) }

// SetRetry sets Retry and notes that it was asked for.
func (p *Policy) SetRetry(r RetryPolicy) { p.Retry, p.retry = r, true }

const (
	defaultMaxInFlight      = 256
	defaultMaxInFlightBytes = 64 << 20
	defaultConcurrency      = 16
	defaultDrain            = 30 * time.Second
	defaultQuarantine       = 3
	defaultBlock            = time.Hour
	defaultBase             = 100 * time.Millisecond
	defaultCap              = time.Minute
	maxAttempts             = 1000
	maxRetryDelay           = 7 * 24 * time.Hour
)

// setDefaults fills the zero fields.
func (p *Policy) setDefaults() {
	setDefault(&p.MaxInFlight, defaultMaxInFlight)
	setDefault(&p.MaxInFlightBytes, defaultMaxInFlightBytes)
	if p.iterate {
		p.Concurrency = p.MaxInFlight // every open delivery has a worker that waits for it
	}
	setDefault(&p.Concurrency, defaultConcurrency)
	setDefault(&p.DrainTimeout, defaultDrain)
	setDefault(&p.Quarantine, defaultQuarantine)
	setDefault(&p.BlockFor, defaultBlock)
	setDefault(&p.Stuck.Warn, defaultWarn)
	if p.Breaker.Failures > 0 {
		setDefault(&p.Breaker.OpenFor, defaultOpenFor)
	}
	if p.Dedup.Store != nil {
		setDefault(&p.Dedup.Lease, defaultDedupLease)
		setDefault(&p.Dedup.Keep, defaultDedupKeep)
		if !p.PanicCrashes {
			p.Dedup.Store = guardedStore{p.Dedup.Store}
		}
	}
	setDefault(&p.Retry.Base, defaultBase)
	setDefault(&p.Retry.Cap, max(defaultCap, p.Retry.Base))
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// validate refuses values out of range and combinations that lose messages.
func (p *Policy) validate() error {
	bad := func(field, format string, args ...any) error {
		return driver.Errorf("policy", driver.Permanent, field+": "+format, args...)
	}
	switch {
	case p.MaxInFlight < 0 || p.MaxInFlight > 1<<24:
		return bad("MaxInFlight", "%d is not within 1 and %d", p.MaxInFlight, 1<<24)
	case p.MaxInFlightBytes < 0:
		return bad("MaxInFlightBytes", "%d is negative", p.MaxInFlightBytes)
	case p.Concurrency < 0 || p.Concurrency > 1<<20:
		return bad("Concurrency", "%d is not within 1 and %d", p.Concurrency, 1<<20)
	case p.MaxPerKey < 0:
		return bad("MaxPerKey", "%d is negative", p.MaxPerKey)
	case p.Timeout < 0:
		return bad("Timeout", "%v is negative", p.Timeout)
	case p.Breaker.Failures < 0 || p.Breaker.OpenFor < 0 || p.Breaker.OpenFor > maxRetryDelay:
		return bad("Breaker", "%d failures, open for %v: neither may be negative, nor the time be over %v", p.Breaker.Failures, p.Breaker.OpenFor, maxRetryDelay)
	case p.Breaker.Failures == 0 && p.Breaker.OpenFor > 0:
		return bad("Breaker", "OpenFor without Failures: say after how many failures in a row it opens")
	case p.RetryBudget.PerSecond < 0 || p.RetryBudget.PerSecond > maxRetryBudget:
		return bad("RetryBudget.PerSecond", "%d is not within 0 (no budget) and %d", p.RetryBudget.PerSecond, maxRetryBudget)
	case p.RetryBudget.Percent < 0 || p.RetryBudget.Percent > 100:
		return bad("RetryBudget.Percent", "%d is not within 0 and 100", p.RetryBudget.Percent)
	case p.RetryBudget.PerSecond == 0 && p.RetryBudget.Percent > 0:
		return bad("RetryBudget", "Percent without PerSecond: nothing would ever be retried once all fail; say how many a second are allowed at least")
	case p.BlockFor < 0:
		return bad("BlockFor", "%v is negative", p.BlockFor)
	case p.Quarantine > maxCrashes:
		return bad("Quarantine", "%d is over %d", p.Quarantine, maxCrashes)
	case p.Retry.Attempts < 0 || p.Retry.Attempts > maxAttempts:
		return bad("Retry.Attempts", "%d is not within 0 (no limit) and %d", p.Retry.Attempts, maxAttempts)
	case p.Retry.Base < 0 || p.Retry.Base > maxRetryDelay:
		return bad("Retry.Base", "%v is not within 0 and %v", p.Retry.Base, maxRetryDelay)
	case p.Retry.Cap < 0 || p.Retry.Cap > maxRetryDelay:
		return bad("Retry.Cap", "%v is not within 0 and %v", p.Retry.Cap, maxRetryDelay)
	case p.Retry.MaxElapsed < 0:
		return bad("Retry.MaxElapsed", "%v is negative", p.Retry.MaxElapsed)
	}
	if err := p.validateStuck(bad); err != nil {
		return err
	}
	if err := p.validateDedup(bad); err != nil {
		return err
	}
	return p.validateCombination(bad)
}

// validateCombination refuses what is fine field by field and loses messages
// together.
func (p *Policy) validateCombination(bad func(field, format string, args ...any) error) error {
	dead := p.DeadLetter != (Destination{}) || p.NativeDeadLetter
	switch {
	case p.AckFirst && (p.retry || dead):
		return bad("AckFirst", "settles before the handler runs, so a failed message can be neither retried nor dead-lettered; drop Retry and DeadLetter, or AckFirst")
	case p.batch != nil && p.AckFirst:
		return bad("AckFirst", "settles before the handler runs, so a batch could not say where it failed; handle single messages, or drop AckFirst")
	case p.batch != nil && len(p.Wrappers) > 0:
		return bad("Wrappers", "%s wraps the handler of one message; a batch handler does that itself", p.Wrappers[0].Name)
	case p.AckFirst && p.Order == ByKey:
		return bad("AckFirst", "settles before the handler runs, so order per key through failures cannot hold; drop SessionOrder or AckFirst")
	case p.DeadLetter != (Destination{}) && p.NativeDeadLetter:
		return bad("DeadLetter", "both a destination (%s) and the broker's own dead letter are set; choose one", p.DeadLetter)
	case dead && p.Exhausted != ExhaustedDefault:
		return bad("Exhausted", "%s contradicts the dead letter; drop one of them", p.Exhausted)
	case p.AfterTerminal != ContinueKey && p.Order != ByKey:
		return bad("AfterTerminal", "%s is about keys: add SessionOrder(...)", p.AfterTerminal)
	case p.AfterTerminal == DeadLetterKey && p.DeadLetter == (Destination{}):
		return bad("AfterTerminal", "%s needs a place for what follows: add DeadLetter(...)", p.AfterTerminal)
	case p.AfterTerminal == HaltKey && p.Exhausted != ExhaustedDefault:
		return bad("AfterTerminal", "%s contradicts OnExhausted(%s); drop one of them", p.AfterTerminal, p.Exhausted)
	case p.AfterTerminal == HaltKey:
	case p.retry && p.Retry.Attempts > 0 && !dead && p.Exhausted == ExhaustedDefault:
		return bad("Retry.Attempts", "after %d attempts there is no place for the message: add DeadLetter(...), or say OnExhausted(Halt) or OnExhausted(Discard)", p.Retry.Attempts)
	}
	return nil
}

// apply runs the layers over a fresh policy and validates the result.
func assemble(layers []Layer) (*Policy, error) {
	p := &Policy{}
	seen := map[string]bool{}
	for _, l := range layers {
		if l.Edit == nil {
			return nil, driver.Errorf("policy", driver.Permanent, "layer %q has no Edit function", l.Name)
		}
		if seen[l.Name] {
			return nil, driver.Errorf("policy", driver.Permanent, "layer %s is listed twice", l.Name)
		}
		seen[l.Name] = true
		p.layers = append(p.layers, l.Name)
		if err := l.Edit(p); err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.Name, err)
		}
	}
	p.sortNames()
	if err := p.validate(); err != nil {
		return nil, err
	}
	p.setDefaults()
	return p, nil
}

// sortNames puts layers and wrappers in the order that does not depend on listing.
func (p *Policy) sortNames() {
	slices.Sort(p.layers)
	slices.SortStableFunc(p.Wrappers, func(a, b Wrapper) int {
		return cmp.Or(cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Name, b.Name))
	})
}
