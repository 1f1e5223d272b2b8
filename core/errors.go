package core

import (
	"errors"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Error is an error of known class; see [driver.Error].
type Error = driver.Error

// BatchError is the result of a publish, index by index; see [driver.BatchError].
type BatchError = driver.BatchError

// Sentinels for errors.Is. Each error that core or an adapter returns carries one
// of the first ten as its class.
var (
	// ErrTransient: provably nothing happened; the same call may succeed later.
	ErrTransient error = driver.Transient
	// ErrIndeterminate: a publish whose outcome is unknown. The message may be
	// stored; publishing it again may store it twice.
	ErrIndeterminate error = driver.Ambiguous
	// ErrPermanent: the same call will fail again.
	ErrPermanent error = driver.Permanent
	// ErrUnsupported: this destination cannot do what was asked.
	ErrUnsupported error = driver.Unsupported
	// ErrNotFound: the destination, the group or the host does not exist.
	ErrNotFound error = driver.NotFound
	// ErrDenied: authentication, authorisation or a certificate failed.
	ErrDenied error = driver.Denied
	// ErrTooLarge: over a size limit.
	ErrTooLarge error = driver.TooLarge
	// ErrLeaseLost: the delivery belongs to somebody else by now.
	ErrLeaseLost error = driver.LeaseLost
	// ErrConflict: it exists with other settings, or is in use.
	ErrConflict error = driver.Conflict
	// ErrClosed: used after Close.
	ErrClosed error = driver.Closed

	// ErrAlreadySettled: the delivery was settled before; nothing was sent.
	ErrAlreadySettled = errors.New("varal: delivery already settled")
	// ErrKeyBlocked: an earlier message of this key is in the way; this one was not sent.
	ErrKeyBlocked = errors.New("varal: key blocked by an earlier message")
	// ErrRevoked is the cause of a handler's context that ended because its
	// partition went to another member.
	ErrRevoked = errors.New("varal: partition revoked")
	// ErrDrained is the cause of a handler's context that ended because the drain
	// deadline passed.
	ErrDrained = errors.New("varal: drain deadline passed")
	// ErrTimeout is the cause of a handler's context that ended because the attempt
	// took longer than Policy.Timeout.
	ErrTimeout = errors.New("varal: attempt timed out")
)

// verdict is what a handler's error says about its message.
type verdict uint8

const (
	verdictRetry verdict = iota
	verdictPermanent
	verdictIgnore
	verdictReturn
	verdictHalt
)

// steer is an error by which a handler steers the engine.
type steer struct {
	verdict verdict
	after   time.Duration
	err     error
}

func (s *steer) Error() string {
	if s.err == nil {
		return [...]string{"retry", "permanent", "ignored", "returned", "halted"}[s.verdict]
	}
	return s.err.Error()
}

func (s *steer) Unwrap() error { return s.err }

// Is lets a test ask a handler's error for what it says: errors.Is(err, ErrPermanent).
func (s *steer) Is(target error) bool {
	return s.verdict == verdictPermanent && target == ErrPermanent
}

// Permanent marks err as one that no retry will mend: the message is dead-lettered
// at once. err may be nil. errors.Is(Permanent(err), ErrPermanent) is true.
func Permanent(err error) error { return &steer{verdict: verdictPermanent, err: err} }

// Ignore marks the message as done although the handler failed with err.
func Ignore(err error) error { return &steer{verdict: verdictIgnore, err: err} }

// Return gives the message back untried: it comes again, here or elsewhere, and the
// attempt is not counted where the broker can help it.
func Return(err error) error { return &steer{verdict: verdictReturn, err: err} }

// Halt stops the subscription: the message is given back, nothing behind it is
// lost, and Consume returns err.
func Halt(err error) error { return &steer{verdict: verdictHalt, err: err} }

// RetryAfter asks for the next attempt no sooner than d from now.
func RetryAfter(d time.Duration, err error) error { return &steer{after: d, err: err} }

// classify reads a handler's error: by the outermost steering error, else by class
// (Permanent, TooLarge, Unsupported are permanent), else it is a retry.
func classify(err error) (v verdict, after time.Duration) {
	if s, ok := errors.AsType[*steer](err); ok {
		return s.verdict, s.after
	}
	switch driver.ClassOf(err) {
	case driver.Permanent, driver.Unsupported, driver.TooLarge:
		return verdictPermanent, 0
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return verdictRetry, e.After
	}
	return verdictRetry, 0
}
