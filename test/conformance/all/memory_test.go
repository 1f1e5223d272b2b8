package all_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/conformance"
)

// memoryHarness is the suite's harness of the memory adapter on a broker of its own.
// wrap may put something around each driver.
func memoryHarness(wrap func(driver.Driver) driver.Driver) conformance.Harness {
	const lease, session = 1500 * time.Millisecond, 500 * time.Millisecond
	b := memory.NewBroker()
	var n atomic.Int64
	open := func(ctx context.Context) (driver.Driver, error) {
		return memory.Open(ctx, memory.Config{Broker: b, Lease: lease})
	}
	mustOpen := func(t testing.TB) driver.Driver {
		d, err := open(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeDriver(t, d) })
		return d
	}
	if wrap == nil {
		wrap = func(d driver.Driver) driver.Driver { return d }
	}
	return conformance.Harness{
		Name: "memory", Broker: "in process", Lease: lease, Session: session, Tolerance: 400 * time.Millisecond, Cut: time.Second,
		Open: func(t testing.TB) driver.Driver { return wrap(mustOpen(t)) },
		Destination: func(t testing.TB, s driver.Shape, partitions int, groups ...string) driver.Destination {
			d := driver.Destination{Shape: s, Name: fmt.Sprintf("conformance-%d", n.Add(1)), Partitions: partitions}
			createDestination(t, mustOpen(t), d, groups...)
			return d
		},
		Break: func(testing.TB) func() {
			b.SetDown(true)
			return func() { b.SetDown(false) }
		},
		HalfOpen: func(testing.TB) func() {
			b.SetSilent(true)
			return func() { b.SetSilent(false) }
		},
		Restart: func(testing.TB) { b.Restart() },
		Spawn: func(t testing.TB, job conformance.Job) *conformance.Process {
			d := mustOpen(t)
			return conformance.SpawnLocal(t, d, wrap, session, func() { b.Evict(d) }, job)
		},
		OpenDown: func(ctx context.Context) (driver.Driver, error) {
			down := memory.NewBroker()
			down.SetDown(true)
			d, err := memory.Open(ctx, memory.Config{Broker: down})
			if err != nil {
				return nil, err
			}
			return wrap(d), nil
		},
		BadCredentials: func(t testing.TB, password string) error {
			_, err := memory.ParseURL("memory://nobody:" + password + "@" + t.Name())
			return err
		},
		SecondTry:         true,
		AllowNotExercised: map[string]string{}, // nothing
	}
}

func closeDriver(t testing.TB, d driver.Driver) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := d.Close(ctx); err != nil {
		t.Logf("closing a driver: %v", err)
	}
}

// createDestination makes a destination and, where groups exist before their first
// consumer, its groups; both are removed with t.
func createDestination(t testing.TB, d driver.Driver, dest driver.Destination, groups ...string) {
	t.Helper()
	want := []driver.Resource{{Destination: dest}}
	for _, g := range groups {
		if dest.Shape == driver.Topic {
			want = append(want, driver.Resource{Destination: dest.ForGroup(g), Start: driver.Position{Kind: driver.Earliest}})
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for { // a broker that has just started may not be ready for groups
		_, err := d.Admin().Apply(ctx, want, driver.Create)
		if err == nil {
			break
		}
		if driver.ClassOf(err) != driver.Transient || ctx.Err() != nil {
			t.Fatalf("create %v: %v", dest, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		// What is kept for a group need not go with its source: a RabbitMQ that has the
		// leavings of twenty runs, four thousand queues, answers nobody in time.
		if dest.Shape != driver.Queue {
			for _, g := range groups {
				_, err := d.Admin().Apply(ctx, []driver.Resource{{Destination: dest.ForGroup(g)}}, driver.Delete)
				if c := driver.ClassOf(err); err != nil && c != driver.Unsupported && c != driver.NotFound {
					t.Logf("delete %v: %v", dest.ForGroup(g), err)
				}
			}
		}
		if _, err := d.Admin().Apply(ctx, want[:1], driver.Delete); err != nil {
			t.Logf("delete %v: %v", dest, err)
		}
	})
}

func TestMemory(t *testing.T) { conformance.Run(t, memoryHarness(nil)) }

// TestDeviations: a case in which the server is not what it stands for is not run, on the
// shapes that are named, and never counts as a pass.
func TestDeviations(t *testing.T) {
	t.Parallel()
	h := trialHarness(nil)
	h.Deviations = map[string]string{"C07": "it invents destinations", "C61/topic": "it has no list"}
	got := map[string]map[string]conformance.Outcome{}
	for _, r := range conformance.Trial(t, h, "C07", "C61") {
		got[r.ID] = r.Shapes
	}
	for id, want := range map[string][2]conformance.Outcome{"C07": {conformance.NotExercised, conformance.NotExercised}, "C61": {conformance.Pass, conformance.NotExercised}} {
		if have := [2]conformance.Outcome{got[id]["queue"], got[id]["topic"]}; have != want {
			t.Errorf("%s on queue and topic: %v, want %v", id, have, want)
		}
	}
}
