package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func flowCases() []Case {
	return []Case{
		{ID: "C47", Rule: "Handlers in flight and messages out at the broker never exceed the limit, per subscription and per instance.", on: shapesOf, run: c47},
		{ID: "C48", Rule: "Raising, lowering, and raising then lowering the limit while running is respected.", on: []shapeOf{queue, stream}, run: c48},
		{ID: "C49", Rule: "With acks withheld, receiving stops at the limit of records and of bytes; acks resume the flow without a reconnect.", on: shapesOf, run: c49},
		{ID: "C50", Rule: "Pause stops new deliveries and keeps assignment and work in flight; resume goes on without loss.", on: shapesOf, run: c50},
		{ID: "C51", Rule: "A late second consumer gets a fair share of a backlog in bounded time, and no partition starves another.", on: shapesOf, run: c51},
		{ID: "C52", Rule: "A handler that runs longer than the broker's session does not evict its member.", on: []shapeOf{queue, stream, keyed}, run: c52},
	}
}

func c47(e *env) {
	const limit = 7
	dest, other := e.dest("g"), e.dest("g")
	l, lo := newLedger(), newLedger()
	h := func(context.Context, *core.Delivery) error { time.Sleep(2 * time.Millisecond); return nil }
	cl, tp := e.tapped()
	e.start(cl, e.sub(dest, "g"), l.handler("one", h), inFlight(limit), workers(limit))
	cl2, tp2 := e.tapped()
	e.start(cl2, e.sub(other, "g"), lo.handler("two", h), inFlight(limit), workers(3))
	pub := e.client()
	e.publish(pub, l, dest, e.messages(300, 30)...)
	e.publish(pub, lo, other, e.messages(150, 30)...)
	e.brokerCount(cl, dest, limit)
	e.exactly(l)
	e.exactly(lo)
	if p := l.peak("one"); p > limit {
		e.Errorf("%d handlers at once, the limit is %d", p, limit)
	}
	if p := lo.peak("two"); p > 3 {
		e.Errorf("%d handlers at once, Concurrency is 3", p)
	}
	if e.caps.Settle != driver.Each {
		return // a log counts nothing as out: what the engine has settled waits for a commit
	}
	for i, t := range []*tap{tp, tp2} {
		if p, _ := t.peaks(); p > limit {
			e.Errorf("instance %d had %d messages out at once, the limit is %d", i+1, p, limit)
		}
	}
}

// brokerCount asks the broker how many are out, where it says.
func (e *env) brokerCount(cl *core.Client, dest driver.Destination, limit int64) {
	adm := cl.Admin()
	if adm == nil {
		return
	}
	dest.Group = e.group("g")
	for range 5 {
		st, err := adm.Stats(e.within(e.h.Patience), driver.Resource{Destination: dest})
		if err == nil && st.InFlight > limit && e.caps.Settle == driver.Each {
			e.Errorf("the broker counts %d messages as out, the limit is %d", st.InFlight, limit)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// gauge lets a test measure the peak of handlers over a time of its choice.
type gauge struct {
	mu        sync.Mutex
	now, peak int
}

func (g *gauge) handle(ctx context.Context, _ *core.Delivery) error {
	g.add(1)
	defer g.add(-1)
	return hold(ctx, 3*time.Millisecond)
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.peak = max(g.peak, g.now)
}

// reset returns the peak since the last reset.
func (g *gauge) reset() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.peak
	g.peak = g.now
	return p
}

func c48(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl, tp := e.tapped()
	var g gauge
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", g.handle), inFlight(4), workers(32))
	stop := e.pour(l, dest)
	defer stop()
	e.eventually("work", func() bool { return l.n() > 20 })
	step := func(limit int) {
		s.SetLimit(limit)
		e.eventually("the new limit", func() bool {
			return s.Status().InFlight <= limit && func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.now <= limit }()
		})
		g.reset()
		tp.peaks()
		n := l.n()
		e.eventually("work under the new limit", func() bool { return l.n() > n+100 })
		if p := g.reset(); p > limit {
			e.Errorf("%d handlers at once after SetLimit(%d)", p, limit)
		}
		if p, _ := tp.peaks(); p > limit && e.caps.Settle == driver.Each {
			e.Errorf("%d messages out at once after SetLimit(%d)", p, limit)
		}
	}
	step(16)
	step(2)
	step(12)
	s.SetLimit(32)
	step(1)
	step(8)
	stop()
	e.exactly(l)
}

// spread is so many keys that every partition gets its share of them.
const spread = 97

// pour publishes until the returned function is called, which may be more than once.
func (e *env) pour(l *ledger, dest driver.Destination) (stop func()) {
	cl := e.client()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for round := 0; ; round++ {
			select {
			case <-quit:
				return
			case <-time.After(3 * time.Millisecond):
			}
			msgs := e.messages(12, 0)
			for i, m := range msgs {
				m.Key = e.key((round*len(msgs) + i) % spread)
			}
			if err := e.try(e.h.Patience, cl, l, dest, msgs...); err != nil {
				e.Errorf("publish: %v", err)
				return
			}
			for l.backlog() > 400 {
				select {
				case <-quit:
					return
				case <-time.After(3 * time.Millisecond):
				}
			}
		}
	}()
	var once sync.Once
	stop = func() { once.Do(func() { close(quit) }); <-done }
	e.Cleanup(stop)
	return stop
}

// backlog is how many messages were tried and not begun yet.
func (l *ledger) backlog() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sent) - len(l.visits)
}

func c49(e *env) {
	const limit = 12
	dest, l := e.dest("g"), newLedger()
	cl, tp := e.tapped()
	release := make(chan struct{})
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", func(ctx context.Context, _ *core.Delivery) error { return hold2(ctx, release) }),
		inFlight(limit), workers(limit))
	e.settled(s) // a partition that opens while acks are withheld is no reconnect
	e.publish(e.client(), l, dest, e.messages(100, 20)...)
	e.eventually("deliveries", func() bool { return l.running() > 0 })
	e.rest(l)
	n, opened := tp.count()
	// A source with partitions may divide the limit among them.
	if n > limit || n < limit && e.on.partitions == 0 {
		e.Errorf("%d messages were received with acks withheld, the limit is %d", n, limit)
	}
	close(release)
	e.exactly(l)
	if _, now := tp.count(); now != opened || tp.saw(driver.Disconnected) {
		e.Errorf("the flow went on with a reconnect (%d assignments, before %d)", now, opened)
	}
	e.byteLimit()
}

// byteLimit withholds acks under a limit of bytes.
func (e *env) byteLimit() {
	const size, limit = 10 << 10, 45 << 10
	dest, l := e.dest("g"), newLedger()
	cl, tp := e.tapped()
	release := make(chan struct{})
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(ctx context.Context, _ *core.Delivery) error { return hold2(ctx, release) }),
		workers(100), func(p *core.Policy) { p.MaxInFlightBytes = limit })
	msgs := e.messages(30, 10)
	for _, m := range msgs {
		m.Body = make([]byte, size)
	}
	e.publish(e.client(), l, dest, msgs...)
	e.eventually("deliveries", func() bool { return l.running() > 0 })
	e.rest(l)
	// A message larger than the room that is left comes alone, so the limit may be passed
	// by one message.
	if _, bytes := tp.peaks(); bytes > limit+size {
		e.Errorf("%d bytes were out with acks withheld, the limit is %d and one message", bytes, limit)
	}
	close(release)
	e.exactly(l)
}

func c50(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl, tp := e.tapped()
	pub := e.client()
	release := make(chan struct{})
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", func(ctx context.Context, _ *core.Delivery) error { return hold2(ctx, release) }), workers(8))
	e.settled(s) // 8 keys may leave a partition out, and one that opens after Pause would look like a new assignment
	e.publish(pub, l, dest, e.messages(8, 8)...)
	e.eventually("8 deliveries", func() bool { return l.running() == 8 })
	s.Pause()
	_, opened := tp.count()
	e.eventually("the end of the Receive that was under way", tp.idle)
	e.publish(pub, l, dest, e.messages(40, 8)...)
	close(release) // what is in flight ends
	e.eventually("work in flight to end", func() bool { return l.running() == 0 })
	e.restFor(l, min(e.lapse()+e.h.Tolerance, 12*time.Second))
	if n := l.n(); n != 8 {
		e.Errorf("%d deliveries while paused", n-8)
	}
	if _, now := tp.count(); now != opened || tp.saw(driver.Disconnected) {
		e.Errorf("the pause cost the assignment (%d assignments, before %d)", now, opened)
	}
	s.Resume()
	e.exactly(l)
}

func c51(e *env) {
	dest, l := e.dest("g"), newLedger()
	h := func(ctx context.Context, _ *core.Delivery) error { return hold(ctx, 8*time.Millisecond) }
	e.publish(e.client(), l, dest, e.messages(1500, spread)...)
	first := e.start(e.client(), e.sub(dest, "g"), l.handler("one", h), inFlight(32), workers(4))
	e.eventually("the first deliveries", func() bool { return l.n() > 50 })
	stop := e.pour(l, dest)
	second := e.start(e.client(), e.sub(dest, "g"), l.handler("two", h), inFlight(32), workers(4))
	e.eventually("the second consumer's first delivery", func() bool { return l.seen("two") > 0 })
	e.settled(first, second)
	from := l.n()
	e.eventually("400 more deliveries", func() bool { return l.n() >= from+400 })
	share, parts := map[string]int{}, map[string]int{}
	for _, v := range l.all()[from : from+400] {
		share[v.by]++
		parts[v.part]++
	}
	for _, who := range []string{"one", "two"} {
		if share[who] < 60 {
			e.Errorf("consumer %s got %d of 400 messages beside another like it", who, share[who])
		}
	}
	all := map[string]bool{}
	for _, v := range l.all() {
		all[v.part] = true
	}
	for p := range all {
		if parts[p] == 0 {
			e.Errorf("partition %q got none of 400 deliveries", p)
		}
	}
	stop()
	e.exactly(l)
}

func c52(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl, tp := e.tapped()
	long := min(max(2*e.h.Session, 3*e.h.Lease, time.Second), 30*time.Second) + e.h.Tolerance
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", func(ctx context.Context, _ *core.Delivery) error { return hold(ctx, long) }),
		workers(1), func(p *core.Policy) { p.DrainTimeout = long })
	e.settled(s)
	e.publish(cl, l, dest, e.message(e.key(0)))
	e.eventually("the delivery", func() bool { return l.n() > 0 })
	_, opened := tp.count()
	if !e.holds(long+e.h.Patience, func() bool { return l.waiting() == 0 }) {
		e.Fatalf("the handler of %v did not end: cancelled %v", long, l.all())
	}
	e.restFor(l, e.lapse())
	e.noExtra(l, true)
	if _, now := tp.count(); now != opened {
		e.Errorf("the member was evicted and came back (%d assignments, before %d)", now, opened)
	}
}
