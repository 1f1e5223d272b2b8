package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// env is what one case on one shape works with.
type env struct {
	*probe
	h    *Harness
	c    Case
	on   shapeOf
	seed uint64
	rng  *rand.Rand
	caps driver.Capabilities
	ids  atomic.Int64
	logs safeBuffer
	sigs signals
	meet *together // of a case that runs on all shapes at once
}

func newEnv(p *probe, h *Harness, c Case, on shapeOf, seed uint64) *env {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(c.ID + on.name))
	return &env{probe: p, h: h, c: c, on: on, seed: seed, rng: rand.New(rand.NewPCG(seed, hash.Sum64()))} //nolint:gosec // a test's choices
}

// gated runs the case, or checks the refusal where the destination cannot do it.
func (e *env) gated() {
	defer func() {
		if e.Failed() {
			e.Logf("engine log:\n%s", e.logs.tail())
		}
	}()
	if e.h.leftOut(e.c.ID) {
		e.end(NotExercised, "left out of this run (Harness.Only)")
		return
	}
	if why, ok := e.h.deviation(e.c.ID, e.on.name); ok {
		e.end(NotExercised, "the server deviates: "+why)
		return
	}
	d := e.h.Open(e)
	e.caps = d.Capabilities(driver.Destination{Shape: e.on.shape, Name: "conformance", Partitions: e.on.partitions})
	switch g := e.c.gate; {
	case e.caps.Settle == 0:
		e.shapeRefused()
	case g.upTo && e.caps.Settle != driver.UpTo:
		e.end("", "")
	case g.on && core.Resolve(e.caps, g.need).Support == core.Refused:
		if g.refuse != nil {
			g.refuse(e)
		} else {
			e.requireRefused(g.need)
		}
		e.end(Refused, g.need.String()+" is not a capability of this "+e.on.name)
	default:
		e.c.run(e)
	}
}

// shapeRefused checks that a shape the broker does not have is refused by name.
func (e *env) shapeRefused() {
	name := driver.Destination{Shape: e.on.shape, Name: "conformance-refused", Partitions: e.on.partitions}
	cl := e.client()
	ctx := e.within(e.h.Patience)
	_, err := cl.Start(ctx, core.Subscription{From: name, Group: e.group("g")}, func(context.Context, *core.Delivery) error { return nil }, policy())
	e.refusedBy("Start", err, e.on.shape.String())
	e.refusedBy("Publish", cl.Publish(ctx, name, &core.Message{Body: []byte("x")}), e.on.shape.String())
	e.end(Refused, "this broker has no "+e.on.name)
}

// requireRefused checks that a need is refused at start, before a message moves.
func (e *env) requireRefused(n driver.Need) {
	dest := e.dest("g")
	cl := e.client()
	e.must(cl.Publish(e.within(e.h.Patience), dest, &core.Message{Key: e.key(0), Body: []byte("x")}))
	sub := e.sub(dest, "g")
	sub.Require = []core.Need{n}
	_, err := cl.Start(e.within(e.h.Patience), sub, func(context.Context, *core.Delivery) error {
		e.Errorf("a message moved although %s was refused", n)
		return nil
	}, policy())
	e.refusedBy("Start", err, n.String())
}

// refusedBy checks class and name of a refusal.
func (e *env) refusedBy(what string, err error, name string) {
	if !errors.Is(err, core.ErrUnsupported) {
		e.Fatalf("%s returned %v; want class unsupported, naming %q", what, err, name)
	}
	if !strings.Contains(err.Error(), name) {
		e.Errorf("%s refused with %q, which does not name %q", what, err, name)
	}
}

// notExercised ends the case with that outcome, unless it has failed already.
func (e *env) notExercised(format string, args ...any) {
	e.end(NotExercised, fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (e *env) must(err error) {
	if err != nil {
		_, file, line, _ := runtime.Caller(1)
		e.Fatalf("%s:%d: %v", file[strings.LastIndex(file, "/")+1:], line, err)
	}
}

// within returns a context of the case that ends after d.
func (e *env) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(e.Context(), d)
	e.Cleanup(cancel)
	return ctx
}

// client returns a fresh client on a fresh driver.
func (e *env) client() *core.Client { cl, _ := e.tapped(); return cl }

// tapped returns a client and the tap under it.
func (e *env) tapped(edits ...func(*core.Options)) (*core.Client, *tap) {
	t := newTap(e, e.h.Open(e))
	o := core.Options{
		Provision: core.ProvisionNone, Broker: e.h.Broker, Observer: &e.sigs,
		Logger: slog.New(slog.NewTextHandler(&e.logs, nil)), PublishTimeout: e.h.Patience,
	}
	for _, f := range edits {
		f(&o)
	}
	cl := core.NewClient(t, o)
	e.Cleanup(func() { e.close(cl) })
	return cl, t
}

// close closes a client and holds it to its deadline.
func (e *env) close(cl *core.Client) {
	const limit = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- cl.Close(ctx) }()
	select {
	case err := <-done:
		if err != nil && ctx.Err() != nil {
			e.Errorf("Client.Close did not end within %v: %v", limit, err)
		}
	case <-time.After(limit + 12*time.Second): // core itself bounds an adapter's Close by 10 s
		e.Errorf("Client.Close still runs %v after it was called with a deadline of %v", limit+12*time.Second, limit)
	}
}

func (e *env) dest(groups ...string) driver.Destination {
	return e.destOf(e.on.shape, e.on.partitions, groups...)
}

func (e *env) destOf(shape driver.Shape, partitions int, groups ...string) driver.Destination {
	own := make([]string, len(groups))
	for i, g := range groups {
		own[i] = e.group(g)
	}
	return e.h.Destination(e, shape, partitions, own...)
}

// group returns the name of a group that only this case has. A broker may give one
// group's partitions out in one go, whatever topic they are of: a member that another
// case has frozen would hold up the consumers of this one.
func (e *env) group(name string) string {
	return fmt.Sprintf("%s-%s-%s-%x", name, strings.ToLower(e.c.ID), e.on.name, e.seed&0xffffffff)
}

// dlq makes a plain queue for what cannot be handled (a stream where there are no
// queues), and a ledger of what arrives there.
func (e *env) dlq() (driver.Destination, *ledger) {
	d := e.destOf(driver.Queue, 0, "dlq")
	l := newLedger()
	e.start(e.client(), core.Subscription{From: d, Group: e.group("dlq")}, l.handler("dlq", nil))
	return d, l
}

func (e *env) sub(from driver.Destination, group string) core.Subscription {
	s := core.Subscription{From: from, Group: e.group(group)}
	if from.Shape == driver.Stream {
		s.Start.Kind = core.Earliest // what was published before the group's first consumer counts
	}
	return s
}

// start begins a subscription.
func (e *env) start(cl *core.Client, sub core.Subscription, h core.Handler, edits ...func(*core.Policy)) *core.Consumer {
	s, err := cl.Start(context.WithoutCancel(e.Context()), sub, h, policy(edits...))
	e.must(err)
	return s
}

// drain stops a subscription and waits for its end.
func (e *env) drain(s *core.Consumer) {
	ctx, cancel := context.WithTimeout(context.Background(), e.h.Patience)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		e.Fatalf("the subscription did not drain: %v", err)
	}
}

// assigned waits until a consumer owns something.
func (e *env) assigned(ss ...*core.Consumer) {
	for _, s := range ss {
		e.eventually("an assignment", func() bool { return len(s.Status().Partitions) > 0 })
	}
}

// key returns the n-th key of the case.
func (e *env) key(n int) string { return fmt.Sprintf("k%d-%x", n, e.seed&0xffff) }

// message returns a new message with an id that derives from the seed.
func (e *env) message(key string) *core.Message {
	n := e.ids.Add(1)
	id := fmt.Sprintf("%s-%s-%x-%d", strings.ToLower(e.c.ID), e.on.name, e.seed&0xffffffff, n)
	return &core.Message{ID: id, Key: key, Body: []byte("body of " + id)}
}

// messages returns n messages; keys > 0 spreads them over so many keys.
func (e *env) messages(n, keys int) []*core.Message {
	out := make([]*core.Message, n)
	for i := range out {
		k := ""
		if keys > 0 {
			k = e.key(i % keys)
		}
		out[i] = e.message(k)
	}
	return out
}

// publish sends messages in one call, which must succeed.
func (e *env) publish(cl *core.Client, l *ledger, to driver.Destination, msgs ...*core.Message) {
	if err := e.try(e.h.Patience, cl, l, to, msgs...); err != nil {
		e.Fatalf("publish of %d messages: %v", len(msgs), err)
	}
}

// try sends messages in one call and notes the outcome of each.
func (e *env) try(d time.Duration, cl *core.Client, l *ledger, to driver.Destination, msgs ...*core.Message) error {
	for _, m := range msgs {
		l.expect(m)
	}
	ctx, cancel := context.WithTimeout(e.Context(), d)
	defer cancel()
	err := cl.Publish(ctx, to, msgs...)
	for i, m := range msgs {
		switch res := driver.ResultAt(err, i); {
		case res == nil:
			l.outcome(m.ID, confirmed)
		case !errors.Is(res, core.ErrIndeterminate):
			l.outcome(m.ID, failed)
		}
	}
	return err
}

// eventually waits until cond holds.
func (e *env) eventually(what string, cond func() bool) {
	if !e.holds(e.h.Patience, cond) {
		_, file, line, _ := runtime.Caller(1)
		e.Fatalf("%s:%d: waited %v in vain for %s", file[strings.LastIndex(file, "/")+1:], line, e.h.Patience, what)
	}
}

// holds polls cond for d.
func (e *env) holds(d time.Duration, cond func() bool) bool {
	for deadline := time.Now().Add(d); ; time.Sleep(5 * time.Millisecond) {
		if cond() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// arrive waits until every confirmed message was handled.
func (e *env) arrive(l *ledger) {
	if !e.holds(e.h.Patience, func() bool { return l.waiting() == 0 }) {
		m := l.missing()
		e.Fatalf("lost: %d confirmed messages were not handled within %v: %s", len(m), e.h.Patience, some(m))
	}
}

// rest waits until nothing has been handled for a while, so that a late duplicate is
// counted too.
func (e *env) rest(l *ledger) { e.restFor(l, max(300*time.Millisecond, e.h.Tolerance/2)) }

func (e *env) restFor(l *ledger, calm time.Duration) {
	n, since := l.n(), time.Now()
	for deadline := since.Add(e.h.Patience + calm); time.Since(since) < calm; time.Sleep(5 * time.Millisecond) {
		if m := l.n(); m != n {
			n, since = m, time.Now()
		}
		if time.Now().After(deadline) {
			e.Fatalf("the system did not come to rest: %d deliveries and counting", n)
		}
	}
}

// exactly waits for all, lets the system rest, and allows neither loss nor duplicate.
func (e *env) exactly(l *ledger) {
	e.arrive(l)
	e.rest(l)
	e.noExtra(l, true)
}

// noExtra fails for messages nobody published and, if asked, for duplicates.
func (e *env) noExtra(l *ledger, duplicates bool) {
	twice, refused, strange := l.extra()
	if duplicates && len(twice) > 0 {
		e.Errorf("%d duplicates without a fault: %s", len(twice), some(twice))
	}
	if len(refused) > 0 {
		e.Errorf("%d messages were delivered although their publish was reported as failed: %s", len(refused), some(refused))
	}
	if len(strange) > 0 {
		e.Errorf("%d deliveries of messages this test did not publish: %s", len(strange), some(strange))
	}
}

// lapse is how long a delivery of a dead consumer may stay with it.
func (e *env) lapse() time.Duration { return max(e.h.Lease, e.h.Session) + e.h.Tolerance }

func some(list []string) string {
	if len(list) > 5 {
		return strings.Join(list[:5], "; ") + fmt.Sprintf("; and %d more", len(list)-5)
	}
	return strings.Join(list, "; ")
}

// policy is the layer by which the suite sets the engine's policy.
func policy(edits ...func(*core.Policy)) core.Layer {
	return core.Layer{Name: "conformance", Edit: func(p *core.Policy) error {
		p.DrainTimeout = 3 * time.Second
		p.Retry = core.RetryPolicy{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond}
		for _, f := range edits {
			f(p)
		}
		return nil
	}}
}

func workers(n int) func(*core.Policy)  { return func(p *core.Policy) { p.Concurrency = n } }
func inFlight(n int) func(*core.Policy) { return func(p *core.Policy) { p.MaxInFlight = n } }
func byKey(n int) func(*core.Policy) {
	return func(p *core.Policy) { p.Order, p.Concurrency = core.ByKey, n }
}

func retry(attempts int, base time.Duration) func(*core.Policy) {
	return func(p *core.Policy) {
		p.SetRetry(core.RetryPolicy{Attempts: attempts, Base: base, Cap: base, Jitter: core.NoJitter})
	}
}

func dead(d driver.Destination) func(*core.Policy) {
	return func(p *core.Policy) { p.DeadLetter = d }
}

func exhausted(x core.Exhausted) func(*core.Policy) {
	return func(p *core.Policy) { p.Exhausted = x }
}

// safeBuffer keeps the engine's log for a failure.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.b.Len() > 1<<20 {
		return len(p), nil
	}
	return b.b.Write(p)
}

func (b *safeBuffer) tail() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.b.String()
	return s[max(0, len(s)-4000):]
}

// signals is the Observer of the suite's clients.
type signals struct {
	mu   sync.Mutex
	kind map[core.SignalKind]int
}

func (*signals) Published(core.PublishInfo)                 {}
func (*signals) Attempted(*core.Delivery, core.AttemptInfo) {}
func (*signals) Settled(core.SettleInfo)                    {}
func (s *signals) Signalled(sig core.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kind == nil {
		s.kind = map[core.SignalKind]int{}
	}
	s.kind[sig.Kind]++
}

func (s *signals) count(k core.SignalKind) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kind[k]
}
