// Package sdktext tells the words of a client library from our own in the text of an
// error. A library may quote a secret; we do not. Taking secrets out of the whole text
// would rewrite our words wherever a password is one of them ("***assword"), and so
// print it.
package sdktext

import (
	"io/fs"
	"net"
	"slices"
	"strings"

	"github.com/varal-go/varal/core/driver"
)

// Error marks the text of Err as somebody else's. It reads as Err does.
type Error struct{ Err error }

// Error returns the text of Err.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Mark returns err as a foreign one; nil for nil. What has a class already is ours: its
// author put words around a cause, and marked that.
func Mark(err error) error {
	switch err.(type) { //nolint:errorlint // the outermost only: see above
	case nil:
		return nil
	case *driver.Error:
		return err
	}
	return &Error{err}
}

// Rewrite returns the text of err with every foreign part of it passed through edit;
// the words between them stay. Errors of the operating system and the network count as
// foreign without a mark: they quote paths and addresses.
func Rewrite(err error, edit func(string) string) string {
	text := err.Error()
	parts := collect(err, nil)
	slices.Reverse(parts)
	// From the end: our words come before the cause they explain, and a cause as short
	// as "EOF" could be found in them.
	end, out := len(text), ""
	for _, part := range parts {
		at := strings.LastIndex(text[:end], part)
		if at < 0 { // somebody reworded it: then all of it is theirs
			return edit(text)
		}
		out = edit(part) + text[at+len(part):end] + out
		end = at
	}
	return text[:end] + out
}

// collect returns the foreign texts in err, outermost first, in the order of the text.
func collect(err error, parts []string) []string {
	switch e := err.(type) { //nolint:errorlint // it walks the tree itself
	case *Error, *fs.PathError, *net.OpError, *net.DNSError:
		if s := e.Error(); s != "" {
			parts = append(parts, s)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			parts = collect(inner, parts)
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			parts = collect(inner, parts)
		}
	}
	return parts
}
