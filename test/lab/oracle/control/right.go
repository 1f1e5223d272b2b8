package control

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/oracle/record"
)

func rightStream(s *stage) error { return right(s, core.Stream(Dest).Keyed(4)) }
func rightQueue(s *stage) error  { return right(s, core.Queue(Dest).Keyed(4)) }

// right: m1 works alone, m2 joins, m1 is killed in a handler, m3 joins, m2 leaves in good
// order, m3 ends the work. Messages fail and are retried all the while, some for good.
func right(s *stage, dest driver.Destination) error {
	d, err := s.client()
	if err != nil {
		return err
	}
	if err := s.create(d, letters); err != nil {
		return err
	}
	all := s.make(80+s.rng.IntN(40), 12)
	if err := s.fill(d, dest, all[:2*(len(all)/4)]); err != nil {
		return err
	}
	p := &play{stage: s, dest: dest, victim: all[4+s.rng.IntN(8)].ID, reached: make(chan struct{}), burial: make(chan struct{})}
	defer p.bury() // the killed handler must not outlive the run
	fourth := len(all) / 4
	if err := p.acts(
		func() error { return s.fill(d, dest, all[2*fourth:3*fourth]) },
		func() error { return s.fill(d, dest, all[3*fourth:]) },
	); err != nil {
		return err
	}
	if err := s.readLetters(d); err != nil {
		return err
	}
	return s.drained()
}

// play is one run of core.
type play struct {
	*stage
	dest    driver.Destination
	victim  string
	once    sync.Once
	reached chan struct{} // the handler of the victim has begun at m1
	burial  chan struct{} // closed when what is dead may end
	buried  bool
}

func (p *play) bury() {
	if !p.buried {
		p.buried = true
		close(p.burial)
	}
}

func (p *play) acts(publishMore, publishLast func() error) error {
	m1, err := p.worker("m1")
	if err != nil {
		return err
	}
	select {
	case <-p.reached:
	case <-p.ctx.Done():
		return fmt.Errorf("the victim did not come to m1: %w", p.ctx.Err())
	}
	m2, err := p.worker("m2")
	if err != nil {
		return err
	}
	if err := publishMore(); err != nil {
		return err
	}
	if err := m1.die(); err != nil {
		return err
	}
	if err := p.ends("m2", 10); err != nil {
		return err
	}
	m3, err := p.worker("m3")
	if err != nil {
		return err
	}
	if err := p.await("an assignment of m3", func(e *history.Event) bool { return e.Op == history.OpAssign && e.Proc == "m3" }); err != nil {
		return err
	}
	if err := publishLast(); err != nil {
		return err
	}
	if err := p.ends("m3", 1); err != nil {
		return err
	}
	if err := m2.leave(); err != nil {
		return err
	}
	if err := p.empty(m3.inner, p.dest); err != nil {
		return err
	}
	if err := m3.idle(); err != nil {
		return err
	}
	m3.rec.Counters(m3.sub)
	if err := m3.leave(); err != nil {
		return err
	}
	p.bury()
	return m1.gone()
}

// ends waits until a member has ended so many handlers.
func (p *play) ends(name string, n int) error {
	return p.await(strconv.Itoa(n)+" handlers of "+name, func(e *history.Event) bool {
		if e.Op == history.OpEnd && e.Proc == name {
			n--
		}
		return n <= 0
	})
}

// worker is a member that runs core.
type worker struct {
	*member
	p      *play
	life   *mortal
	client *core.Client
	sub    *core.Consumer
}

func (p *play) worker(name string) (*worker, error) {
	m, err := p.member(name)
	if err != nil {
		return nil, err
	}
	w := &worker{member: m, p: p, life: &mortal{death: make(chan struct{}), burial: p.burial}}
	if m.inner, err = memory.Open(p.ctx, memory.Config{Broker: p.broker, Lease: lease}); err != nil {
		return nil, err
	}
	w.life.Driver = m.inner
	w.client = core.NewClient(record.Tap(w.life, Group, w.emit), core.Options{
		Provision: core.ProvisionCreate, Logger: slog.New(slog.DiscardHandler),
	})
	m.rec.Counters(nil)
	w.sub, err = w.client.Start(p.ctx, core.Subscription{From: p.dest, Group: Group, Start: driver.Position{Kind: startOf(p.dest)}},
		w.recorded(w.handle),
		middleware.SessionOrder(4), middleware.Prefetch(32), middleware.Drain(5*time.Second), middleware.DeadLetter(letters),
		middleware.Retry(middleware.Exponential{Base: 200 * time.Microsecond, Cap: 2 * time.Millisecond, Attempts: Attempts}),
	)
	if err != nil {
		return nil, errors.Join(err, w.client.Close(p.ctx))
	}
	p.later(func() error { // after leave or gone it does nothing
		p.bury()
		return w.client.Close(context.WithoutCancel(p.ctx))
	})
	return w, nil
}

// recorded reports like record.Handler, and tells the stage.
func (w *worker) recorded(next core.Handler) core.Handler {
	name := record.Message{Group: Group, Dest: Dest, Number: func(d *core.Delivery) int { return number(&d.Message) }}
	tell := func(op history.Op, d *core.Delivery) {
		if w.rec.Err() == nil {
			w.p.note(history.Event{Op: op, ID: d.ID, Proc: w.name})
		}
	}
	h := w.rec.Handler(name, func(ctx context.Context, d *core.Delivery) error {
		tell(history.OpStart, d)
		return next(ctx, d)
	})
	return func(ctx context.Context, d *core.Delivery) error {
		err := h(ctx, d)
		tell(history.OpEnd, d)
		return err
	}
}

// handle fails by a rule that only the message, its attempt and the seed decide.
func (w *worker) handle(ctx context.Context, d *core.Delivery) error {
	if w.name == "m1" && d.ID == w.p.victim {
		w.p.once.Do(func() { close(w.p.reached) })
		select {
		case <-w.p.burial: // killed meanwhile
		case <-ctx.Done():
		}
		return context.Cause(ctx)
	}
	h := fnv.New32a()
	fmt.Fprint(h, w.p.seed, d.ID)
	switch rule := h.Sum32(); {
	case rule%17 == 0:
		return core.Permanent(errors.New("never"))
	case rule%19 == 0, rule%5 == 0 && d.Attempt <= 1:
		return errors.New("not now")
	}
	return nil
}

// idle waits until core has heard that its last settle is done. What it still counts
// after that stays.
func (w *worker) idle() error {
	for {
		if st := w.sub.Status(); st.InFlight == 0 && st.Running == 0 {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-w.p.ctx.Done():
			return fmt.Errorf("%s does not become idle: %+v: %w", w.name, w.sub.Status(), w.p.ctx.Err())
		}
	}
}

// leave drains, in good order.
func (w *worker) leave() error {
	if err := w.sub.Drain(w.p.ctx); err != nil {
		return err
	}
	return errors.Join(w.client.Close(w.p.ctx), w.rec.Close())
}

// die is a SIGKILL as far as one process can have it: calls to the broker never return
// and nothing more is heard.
func (w *worker) die() error {
	close(w.life.death)
	// A Receive that is woken by the eviction before it sees the end of its ctx would join
	// the group again, and keep partitions that nobody serves: the calls have to be over.
	w.life.calls.Lock()
	w.life.calls.Unlock() //nolint:gocritic,staticcheck // only waits
	return w.member.die()
}

// gone waits until what the dead member left in this process has ended.
func (w *worker) gone() error {
	_ = w.client.Close(w.p.ctx) // whatever it says: it is dead
	return nil
}

// mortal is a driver that can die: from then on it takes and gives nothing, and its
// calls return at the burial only.
type mortal struct {
	driver.Driver
	death, burial chan struct{}
	calls         sync.RWMutex // held for reading by calls to the broker
}

// begin admits a call to the broker, which ends with end.
func (m *mortal) begin() (end func(), alive bool) {
	m.calls.RLock()
	if m.dead() {
		m.calls.RUnlock()
		return nil, false
	}
	return m.calls.RUnlock, true
}

type mortalConsumer struct {
	driver.Consumer
	m *mortal
}

// Subscribe implements driver.Driver.
func (m *mortal) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	c, err := m.Driver.Subscribe(ctx, sub)
	if err != nil {
		return nil, err
	}
	return &mortalConsumer{c, m}, nil
}

// Publish implements driver.Driver: a dead letter of the dead is not written.
func (m *mortal) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	end, alive := m.begin()
	if !alive {
		return m.last()
	}
	defer end()
	return m.Driver.Publish(ctx, to, batch)
}

func (m *mortal) dead() bool {
	select {
	case <-m.death:
		return true
	default:
		return false
	}
}

// last holds a dead client's call until the burial.
func (m *mortal) last() error {
	<-m.burial
	return driver.Errorf("call", driver.Closed, "the client was killed")
}

// Receive implements driver.Consumer.
func (c *mortalConsumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	end, alive := c.m.begin()
	if !alive {
		return nil, c.m.last()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-c.m.death:
			cancel()
		case <-stop:
		}
	})
	got, err := c.Consumer.Receive(ctx, want)
	close(stop)
	watch.Wait()
	end()
	if c.m.dead() {
		return nil, c.m.last()
	}
	return got, err
}

// Settle implements driver.Consumer.
func (c *mortalConsumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	end, alive := c.m.begin()
	if !alive {
		return c.m.last()
	}
	defer end()
	return c.Consumer.Settle(ctx, batch)
}
