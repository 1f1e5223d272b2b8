package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func retryCases() []Case {
	return []Case{
		{ID: "C30", Rule: "A message that always fails is tried exactly the maximum of times over 3 instances and a restart, then dead-lettered once.", on: shapesOf, run: c30},
		{ID: "C31", Rule: "The attempts a handler sees are 1, 2, 3 …, go on over a restart, and begin anew on redrive.", on: []shapeOf{queue, topic, stream}, run: c31},
		{ID: "C32", Rule: "A permanent error is dead-lettered at attempt 1, a transient one is retried, an ignored one acked; the outermost word counts.", on: []shapeOf{queue, stream}, run: c32},
		{ID: "C33", Rule: "A delayed retry holds up no other message, and keeps its time over a restart.", on: []shapeOf{queue, topic, stream}, run: c33},
	}
}

// remembers reports whether attempts outlive the consumer: the broker counts them, or the
// commit state of a log keeps them.
func (e *env) remembers() bool {
	return e.caps.Settle == driver.Each && e.caps.Counts || e.caps.Settle == driver.UpTo && e.caps.StateBytes > 0
}

func c30(e *env) {
	const most = 6
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	fail := func(context.Context, *core.Delivery) error { return errors.New("always") }
	edits := []func(*core.Policy){retry(most, 150*time.Millisecond), dead(to), workers(4)}
	cs := e.steady(3, dest, l, fail, edits...)
	cl := e.client()
	msgs := e.messages(6, 6)
	for _, m := range msgs {
		dl.expect(m)
		dl.outcome(m.ID, confirmed)
	}
	e.publish(cl, l, dest, msgs...)
	e.eventually("the second attempts", func() bool { return l.n() >= 2*len(msgs) })
	if e.remembers() {
		for _, s := range cs { // the restart, in the middle of attempts and back-off
			e.drain(s)
		}
		e.steady(3, dest, l, fail, edits...)
	}
	e.exactly(dl)
	e.rest(l)
	least := most
	if e.h.ReturnsCount {
		// A consumer that stops gives back what has not started, and a broker that counts
		// every requeue takes that for an attempt: one fewer for each that stopped, at
		// worst, and never one more.
		least -= len(cs)
	}
	for _, m := range msgs {
		if n := len(l.of(m.ID)); n > most || n < least {
			e.Errorf("message %s was tried %d times, want %d", m.ID, n, most)
		}
	}
	if !e.remembers() {
		e.notExercised("the restart half on a %s: neither the broker nor a commit state keeps what has been tried", e.on.name)
	}
}

func c31(e *env) {
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	h := func(_ context.Context, d *core.Delivery) error {
		if v, _ := d.Header("fine"); v != "" {
			return nil
		}
		return errors.New("not yet")
	}
	edits := []func(*core.Policy){retry(6, 100*time.Millisecond), dead(to)}
	s := e.start(e.client(), e.sub(dest, "g"), l.handler("one", h), edits...)
	cl := e.client()
	m := e.message(e.key(1))
	e.publish(cl, l, dest, m)
	e.eventually("three attempts", func() bool { return l.n() >= 3 })
	if e.remembers() {
		e.drain(s)
		e.start(e.client(), e.sub(dest, "g"), l.handler("one", h), edits...)
	}
	e.eventually("the dead-letter copy", func() bool { return dl.n() == 1 })
	vs := l.of(m.ID)
	var seen []int
	for _, v := range vs {
		seen = append(seen, v.attempt)
	}
	if !slices.Equal(seen, []int{1, 2, 3, 4, 5, 6}) && (!e.h.StopCounts || !oneMissing(seen, 6)) {
		e.Errorf("the handler saw the attempts %v, want 1 to 6", seen)
	}
	again := core.NewDelivery(to, dl.all()[0].msg).Forward() // a redrive, fixed by hand
	again.ID = e.message("").ID
	e.publish(cl, l, dest, again)
	e.eventually("the redriven message", func() bool { return len(l.of(again.ID)) > 0 })
	if a := l.of(again.ID)[0].attempt; a != 1 {
		e.Errorf("the redriven message began at attempt %d, want 1", a)
	}
	if !e.remembers() {
		e.notExercised("the restart half on a %s: neither the broker nor a commit state keeps what has been tried", e.on.name)
	}
}

// oneMissing reports whether seen counts from 1 to last with one number left out.
func oneMissing(seen []int, last int) bool {
	for i, n := range seen {
		if i == 0 && n != 1 || i > 0 && n <= seen[i-1] {
			return false
		}
	}
	return len(seen) == last-1 && seen[len(seen)-1] == last
}

func c32(e *env) {
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	cl := e.client()
	boom := errors.New("boom")
	kinds := []struct {
		name     string
		err      error
		attempts int
		dead     bool
	}{
		{"permanent", core.Permanent(boom), 1, true},
		{"transient", driver.Errorf("call", driver.Transient, "try again"), 3, false},
		{"plain", boom, 3, false},
		{"ignored", core.Ignore(boom), 1, false},
		{"class permanent", driver.Errorf("call", driver.Permanent, "no"), 1, true},
		{"class too large", fmt.Errorf("wrapped: %w", driver.Errorf("call", driver.TooLarge, "no")), 1, true},
		{"ignored permanent", core.Ignore(core.Permanent(boom)), 1, false},
		{"permanent ignored", core.Permanent(core.Ignore(boom)), 1, true},
		{"wrapped permanent", fmt.Errorf("wrapped: %w", core.Permanent(boom)), 1, true},
	}
	msgs := e.messages(len(kinds), len(kinds))
	of := map[string]int{}
	for i, m := range msgs {
		of[m.ID] = i
		if kinds[i].dead {
			dl.expect(m)
			dl.outcome(m.ID, confirmed)
		}
	}
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(_ context.Context, d *core.Delivery) error {
		if k := kinds[of[d.ID]]; d.Attempt < 3 || k.attempts == 1 {
			return k.err
		}
		return nil
	}), retry(5, 20*time.Millisecond), dead(to))
	e.publish(cl, l, dest, msgs...)
	e.exactly(dl)
	e.eventually("all attempts", func() bool { return l.n() >= 7+2*3 })
	e.rest(l)
	for i, m := range msgs {
		if n := len(l.of(m.ID)); n != kinds[i].attempts {
			e.Errorf("%s: handled %d times, want %d", kinds[i].name, n, kinds[i].attempts)
		}
	}
}

func c33(e *env) {
	const wait = 1500 * time.Millisecond
	dest, l := e.dest("g"), newLedger()
	m := e.message(e.key(0))
	var failed atomic.Int64
	h := func(_ context.Context, d *core.Delivery) error {
		if d.ID == m.ID && failed.CompareAndSwap(0, time.Now().UnixNano()) {
			return core.RetryAfter(wait, errors.New("later"))
		}
		return nil
	}
	s := e.start(e.client(), e.sub(dest, "g"), l.handler("one", h), workers(2), retry(0, 10*time.Millisecond))
	cl := e.client()
	e.publish(cl, l, dest, m)
	e.eventually("the failure", func() bool { return failed.Load() != 0 })
	others := e.messages(40, 3)
	e.publish(cl, l, dest, others...)
	e.eventually("the others", func() bool { return l.n() >= 41 })
	if time.Since(time.Unix(0, failed.Load())) > wait && len(l.of(m.ID)) == 2 {
		e.Logf("slow machine: the others took longer than the delay") // still checked below by order
	}
	for _, v := range l.all()[:41] {
		if v.id == m.ID && v.attempt > 1 {
			e.Errorf("the delayed retry came before others were handled: they waited for it")
		}
	}
	keeps := e.remembers() && (e.caps.Settle == driver.UpTo || e.caps.NackDelay >= wait)
	if keeps {
		e.drain(s)
		e.start(e.client(), e.sub(dest, "g"), l.handler("two", h), retry(0, 10*time.Millisecond))
	}
	e.eventually("the retry", func() bool { return len(l.of(m.ID)) >= 2 })
	d := l.of(m.ID)[1].start.Sub(time.Unix(0, failed.Load()))
	late := 2 * e.h.Tolerance
	if keeps && e.caps.Settle == driver.UpTo {
		late += 2 * time.Second // a commit state keeps whole seconds, never early
	}
	if d < wait-10*time.Millisecond || d > wait+late {
		e.Errorf("a retry due after %v came after %v", wait, d)
	}
	e.rest(l)
	if n := l.n(); n != 42 {
		e.Errorf("%d runs, want 41 messages and one retry", n)
	}
	if !keeps {
		e.notExercised("the restart half on a %s: the delay is held in the process", e.on.name)
	}
}
