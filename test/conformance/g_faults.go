package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func faultCases() []Case {
	cs := []Case{
		{ID: "C54", Rule: "After two restarts of the broker under traffic, publishing and consuming go on by themselves and nothing confirmed is lost, nor what was scheduled.", on: []shapeOf{queue, topic, stream, keyed}, alone: true, meet: true, run: c54},
		{ID: "C55", Rule: "After a cut and after a half-open connection the same; the consumer notices in time.", on: []shapeOf{queue, stream, keyed}, alone: true, meet: true, run: c55},
	}
	cs = append(cs, lifecycleLateCases()...)
	return append(cs, Case{ID: "C60", Rule: "Health is green only while publishing and consuming can progress, and red soon after an outage begins.", on: []shapeOf{queue, stream}, alone: true, run: c60})
}

// throughFault publishes and consumes while fault happens; all that was confirmed must
// arrive, and nothing that failed.
func (e *env) throughFault(name string, fault func(s *core.Consumer, tp *tap, handled func() int)) {
	dest, l := e.dest("g"), newLedger()
	cl, tp := e.tapped()
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", nil), workers(4))
	e.assigned(s)
	pub, stop := e.traffic(l, dest)
	e.eventually("traffic", func() bool { return l.n() > 30 })
	fault(s, tp, l.n)
	healed := time.Now()
	e.eventually(name+": a publish afterwards", func() bool { return e.try(2*time.Second, pub, l, dest, e.message(e.key(1))) == nil })
	n := l.n()
	e.eventually(name+": a delivery afterwards", func() bool { return l.n() > n })
	// Twice 10 s, the session and the tolerance: a broker that has just started shares the
	// processors with its clients, and says that it serves before it knows its groups.
	if d := time.Since(healed); d > 2*(10*time.Second+e.h.Session+e.h.Tolerance) {
		e.Errorf("%s: the first delivery came %v after the end of the fault", name, d)
	}
	stop()
	e.arrive(l)
	e.rest(l)
	e.noExtra(l, false)
}

// traffic publishes one by one until stopped, tolerating failures.
func (e *env) traffic(l *ledger, dest driver.Destination) (*core.Client, func()) {
	cl := e.client()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			_ = e.try(2*time.Second, cl, l, dest, e.message(e.key(i%5)))
			_ = hold(ctx, 5*time.Millisecond)
		}
	}()
	stop := func() { cancel(); <-done }
	e.Cleanup(stop)
	return cl, stop
}

func c54(e *env) {
	if e.h.Restart == nil {
		e.notExercised("Harness.Restart is nil")
	}
	scheduled := e.scheduledBefore()
	e.throughFault("restart", func(s *core.Consumer, _ *tap, handled func() int) {
		e.meet.do(func() { e.h.Restart(e) })
		e.eventually("the consumer after the first restart", func() bool { return len(s.Status().Partitions) > 0 })
		n := handled()
		e.eventually("deliveries between the restarts", func() bool { return handled() > n+10 })
		e.meet.do(func() { e.h.Restart(e) })
	})
	scheduled()
}

// scheduledBefore publishes a message that is due during or after what the case does next,
// where the destination can schedule, and returns the check that it comes then.
func (e *env) scheduledBefore() (check func()) {
	if core.Resolve(e.caps, core.NeedSchedule).Support == core.Refused {
		return func() {}
	}
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	e.start(cl, e.sub(dest, "g"), l.handler("scheduled", nil))
	m := e.message("")
	m.Delay = 3 * time.Second
	due := time.Now().Add(m.Delay)
	e.publish(cl, l, dest, m)
	return func() {
		e.arrive(l)
		e.rest(l)
		e.noExtra(l, false)
		if early := due.Sub(l.of(m.ID)[0].start); early > 0 {
			e.Errorf("a message scheduled before the restarts came %v early", early)
		}
	}
}

func c55(e *env) {
	if e.h.Break == nil {
		e.notExercised("Harness.Break is nil: no connection to cut")
	}
	e.throughFault("cut", func(_ *core.Consumer, tp *tap, _ func() int) {
		e.noticed("cut", e.h.Break, tp)
	})
	if e.h.HalfOpen == nil {
		e.notExercised("Harness.HalfOpen is nil: a cut was checked, a half-open connection was not")
	}
	e.throughFault("half-open", func(_ *core.Consumer, tp *tap, _ func() int) {
		e.noticed("half-open", e.h.HalfOpen, tp)
	})
}

// noticed waits out a fault and checks that the consumer saw it.
func (e *env) noticed(what string, fault func(testing.TB) func(), tp *tap) {
	e.meet.do(func() { e.meet.heal = fault(e) })
	began := time.Now()
	saw := func() bool {
		return tp.saw(driver.Disconnected) || e.sigs.count(core.SignalReceiveFailed) > 0
	}
	if !e.holds(max(e.h.Notice, e.h.Cut), saw) {
		e.Errorf("%s: the consumer noticed nothing within %v", what, time.Since(began))
	}
	time.Sleep(time.Until(began.Add(e.h.Cut))) // the load of the case: an outage of this length
	e.meet.do(func() { e.meet.heal() })
}

func c60(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", nil))
	e.assigned(s)
	e.publish(cl, l, dest, e.messages(5, 5)...)
	e.exactly(l)
	e.eventually("green health", func() bool { return cl.Health().Ready })
	if e.h.Break == nil {
		e.notExercised("Harness.Break is nil: green was checked, red was not")
	}
	heal := e.h.Break(e)
	if !e.holds(e.h.Notice+e.h.Tolerance, func() bool { return !cl.Health().Ready }) {
		e.Errorf("health is still green %v after the connections were cut", e.h.Notice+e.h.Tolerance)
	}
	heal()
	e.eventually("green health again", func() bool { return cl.Health().Ready })
	e.publish(cl, l, dest, e.messages(5, 5)...)
	e.arrive(l)
}
