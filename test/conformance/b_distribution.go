package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func distributionCases() []Case {
	return []Case{
		{ID: "C11", Rule: "Two groups each receive every message once.", on: []shapeOf{topic, stream}, run: c11},
		{ID: "C12", Rule: "Members of one group share: together they receive everything, and in steady state no message goes to two.", on: shapesOf, run: c12},
		{ID: "C13", Rule: "A subscription on A never sees B, and what is sent to a queue reaches only that queue.", on: shapesOf, run: c13},
		{ID: "C14", Rule: "Of several subscriptions on one client, stopping one leaves the others receiving.", on: shapesOf, run: c14},
		{ID: "C15", Rule: "A group that exists keeps what is published while nobody is attached.", on: shapesOf, gate: needs(driver.NeedDurable), run: c15},
		{ID: "C16", Rule: "A new group starts exactly where it was told: earliest, latest, at an offset, since a time.", on: []shapeOf{stream, queue, topic}, gate: gate{need: driver.NeedPosition, on: true, refuse: c16refused}, run: c16},
		{ID: "C17", Rule: "A replay delivers exactly the range asked for and leaves the live group where it was.", on: []shapeOf{stream, queue}, gate: gate{need: driver.NeedReplay, on: true, refuse: c17refused}, run: c17},
	}
}

func c11(e *env) {
	dest := e.dest("g1", "g2")
	cl := e.client()
	one, two := newLedger(), newLedger()
	e.start(cl, e.sub(dest, "g1"), one.handler("g1", nil))
	e.start(e.client(), e.sub(dest, "g2"), two.handler("g2", nil))
	msgs := e.messages(100, 10)
	for _, m := range msgs {
		two.expect(m)
		two.outcome(m.ID, confirmed)
	}
	e.publish(cl, one, dest, msgs...)
	e.exactly(one)
	e.exactly(two)
}

// steady starts n members of one group, each on a client of its own, and waits until
// membership has come to rest.
func (e *env) steady(n int, from driver.Destination, l *ledger, h core.Handler, edits ...func(*core.Policy)) []*core.Consumer {
	names := []string{"one", "two", "three", "four"}
	out := make([]*core.Consumer, n)
	for i := range out {
		out[i] = e.start(e.client(), e.sub(from, "g"), l.handler(names[i], h), edits...)
	}
	e.settled(out...)
	return out
}

// owners is how many partitions of a source have an owner each. Where keys have order and
// partitions are not told (SQS FIFO), there is the one without a name, and all have it.
func (e *env) owners() int {
	if e.caps.Order == driver.PerKey {
		return 1
	}
	return max(e.on.partitions, 1)
}

// settled waits until what the members own has not changed for a while and every
// partition has its one owner. That each member has a share is C12's and C51's to ask.
func (e *env) settled(members ...*core.Consumer) {
	calm := max(200*time.Millisecond, e.h.Tolerance)
	var last string
	since := time.Now()
	if !e.holds(e.h.Patience, func() bool {
		var now strings.Builder
		owned := map[string]int{}
		for _, s := range members {
			ps := s.Status().Partitions
			for _, p := range ps {
				owned[p.Partition]++
				now.WriteString(p.Partition + ",")
			}
			now.WriteByte(';')
		}
		if now.String() != last {
			last, since = now.String(), time.Now()
		}
		return len(owned) >= e.owners() && time.Since(since) > calm
	}) {
		e.Fatalf("the group of %d members was not balanced and at rest within %v: they own (;) %s, since %v", len(members), e.h.Patience, last, time.Since(since).Round(time.Millisecond))
	}
}

func c12(e *env) {
	dest, l := e.dest("g"), newLedger()
	e.steady(3, dest, l, func(context.Context, *core.Delivery) error { time.Sleep(time.Millisecond); return nil }, inFlight(8))
	cl := e.client()
	for range 10 {
		e.publish(cl, l, dest, e.messages(30, 30)...)
	}
	e.exactly(l)
	served := 0
	for _, who := range []string{"one", "two", "three"} {
		if len(l.by(who)) > 0 {
			served++
		}
	}
	least := 3
	if e.caps.Order == driver.PerPartition {
		least = 2 // four partitions over three members: two each, and one waits, is a fair share by owner
	}
	if served < least {
		e.Errorf("%d members of 3 received all of 300 messages, want %d at least", served, least)
	}
}

func c13(e *env) {
	a, b := e.dest("g"), e.dest("g")
	la, lb := newLedger(), newLedger()
	cl := e.client()
	e.start(cl, e.sub(a, "g"), la.handler("a", nil))
	e.start(cl, e.sub(b, "g"), lb.handler("b", nil))
	for range 20 {
		e.publish(cl, la, a, e.messages(3, 3)...)
		e.publish(cl, lb, b, e.messages(2, 2)...)
	}
	e.exactly(la)
	e.exactly(lb)
}

func c14(e *env) {
	cl := e.client()
	var ds []driver.Destination
	var ls []*ledger
	var ss []*core.Consumer
	for range 3 {
		d, l := e.dest("g"), newLedger()
		ds, ls = append(ds, d), append(ls, l)
		ss = append(ss, e.start(cl, e.sub(d, "g"), l.handler("x", nil)))
	}
	for i := range ds {
		e.publish(cl, ls[i], ds[i], e.messages(10, 4)...)
		e.arrive(ls[i])
	}
	e.drain(ss[1])
	for i := range ds {
		e.publish(cl, ls[i], ds[i], e.messages(10, 4)...)
	}
	e.exactly(ls[0])
	e.exactly(ls[2])
	if n := ls[1].n(); n != 10 {
		e.Errorf("the stopped subscription handled %d messages; 10 were published before it stopped", n)
	}
	e.start(cl, e.sub(ds[1], "g"), ls[1].handler("x", nil))
	e.exactly(ls[1])
}

func c15(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	s := e.start(cl, e.sub(dest, "g"), l.handler("first", nil))
	e.publish(cl, l, dest, e.messages(10, 4)...)
	e.arrive(l)
	e.drain(s)
	e.publish(cl, l, dest, e.messages(50, 4)...)
	e.close(cl)
	e.start(e.client(), e.sub(dest, "g"), l.handler("second", nil))
	e.exactly(l)
	if n := len(l.by("second")); n != 50 {
		e.Errorf("the second consumer received %d messages, want the 50 published while nobody was attached", n)
	}
}

// c16refused: a place in a log where there is none must be refused, not ignored.
func c16refused(e *env) {
	e.requireRefused(driver.NeedPosition)
	sub := e.sub(e.dest("g"), "g-new")
	if e.on.shape == driver.Queue {
		sub.Group = e.group("g")
	}
	sub.Start = core.Position{Kind: core.At, Offset: 1}
	_, err := e.client().Start(e.within(e.h.Patience), sub, func(context.Context, *core.Delivery) error { return nil }, policy())
	e.refusedBy("Start at an offset", err, driver.NeedPosition.String())
}

// ofQueue checks positions of a queue, which has one group: its first consumer starts
// where it is told, and Seek moves it.
func (e *env) ofQueue() {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	e.publish(cl, newLedger(), dest, e.messages(6, 6)...)
	sub := core.Subscription{From: dest, Group: e.group("g"), Start: core.Position{Kind: core.Latest}}
	s := e.start(cl, sub, l.handler("latest", nil))
	e.assigned(s)
	e.rest(l)
	msgs := e.messages(4, 4)
	e.publish(cl, l, dest, msgs...)
	e.sameIDs("latest", l, msgs)
	e.drain(s)
	if adm := cl.Admin(); adm != nil {
		e.mustSeek(adm, dest.ForGroup(e.group("g")), core.Position{Kind: core.Earliest})
		again := newLedger()
		e.start(cl, sub, again.handler("again", nil))
		e.eventually("all 10 messages again", func() bool { return again.n() >= 10 })
		e.rest(again)
		if n := again.n(); n != 10 {
			e.Errorf("after Seek to the earliest %d messages came, want 10", n)
		}
	}
}

// mustSeek waits until the broker has seen that the group's last member left.
func (e *env) mustSeek(adm driver.Admin, of driver.Destination, to core.Position) {
	var err error
	if !e.holds(e.h.Patience, func() bool {
		err = adm.Seek(e.within(e.h.Patience), driver.Resource{Destination: of}, to)
		return !errors.Is(err, core.ErrConflict)
	}) || err != nil {
		e.Fatalf("Seek of a group without members: %v", err)
	}
}

func c16(e *env) {
	if e.on.shape == driver.Queue {
		e.ofQueue()
		return
	}
	dest := e.destOf(e.on.shape, 1)
	cl := e.client()
	all := newLedger()
	first := e.messages(10, 3)
	e.publish(cl, all, dest, first...)
	late := e.sub(dest, "latest")
	late.Start.Kind = core.Latest
	ll := newLedger()
	s := e.start(cl, late, ll.handler("latest", nil))
	e.assigned(s)
	// Where a client looks its position up on the way: the first fetch has begun.
	e.rest(ll)
	since := between()
	second := e.messages(7, 3)
	e.publish(cl, all, dest, second...)
	everything := slices.Concat(first, second)
	offsets := e.starts(cl, dest, "earliest", core.Position{Kind: core.Earliest}, everything)
	e.starts(cl, dest, "at", core.Position{Kind: core.At, Partition: offsets[4].part, Offset: offsets[4].offset}, everything[4:])
	e.starts(cl, dest, "since", core.Position{Kind: core.Since, Time: since}, second)
	e.sameIDs("latest", ll, second)
}

// between returns a time with a margin before and after it. Nothing is waited for: what
// is published before and after carries the broker's clock, which may be a little off
// ours and counts milliseconds.
func between() time.Time {
	const margin = 50 * time.Millisecond
	time.Sleep(margin)
	defer time.Sleep(margin)
	return time.Now()
}

// starts reads with a new group from a position and compares with what must come.
func (e *env) starts(cl *core.Client, dest driver.Destination, group string, at core.Position, want []*core.Message) []visit {
	l := newLedger()
	sub := core.Subscription{From: dest, Group: e.group(group), Start: at}
	s := e.start(cl, sub, l.handler(group, nil), workers(1))
	e.sameIDs(group, l, want)
	e.drain(s)
	return l.all()
}

// sameIDs waits for exactly these messages.
func (e *env) sameIDs(what string, l *ledger, want []*core.Message) {
	e.holds(e.h.Patience, func() bool { return l.n() >= len(want) })
	e.rest(l)
	var got, exp []string
	for _, v := range l.all() {
		got = append(got, v.id)
	}
	for _, m := range want {
		exp = append(exp, m.ID)
	}
	slices.Sort(got)
	slices.Sort(exp)
	if !slices.Equal(got, exp) {
		e.Fatalf("%s: %d messages came, want exactly %d: got %v, want %v", what, len(got), len(exp), got, exp)
	}
}

func c17refused(e *env) {
	e.requireRefused(driver.NeedReplay)
	adm := e.h.Open(e).Admin()
	if adm == nil {
		return
	}
	dest := e.dest("g")
	dest.Group = e.group("g")
	err := adm.Seek(e.within(e.h.Patience), driver.Resource{Destination: dest}, driver.Position{Kind: driver.Earliest})
	if !errors.Is(err, core.ErrUnsupported) {
		e.Errorf("Seek where positions do not exist ended with %v; want class unsupported", err)
	}
}

func c17(e *env) {
	if e.on.shape == driver.Queue {
		e.ofQueue()
		return
	}
	dest := e.destOf(e.on.shape, 1)
	cl := e.client()
	live := newLedger()
	msgs := e.messages(20, 3)
	e.publish(cl, live, dest, msgs[:10]...)
	sub := e.sub(dest, "live")
	s := e.start(cl, sub, live.handler("live", nil), workers(1))
	e.arrive(live)
	since := between()
	e.publish(cl, live, dest, msgs[10:]...)
	e.exactly(live)
	vs := live.all()
	slices.SortFunc(vs, func(a, b visit) int { return int(a.offset - b.offset) })
	e.starts(cl, dest, "replay", core.Position{Kind: core.At, Partition: vs[5].part, Offset: vs[5].offset}, msgs[5:])
	e.starts(cl, dest, "replay-time", core.Position{Kind: core.Since, Time: since}, msgs[10:])
	e.drain(s)
	e.seek(cl, dest, vs, msgs)
	s = e.start(cl, sub, live.handler("live again", nil))
	e.assigned(s)
	e.rest(live)
	if n := len(live.by("live again")); n != 0 {
		e.Errorf("after the replays the live group received %d messages again", n)
	}
}

// seek moves a group of its own back and forth.
func (e *env) seek(cl *core.Client, dest driver.Destination, vs []visit, msgs []*core.Message) {
	adm := cl.Admin()
	if adm == nil {
		return
	}
	e.mustSeek(adm, dest.ForGroup(e.group("replay")), core.Position{Kind: core.At, Partition: vs[15].part, Offset: vs[15].offset})
	e.starts(cl, dest, "replay", core.Position{}, msgs[15:])
}
