package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/budget"
	"github.com/varal-go/varal/core/internal/schedule"
)

// Consumer is one running subscription. Its methods may be called concurrently.
//
// Five kinds of goroutine serve it, each in a file of its own: one receives (and runs
// handlers that are quick, see serve.go), up to Policy.Concurrency work, one settles, one
// keeps time (back-off and leases), and one supervises start and stop. All of them have
// ended when Wait returns, but for a handler that ignores its context past the drain
// deadline; that one is reported as abandoned.
type Consumer struct {
	c    *Client
	sub  Subscription
	from Destination // as the broker knows it
	name string
	p    *Policy
	h    Handler
	caps Capabilities
	src  driver.Consumer

	began    time.Time       // what flights count their times from
	hctx     context.Context //nolint:containedctx // life of the handlers, ended by the supervisor
	hcancel  context.CancelCauseFunc
	pctx     context.Context //nolint:containedctx // life of the engine's own publishes: a little longer
	pcancel  context.CancelFunc
	hurried  context.Context //nolint:containedctx // ends when a Drain ran out of time
	hurry    context.CancelFunc
	quiet    chan struct{} // closed when a drain has no handler left
	stop     chan struct{} // closed by the first Drain or failure
	received chan struct{} // closed when nobody receives any more
	done     chan struct{} // closed when all is over
	workers  sync.WaitGroup
	actors   sync.WaitGroup // receiver, settler, clock

	roomFree   chan struct{} // cap 1: something changed that the receiver waits for
	settleNow  chan struct{} // cap 1: settle without lingering
	settleSome chan struct{} // cap 1: something to settle
	settleEnd  chan struct{} // closed: settle what is left and end
	clockWake  chan struct{} // cap 1: an earlier due time
	clockEnd   chan struct{}

	mu         sync.Mutex // guards all below; taken before no other lock of ours
	work       sync.Cond  // a worker may find something to do
	queue      *schedule.Queue[*flight]
	budget     budget.Budget
	parts      map[string]*assignment
	flights    flightList
	free       []*flight // to use again
	waiting    waitHeap
	halted     map[string]*flight // by key
	blocked    map[string]block   // by key
	crowded    map[*lane]*assignment
	suspects   []*assignment // whose messages run one at a time after unclean ends
	suspect    *flight       // the one that runs, or is about to; nil = none
	guarded    []*assignment // that hold messages back until a note is committed
	active     int           // assignments with anything in flight
	fullParts  int           // assignments that are full
	pruneAt    int           // as many blocked keys are looked through for old ones
	settling   []settleEntry
	dirty      []*assignment
	flushers   []chan struct{} // closed after the next round of the settler
	idle       int             // parked workers
	spawned    int
	running    int
	waking     bool // a worker is on its way to the queue
	serving    serving
	paused     bool
	breaker    breaker
	retries    retryBudget
	dedup      dedup
	draining   bool // starts nothing more
	abandoned  bool // what still runs is not waited for
	stopped    bool // workers end
	stopping   bool // stop is closed
	cancelRcv  context.CancelFunc
	demandGen  uint64 // grows with every change of Demand
	err        error
	state      string
	strays     int       // abandoned runs whose handlers have not returned
	stuckScan  time.Time // when the clock looks for stuck work next
	leases     bool      // the source has leases
	scan       time.Time // when the clock looks at them next
	lastRcv    time.Time
	receiveErr error // of the last Receive; nil = it worked
	counts     counts
	isQuiet    bool // quiet is closed
}

// counts are totals since the start.
type counts struct {
	Received, Handled, Failed, DeadLettered, Discarded, Returned, Stale, LeaseLost, Abandoned int64
	Overlaps                                                                                  int64 // attempts that may have run beside the next owner's
	Skipped                                                                                   int64 // completed before, by the commit state
	Duplicates                                                                                int64 // handled before, by the DedupStore
	DedupUnknown                                                                              int64 // handled while the DedupStore did not answer, by DedupPolicy.FailOpen
	MarksLost                                                                                 int64 // handled, and not marked in the DedupStore
	PutOff                                                                                    int64 // retries that waited for RetryBudget
	KeysSkipped                                                                               int64 // by SkipKey
	GapsSkipped                                                                               int64 // by StuckPolicy.GapSkip
}

// Start begins a subscription and returns once the broker has accepted it. When ctx
// ends, or Drain is called, it stops: no new messages, running handlers may finish
// within Policy.DrainTimeout, the rest is given back. Start fails with the field that
// is wrong, ErrUnsupported naming a capability that is missing, ErrNotFound,
// ErrDenied, or the broker's own error.
func (c *Client) Start(ctx context.Context, sub Subscription, h Handler, layers ...Layer) (*Consumer, error) {
	s, err := c.plan(sub, h, layers)
	if err != nil {
		return nil, err
	}
	if err := c.ensureAll(ctx, s); err != nil {
		return nil, err
	}
	if err := c.register(s); err != nil {
		return nil, err
	}
	s.src, err = c.d.Subscribe(ctx, s.request())
	if err != nil {
		c.unregister(s)
		close(s.done) // a Close that found s between register and here waits for it
		return nil, fmt.Errorf("subscribe %s: %w", s.name, err)
	}
	s.launch(ctx)
	return s, nil
}

// Consume is Start and Wait: it blocks until the subscription has drained, and
// returns nil when ctx was cancelled, were it while the broker was still being asked, or
// the client was closed. A deadline that passes before the broker has accepted is an error.
func (c *Client) Consume(ctx context.Context, sub Subscription, h Handler, layers ...Layer) error {
	s, err := c.Start(ctx, sub, h, layers...)
	if err != nil {
		return unlessCancelled(ctx, err)
	}
	return s.Wait()
}

// unlessCancelled is err, or nil where all it says is that ctx was cancelled: a service
// told to stop while it starts has stopped in good order, however its supervisor timed it.
func unlessCancelled(ctx context.Context, err error) error {
	told := errors.Is(ctx.Err(), context.Canceled)
	if told && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// plan validates everything that needs no network and builds the Consumer.
func (c *Client) plan(sub Subscription, h Handler, layers []Layer) (*Consumer, error) {
	if err := sub.validate(); err != nil {
		return nil, err
	}
	if h == nil {
		return nil, driver.Errorf("subscribe "+sub.name(), driver.Permanent, "the handler is nil")
	}
	p, err := assemble(layers)
	if err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", sub.name(), err)
	}
	s := &Consumer{c: c, sub: sub, from: c.prefixed(sub.From), name: sub.name(), p: p, h: h}
	s.caps = c.d.Capabilities(s.from)
	if err := s.resolve(); err != nil {
		return nil, err
	}
	for _, w := range slices.Backward(p.Wrappers) {
		s.h = w.Wrap(s.h)
	}
	s.init()
	return s, nil
}

func (s *Consumer) init() {
	s.hctx, s.hcancel = context.WithCancelCause(context.Background())
	s.pctx, s.pcancel = context.WithCancel(context.Background())
	s.hurried, s.hurry = context.WithCancel(context.Background())
	s.quiet = make(chan struct{})
	s.stop, s.received, s.done = make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.settleEnd, s.clockEnd = make(chan struct{}), make(chan struct{})
	s.roomFree, s.clockWake = make(chan struct{}, 1), make(chan struct{}, 1)
	s.settleNow, s.settleSome = make(chan struct{}, 1), make(chan struct{}, 1)
	s.work.L = &s.mu
	s.queue = schedule.New[*flight]()
	s.parts = map[string]*assignment{}
	s.crowded = map[*lane]*assignment{}
	s.halted, s.blocked, s.pruneAt = map[string]*flight{}, map[string]block{}, minPrune
	s.budget = budget.Budget{MaxRecords: s.p.MaxInFlight, MaxBytes: s.p.MaxInFlightBytes}
	s.dedup.claims, s.dedup.wake = map[*flight]*claim{}, make(chan struct{}, 1)
	s.dedup.life, s.dedup.end = context.WithCancel(s.pctx)
	s.state = "starting"
	s.began = time.Now()
}

// request is what the adapter is asked for.
func (s *Consumer) request() driver.Subscription {
	return driver.Subscription{
		From: s.from, Group: s.c.prefixedGroup(s.sub.Group), Start: s.sub.Start, Reset: s.sub.Reset, Temporary: s.sub.Temporary,
		Assigned: s.assigned, Revoke: s.revoke, Notify: s.notify,
	}
}

// ensureAll checks the source and the dead letter.
func (c *Client) ensureAll(ctx context.Context, s *Consumer) error {
	if err := c.ensure(ctx, s.from); err != nil {
		return fmt.Errorf("subscribe %s: %w", s.name, err)
	}
	if s.p.DeadLetter == (Destination{}) {
		return nil
	}
	if err := c.ensure(ctx, c.prefixed(s.p.DeadLetter)); err != nil {
		return fmt.Errorf("subscribe %s: dead letter: %w", s.name, err)
	}
	return nil
}

func (c *Client) register(s *Consumer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return errClosed("subscribe " + s.name)
	}
	c.consumers[s] = struct{}{}
	delete(c.failed, s.name)
	return nil
}

func (c *Client) unregister(s *Consumer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.consumers, s)
}

// launch starts the actors and the supervisor.
func (s *Consumer) launch(ctx context.Context) {
	s.mu.Lock()
	s.state = "running"
	s.mu.Unlock()
	s.actors.Go(s.settler)
	s.actors.Go(s.clock)
	if s.p.Dedup.Store != nil {
		s.actors.Go(s.keepClaims)
	}
	go s.supervise(ctx)
}

// Wait blocks until the subscription has ended and returns why: nil after a drain,
// the error that stopped it otherwise.
func (s *Consumer) Wait() error {
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Done is closed when the subscription has ended.
func (s *Consumer) Done() <-chan struct{} { return s.done }

// Drain stops the subscription as the end of Start's ctx does and waits for its end
// or for ctx, whose end cuts the drain short: handlers are cancelled and the rest is
// given back. It returns ctx's error in that case.
func (s *Consumer) Drain(ctx context.Context) error {
	s.fail(nil)
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	s.hcancel(ErrDrained)
	s.hurry()
	// Every public call returns within half a second of its deadline, whatever a
	// handler or the broker do; the supervisor ends by itself soon after.
	t := time.NewTimer(cutGrace)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
	}
	return ctx.Err()
}

// fail stops the subscription; err nil = a drain. The first call decides.
func (s *Consumer) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(err)
}

func (s *Consumer) failLocked(err error) {
	if s.stopping {
		return
	}
	s.stopping, s.err = true, err
	close(s.stop)
}

// Pause stops new deliveries. Connection, assignment and what is in flight stay.
func (s *Consumer) Pause() { s.change(func() { s.paused = true }) }

// Resume undoes Pause.
func (s *Consumer) Resume() { s.change(func() { s.paused = false }) }

// SetLimit changes Policy.MaxInFlight, and with it how many handlers run at once:
// never more than Policy.Concurrency, and never more than the limit. A lowered limit
// is reached as what is in flight ends. Below 1 counts as 1.
func (s *Consumer) SetLimit(maxInFlight int) {
	s.change(func() {
		s.budget.MaxRecords = max(maxInFlight, 1)
		for _, a := range s.parts {
			s.emptier(a)
		}
		s.work.Broadcast()
		s.wakeWorker() // none may be parked: those that work now were all that the old limit let start
	})
}

// change alters what the receiver's Demand depends on, and has it ask anew.
func (s *Consumer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.redemand()
}

// redemand makes the receiver ask again with a fresh Demand. Callers hold mu.
func (s *Consumer) redemand() {
	s.demandGen++
	if s.cancelRcv != nil {
		s.cancelRcv()
	}
	signal(s.roomFree)
}

// signal wakes whoever waits for a channel of capacity 1.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// notify passes an adapter's event on.
func (s *Consumer) notify(e driver.Event) {
	s.c.o.Logger.Info("varal: "+e.Kind.String(), "subscription", s.name, "partition", e.Partition, "error", e.Err)
	if e.Kind == driver.Connected {
		// The call that noticed the recovery may wait long for its first message.
		s.mu.Lock()
		s.receiveErr = nil
		s.mu.Unlock()
	}
	s.c.Notify(e)
	if s.sub.OnEvent != nil {
		s.sub.OnEvent(e)
	}
}

// signalled reports an operational event.
func (s *Consumer) signalled(kind SignalKind, partition, id string, n int, err error) {
	if o := s.c.o.Observer; o != nil {
		o.Signalled(Signal{Subscription: s.name, Kind: kind, Partition: partition, ID: id, Count: n, Err: err})
	}
	s.c.o.Logger.Warn("varal: "+string(kind), "subscription", s.name, "partition", partition, "id", printable(id), "count", n, "error", err)
}

// isShutdown reports whether an attempt ended because it was cancelled by us and not
// because the handler failed: neither success nor failure.
func isShutdown(cause error) bool {
	return errors.Is(cause, ErrDrained) || errors.Is(cause, ErrRevoked) || errors.Is(cause, ErrLeaseLost)
}
