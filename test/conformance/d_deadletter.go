package conformance

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func deadLetterCases() []Case {
	return []Case{
		{ID: "C34", Rule: "The dead-letter record holds bytes, headers, key, source and place, first and last failure, attempts, class and text.", on: shapesOf, run: c34},
		{ID: "C35", Rule: "While the dead letter is out of reach the original is not settled, a signal is raised, and afterwards it flows.", on: []shapeOf{queue, stream}, run: c35},
		{ID: "C36", Rule: "What cannot be decoded reaches the dead letter raw in bounded attempts, and later messages flow.", on: []shapeOf{queue, stream}, run: c36},
		{ID: "C38", Rule: "What a failed attempt changes in header or body reaches neither the retry nor the dead letter.", on: []shapeOf{queue, stream}, run: c38},
		{ID: "C39", Rule: "What a failed attempt emits is not sent; what it sends at once is.", on: []shapeOf{queue, stream}, run: c39},
	}
}

func c34(e *env) {
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	cl := e.client()
	m := e.message(e.key(7))
	m.Body, m.Type = []byte("\x00\xffraw\r\n"), "pizza.burnt"
	m.Headers = []core.Header{{Key: "trace", Value: "00-4bf92f"}, {Key: "empty", Value: ""}}
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(context.Context, *core.Delivery) error {
		return driver.Errorf("oven", driver.Denied, "too hot\nsecond line")
	}), retry(3, 60*time.Millisecond), dead(to))
	start := time.Now().Add(-time.Second)
	e.publish(cl, l, dest, m)
	dl.expect(m)
	dl.outcome(m.ID, confirmed)
	e.exactly(dl)
	got := dl.all()[0]
	src := l.all()[0]
	if !slices.Equal(got.msg.Body, m.Body) || got.key != m.Key || got.id != m.ID || got.msg.Type != m.Type {
		e.Errorf("the record is id %q key %q type %q body %q; the message was %q %q %q %q", got.id, got.key, got.msg.Type, got.msg.Body, m.ID, m.Key, m.Type, m.Body)
	}
	place := src.native
	if src.offset >= 0 {
		place = strconv.FormatInt(src.offset, 10)
	}
	for key, want := range map[string]string{
		"trace": "00-4bf92f", "empty": "", driver.HeaderSource: dest.Shape.String() + " " + dest.Name, driver.HeaderSourceGroup: e.group("g"),
		driver.HeaderSourcePart: src.part, driver.HeaderSourceOffset: place, driver.HeaderAttempts: "3",
		driver.HeaderFailureReason: "exhausted", driver.HeaderErrorClass: "denied",
	} {
		if have, ok := got.msg.Header(key); have != want || !ok {
			e.Errorf("header %s of the record is %q, want %q", key, have, want)
		}
	}
	text, _ := got.msg.Header(driver.HeaderError)
	if !strings.Contains(text, "too hot") || strings.ContainsAny(text, "\r\n") {
		e.Errorf("error text %q: want the handler's, in one line", text)
	}
	e.failureTimes(&got.msg, start)
}

func (e *env) failureTimes(m *core.Message, start time.Time) {
	var at [2]time.Time
	for i, key := range []string{driver.HeaderFirstFailure, driver.HeaderLastFailure} {
		v, _ := m.Header(key)
		t, err := time.Parse(time.RFC3339Nano, v)
		if err != nil || t.Before(start) || t.After(time.Now()) {
			e.Errorf("header %s is %q", key, v)
		}
		at[i] = t
	}
	if d := at[1].Sub(at[0]); d < 100*time.Millisecond && e.caps.Settle == driver.UpTo || d < 0 {
		e.Errorf("first failure %v, last failure %v of 3 attempts 60 ms apart", at[0], at[1])
	}
}

func c35(e *env) {
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	bad := e.message(e.key(0))
	h := func(_ context.Context, d *core.Delivery) error {
		if d.ID == bad.ID {
			return core.Permanent(errors.New("poison"))
		}
		return nil
	}
	down := driver.Errorf("publish", driver.NotFound, "the dead letter is gone")
	begin := func() (*core.Client, *tap, *core.Consumer) {
		cl, tp := e.tapped()
		tp.failPublish(to, down)
		return cl, tp, e.start(cl, e.sub(dest, "g"), l.handler("one", h), dead(to), retry(2, 20*time.Millisecond))
	}
	_, _, s := begin()
	cl := e.client()
	e.publish(cl, l, dest, bad)
	e.publish(cl, l, dest, e.messages(10, 3)...)
	e.eventually("a signal that the dead letter fails", func() bool { return e.sigs.count(core.SignalDeadLetterFailed) > 0 })
	e.eventually("the other messages", func() bool { return l.n() >= 11 })
	e.drain(s) // unsettled, it must outlive us
	_, tp, _ := begin()
	e.eventually("the poison message again after a restart", func() bool { return len(l.of(bad.ID)) >= 2 })
	if dl.n() != 0 {
		e.Errorf("a copy reached the dead letter while it was out of reach")
	}
	dl.expect(bad)
	dl.outcome(bad.ID, confirmed)
	tp.failPublish(to, nil)
	e.exactly(dl)
	n := len(l.of(bad.ID))
	e.restFor(l, e.lapse())
	if m := len(l.of(bad.ID)); m != n {
		e.Errorf("the message was delivered again after its copy was confirmed")
	}
}

func c36(e *env) {
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	cl, tp := e.tapped()
	garbage := e.message(e.key(1))
	garbage.Body = []byte("{not json\xff")
	broken := e.message(e.key(2))
	broken.Body = []byte(`{"n":1}`)
	tp.onRcv = func(r *driver.Received) { // as an adapter reports a record it cannot read
		if r.ID == broken.ID {
			r.Err = errors.New("unreadable record")
		}
	}
	type order struct{ N int }
	var good atomic.Int32
	h := core.Typed(core.JSON[order]{}, func(context.Context, order, *core.Delivery) error { good.Add(1); return nil })
	e.start(cl, e.sub(dest, "g"), l.handler("one", h), dead(to), retry(5, 10*time.Millisecond))
	for _, m := range []*core.Message{garbage, broken} {
		dl.expect(m)
		dl.outcome(m.ID, confirmed)
		e.publish(cl, l, dest, m)
	}
	for range 10 {
		m := e.message(e.key(1))
		m.Body = []byte(`{"N":7}`)
		e.publish(cl, l, dest, m)
	}
	e.exactly(dl)
	e.eventually("the later messages", func() bool { return good.Load() == 10 })
	for _, v := range dl.all() {
		want := map[string][]byte{garbage.ID: garbage.Body, broken.ID: broken.Body}[v.id]
		if !slices.Equal(v.msg.Body, want) {
			e.Errorf("the record's body is %q, want it raw: %q", v.msg.Body, want)
		}
	}
	if n := len(l.of(garbage.ID)); n != 1 {
		e.Errorf("a body that does not decode was tried %d times, want once", n)
	}
	if n := len(l.of(broken.ID)); n != 0 {
		e.Errorf("a record that the adapter could not read reached the handler")
	}
}

func c38(e *env) {
	dest, l := e.dest("g"), newLedger()
	to, dl := e.dlq()
	cl := e.client()
	m := e.message(e.key(1))
	m.Headers = []core.Header{{Key: "a", Value: "1"}}
	body := string(m.Body)
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(_ context.Context, d *core.Delivery) error {
		for i := range d.Body {
			d.Body[i] = 'X'
		}
		d.Headers[0].Value = "changed"
		d.Headers = append(d.Headers, core.Header{Key: "b", Value: "new"})
		d.Key, d.Type = "other", "other"
		return errors.New("failed after changing everything")
	}), retry(3, 20*time.Millisecond), dead(to))
	e.publish(cl, l, dest, m)
	dl.expect(m)
	dl.outcome(m.ID, confirmed)
	e.exactly(dl)
	for _, v := range append(l.all(), dl.all()...) {
		h, _ := v.msg.Header("a")
		_, added := v.msg.Header("b")
		if string(v.msg.Body) != body || h != "1" || added || v.msg.Key != m.Key || v.msg.Type != "" {
			e.Errorf("%s saw body %q, header a=%q, added %v, key %q: an earlier attempt's change", v.by, v.msg.Body, h, added, v.msg.Key)
		}
	}
}

func c39(e *env) {
	dest, l := e.dest("g"), newLedger()
	out, lo := e.dest("g"), newLedger()
	cl := e.client()
	e.start(cl, e.sub(out, "g"), lo.handler("out", nil))
	var attempts atomic.Int32
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(ctx context.Context, d *core.Delivery) error {
		n := attempts.Add(1)
		held, now := e.message(e.key(1)), e.message(e.key(2))
		lo.expect(held)
		lo.expect(now)
		d.Publish(out, held)
		if err := cl.Publish(ctx, out, now); err != nil {
			return err
		}
		lo.outcome(now.ID, confirmed)
		if n < 3 {
			lo.outcome(held.ID, failed) // a failed attempt's: must not be sent
			return errors.New("not yet")
		}
		lo.outcome(held.ID, confirmed)
		return nil
	}), retry(0, 30*time.Millisecond))
	e.publish(cl, l, dest, e.message(e.key(3)))
	e.eventually("three attempts", func() bool { return attempts.Load() == 3 })
	e.exactly(lo)
	if n := lo.n(); n != 4 {
		e.Errorf("%d messages were emitted, want 3 at once and 1 by the attempt that succeeded", n)
	}
}
