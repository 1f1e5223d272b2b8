package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func orderCases() []Case {
	on := []shapeOf{keyed, stream, queue}
	ordered := gate{need: driver.NeedOrdered, on: true, refuse: orderRefused}
	return []Case{
		{ID: "C41", Rule: "10,000 messages of one key come without an inversion, and a key stays in its partition over restarts.", on: on, gate: ordered, run: c41},
		{ID: "C42", Rule: "Runs of one key never overlap, with several workers in several instances.", on: on, gate: ordered, run: c42},
		{ID: "C43", Rule: "A key that stalls does not delay other keys.", on: on, gate: ordered, run: c43},
		{
			ID: "C44", Rule: "Order per key holds through nack, delayed retry and dead letter: the next starts after the one before is settled.", on: on,
			gate: gate{need: driver.NeedOrderedRetry, on: true, refuse: orderRefused}, run: c44,
		},
		{ID: "C45", Rule: "Order and single ownership hold while members join, leave and are killed; an old owner cannot settle.", on: on, gate: ordered, run: c45},
		{ID: "C46", Rule: "Order holds through batches, the publisher's retries and its reconnect.", on: on, gate: ordered, alone: true, run: c46},
	}
}

// orderRefused: order by key where there is none must be refused by name.
func orderRefused(e *env) {
	e.requireRefused(e.c.gate.need)
	_, err := e.client().Start(e.within(e.h.Patience), e.sub(e.dest("g"), "g"),
		func(context.Context, *core.Delivery) error { return nil }, policy(byKey(4)))
	e.refusedBy("Start with order by key", err, driver.NeedOrdered.String())
}

// inOrder fails for inversions and overlaps.
func (e *env) inOrder(l *ledger) {
	if inv := l.inversions(); len(inv) > 0 {
		e.Errorf("%d inversions: %s", len(inv), some(inv))
	}
	if over := l.overlaps(); len(over) > 0 {
		e.Errorf("%d overlaps: %s", len(over), some(over))
	}
}

func c41(e *env) {
	n := e.h.bulk(10_000)
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	hot := e.key(0)
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", nil), byKey(16), inFlight(1000))
	send := func(cl *core.Client, from, to int) {
		step := min(500, n/2)
		for i := from; i < to; i += step {
			msgs := e.messages(step, 0)
			for j, m := range msgs {
				m.Key = hot
				if j%50 == 49 {
					m.Key = e.key(1 + j%7)
				}
			}
			e.publish(cl, l, dest, msgs...)
		}
	}
	send(cl, 0, n/2)
	e.arrive(l)
	e.drain(s)
	e.close(cl)
	cl = e.client()
	e.start(cl, e.sub(dest, "g"), l.handler("two", nil), byKey(16), inFlight(1000))
	send(cl, n/2, n)
	e.exactly(l)
	e.inOrder(l)
	part := map[string]string{}
	for _, v := range l.all() {
		if p, ok := part[v.key]; ok && p != v.part {
			e.Fatalf("key %s was in partition %q and then in %q", v.key, p, v.part)
		}
		part[v.key] = v.part
	}
}

func c42(e *env) {
	dest, l := e.dest("g"), newLedger()
	e.steady(3, dest, l, func(context.Context, *core.Delivery) error { time.Sleep(time.Millisecond); return nil }, byKey(8))
	cl := e.client()
	for range 15 {
		e.publish(cl, l, dest, e.messages(60, 12)...)
	}
	e.exactly(l)
	e.inOrder(l)
	if p := l.peak(""); p < 2 {
		e.Errorf("at most %d handler ran at once over 3 instances with 8 workers and 12 keys", p)
	}
}

func c43(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	release := make(chan struct{})
	stalled := e.key(0)
	limit := inFlight(256)
	if dest.Shape == driver.Stream {
		limit = inFlight(40) // fewer than a log has behind the stalled one, which is all that is not done
	}
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(ctx context.Context, d *core.Delivery) error {
		if d.Key == stalled {
			return hold2(ctx, release)
		}
		return nil
	}), byKey(4), limit)
	e.publish(cl, l, dest, e.messages(200, 20)...)
	e.eventually("190 messages of 19 keys beside a stalled one", func() bool { return l.waiting() == 10 })
	if n := l.running(); n != 1 {
		e.Errorf("%d handlers of the stalled key run, want 1", n)
	}
	close(release)
	e.exactly(l)
	e.inOrder(l)
}

func c44(e *env) {
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	cl, tp := e.tapped()
	msgs := e.messages(60, 5)
	fate := map[string]int{} // attempts that fail
	for i, m := range msgs {
		switch i % 12 {
		case 3:
			fate[m.ID] = 1
		case 5:
			fate[m.ID] = 2
		case 7: // to the end
			fate[m.ID] = 99
			dl.expect(m)
			dl.outcome(m.ID, confirmed)
		}
	}
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(_ context.Context, d *core.Delivery) error {
		switch {
		case d.Attempt > fate[d.ID]:
			return nil
		case d.Attempt == 2:
			return nack(d, 120*time.Millisecond)
		}
		return errors.New("again")
	}), byKey(8), retry(3, 40*time.Millisecond), dead(to))
	e.publish(cl, l, dest, msgs...)
	e.exactly(dl)
	e.eventually("all messages", func() bool { return l.waiting() <= dl.n() && l.running() == 0 })
	e.rest(l)
	e.orderThroughFailure(l, tp, to, msgs, fate)
}

// orderThroughFailure checks that each message of a key began after the one before had
// ended for good: by success, or by a confirmed dead-letter copy.
func (e *env) orderThroughFailure(l *ledger, tp *tap, to driver.Destination, msgs []*core.Message, fate map[string]int) {
	ended := map[string]time.Time{}
	for _, m := range msgs {
		vs := l.of(m.ID)
		want := min(fate[m.ID]+1, 3)
		if len(vs) != want {
			e.Errorf("message %s was run %d times, want %d", m.ID, len(vs), want)
			continue
		}
		if vs[0].start.Before(ended[m.Key]) {
			e.Errorf("key %s: message %d began %v before the one before it was settled", m.Key, vs[0].seq, ended[m.Key].Sub(vs[0].start))
		}
		ended[m.Key] = vs[want-1].end
		if fate[m.ID] == 99 {
			at, ok := tp.confirmedAt(to, m.ID)
			if !ok {
				e.Errorf("message %s has no dead-letter copy", m.ID)
			}
			ended[m.Key] = at
		}
	}
	if over := l.overlaps(); len(over) > 0 {
		e.Errorf("%d overlaps: %s", len(over), some(over))
	}
}

func c45(e *env) {
	dest, l := e.dest("g"), newLedger()
	e.staleOwner(dest)
	h := func(context.Context, *core.Delivery) error { time.Sleep(time.Millisecond); return nil }
	first := e.start(e.client(), e.sub(dest, "g"), l.handler("one", h), byKey(8))
	e.assigned(first)
	cl := e.client()
	quit, done := make(chan struct{}), make(chan struct{})
	stop := sync.OnceFunc(func() { close(quit); <-done })
	e.Cleanup(stop) // also where the case fails before it says stop
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(5 * time.Millisecond):
				if e.try(e.h.Patience, cl, l, dest, e.messages(8, 8)...) != nil {
					e.Errorf("publish failed")
				}
			}
		}
	}()
	second := e.start(e.client(), e.sub(dest, "g"), l.handler("two", h), byKey(8))
	e.settled(first, second)
	e.eventually("work for the second member", func() bool { return l.seen("two") > 20 })
	e.drain(first)
	e.settled(second)
	stop()
	e.arrive(l)
	e.rest(l)
	// A log hands over at its watermark: what other keys have done beyond it comes again,
	// in order. Elsewhere each message is settled by itself.
	e.noExtra(l, e.caps.Settle == driver.Each)
	e.inOrder(l)
	e.killed(dest, second)
}

// killed has a member killed in the middle of its work.
func (e *env) killed(dest driver.Destination, other *core.Consumer) {
	if e.h.Spawn == nil {
		e.notExercised("Harness.Spawn is nil: join and leave were checked, no member was killed")
	}
	e.drain(other)
	l := newLedger()
	cl := e.client()
	p := e.h.Spawn(e, Job{Role: "consume", On: dest, Group: e.group("g"), Start: e.sub(dest, "g").Start, Hold: time.Millisecond, Concurrency: 8, MaxInFlight: 64, ByKey: true})
	e.eventually("the child's assignment", func() bool { return len(p.of("ready")) > 0 })
	for range 20 {
		e.publish(cl, l, dest, e.messages(40, 8)...)
	}
	e.eventually("work in the child", func() bool { return len(p.of("done")) > 50 })
	p.Kill()
	p.gone()
	// Its ends first: a visit with an end is a done one, and so may come again.
	ends := map[string]time.Time{}
	for _, ev := range p.of("done") {
		ends[ev.ID] = ev.At
	}
	for _, ev := range p.of("start") {
		end, ok := ends[ev.ID]
		if !ok {
			end = ev.At // cut off in the middle: not done
		}
		l.add(&visit{id: ev.ID, key: ev.Key, by: "child", start: ev.At, end: end, failed: !ok})
	}
	e.start(cl, e.sub(dest, "g"), l.handler("heir", nil), byKey(8))
	e.arrive(l)
	e.rest(l)
	e.noExtra(l, false)
	e.inOrder(l)
	// On a log everything since the last commit comes again, which may be more.
	if d := l.n() - 800; d > 2*64+8 && e.caps.Settle == driver.Each {
		e.Errorf("%d duplicates after one kill of a member with 64 in flight", d)
	}
}

// staleOwner asks the adapter itself to settle for a partition that has moved.
func (e *env) staleOwner(dest driver.Destination) {
	l := newLedger()
	cl := e.client()
	a := newRaw(e, dest)
	e.publish(cl, l, dest, e.messages(40, 40)...)
	got := a.receive(40)
	b := newRaw(e, dest)
	var moved []driver.Received
	again := map[string]bool{}
	e.eventually("a partition of the first member with the second", func() bool {
		_, _ = a.poll(1, 20*time.Millisecond)
		bs, _ := b.poll(40, 20*time.Millisecond)
		for _, m := range bs {
			again[m.ID] = true
		}
		_, let := a.owned()
		own, _ := b.owned()
		// A key without a partition changes hands when the leases of its messages end.
		return (let > 0 || e.caps.Order == driver.PerKey) && own > 0 && len(again) > 0
	})
	for _, m := range got {
		if again[m.ID] {
			moved = append(moved, m)
		}
	}
	if len(moved) == 0 {
		e.Fatalf("what the second member received was not what the first had unsettled: an unsettled message was lost in the hand-over")
	}
	if err := a.settle(moved[0], driver.Ack); driver.ClassOf(err) != driver.LeaseLost {
		e.Errorf("the old owner settled after its revoke: %v, want class lease lost", err)
	}
	a.close()
	b.close()
	s := e.start(e.client(), e.sub(dest, "g"), l.handler("cleaner", nil))
	e.arrive(l)
	e.drain(s)
}

func c46(e *env) {
	dest, l := e.dest("g"), newLedger()
	e.start(e.client(), e.sub(dest, "g"), l.handler("one", nil), byKey(8))
	cls := []*core.Client{e.client(), e.client()} // a publisher a key: order is within a publisher
	var wg sync.WaitGroup
	var through [2]atomic.Int64 // batches confirmed whole, by publisher
	healed := make(chan struct{})
	heals := sync.OnceFunc(func() { close(healed) })
	for p, cl := range cls {
		wg.Go(func() {
			for left := 3; left > 0 && e.Context().Err() == nil; { // so many after the outage
				e.resend(cl, l, dest, e.key(p))
				through[p].Add(1)
				select {
				case <-healed:
					left--
				default:
				}
			}
		})
	}
	e.Cleanup(func() { heals(); wg.Wait() })
	e.eventually("ten batches of both", func() bool { return min(through[0].Load(), through[1].Load()) >= 10 })
	if e.h.Break != nil {
		heal := e.h.Break(e)
		time.Sleep(700 * time.Millisecond) // the load of the case: shorter than a call's deadline, so calls under way live through it
		heal()
	}
	heals()
	wg.Wait()
	e.arrive(l)
	e.rest(l)
	e.noExtra(l, e.h.Break == nil)
	e.inOrder(l)
	if e.h.Break == nil {
		e.notExercised("Harness.Break is nil: batches were checked, no reconnect")
	}
}

// resend publishes a batch of one key until all of it is confirmed, as an application
// does: from the first message that is not, in order.
func (e *env) resend(cl *core.Client, l *ledger, dest driver.Destination, key string) {
	msgs := e.messages(20, 0)
	for _, m := range msgs {
		m.Key = key
		l.expect(m)
	}
	deadline := time.Now().Add(e.h.Patience)
	for len(msgs) > 0 && e.Context().Err() == nil {
		ctx, cancel := context.WithTimeout(e.Context(), 2*time.Second)
		err := cl.Publish(ctx, dest, msgs...)
		cancel()
		n := 0
		for n < len(msgs) && driver.ResultAt(err, n) == nil {
			l.outcome(msgs[n].ID, confirmed)
			n++
		}
		for i := n; i < len(msgs); i++ {
			if driver.ResultAt(err, i) == nil {
				e.Errorf("key %s: message %d of a batch was stored although %d before it was not: %v", key, i, n, err)
			}
		}
		msgs = msgs[n:]
		if time.Now().After(deadline) {
			e.Errorf("publish never succeeded: %v", fmt.Errorf("%d left: %w", len(msgs), err))
			return
		}
	}
}
