package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func settleCases() []Case {
	return []Case{
		{ID: "C18", Rule: "An acked message never returns after the client restarts.", on: shapesOf, run: c18},
		{ID: "C19", Rule: "An unacked message returns within the lease when its consumer is killed.", on: shapesOf, run: c19},
		{ID: "C20", Rule: "Nack returns that message and disturbs no other in flight.", on: shapesOf, run: c20},
		{ID: "C21", Rule: "A nack with delay d brings the message back not before d and by d + tolerance.", on: []shapeOf{queue, topic, stream}, gate: needs(driver.NeedDelayNack), run: c21},
		{ID: "C22", Rule: "A rejected message never comes to its group again, and is in the dead letter if there is one.", on: shapesOf, run: c22},
		{ID: "C23", Rule: "A second settle, one after the lease was lost and one after close give a typed error, and touch nothing.", on: shapesOf, run: c23},
		{ID: "C24", Rule: "On a log, an unsettled message comes again after a restart although later ones were acked.", on: shapesOf, gate: gate{upTo: true}, run: c24},
		{ID: "C25", Rule: "On a log, a message whose retries end without a dead letter stops the subscription and is never skipped.", on: shapesOf, gate: gate{upTo: true}, run: c25},
	}
}

func c18(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	e.publish(cl, l, dest, e.messages(40, 8)...)
	e.start(cl, e.sub(dest, "g"), l.handler("first", nil))
	e.arrive(l)
	e.close(cl)
	s := e.start(e.client(), e.sub(dest, "g"), l.handler("second", nil))
	e.assigned(s)
	e.restFor(l, e.lapse())
	e.noExtra(l, true)
	if n := e.sigs.count(core.SignalLeaseLost); n > 0 {
		e.Errorf("the adapter called %d deliveries lost although nobody else had them", n)
	}
	cl = e.client() // and the group still works
	e.publish(cl, l, dest, e.messages(4, 4)...)
	e.exactly(l)
}

func c19(e *env) {
	if e.h.Spawn == nil {
		e.notExercised("Harness.Spawn is nil: no process to kill")
	}
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	e.publish(cl, l, dest, e.messages(6, 3)...)
	p := e.h.Spawn(e, Job{Role: "consume", On: dest, Group: e.group("g"), Start: e.sub(dest, "g").Start, Hold: -1, Concurrency: 6, MaxInFlight: 64})
	e.eventually("deliveries in the child", func() bool { return len(p.of("start")) == 6 })
	e.start(cl, e.sub(dest, "g"), l.handler("heir", nil))
	e.restFor(l, e.h.Tolerance/4) // no longer: a log gives the heir its share, and with it what is not committed
	if n := l.n(); n != 0 {
		e.Errorf("%d messages were handed out while their consumer lived", n)
	}
	killed := time.Now()
	p.Kill()
	e.arrive(l)
	if took := time.Since(killed); took > e.lapse()+e.h.Tolerance {
		e.Errorf("the messages of the killed consumer took %v to return; lease %v, session %v, tolerance %v", took, e.h.Lease, e.h.Session, e.h.Tolerance)
	}
	e.exactly(l)
}

func c20(e *env) {
	dest, l := e.dest("g", "beside"), newLedger()
	cl, tp := e.tapped()
	msgs := e.messages(10, 10)
	beside := e.beside(dest, msgs...)
	all := make(chan struct{})
	var begun atomic.Int32
	release := make(chan struct{})
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(ctx context.Context, d *core.Delivery) error {
		if begun.Add(1) == 10 {
			close(all)
		}
		if d.ID == msgs[4].ID {
			if d.Attempt > 1 {
				return nil
			}
			select {
			case <-all:
			case <-ctx.Done(): // the others never came: the case has failed
				return ctx.Err()
			}
			return nack(d, 0)
		}
		return hold2(ctx, release)
	}), workers(10))
	e.publish(cl, l, dest, msgs...)
	e.eventually("the nacked message again", func() bool { vs := l.of(msgs[4].ID); return len(vs) == 2 && !vs[1].running })
	if n := l.running(); n != 9 {
		e.Errorf("%d handlers run after the nack of one of 10, want the other 9", n)
	}
	close(release)
	e.arrive(l)
	e.rest(l)
	for _, m := range msgs {
		want := 1
		if m == msgs[4] {
			want = 2
		}
		if vs := l.of(m.ID); len(vs) != want {
			e.Errorf("message %s was handled %d times, want %d", m.ID, len(vs), want)
		} else if vs[want-1].attempt != want {
			e.Errorf("the last attempt of %s says %d, want %d", m.ID, vs[want-1].attempt, want)
		}
	}
	if part := tp.openedTwice(); part != "" {
		e.Errorf("the nack cost the assignment: partition %q was opened again", part)
	}
	e.exactly(beside)
}

// beside starts another group where a destination has groups: whatever the first one
// gives back, this one receives each message once. The ledger is empty where there are
// none.
func (e *env) beside(dest driver.Destination, msgs ...*core.Message) *ledger {
	l := newLedger()
	if dest.Shape == driver.Queue {
		return l
	}
	e.start(e.client(), e.sub(dest, "beside"), l.handler("beside", nil))
	for _, m := range msgs {
		l.expect(m)
		l.outcome(m.ID, confirmed)
	}
	return l
}

// nack decides for another attempt and says so to the ledger, which goes by the result.
func nack(d *core.Delivery, delay time.Duration) error {
	err := errors.New("nacked")
	if failed := d.Nack(delay, err); failed != nil {
		return failed
	}
	return err
}

// hold2 waits for a channel or the context.
func hold2(ctx context.Context, release <-chan struct{}) error {
	select {
	case <-release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func c21(e *env) {
	dest, l := e.dest("g", "beside"), newLedger()
	cl := e.client()
	delays := []time.Duration{300 * time.Millisecond, 1200 * time.Millisecond, 700 * time.Millisecond, 2100 * time.Millisecond}
	msgs := e.messages(4, 4)
	beside := e.beside(dest, msgs...)
	of := map[string]time.Duration{}
	for i, m := range msgs {
		of[m.ID] = delays[i]
	}
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(_ context.Context, d *core.Delivery) error {
		if d.Attempt > 1 {
			return nil
		}
		return nack(d, of[d.ID])
	}))
	e.publish(cl, l, dest, msgs...)
	e.arrive(l)
	e.rest(l)
	for _, m := range msgs {
		vs := l.of(m.ID)
		if len(vs) != 2 {
			e.Fatalf("a message nacked with %v was handled %d times, want 2", of[m.ID], len(vs))
		}
		switch d := vs[1].start.Sub(vs[0].end); {
		case d < of[m.ID]-5*time.Millisecond:
			e.Errorf("nacked with %v, back after %v: early", of[m.ID], d)
		case d > of[m.ID]+e.h.Tolerance:
			e.Errorf("nacked with %v, back after %v: more than the tolerance of %v late", of[m.ID], d, e.h.Tolerance)
		}
	}
	e.exactly(beside)
}

func c22(e *env) {
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	cl := e.client()
	msgs := e.messages(12, 4)
	bad := map[string]bool{msgs[2].ID: true, msgs[7].ID: true}
	h := l.handler("one", func(_ context.Context, d *core.Delivery) error {
		if bad[d.ID] {
			_ = d.Reject(errors.New("never"))
		}
		return nil
	})
	s := e.start(cl, e.sub(dest, "g"), h, dead(to))
	e.publish(cl, l, dest, msgs...)
	for _, m := range msgs {
		if bad[m.ID] {
			dl.expect(m)
			dl.outcome(m.ID, confirmed)
		}
	}
	e.exactly(dl)
	e.exactly(l)
	e.drain(s)
	e.start(e.client(), e.sub(dest, "g"), h, exhausted(core.ExhaustedDiscard))
	last := e.message(e.key(1))
	bad[last.ID] = true
	e.publish(cl, l, dest, last)
	e.arrive(l)
	e.restFor(l, e.lapse())
	e.noExtra(l, true)
	if dl.n() != 2 {
		e.Errorf("%d copies in the dead letter, want 2", dl.n())
	}
}

func c23(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl, tp := e.tapped()
	var kept atomic.Pointer[core.Delivery]
	s := e.start(cl, e.sub(dest, "g"), l.handler("one", func(_ context.Context, d *core.Delivery) error {
		kept.Store(d)
		if err := d.Ack(); err != nil {
			e.Errorf("first Ack: %v", err)
		}
		for _, again := range []error{d.Ack(), d.Nack(0, nil), d.Reject(nil), d.Return()} {
			if !errors.Is(again, core.ErrAlreadySettled) {
				e.Errorf("second settle gave %v, want ErrAlreadySettled", again)
			}
		}
		return errors.New("ignored: the delivery has decided")
	}))
	e.publish(cl, l, dest, e.messages(8, 4)...)
	e.eventually("8 deliveries", func() bool { return l.n() >= 8 })
	e.rest(l)
	if err := kept.Load().Nack(0, nil); !errors.Is(err, core.ErrAlreadySettled) {
		e.Errorf("settling after the handler returned gave %v, want ErrAlreadySettled", err)
	}
	e.drain(s)
	if kept.Load().Ack() == nil {
		e.Errorf("settling after the subscription ended gave nil")
	}
	e.rest(l)
	if n := l.n(); n != 8 {
		e.Errorf("8 messages were handled %d times", n)
	}
	for r, n := range tp.settlements() {
		if n > 1 && e.caps.Settle == driver.Each {
			e.Errorf("receipt %s was settled %d times at the broker", r, n)
		}
	}
	e.stale(dest)
}

// stale asks the adapter itself to settle what is not ours.
func (e *env) stale(dest driver.Destination) {
	l := newLedger()
	cl := e.client()
	raw := newRaw(e, dest)
	e.publish(cl, l, dest, e.messages(3, 1)...)
	got := raw.receive(3)
	forged := got[0]
	forged.Receipt.Epoch += 1 << 40
	if err := raw.settle(forged, driver.Nack); driver.ClassOf(err) != driver.LeaseLost && e.caps.Settle == driver.Each {
		e.Errorf("settling under an epoch that never was gave %v, want class lease lost", err)
	} else if err := raw.settle(forged, driver.Ack); driver.ClassOf(err) != driver.LeaseLost {
		e.Errorf("settling under an epoch that never was gave %v, want class lease lost", err)
	}
	leased := e.h.Lease > 0 && !got[0].Deadline.IsZero()
	if leased {
		e.lateSettle(dest, raw, got)
	} else if err := raw.settle(got[0], driver.Ack); err != nil {
		e.Errorf("settling a delivery that is ours, after a forged one, gave %v", err)
	}
	raw.close()
	if err := raw.settle(got[2], driver.Ack); driver.ClassOf(err) != driver.Closed && driver.ClassOf(err) != driver.LeaseLost {
		e.Errorf("settling after Close gave %v, want class closed or lease lost", err)
	}
	e.start(cl, e.sub(dest, "g"), l.handler("heir", nil))
	e.eventually("the unsettled messages again", func() bool { return len(l.of(got[2].ID)) > 0 && len(l.of(got[1].ID)) > 0 })
	if leased && !e.holds(e.h.Patience, func() bool { return len(l.of(got[0].ID)) > 0 }) {
		e.Errorf("the message whose lease was lost never came again: an ack that was refused has removed it")
	}
	e.rest(l)
	e.noExtra(l, true)
}

// lateSettle lets the leases of got end and settles the first of them. Where members
// share what is there, another one has it by then, and had none of it before its time;
// that one settles nothing either.
func (e *env) lateSettle(dest driver.Destination, late *raw, got []driver.Received) {
	var heir *raw // nil = nobody
	if e.on.partitions == 0 {
		heir = e.inherit(dest, got)
	} else {
		time.Sleep(time.Until(got[0].Deadline) + e.h.Tolerance/4 + 20*time.Millisecond)
	}
	for _, d := range []driver.Disposition{driver.Ack, driver.Nack, driver.Extend} {
		if err := late.settle(got[0], d); driver.ClassOf(err) != driver.LeaseLost {
			e.Errorf("%s after the lease had ended gave %v, want class lease lost", d, err)
		}
	}
	if heir != nil {
		heir.close()
	}
}

// inherit receives with another member what nobody extends or settles, and returns that
// member.
func (e *env) inherit(dest driver.Destination, got []driver.Received) *raw {
	ends := map[string]time.Time{}
	for _, m := range got {
		ends[m.ID] = m.Deadline
	}
	heir := newRaw(e, dest)
	for range got {
		m := heir.receive(1)[0]
		if early := time.Until(ends[m.ID]); early > e.h.Lease/20 {
			e.Errorf("another member received a message %v before the end of its lease of %v", early.Round(time.Millisecond), e.h.Lease)
		}
	}
	return heir
}

func c24(e *env) {
	dest, l := e.destOf(e.on.shape, min(e.on.partitions, 1), "g"), newLedger()
	cl := e.client()
	msgs := e.messages(4, 1) // one key, one partition
	later := e.messages(30, 1)
	h := l.handler("first", func(ctx context.Context, d *core.Delivery) error {
		if d.ID == msgs[2].ID {
			<-ctx.Done() // C is never settled
			return context.Cause(ctx)
		}
		return nil
	})
	s := e.start(cl, e.sub(dest, "g"), h, workers(40), func(p *core.Policy) { p.DrainTimeout = -1 })
	e.publish(cl, l, dest, msgs...)
	e.publish(cl, l, dest, later...)
	e.eventually("everything but C", func() bool { return l.waiting() == 1 })
	e.drain(s)
	e.close(cl)
	e.start(e.client(), e.sub(dest, "g"), l.handler("second", nil))
	e.arrive(l)
	e.rest(l)
	if n := len(l.of(msgs[2].ID)); n != 2 {
		e.Errorf("C was delivered %d times, want once before and once after the restart", n)
	}
	for i := range 2 {
		if n := len(l.of(msgs[i].ID)); n != 1 {
			e.Errorf("message %d, acked before C, was delivered %d times: the commit does not reach up to the gap", i, n)
		}
	}
}

func c25(e *env) {
	dest, l := e.destOf(e.on.shape, min(e.on.partitions, 1), "g"), newLedger()
	cl := e.client()
	msgs := e.messages(20, 1)
	var mended atomic.Bool
	h := func(_ context.Context, d *core.Delivery) error {
		if d.ID == msgs[5].ID && !mended.Load() {
			return errors.New("cannot")
		}
		return nil
	}
	for round := range 2 {
		s := e.start(cl, e.sub(dest, "g"), l.handler("first", h), retry(2, 10*time.Millisecond), exhausted(core.ExhaustedHalt))
		if round == 0 {
			e.publish(cl, l, dest, msgs...)
		}
		ended := make(chan error, 1)
		go func() { ended <- s.Wait() }()
		select {
		case err := <-ended:
			if err == nil {
				e.Fatalf("the subscription ended without an error although a message has no place to go")
			}
		case <-time.After(e.h.Patience):
			e.drain(s)
			e.Fatalf("the subscription went on past a message whose retries had ended without a dead letter")
		}
	}
	mended.Store(true)
	e.start(e.client(), e.sub(dest, "g"), l.handler("mended", h))
	e.arrive(l)
}
