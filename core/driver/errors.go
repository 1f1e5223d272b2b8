package driver

import (
	"errors"
	"fmt"
	"time"
)

// Class says what an error means for the caller. A Class is itself an error, so
// errors.Is(err, driver.NotFound) asks for the class of err. The zero Class means
// unclassified.
type Class uint8

// The classes.
const (
	Transient   Class = iota + 1 // publish: provably nothing happened; receive: call again
	Ambiguous                    // may have happened
	Permanent                    // will fail again
	Unsupported                  // this destination cannot do it
	NotFound                     // destination, group or host missing
	Denied                       // authentication, authorisation, certificate
	TooLarge                     // over a size limit
	LeaseLost                    // the delivery is no longer ours
	Conflict                     // differs from what exists, or is in use
	Closed                       // used after Close
)

var classNames = []string{
	"transient", "ambiguous", "permanent", "unsupported", "not found", "denied",
	"too large", "lease lost", "conflict", "closed",
}

// String returns the class in lower case.
func (c Class) String() string { return name(c, classNames...) }

// Error makes a Class usable as a target of errors.Is.
func (c Class) Error() string { return "varal: " + c.String() }

// Error is an error of known class. Err is the cause, often the SDK's own error;
// errors.As reaches it.
type Error struct {
	// Op is what was tried, for example "publish queue tickets".
	Op string
	// Class tells the caller what helps: to try again, to look, to change something.
	Class Class
	// After is the broker's throttle hint; 0 = none.
	After time.Duration
	Err   error
}

// Errorf returns an *Error of the class with a formatted cause; %w works.
func Errorf(op string, class Class, format string, args ...any) *Error {
	return &Error{Op: op, Class: class, Err: fmt.Errorf(format, args...)}
}

// Error returns "op: cause (class)".
func (e *Error) Error() string {
	s := e.Class.String()
	if e.Err != nil {
		s = e.Err.Error() + " (" + s + ")"
	}
	if e.Op != "" {
		s = e.Op + ": " + s
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is this error's Class.
func (e *Error) Is(target error) bool {
	c, ok := target.(Class)
	return ok && c == e.Class
}

// ClassOf returns the class of err: that of the outermost *Error (or Class) in its
// chain, 0 where there is none or err is nil.
func ClassOf(err error) Class {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	if c, ok := errors.AsType[Class](err); ok {
		return c
	}
	return 0
}

// BatchError is the result of a batch: Errs[i] is that of message i, nil = done.
type BatchError struct{ Errs []error }

// Error counts the failures and quotes the first.
func (e *BatchError) Error() string {
	failed, first := 0, error(nil)
	for _, err := range e.Errs {
		if err != nil {
			if failed++; first == nil {
				first = err
			}
		}
	}
	if first == nil {
		return fmt.Sprintf("0 of %d failed", len(e.Errs))
	}
	if len(e.Errs) == 1 {
		return first.Error()
	}
	return fmt.Sprintf("%d of %d failed, first: %v", failed, len(e.Errs), first)
}

// Unwrap returns the failures, so that errors.Is and errors.As look into each.
func (e *BatchError) Unwrap() []error {
	var out []error
	for _, err := range e.Errs {
		if err != nil {
			out = append(out, err)
		}
	}
	return out
}

// ResultAt returns the result of entry i of a batch from the error its call returned:
// nil for a nil err, Errs[i] for a *BatchError, err itself otherwise.
func ResultAt(err error, i int) error {
	if err == nil {
		return nil
	}
	// Not errors.As: a wrapped BatchError inside one entry must not be mistaken
	// for the result of the whole batch.
	if b, ok := err.(*BatchError); ok { //nolint:errorlint // see above
		if i < len(b.Errs) {
			return b.Errs[i]
		}
		return nil
	}
	return err
}

// Batch returns nil when no entry of errs failed, a *BatchError otherwise.
func Batch(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return &BatchError{Errs: errs}
		}
	}
	return nil
}
