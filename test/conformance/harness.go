package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// Harness is what Run needs to know about an adapter and its broker. Required: Name,
// Open, Destination. A hook that is nil makes the cases that need it "not
// exercised". Hooks may be called from several goroutines at once, except Break,
// HalfOpen and Restart, during which no other case runs.
type Harness struct {
	// Name of the adapter and Broker with its version, for the score card.
	Name, Broker string
	// Real: a broker of its own, not a fake inside the test process.
	Real bool
	// Emulator: what runs is a stand-in for the service that the adapter is made for. Then
	// it is not Real, whoever's process it is.
	Emulator bool

	// Open returns a fresh driver on the same broker each time. It closes with t, if
	// the case has not closed it before.
	Open func(t testing.TB) driver.Driver
	// Destination makes a new, empty destination and its groups, and removes them
	// with t. partitions > 0 asks for order per key.
	Destination func(t testing.TB, s driver.Shape, partitions int, groups ...string) driver.Destination
	// Missing returns a destination that does not exist. nil = a generated name.
	Missing func(t testing.TB, s driver.Shape) driver.Destination

	// Break cuts all connections of drivers opened so far and refuses new ones, until
	// heal.
	Break func(t testing.TB) (heal func())
	// HalfOpen leaves the connections open and swallows what goes through them, until
	// heal.
	HalfOpen func(t testing.TB) (heal func())
	// Restart stops the broker and starts it again, and returns when it is up.
	Restart func(t testing.TB)
	// Spawn runs a job in a process that can be killed and frozen; see SpawnCommand and
	// SpawnLocal.
	Spawn func(t testing.TB, job Job) *Process
	// Dedup opens the store of handled ids that goes with the broker, each time anew and
	// with the marks that are there. It closes with t. nil = one in this process.
	Dedup func(t testing.TB) core.DedupStore
	// OpenDown opens a driver on an address where no broker answers. It returns what
	// Open of the adapter returned.
	OpenDown func(ctx context.Context) (driver.Driver, error)
	// BadCredentials opens a driver with the password it is given, which is wrong, and
	// uses it once; the error of either is the result. Where nobody checks a password, the
	// adapter must refuse to be given one.
	BadCredentials func(t testing.TB, password string) error

	// Lease is how long a delivery is ours without extending it; 0 = no lease per
	// message.
	Lease time.Duration
	// Session is how long the broker takes to notice that a consumer's process died. 0
	// = at once.
	Session time.Duration
	// ReturnsCount: the broker counts a message that was given back untried as a hand-out,
	// and no adapter can keep it from doing so.
	ReturnsCount bool
	// StopCounts: a request for messages that is open when a consumer stops cannot be taken
	// back. What it is handed goes back untried, and the broker has counted it: a stop may
	// cost a message one attempt, and never gives it one more.
	StopCounts bool
	// Tolerance is how late the broker and this machine may be. 0 = 1 s.
	Tolerance time.Duration
	// Patience bounds every wait for something that must happen. 0 = 15 s + 10 ×
	// Tolerance.
	Patience time.Duration
	// Notice is how long a client may take to see that its broker is gone. 0 = Session +
	// 2 × Tolerance.
	Notice time.Duration
	// Cut is how long Break and HalfOpen last in C55. 0 = 5 s.
	Cut time.Duration
	// BodyLimit bounds the largest body that C01 sends where the adapter declares more.
	// 0 = 8 MiB.
	BodyLimit int
	// Bulk bounds how many messages a case sends for their number alone (C05, C41), on a
	// server that is slow. The score card tells. 0 = as many as the case says.
	Bulk int
	// Parallel is how many cases run at once. 0 = 12.
	Parallel int
	// SecondTry runs a case that failed once more, by itself, after all others have ended:
	// on a busy machine a case that measures times can fail for want of a processor. If
	// the second try passes, both are printed and the card marks the case as unsteady.
	SecondTry bool

	// Only are the ids of the cases to run, where all of them would take too long. The others
	// are not exercised, and allowed to be, and the score card does not record the run. nil =
	// all.
	Only []string
	// Deviations: case id, or id and shape as in "C41/keyed" → in which way the server under
	// test, an emulator say, is not what it stands for. Such a case is not run; it is not
	// exercised, and allowed to be.
	Deviations map[string]string
	// AllowNotExercised: case id, or id and shape as in "C30/stream" → reason. nil allows
	// every case to be not exercised; otherwise one that is not listed fails.
	AllowNotExercised map[string]string
}

func (h *Harness) setDefaults(t testing.TB) {
	t.Helper()
	if h.Name == "" || h.Open == nil || h.Destination == nil {
		t.Fatal("conformance: Harness needs Name, Open and Destination")
	}
	setDefault(&h.Tolerance, time.Second)
	setDefault(&h.Patience, 15*time.Second+10*h.Tolerance)
	setDefault(&h.Notice, h.Session+2*h.Tolerance)
	setDefault(&h.Cut, 5*time.Second)
	setDefault(&h.BodyLimit, 8<<20)
	setDefault(&h.Parallel, 12)
	if h.Missing == nil {
		h.Missing = func(_ testing.TB, s driver.Shape) driver.Destination {
			return driver.Destination{Shape: s, Name: fmt.Sprintf("conformance-missing-%x", rand.Uint64())}
		}
	}
}

// bulk is how many messages a case sends that wants n of them for their number alone.
func (h *Harness) bulk(n int) int {
	if h.Bulk > 0 {
		return min(n, h.Bulk)
	}
	return n
}

// leftOut tells that Only does not name a case.
func (h *Harness) leftOut(id string) bool { return h.Only != nil && !slices.Contains(h.Only, id) }

// deviation tells why a case is not run on a shape.
func (h *Harness) deviation(id, shape string) (why string, ok bool) {
	if why, ok = h.Deviations[id+"/"+shape]; !ok {
		why, ok = h.Deviations[id]
	}
	return why, ok
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
