package conformance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
)

func leaseCases() []Case {
	return []Case{
		{ID: "C26", Rule: "A handler that runs five leases long is delivered once: the lease is extended.", on: []shapeOf{queue, topic, stream, keyed}, run: c26},
		{ID: "C27", Rule: "Prefetched messages that have not started keep their lease: no redelivery behind a slow handler.", on: shapesOf, run: c27},
		{ID: "C28", Rule: "A consumer frozen past its lease loses the message to another member; thawed, its ack is refused and reported.", on: shapesOf, run: c28},
		{ID: "C29", Rule: "A handler's panic is a failure like any other, and the consumer goes on.", on: []shapeOf{queue, stream}, run: c29},
	}
}

// leases returns n times the lease; where there is none, a while longer than the
// broker takes to miss a dead consumer.
func (e *env) leases(n int) time.Duration {
	if e.h.Lease > 0 && e.caps.Lease > 0 {
		return time.Duration(n) * e.h.Lease
	}
	return min(max(2*e.h.Session, 2*e.h.Tolerance), 15*time.Second)
}

func c26(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	long := e.leases(5)
	h := func(ctx context.Context, _ *core.Delivery) error { return hold(ctx, long) }
	cs := e.steady(2, dest, l, h, workers(4), func(p *core.Policy) { p.DrainTimeout = long + time.Second })
	e.publish(cl, l, dest, e.messages(4, 4)...)
	e.eventually("4 deliveries", func() bool { return l.n() >= 4 })
	if !e.holds(long+e.h.Patience, func() bool { return l.waiting() == 0 }) {
		e.Fatalf("handlers of %v did not end", long)
	}
	e.restFor(l, e.lapse())
	e.noExtra(l, true)
	for _, s := range cs {
		if n := s.Status().Totals.LeaseLost; n > 0 {
			e.Errorf("%d leases were lost", n)
		}
	}
}

func c27(e *env) {
	const depth = 20
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	each := e.leases(5) / depth
	e.publish(cl, l, dest, e.messages(depth, 1)...)
	h := func(ctx context.Context, _ *core.Delivery) error { return hold(ctx, each) }
	e.start(cl, e.sub(dest, "g"), l.handler("slow", h), workers(1), inFlight(depth))
	e.eventually("the first delivery", func() bool { return l.n() > 0 })
	if e.on.partitions == 0 { // a rival would take the partition, and with it what waits
		e.start(e.client(), e.sub(dest, "g"), l.handler("rival", nil))
	}
	if !e.holds(2*e.leases(5)+e.h.Patience, func() bool { return l.waiting() == 0 }) {
		e.Fatalf("lost: %s", some(l.missing()))
	}
	e.restFor(l, e.lapse())
	e.noExtra(l, true)
}

func c28(e *env) {
	if e.h.Spawn == nil {
		e.notExercised("Harness.Spawn is nil: no process to freeze")
	}
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	m := e.message(e.key(1))
	e.publish(cl, l, dest, m)
	const long = 300 * time.Millisecond
	p := e.h.Spawn(e, Job{Role: "consume", On: dest, Group: e.group("g"), Start: e.sub(dest, "g").Start, Hold: long, Concurrency: 1, MaxInFlight: 64})
	if p.Freeze == nil {
		e.notExercised("Process.Freeze is nil: this system freezes no process")
	}
	e.eventually("the delivery in the child", func() bool { return len(p.of("start")) > 0 })
	p.Freeze()
	frozen := time.Now()
	e.start(cl, e.sub(dest, "g"), l.handler("heir", nil))
	e.arrive(l)
	if took := time.Since(frozen); took > e.lapse()+e.h.Tolerance {
		e.Errorf("the frozen consumer's message took %v; lease %v, session %v, tolerance %v", took, e.h.Lease, e.h.Session, e.h.Tolerance)
	}
	p.Thaw()
	e.eventually("the thawed consumer's report of a lost lease", func() bool {
		for _, ev := range p.of("signal") {
			if ev.Text == string(core.SignalLeaseLost) || ev.Text == string(core.SignalRevoked) {
				return true
			}
		}
		return false
	})
	e.rest(l)
	if n := len(l.of(m.ID)); n != 1 {
		e.Errorf("the heir received the message %d times, want once", n)
	}
	if n := len(p.of("start")); n != 1 {
		e.Errorf("the thawed consumer received the message %d times, want once", n)
	}
	e.publish(cl, l, dest, e.messages(3, 3)...) // and the group goes on
	thawed := func() (n int) {
		for _, ev := range p.of("done") {
			if ev.ID != m.ID {
				n++
			}
		}
		return n
	}
	if !e.holds(e.h.Patience, func() bool { return l.n()-1+thawed() >= 3 }) {
		e.Errorf("3 messages after the thaw: the heir handled %d, the thawed consumer %d; its events: %v", l.n()-1, thawed(), p.all())
	}
}

func c29(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	var panics atomic.Int32
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(_ context.Context, d *core.Delivery) error {
		if d.Attempt == 1 && panics.Add(1) <= 5 {
			panic("oven on fire")
		}
		return nil
	}), workers(2))
	e.publish(cl, l, dest, e.messages(20, 5)...)
	e.eventually("20 messages handled after 5 panics", func() bool { return l.n() >= 25 })
	e.rest(l)
	if n := l.n(); n != 25 {
		e.Errorf("20 messages of which 5 panicked once were handled %d times, want 25", n)
	}
}
