package conformance

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/varal-go/varal/core"
)

// remembering sets the policy under which an id has one effect within the window. The
// lease is short: a copy that comes while another runs waits for its end.
func remembering(scope string, store core.DedupStore, window time.Duration) func(*core.Policy) {
	return func(p *core.Policy) {
		p.Dedup = core.DedupPolicy{Store: store, Scope: scope, Keep: window, Lease: time.Second}
	}
}

// stores returns how an instance opens the store: that of the harness, or one in this
// process that all instances share.
func (e *env) stores() func() core.DedupStore {
	if e.h.Dedup != nil {
		return func() core.DedupStore { return e.h.Dedup(e) }
	}
	shared := core.NewMemoryDedup(0)
	return func() core.DedupStore { return shared }
}

// c64 publishes ids twice, loses acks and goes on in another instance. A broker with a
// window of its own is held to that, too.
func c64(e *env) {
	dest, l, open := e.dest("g"), newLedger(), e.stores()
	scope := fmt.Sprintf("%s-%x", e.group("g"), rand.Uint64()) // a second run has the same ids
	cl, tp := e.tapped()
	msgs := e.messages(6, 3)
	for range 2 {
		e.publish(cl, l, dest, msgs...)
	}
	one := e.start(cl, e.sub(dest, "g"), l.handler("one", nil), remembering(scope, open(), time.Hour))
	e.arrive(l)
	e.repeated(one, len(msgs))
	e.rest(l)
	e.native(tp, len(msgs))

	tp.loseSettlements()
	redelivered := e.messages(3, 3)
	e.publish(cl, l, dest, redelivered...)
	e.arrive(l)
	e.drain(one)
	e.close(cl)

	cl = e.client()
	two := e.start(cl, e.sub(dest, "g"), l.handler("two", nil), remembering(scope, open(), time.Hour))
	e.eventually("the messages whose acks were lost, as duplicates in another instance", func() bool {
		return two.Status().Totals.Duplicates >= int64(len(redelivered))
	})
	e.publish(cl, l, dest, msgs[0]) // a publisher that sends it once more after the restart
	e.repeated(two, len(redelivered)+1)
	e.restFor(l, e.lapse())
	e.noExtra(l, true)
	e.afterWindow(scope, open())
}

// repeated waits for n duplicates, where the broker does not drop by itself what a
// publisher sends twice.
func (e *env) repeated(s *core.Consumer, n int) {
	if e.caps.Dedup == 0 {
		e.eventually("the second copies, as duplicates", func() bool { return s.Status().Totals.Duplicates >= int64(n) })
	}
}

// native holds a broker that declares a window to it: n ids were sent, some more than once.
func (e *env) native(tp *tap, n int) {
	if got, _ := tp.count(); e.caps.Dedup > 0 && got > n {
		e.Errorf("the broker declares that it drops a repeated id within %v, and delivered %d messages of %d ids", e.caps.Dedup, got, n)
	}
}

// afterWindow checks that an id has its effect again when it is no longer remembered. A
// broker's own window has a length that nobody waits for.
func (e *env) afterWindow(scope string, store core.DedupStore) {
	if e.caps.Dedup > 0 {
		return
	}
	const window = time.Second
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	e.start(cl, e.sub(dest, "g"), l.handler("window", nil), remembering(scope, store, window))
	m := e.message(e.key(0))
	e.publish(cl, l, dest, m)
	e.arrive(l)
	time.Sleep(window + e.h.Tolerance/2)
	e.publish(cl, l, dest, m)
	e.eventually("a second effect after the window", func() bool { return len(l.of(m.ID)) == 2 })
	e.rest(l)
	if n := len(l.of(m.ID)); n != 2 {
		e.Errorf("sent twice, a window apart, the message was handled %d times, want 2", n)
	}
}
