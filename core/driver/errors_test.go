package driver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/varal-go/varal/core/driver"
)

var classes = map[driver.Class]string{
	driver.Transient: "transient", driver.Ambiguous: "ambiguous", driver.Permanent: "permanent",
	driver.Unsupported: "unsupported", driver.NotFound: "not found", driver.Denied: "denied",
	driver.TooLarge: "too large", driver.LeaseLost: "lease lost", driver.Conflict: "conflict", driver.Closed: "closed",
}

func TestErrorClasses(t *testing.T) {
	t.Parallel()
	for class, name := range classes {
		err := fmt.Errorf("outer: %w", driver.Errorf("publish queue q", class, "cause %w", io.EOF))
		if class.String() != name || class.Error() != "varal: "+name {
			t.Errorf("class %d is called %q and %q", class, class.String(), class.Error())
		}
		if want := "outer: publish queue q: cause EOF (" + name + ")"; err.Error() != want {
			t.Errorf("text %q, want %q", err, want)
		}
		for other := range classes {
			if got := errors.Is(err, other); got != (other == class) {
				t.Errorf("errors.Is(%s, %s) = %v", class, other, got)
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: the cause cannot be reached", class)
		}
		if driver.ClassOf(err) != class || driver.ClassOf(class) != class {
			t.Errorf("ClassOf: %v and %v, want %v", driver.ClassOf(err), driver.ClassOf(class), class)
		}
	}
	var zero driver.Class
	if zero.String() != "invalid" || (driver.Closed+1).String() != "invalid" {
		t.Error("an invalid class has a name")
	}
}

func TestClassOf(t *testing.T) {
	t.Parallel()
	inner := driver.Errorf("in", driver.NotFound, "x")
	for want, err := range map[driver.Class]error{
		0:                nil,
		driver.Transient: driver.Errorf("out", driver.Transient, "%w", inner), // the outermost says what it means
		driver.NotFound:  fmt.Errorf("a: %w", inner),
		driver.Denied:    fmt.Errorf("a: %w", driver.Denied),
	} {
		if got := driver.ClassOf(err); got != want {
			t.Errorf("ClassOf(%v) = %v, want %v", err, got, want)
		}
	}
	if got := driver.ClassOf(context.Canceled); got != 0 {
		t.Errorf("ClassOf of a foreign error is %v", got)
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"closed":          &driver.Error{Class: driver.Closed},
		"seek: closed":    &driver.Error{Op: "seek", Class: driver.Closed},
		"EOF (transient)": &driver.Error{Class: driver.Transient, Err: io.EOF},
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
}

func TestBatch(t *testing.T) {
	t.Parallel()
	if driver.Batch(nil) != nil || driver.Batch(make([]error, 3)) != nil {
		t.Error("a batch without failures is an error")
	}
	large, lost := driver.Errorf("p", driver.TooLarge, "x"), fmt.Errorf("y: %w", io.ErrUnexpectedEOF)
	err := driver.Batch([]error{nil, large, nil, lost})
	if !errors.Is(err, driver.TooLarge) || !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, driver.Closed) {
		t.Errorf("errors.Is does not look into each of %v", err)
	}
	if want := "2 of 4 failed, first: p: x (too large)"; err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
	if want := "p: x (too large)"; driver.Batch([]error{large}).Error() != want {
		t.Errorf("text of a batch of one: %q", driver.Batch([]error{large}))
	}
	if want := "0 of 2 failed"; (&driver.BatchError{Errs: make([]error, 2)}).Error() != want {
		t.Error("text of an empty BatchError")
	}
}

func TestResultAt(t *testing.T) {
	t.Parallel()
	one := driver.Errorf("p", driver.TooLarge, "x")
	batch := driver.Batch([]error{nil, one})
	whole := driver.Errorf("p", driver.Transient, "all")
	// An entry that itself wraps a batch must not be taken for the batch, and a wrapped batch
	// is one error for all.
	nested := driver.Batch([]error{fmt.Errorf("n: %w", batch), nil})
	wrapped := fmt.Errorf("w: %w", batch)
	for i, c := range []struct {
		err  error
		at   int
		want error
	}{
		{nil, 0, nil},
		{nil, 9, nil},
		{batch, 0, nil},
		{batch, 1, one},
		{batch, 2, nil},
		{whole, 0, whole},
		{whole, 9, whole},
		{nested, 1, nil},
		{wrapped, 0, wrapped},
	} {
		if got := driver.ResultAt(c.err, c.at); got != c.want { //nolint:errorlint // the very error
			t.Errorf("%d: ResultAt(%v, %d) = %v, want %v", i, c.err, c.at, got, c.want)
		}
	}
}
