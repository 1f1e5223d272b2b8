package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func lifecycleCases() []Case {
	return []Case{
		{ID: "C53", Rule: "With the broker down a start ends in time with a typed error; bad credentials are denied and nothing else.", on: []shapeOf{queue}, run: c53},
	}
}

func lifecycleLateCases() []Case {
	return []Case{
		{ID: "C57", Rule: "A graceful stop finishes and settles what runs, lets it publish, gives the rest back untouched, and dead-letters nothing.", on: shapesOf, run: c57},
		{ID: "C58", Rule: "Past the stop's deadline handlers are cancelled and their messages returned, not counted as failures.", on: shapesOf, run: c58},
		{ID: "C59", Rule: "Close is idempotent, use after it gives closed, stop and start works, and ten clients that come and go leave the group healthy.", on: shapesOf, run: c59},
	}
}

func c53(e *env) {
	if e.h.OpenDown == nil {
		e.notExercised("Harness.OpenDown is nil: no address without a broker")
	}
	const limit = 3 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	start := time.Now()
	d, err := e.h.OpenDown(ctx)
	if err == nil { // it connects when it is first used
		cl := core.NewClient(d, core.Options{Provision: core.ProvisionNone, FailFast: true})
		err = cl.Publish(ctx, driver.Destination{Shape: e.on.shape, Name: "conformance-down"}, e.message(""))
		e.close(cl)
	}
	if over := time.Since(start) - limit; over > 500*time.Millisecond+e.h.Tolerance {
		e.Errorf("starting with the broker down ended %v after its deadline", over)
	}
	switch c := driver.ClassOf(err); c {
	case driver.Transient, driver.Ambiguous, driver.NotFound:
	default:
		e.Errorf("starting with the broker down gave %v; want a transient error", err)
	}
	if e.h.BadCredentials == nil {
		e.notExercised("Harness.BadCredentials is nil: the broker down was checked, a wrong password was not")
	}
	password := fmt.Sprintf("wrong-%x", e.rng.Uint64())
	err = e.h.BadCredentials(e, password)
	if !errors.Is(err, core.ErrDenied) {
		e.Errorf("bad credentials gave %v; want class denied", err)
	}
	if err != nil && strings.Contains(err.Error(), password) {
		e.Errorf("the error about bad credentials shows the password: %v", err)
	}
}

func c57(e *env) {
	dest, out := e.dest("g"), e.dest("g")
	to, dl := e.dlq()
	l, lo := newLedger(), newLedger()
	e.start(e.client(), e.sub(out, "g"), lo.handler("out", nil))
	cl, tp := e.tapped()
	begun, release := make(chan struct{}, 100), make(chan struct{})
	h := func(ctx context.Context, d *core.Delivery) error {
		begun <- struct{}{}
		if err := hold2(ctx, release); err != nil {
			return err
		}
		m := e.message(d.Key)
		lo.expect(m)
		if err := cl.Publish(ctx, out, m); err != nil {
			e.Errorf("a handler that finishes during Close could not publish: %v", err)
			return err
		}
		lo.outcome(m.ID, confirmed)
		return nil
	}
	edits := []func(*core.Policy){workers(4), inFlight(20), retry(1, time.Millisecond), dead(to), func(p *core.Policy) { p.DrainTimeout = e.h.Patience }}
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", h), edits...)
	e.publish(e.client(), l, dest, e.messages(20, 20)...)
	for range 4 {
		<-begun
	}
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), e.h.Patience)
		defer cancel()
		closed <- cl.Close(ctx)
	}()
	// Close is under way; nothing new may start now.
	e.eventually("the end of receiving", func() bool { return s.Status().State != "running" && tp.idle() })
	n := l.n()
	close(release)
	e.must(<-closed)
	if m := l.n(); m > n || n > 4 {
		e.Errorf("%d handlers began, %d of them during the stop; 4 ran when it began", m, m-n)
	}
	e.start(e.client(), e.sub(dest, "g"), l.handler("two", nil), edits...)
	e.exactly(l)
	e.exactly(lo)
	if dl.n() != 0 {
		e.Errorf("the stop dead-lettered %d messages", dl.n())
	}
	for _, v := range l.by("two") {
		if v.attempt != 1 && !e.h.ReturnsCount {
			e.Errorf("message %s, never tried before, came at attempt %d", v.id, v.attempt)
		}
	}
}

func c58(e *env) {
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	cl := e.client()
	var causes atomic.Int32
	edits := []func(*core.Policy){workers(4), retry(1, time.Millisecond), dead(to)}
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", func(ctx context.Context, _ *core.Delivery) error {
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), core.ErrDrained) {
			causes.Add(1)
		}
		return ctx.Err()
	}), append(edits, func(p *core.Policy) { p.DrainTimeout = 100 * time.Millisecond })...)
	e.publish(e.client(), l, dest, e.messages(4, 4)...)
	e.eventually("4 deliveries", func() bool { return l.running() == 4 })
	e.drain(s)
	if n := causes.Load(); n != 4 {
		e.Errorf("%d of 4 handlers were cancelled with cause ErrDrained", n)
	}
	e.start(e.client(), e.sub(dest, "g"), l.handler("two", nil), edits...)
	e.arrive(l)
	e.rest(l)
	if n := len(l.by("two")); n != 4 {
		e.Errorf("the 4 returned messages were handled %d times afterwards", n)
	}
	if dl.n() != 0 {
		e.Errorf("%d messages were dead-lettered because of the stop", dl.n())
	}
}

func c59(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl, tp := e.tapped()
	s := e.start(cl, e.sub(dest, "g"), l.handler("stays", nil))
	e.drain(s)
	e.start(cl, e.sub(dest, "g"), l.handler("again", nil)) // stop, then start
	e.publish(cl, l, dest, e.messages(10, 5)...)
	e.exactly(l)
	for range 3 {
		e.close(cl)
	}
	ctx := e.within(e.h.Patience)
	if err := cl.Publish(ctx, dest, e.message("")); !errors.Is(err, core.ErrClosed) {
		e.Errorf("Client.Publish after Close gave %v, want class closed", err)
	}
	if _, err := cl.Start(ctx, e.sub(dest, "g"), l.handler("late", nil), policy()); !errors.Is(err, core.ErrClosed) {
		e.Errorf("Client.Start after Close gave %v, want class closed", err)
	}
	if err := tp.Driver.Publish(ctx, dest, []*driver.Message{e.message("")}); driver.ClassOf(err) != driver.Closed {
		e.Errorf("Driver.Publish after Close gave %v, want class closed", err)
	}
	e.closedConsumer(dest)
	keeper := e.start(e.client(), e.sub(dest, "g"), l.handler("keeper", nil))
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			cl := e.client()
			s := e.start(cl, e.sub(dest, "g"), l.handler(fmt.Sprint("guest ", i), nil))
			if i%2 == 0 {
				e.drain(s)
			}
			e.close(cl)
		})
	}
	wg.Wait()
	e.settled(keeper)
	e.publish(e.client(), l, dest, e.messages(30, 10)...)
	e.exactly(l)
}

// closedConsumer checks the adapter's consumer after Close.
func (e *env) closedConsumer(dest driver.Destination) {
	r := newRaw(e, dest)
	_, _ = r.poll(1, 100*time.Millisecond)
	r.close()
	r.close()
	if _, err := r.poll(1, time.Second); driver.ClassOf(err) != driver.Closed {
		e.Errorf("Receive after Close gave %v, want class closed", err)
	}
}
