package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
)

// round is one measurement of one side.
type round struct {
	o     *Options
	id    uint64 // in every body
	base  time.Time
	check *checker
	gates []chan struct{} // by session; a place for each message handed over and not finished
	sys   system

	goal    atomic.Int64  // ended messages that end the phase
	reached chan struct{} // cap 1
	number  int
	side    string
}

// system is one side: it takes messages over and works them off with round.attempt.
type system interface {
	// hand takes messages over, those of a session in order. One caller a session.
	hand(ctx context.Context, batch []ticket.Ticket) error
	// done is closed when the system ends by itself, which fails the round.
	done() <-chan struct{}
	// close waits for everything it started.
	close() error
}

// opener starts a system.
type opener func(ctx context.Context, r *round) (system, error)

// errStalled ends feeders that wait for what does not come.
var errStalled = errors.New("nothing moved")

var rounds atomic.Uint64

// play runs warm-up and measurement.
func play(ctx context.Context, o *Options, number int, open opener) (Sample, error) {
	r := &round{
		o: o, number: number, base: time.Now(), check: newChecker(o.Sessions), reached: make(chan struct{}, 1),
		id: ticket.Mix(uint64(time.Now().UnixNano()) + rounds.Add(1)), //nolint:gosec // any number will do
	}
	if !o.OpenLoop {
		r.gates = make([]chan struct{}, o.Sessions)
		for i := range r.gates {
			r.gates[i] = make(chan struct{}, o.Mailbox)
		}
	}
	sys, err := open(ctx, r)
	if err != nil {
		return Sample{}, err
	}
	r.sys = sys
	began, err := r.phases(ctx)
	if cerr := sys.close(); err == nil && cerr != nil {
		err = fmt.Errorf("close: %w", cerr)
	}
	if err != nil {
		return Sample{}, err
	}
	return r.sample(began), nil
}

// phases returns when the measurement began, in nanoseconds of the round.
func (r *round) phases(ctx context.Context) (began int64, err error) {
	warm, main := r.closedFeed(true), r.closedFeed(false)
	if r.o.OpenLoop {
		warm, main = r.openFeed(true), r.openFeed(false)
	}
	stalled, err := r.phase(ctx, "warm-up", warm)
	if err != nil {
		return 0, err
	}
	r.check.warmed(int(r.o.total())/r.o.Sessions + 1)
	began = r.now()
	if stalled { // lost during the warm-up: what follows would only wait for the same
		return began, nil
	}
	_, err = r.phase(ctx, "measuring", main)
	return began, err
}

// feed is what a phase hands over: so many messages, by these feeders.
type feed struct {
	messages int64
	feeders  []func(ctx context.Context) error
}

// phase hands a feed over and waits until all of it has ended, or nothing more does.
func (r *round) phase(ctx context.Context, name string, f feed) (stalled bool, err error) {
	r.goal.Store(r.check.ended.Load() + f.messages)
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	failed := make(chan error, len(f.feeders))
	for _, run := range f.feeders {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				failed <- err
			}
		})
	}
	err = r.await(ctx, name, failed)
	if err != nil {
		cancel(err)
	}
	// All may have ended before the last Publish has its answer. Cancelled there, its
	// feeder would not count the messages as handed over, and the next phase would use
	// their numbers again.
	wg.Wait()
	cancel(nil)
	select {
	case ferr := <-failed:
		err = cmp.Or(err, ferr)
	default:
	}
	if errors.Is(err, errStalled) {
		return true, nil
	}
	return false, err
}

// await returns when the goal is reached, a feeder or the system has failed, or nothing
// has ended for the patience of the run.
func (r *round) await(ctx context.Context, name string, failed <-chan error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	from := r.check.ended.Load()
	last, moved := from, time.Now()
	for {
		select {
		case <-r.reached:
			if r.check.ended.Load() >= r.goal.Load() { // else the signal is an earlier phase's
				return nil
			}
		case err := <-failed:
			return err
		case <-r.sys.done():
			return errors.New("the subscription ended by itself")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		now := r.check.ended.Load()
		if now != last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > r.o.Patience {
			r.check.note("nothing ended for %v: what is missing by then counts as lost", r.o.Patience)
			return errStalled
		}
		if r.o.Watch != nil {
			r.o.Watch(Progress{
				Round: r.number, Rounds: r.o.Rounds, Side: r.side, Phase: name,
				Done: now - from, Of: r.goal.Load() - from, Violations: r.check.violations.Load(),
			})
		}
	}
}

// now is nanoseconds since the round began.
func (r *round) now() int64 { return int64(time.Since(r.base)) }

var errTransient = errors.New("a transient failure, as the law has it")

// attempt is the handler of both sides.
func (r *round) attempt(t ticket.Ticket) error {
	try := r.check.begin(t.Session, t.N)
	if r.o.Service > 0 {
		time.Sleep(r.o.Service)
	}
	ok := !r.o.fails(t.Session, t.N, try)
	first := r.check.finish(t, ok, r.now())
	if !ok {
		return errTransient
	}
	if first {
		r.finished(t.Session)
	}
	return nil
}

// finished gives the place in the mailbox back.
func (r *round) finished(session uint32) {
	if r.gates != nil {
		select {
		case <-r.gates[session]:
		default: // nobody holds a place: a stranger took the number of a message to come
		}
	}
	if r.check.ended.Add(1) >= r.goal.Load() {
		select {
		case r.reached <- struct{}{}:
		default:
		}
	}
}
