package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// scope is what one exhaustive search covers.
type scope struct {
	name        string
	mode        driver.SettleMode
	stateBytes  int        // UpTo
	parts       [][]string // keys in log order, by partition
	disruptions int        // revokes, losses, crashes, answers lost, settlements refused
	fails       int        // failing runs, at most one of a message
	window      int        // messages in flight at a member
	delays      int        // how often another step is taken than the first there is; anyOrder = without limit
	bug         string     // planted, "" = none
}

// anyOrder is scope.delays without a limit.
const anyOrder = -1

// ilTick is longer than any timer of the engine that a schedule may set off: the linger
// of the settler, a back-off, the renewal of a state.
const ilTick = 2500 * time.Millisecond

// ilWorld is a broker, and two members of one group on it, that move only when the
// search says so, one step at a time. It judges what they do, and collects in bad.
type ilWorld struct {
	scope
	mu       sync.Mutex
	parts    []*ilPart
	members  [2]*ilMember
	epoch    uint64
	left     int // disruptions
	fails    int
	idle     int  // ticks since something else happened
	unclean  bool // an ownership ended without a settle
	overlaps int
	over     bool
	bad      []string
	ended    []*ilMember     // crashed
	end      context.Context //nolint:containedctx // of the schedule
	finish   context.CancelFunc
	adapters sync.WaitGroup // goroutines that revoke
}

type ilPart struct {
	name      string
	keys      []string
	owner     int
	own       *ownership
	committed int    // UpTo
	state     []byte // UpTo: stored beside committed
	acked     []bool // Each
	success   []int
	failures  []int
}

// ownership is one epoch of one partition.
type ownership struct {
	epoch     uint64
	part      *ilPart
	member    *ilMember
	given     []bool // handed out
	admitted  []bool // that is, before a revoke began
	known     []bool // as the broker's commit and state said when it began
	done      []bool // known, or handled under it
	lost      bool   // ended without a settle
	closed    bool   // Revoke has returned
	revoking  bool
	returned  bool // Revoke has, and the next step takes note
	noticeDue bool // lost, and the member does not know yet
	ticked    bool // a tick ago or more
}

// ilMember is one member of the group, and the driver of its Client.
type ilMember struct {
	w         *ilWorld
	name      int
	c         *core.Client
	s         *core.Consumer
	sub       driver.Subscription
	give      chan driver.Received
	answer    chan error
	deadCh    chan struct{}
	kill      context.CancelFunc // ends its consumer
	dead      bool
	receiving bool
	want      driver.Demand
	settling  []driver.Settlement // the Settle under way
	runs      []*ilRun
	owned     map[uint64]*ownership
	ticked    bool // since its last Settle was answered
}

// ilRun is an attempt that waits for the word to end.
type ilRun struct {
	o       *ownership
	i       int
	attempt int
	end     chan error
	ticked  bool
}

func newIlWorld(sc *scope) *ilWorld {
	w := &ilWorld{scope: *sc, left: sc.disruptions, fails: sc.fails}
	w.end, w.finish = context.WithCancel(context.Background())
	for i := range w.members {
		w.members[i] = w.newMember(i)
	}
	for i, keys := range sc.parts {
		n := len(keys)
		p := &ilPart{name: fmt.Sprint("p", i), keys: keys, acked: make([]bool, n), success: make([]int, n), failures: make([]int, n)}
		w.parts = append(w.parts, p)
	}
	for _, p := range w.parts {
		w.assign(p, 0)
	}
	return w
}

func (w *ilWorld) newMember(i int) *ilMember {
	return &ilMember{
		w: w, name: i, give: make(chan driver.Received), answer: make(chan error), deadCh: make(chan struct{}), owned: map[uint64]*ownership{},
	}
}

// start makes a member join, if it has not.
func (m *ilMember) start() {
	if m.s != nil {
		return
	}
	m.c = core.NewClient(m, core.Options{Logger: quiet})
	ctx, cancel := context.WithCancel(context.Background())
	m.kill = cancel
	s, err := m.c.Start(ctx, in, m.handle, edit("p", func(p *core.Policy) {
		p.MaxInFlight, p.Concurrency, p.DrainTimeout = m.w.window, 3, -1
		p.Order, p.Stuck.Warn = core.ByKey, -1
		if m.w.bug == "no order" {
			p.Order = core.Unordered
		}
		p.SetRetry(core.RetryPolicy{Base: 10 * time.Millisecond, Cap: 10 * time.Millisecond, Jitter: core.NoJitter})
	}))
	if err != nil {
		panic(err)
	}
	m.s = s
}

// stop ends a member without a trace: what it does from now on has no effect.
func (w *ilWorld) stop(m *ilMember) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.dead {
		return
	}
	m.dead, m.settling, m.receiving = true, nil, false
	close(m.deadCh)
	for _, r := range m.runs {
		close(r.end)
	}
	m.runs = nil
	if m.kill != nil {
		m.kill()
	}
}

// close ends everything.
func (w *ilWorld) close() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.finish()
	for _, m := range append(w.ended, w.members[0], w.members[1]) {
		w.stop(m)
		if m.s != nil {
			_ = m.s.Wait()
			_ = m.c.Close(context.Background())
		}
	}
	w.adapters.Wait()
}

func (w *ilWorld) violation(format string, args ...any) {
	if len(w.bad) < 3 && !w.over {
		w.bad = append(w.bad, fmt.Sprintf(format, args...))
	}
}

// assign gives a partition to a member.
func (w *ilWorld) assign(p *ilPart, to int) {
	m := w.members[to]
	m.start()
	w.letGo(m, p)
	w.mu.Lock()
	n := len(p.keys)
	w.epoch++
	o := &ownership{epoch: w.epoch, part: p, member: m, given: make([]bool, n), admitted: make([]bool, n), known: w.stored(p)}
	o.done = slices.Clone(o.known)
	for i := range o.given {
		o.given[i] = i < p.committed || p.acked[i]
	}
	p.owner, p.own = to, o
	m.owned[o.epoch] = o
	a := driver.Assignment{Partition: p.name, Epoch: o.epoch, Fence: o.epoch}
	if w.mode == driver.UpTo {
		a.Committed = driver.Position{Kind: driver.At, Offset: int64(p.committed)}
		a.High = driver.Position{Kind: driver.At, Offset: int64(n)}
		a.State = slices.Clone(p.state)
	}
	w.mu.Unlock()
	if w.bug == "state forgotten" {
		a.State = nil
	}
	m.sub.Assigned(a)
}

// letGo: a member hears of the loss of a partition before it gets it again.
func (w *ilWorld) letGo(m *ilMember, p *ilPart) {
	var old *ownership
	w.mu.Lock()
	for _, o := range m.owned {
		if o.part == p && !o.closed {
			old = o
		}
	}
	w.mu.Unlock()
	if old == nil {
		return
	}
	if old.noticeDue {
		w.notice(old)
	}
	time.Sleep(1100 * time.Millisecond) // it waits a second for runs that ignore their context
}

// revoke has a member let go of what it owns, in a goroutine of the adapter.
func (w *ilWorld) revoke(o *ownership, lost bool) {
	ctx, cancel := context.WithCancel(w.end)
	if lost {
		cancel()
	}
	w.mu.Lock()
	o.revoking = !lost
	w.mu.Unlock()
	w.adapters.Go(func() {
		defer cancel()
		if w.bug != "revoke unheard" || lost {
			o.member.sub.Revoke(ctx, []string{o.part.name})
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		o.closed, o.returned = true, true
	})
	if w.bug == "revoke without drain" && !lost {
		w.mu.Lock()
		o.returned = true
		w.mu.Unlock()
	}
}

// handOver takes note of a Revoke that has returned: the partition goes to the other.
func (w *ilWorld) handOver(o *ownership) {
	w.mu.Lock()
	for _, r := range o.member.runs {
		if r.o == o {
			w.violation("%s runs on after its revoke has returned", o.part.id(r.i))
		}
	}
	w.handedOver(o)
	o.returned, o.revoking = false, false
	o.closed = true
	to := 1 - o.part.owner
	w.mu.Unlock()
	w.assign(o.part, to)
}

// keepsAll: a clean hand-over repeats nothing.
func (w *ilWorld) keepsAll() bool { return w.mode == driver.Each || w.stateBytes > 0 }

func (p *ilPart) id(i int) string { return fmt.Sprintf("%s/%s%d", p.name, p.keys[i], i) }

// Capabilities implements driver.Driver.
func (m *ilMember) Capabilities(driver.Destination) driver.Capabilities {
	return driver.Capabilities{Settle: m.w.mode, Order: driver.PerPartition, Durable: true, StateBytes: m.w.stateBytes}
}

// Admin implements driver.Driver.
func (m *ilMember) Admin() driver.Admin { return nil }

// Publish implements driver.Driver.
func (m *ilMember) Publish(context.Context, driver.Destination, []*driver.Message) error {
	return driver.Errorf("publish", driver.Permanent, "nothing is published")
}

// Subscribe implements driver.Driver.
func (m *ilMember) Subscribe(_ context.Context, sub driver.Subscription) (driver.Consumer, error) {
	m.sub = sub
	return m, nil
}

// Close implements driver.Driver and driver.Consumer.
func (m *ilMember) Close(context.Context) error { return nil }

// Receive waits until the search hands a message out.
func (m *ilMember) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	m.set(func() { m.receiving, m.want = !m.dead, want })
	defer m.set(func() { m.receiving = false })
	select {
	case r := <-m.give:
		if m.w.bug == "early ack" { // as if the broker had been told on receipt
			m.set(func() { m.w.part(r.Receipt.Partition).acked[r.Offset] = true })
		}
		return []driver.Received{r}, nil
	case <-m.deadCh:
		return nil, driver.Errorf("receive", driver.Closed, "the member has ended")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *ilMember) set(f func()) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	f()
}

// Settle waits until the search decides what becomes of it.
func (m *ilMember) Settle(_ context.Context, batch []driver.Settlement) error {
	gone := driver.Errorf("settle", driver.LeaseLost, "the member has ended")
	m.w.mu.Lock()
	if m.dead {
		m.w.mu.Unlock()
		return gone
	}
	m.settling = slices.Clone(batch)
	for i := range m.settling {
		m.w.falsify(&m.settling[i])
		m.w.judge(m, &m.settling[i])
	}
	m.w.mu.Unlock()
	select {
	case err := <-m.answer:
		return err
	case <-m.deadCh:
		return gone
	}
}

// handle is the handler: it ends when the search says so, whatever its context says.
func (m *ilMember) handle(_ context.Context, d *core.Delivery) error {
	w := m.w
	w.mu.Lock()
	if m.dead {
		w.mu.Unlock()
		return errors.New("the member has ended")
	}
	r := &ilRun{o: m.owned[d.Fence], i: int(d.Offset), attempt: d.Attempt, end: make(chan error)}
	w.begin(m, r)
	m.runs = append(m.runs, r)
	slices.SortFunc(m.runs, func(a, b *ilRun) int { // in whatever order goroutines came
		return slices.Compare([]int{int(a.o.epoch), a.i}, []int{int(b.o.epoch), b.i})
	})
	w.mu.Unlock()
	err, ok := <-r.end
	if !ok {
		return errors.New("the member has ended")
	}
	return err
}

func (w *ilWorld) part(name string) *ilPart {
	for _, p := range w.parts {
		if p.name == name {
			return p
		}
	}
	return nil
}
