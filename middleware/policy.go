package middleware

import (
	"fmt"
	"time"

	"github.com/varal-go/varal/core"
)

// Exponential is back-off that doubles: see core.RetryPolicy for its fields.
type Exponential = core.RetryPolicy

// Retry tries a failed message again. With Attempts set it needs a place for what
// fails to the end: DeadLetter, or OnExhausted.
func Retry(p Exponential) core.Layer {
	return core.Layer{Name: "Retry", Edit: func(pol *core.Policy) error {
		pol.SetRetry(p)
		return nil
	}}
}

// DeadLetter sends a message there that cannot be handled: its attempts ran out, its
// error is Permanent, or it cannot be decoded. The copy is confirmed before the
// original is settled.
func DeadLetter(to core.Destination) core.Layer {
	return core.Layer{Name: "DeadLetter", Edit: func(p *core.Policy) error {
		if to.Name == "" {
			return fmt.Errorf("%w: the destination has no name", core.ErrPermanent)
		}
		p.DeadLetter = to
		return nil
	}}
}

// NativeDeadLetter rejects such a message to the broker's own dead letter.
func NativeDeadLetter() core.Layer {
	return core.Layer{Name: "NativeDeadLetter", Edit: func(p *core.Policy) error {
		p.NativeDeadLetter = true
		return nil
	}}
}

// OnExhausted says what becomes of a message whose attempts ran out where there is no
// dead letter.
func OnExhausted(e core.Exhausted) core.Layer {
	return core.Layer{Name: "OnExhausted", Edit: func(p *core.Policy) error {
		p.Exhausted = e
		return nil
	}}
}

// Prefetch bounds the messages received and not settled.
func Prefetch(maxInFlight int) core.Layer {
	return core.Layer{Name: "Prefetch", Edit: func(p *core.Policy) error {
		if err := positive("Prefetch", int64(maxInFlight)); err != nil {
			return err
		}
		p.MaxInFlight = maxInFlight
		return nil
	}}
}

// PrefetchBytes bounds the same in bytes of headers and body.
func PrefetchBytes(maxInFlight int64) core.Layer {
	return core.Layer{Name: "PrefetchBytes", Edit: func(p *core.Policy) error {
		if err := positive("PrefetchBytes", maxInFlight); err != nil {
			return err
		}
		p.MaxInFlightBytes = maxInFlight
		return nil
	}}
}

// SessionOrder runs one message per key at a time, in order and through retries, with
// up to so many keys in parallel. The source must keep order per key. Not together
// with Concurrency: it says the same.
func SessionOrder(keys int) core.Layer {
	return core.Layer{Name: "SessionOrder", Edit: func(p *core.Policy) error {
		if err := positive("SessionOrder", int64(keys)); err != nil {
			return err
		}
		p.Order = core.ByKey
		return setConcurrency(p, keys)
	}}
}

// HaltKey keeps a message whose attempts ran out, and holds up its key and no other
// until an operator says how it goes on: see core.HaltKey. It needs SessionOrder.
func HaltKey() core.Layer { return afterTerminal("HaltKey", core.HaltKey, 0) }

// DeadLetterKey sends what follows a dead-lettered message in its key to the dead letter,
// too, for so long (0 = an hour): see core.DeadLetterKey. It needs SessionOrder and
// DeadLetter.
func DeadLetterKey(blockFor time.Duration) core.Layer {
	return afterTerminal("DeadLetterKey", core.DeadLetterKey, blockFor)
}

func afterTerminal(name string, a core.AfterTerminal, blockFor time.Duration) core.Layer {
	return core.Layer{Name: name, Edit: func(p *core.Policy) error {
		if p.AfterTerminal != core.ContinueKey {
			return fmt.Errorf("%w: both HaltKey and DeadLetterKey say what becomes of a key; keep one", core.ErrPermanent)
		}
		p.AfterTerminal, p.BlockFor = a, blockFor
		return nil
	}}
}

// Breaker stops a subscription when so many attempts in a row have failed: nothing starts
// and nothing more is received for openFor (0 = 5 s), then one attempt decides. Messages
// keep their place and their attempts. See core.BreakerPolicy.
func Breaker(failures int, openFor time.Duration) core.Layer {
	return core.Layer{Name: "Breaker", Edit: func(p *core.Policy) error {
		p.Breaker = core.BreakerPolicy{Failures: failures, OpenFor: openFor}
		return nil
	}}
}

// Dedup acknowledges a message whose ID has had its effect before, instead of handling it
// again: DedupWith with the defaults.
func Dedup(store core.DedupStore) core.Layer { return DedupWith(core.DedupPolicy{Store: store}) }

// DedupWith is Dedup with a key, scope, window or failure mode of your own: see
// core.DedupPolicy.
func DedupWith(p core.DedupPolicy) core.Layer {
	return core.Layer{Name: "Dedup", Edit: func(to *core.Policy) error {
		if p.Store == nil {
			return fmt.Errorf("%w: Dedup needs a store: core.NewMemoryDedup in one process, redis.OpenDedup for several", core.ErrPermanent)
		}
		to.Dedup = p
		return nil
	}}
}

// RetryBudget bounds the retries of a subscription, of all its messages together: perSecond of
// them, and one more for each 100/percent messages that succeed (percent 0 = none). What is
// over it waits longer. See core.RetryBudgetPolicy.
func RetryBudget(perSecond, percent int) core.Layer {
	return core.Layer{Name: "RetryBudget", Edit: func(p *core.Policy) error {
		if err := positive("RetryBudget", int64(perSecond)); err != nil {
			return err
		}
		p.RetryBudget = core.RetryBudgetPolicy{PerSecond: perSecond, Percent: percent}
		return nil
	}}
}

// Stuck says what is done about work that does not end: see core.StuckPolicy.
func Stuck(p core.StuckPolicy) core.Layer {
	return core.Layer{Name: "Stuck", Edit: func(to *core.Policy) error { to.Stuck = p; return nil }}
}

// Quarantine dead-letters a message without running it again once so many processes have
// ended without a word in the middle of it; negative = never. See core.Policy.Quarantine.
func Quarantine(ends int) core.Layer {
	return core.Layer{Name: "Quarantine", Edit: func(p *core.Policy) error { p.Quarantine = ends; return nil }}
}

// Concurrency bounds the handlers that run at once.
func Concurrency(handlers int) core.Layer {
	return core.Layer{Name: "Concurrency", Edit: func(p *core.Policy) error {
		if err := positive("Concurrency", int64(handlers)); err != nil {
			return err
		}
		return setConcurrency(p, handlers)
	}}
}

// setConcurrency refuses two layers that would overwrite each other depending on how
// they are listed.
func setConcurrency(p *core.Policy, n int) error {
	if p.Concurrency != 0 && p.Concurrency != n {
		return fmt.Errorf("%w: SessionOrder and Concurrency both bound the handlers that run at once, to %d and %d; keep one", core.ErrPermanent, p.Concurrency, n)
	}
	p.Concurrency = n
	return nil
}

// Timeout bounds one attempt; the handler's context ends with cause core.ErrTimeout.
func Timeout(d time.Duration) core.Layer {
	return core.Layer{Name: "Timeout", Edit: func(p *core.Policy) error {
		if d <= 0 {
			return fmt.Errorf("%w: Timeout of %v is not positive", core.ErrPermanent, d)
		}
		p.Timeout = d
		return nil
	}}
}

// Drain bounds how long running handlers may take once the subscription stops; 0 or
// less cancels them at once.
func Drain(d time.Duration) core.Layer {
	return core.Layer{Name: "Drain", Edit: func(p *core.Policy) error {
		if d <= 0 {
			d = -1
		}
		p.DrainTimeout = d
		return nil
	}}
}

// AckFirst settles a message before its handler runs: at most once. What is running
// or waiting when the process dies is lost. Not with Retry, DeadLetter, SessionOrder.
func AckFirst() core.Layer {
	return core.Layer{Name: "AckFirst", Edit: func(p *core.Policy) error {
		p.AckFirst = true
		return nil
	}}
}

// CrashOnPanic lets a panic of the handler end the process. Without it a panic is a
// failed attempt like any other error.
func CrashOnPanic() core.Layer {
	return core.Layer{Name: "CrashOnPanic", Edit: func(p *core.Policy) error {
		p.PanicCrashes = true
		return nil
	}}
}

func positive(what string, n int64) error {
	if n < 1 {
		return fmt.Errorf("%w: %s(%d): the number must be at least 1", core.ErrPermanent, what, n)
	}
	return nil
}
