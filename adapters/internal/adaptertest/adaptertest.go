// Package adaptertest is what the tests of several adapters do alike: they find their
// broker, make destinations of their own, publish, receive, settle, and cut connections.
// It is imported by tests alone. What an adapter must show is no matter of this package
// but of the conformance suite.
//
// Functions that take a testing.TB end the test where they can't do what they are for;
// call them on the test's goroutine. All of the package may be used by parallel tests.
package adaptertest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Bounds of calls that are to succeed: long enough for a busy machine.
const (
	openLimit  = 20 * time.Second
	closeLimit = 10 * time.Second
	adminLimit = 30 * time.Second
)

// URL is that of a real broker: kafka, rabbitmq, redis or sqs. Without one the test is
// skipped, or fails where VARAL_REQUIRE names the broker.
func URL(t testing.TB, broker string) string {
	t.Helper()
	name := "VARAL_" + strings.ToUpper(broker) + "_URL"
	u := os.Getenv(name)
	if u == "" {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), broker) {
			t.Fatalf("%s is not set and VARAL_REQUIRE names %s", name, broker)
		}
		t.Skipf("%s is not set: needs a real broker", name)
	}
	return u
}

// Within is a context that ends with the test or after d.
func Within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// Open opens a driver with c as the changes leave it, and closes it with the test, which
// fails where that does not succeed.
func Open[C any](t testing.TB, open func(context.Context, C) (driver.Driver, error), c C, changes ...func(*C)) driver.Driver {
	t.Helper()
	for _, change := range changes {
		change(&c)
	}
	d, err := open(Within(t, openLimit), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(Within(t, closeLimit)); err != nil {
			t.Error("close:", err)
		}
	})
	return d
}

var names atomic.Int64

// Name is one that no other destination has, of this process or another, on a broker that
// many use. sep stands between its parts.
func Name(sep string) string {
	return fmt.Sprintf("test%[1]s%[2]d%[1]s%[3]d%[1]s%[4]d", sep, os.Getpid(), time.Now().UnixNano()%1e9, names.Add(1))
}

// Create makes a destination and groups of it, and returns what it asked for, the
// destination first.
func Create(t testing.TB, d driver.Driver, to driver.Destination, groups ...string) []driver.Resource {
	t.Helper()
	want := []driver.Resource{{Destination: to}}
	for _, g := range groups {
		want = append(want, driver.Resource{Destination: to.ForGroup(g)})
	}
	if _, err := d.Admin().Apply(Within(t, adminLimit), want, driver.Create); err != nil {
		t.Fatal(err)
	}
	return want
}

// Fresh makes a destination like to with a name of its own, and groups of it, and removes
// it with the test. d must stay open until then: the test is not to close it.
func Fresh(t testing.TB, d driver.Driver, to driver.Destination, groups ...string) driver.Destination {
	t.Helper()
	to.Name = Name("-")
	want := Create(t, d, to, groups...)
	t.Cleanup(func() {
		if _, err := d.Admin().Apply(Within(t, adminLimit), want[:1], driver.Delete); err != nil {
			t.Error(err)
		}
	})
	return to
}

// Eventually asks every 2 ms, for d at the most, whether ok; the test fails if it never is.
// In a testing/synctest bubble the waiting costs no time.
func Eventually(t testing.TB, what string, d time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain for %s", d, what)
		}
	}
}

// WantClass fails the test if err has another class; class 0 is that of no error.
func WantClass(t testing.TB, err error, class driver.Class) {
	t.Helper()
	if got := driver.ClassOf(err); got != class {
		t.Fatalf("got %v (class %v), want class %v", err, got, class)
	}
}
