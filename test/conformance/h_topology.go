package conformance

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func topologyCases() []Case {
	return []Case{
		{ID: "C61", Rule: "Provisioning is idempotent and race-safe; verify and plan create nothing and name what is missing.", on: shapesOf, run: c61},
		{
			ID: "C62", Rule: "A scheduled message is never early and at most a tolerance late, also when its publisher has gone.", on: []shapeOf{queue, topic, stream},
			gate: gate{need: driver.NeedSchedule, on: true, refuse: c62refused}, run: c62,
		},
		{
			ID: "C63", Rule: "An expired message is not delivered and not counted as a failure.", on: []shapeOf{queue, topic, stream},
			gate: gate{need: driver.NeedTTL, on: true, refuse: c63refused}, run: c63,
		},
		{ID: "C64", Rule: "An id that comes twice has one effect within the window, over a restart and a redelivery to another instance, and two after it.", on: shapesOf, run: c64},
		{ID: "X01", Rule: "Capability honesty: what is declared is constant, and whatever is not declared is refused by name when it is required.", on: shapesOf, run: honesty},
	}
}

func c61(e *env) {
	cl := e.client()
	adm := cl.Admin()
	if adm == nil {
		e.notExercised("Driver.Admin is nil")
	}
	dest := e.h.Missing(e, e.on.shape)
	dest.Partitions = e.on.partitions
	want := []driver.Resource{{Destination: dest}}
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), e.h.Patience)
		defer cancel()
		if _, err := adm.Apply(ctx, want, driver.Delete); err != nil {
			e.Errorf("Apply(delete): %v", err)
		}
	})
	for _, mode := range []driver.Mode{driver.Verify, driver.Plan, driver.Verify} {
		e.missing(adm, want, mode)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := e.h.Open(e).Admin().Apply(e.within(e.h.Patience), want, driver.Create); err != nil {
				e.Errorf("one of 8 concurrent Apply(create): %v", err)
			}
		})
	}
	wg.Wait()
	for _, mode := range []driver.Mode{driver.Create, driver.Verify, driver.Plan} {
		changes, err := adm.Apply(e.within(e.h.Patience), want, mode)
		if err != nil || len(changes) > 0 {
			e.Errorf("Apply(%s) of what exists gave %v, %v; want no difference", mode, changes, err)
		}
	}
	l := newLedger()
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", nil))
	e.publish(cl, l, dest, e.messages(5, 5)...)
	e.exactly(l)
	e.drain(s)
	if changes, err := adm.Apply(e.within(e.h.Patience), []driver.Resource{{Destination: dest, Options: map[string]string{"no-such-option": "1"}}}, driver.Verify); !errors.Is(err, core.ErrUnsupported) {
		e.Errorf("an unknown option gave %v, %v; want class unsupported", changes, err)
	}
}

// missing checks that a mode reports a missing resource and does not make it.
func (e *env) missing(adm driver.Admin, want []driver.Resource, mode driver.Mode) {
	changes, err := adm.Apply(e.within(e.h.Patience), want, mode)
	if err != nil {
		e.Fatalf("Apply(%s) of what is missing: %v", mode, err)
	}
	for _, c := range changes {
		if c.Field == "exists" && !c.Done && strings.Contains(c.Subject, want[0].Name) {
			return
		}
	}
	e.Errorf("Apply(%s) of a missing %s gave %v; want a change of field \"exists\" that is not done", mode, e.on.name, changes)
}

func c62refused(e *env) {
	m := e.message("")
	m.Delay = time.Second
	e.neverPublished(m, driver.NeedSchedule)
}

func c63refused(e *env) {
	m := e.message("")
	m.TTL = time.Second
	e.neverPublished(m, driver.NeedTTL)
}

// neverPublished checks that a message is refused by name and never arrives.
func (e *env) neverPublished(m *core.Message, n driver.Need) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	e.refusedBy("Publish", e.try(e.h.Patience, cl, l, dest, m), n.String())
	e.publish(cl, l, dest, e.message(""))
	e.start(cl, e.sub(dest, "g"), l.handler("one", nil))
	e.exactly(l)
}

func c62(e *env) {
	dest, l := e.dest("g"), newLedger()
	e.start(e.client(), e.sub(dest, "g"), l.handler("one", nil))
	pub := e.client()
	delays := []time.Duration{200 * time.Millisecond, 1500 * time.Millisecond, 0, 700 * time.Millisecond}
	at, of := map[string]time.Time{}, map[string]time.Duration{}
	for _, d := range delays {
		m := e.message("")
		m.Delay = d
		at[m.ID], of[m.ID] = time.Now(), d
		e.publish(pub, l, dest, m)
	}
	e.close(pub)
	e.exactly(l)
	for _, v := range l.all() {
		if d := v.start.Sub(at[v.id]); d < of[v.id] || d > of[v.id]+e.h.Tolerance {
			e.Errorf("scheduled for %v, came after %v (tolerance %v)", of[v.id], d, e.h.Tolerance)
		}
	}
}

func c63(e *env) {
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	cl := e.client()
	short, long, none := e.message(""), e.message(""), e.message("")
	short.TTL, long.TTL = 200*time.Millisecond, time.Minute
	e.publish(cl, l, dest, short, long, none)
	time.Sleep(short.TTL + e.h.Tolerance)
	e.start(cl, e.sub(dest, "g"), l.handler("one", nil), retry(2, time.Millisecond), dead(to))
	e.eventually("what has not expired", func() bool { return l.n() >= 2 })
	e.rest(l)
	e.noExtra(l, true)
	if n := len(l.of(short.ID)); n != 0 {
		e.Errorf("the expired message was delivered")
	}
	if len(l.of(long.ID)) != 1 || len(l.of(none.ID)) != 1 {
		e.Errorf("messages that have not expired were delivered %d and %d times", len(l.of(long.ID)), len(l.of(none.ID)))
	}
	if dl.n() != 0 {
		e.Errorf("the expired message was dead-lettered")
	}
}

// honesty requires every need there is, one by one.
func honesty(e *env) {
	dest := e.dest("g")
	for range 20 {
		if c := e.h.Open(e).Capabilities(dest); c != e.caps {
			e.Fatalf("the capabilities of one destination vary: %+v and %+v", e.caps, c)
		}
	}
	for n := range driver.NeedCount {
		r := core.Resolve(e.caps, n)
		sub := e.sub(dest, "g")
		sub.Require = []core.Need{n}
		cl := e.client()
		s, err := cl.Start(e.within(e.h.Patience), sub, func(context.Context, *core.Delivery) error { return nil }, policy())
		switch {
		case r.Support == core.Refused:
			e.refusedBy("Start", err, n.String())
		case err != nil:
			e.Errorf("%s is %s and yet Start gave %v", n, r.Support, err)
		case r.Support == core.Emulated && r.Cost == "":
			e.Errorf("%s is emulated and nobody says at what cost", n)
		}
		if s != nil {
			e.drain(s)
		}
		e.close(cl)
	}
	m := e.message("")
	if e.caps.Priorities == 0 {
		m.Priority = 1
		e.neverPublished(m, driver.NeedPriority)
	}
}
