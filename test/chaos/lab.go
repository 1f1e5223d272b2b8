package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/varal-go/varal/test/lab/history"
)

// Lab is the parent's side: it starts workers, hurts them, and keeps the clock and
// the history. All methods may be called concurrently.
type Lab struct {
	start time.Time
	wg    sync.WaitGroup

	mu      sync.Mutex
	procs   []*Proc
	gens    map[string]int
	own     []history.Event
	changed chan struct{} // closed and replaced with every event
	closed  bool
}

// NewLab returns a Lab whose clock starts now. Close it.
func NewLab() *Lab {
	return &Lab{start: time.Now(), gens: map[string]int{}, changed: make(chan struct{})}
}

// Now is the time on the lab's clock, in ns.
func (l *Lab) Now() int64 { return int64(time.Since(l.start)) }

// Emit records an event of the lab itself: a publish it made, a fault, a count, the
// end of the drain. Proc is "lab" unless e names another; T and Seq are filled in.
func (l *Lab) Emit(e history.Event) { l.record(e) }

// record appends an event and returns its index among the lab's own.
func (l *Lab) record(e history.Event) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Proc == "" {
		e.Proc = "lab"
	}
	if e.Gen == 0 {
		e.Gen = 1
	}
	e.T, e.Seq = l.Now(), 0 // not numbered: kept in memory, none can be missing
	l.own = append(l.own, e)
	l.wake()
	return len(l.own) - 1
}

// wake tells those who wait that there is news; the caller holds mu.
func (l *Lab) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// amend changes the outcome of an event of the lab.
func (l *Lab) amend(i int, outcome string) {
	l.mu.Lock()
	l.own[i].Outcome = outcome
	l.mu.Unlock()
}

// Procs lists every process started so far, ended ones too.
func (l *Lab) Procs() []*Proc {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.procs)
}

// Wait returns the first event, past ones included, of a worker or the lab for
// which match is true, and the worker (nil: the lab's own). Times in it are on the
// clock of whoever wrote it. It fails when ctx ends.
func (l *Lab) Wait(ctx context.Context, match func(history.Event) bool) (history.Event, *Proc, error) {
	seen := map[*Proc]int{}
	for {
		l.mu.Lock()
		changed := l.changed
		procs := slices.Clone(l.procs)
		own := l.own[min(seen[nil], len(l.own)):len(l.own):len(l.own)]
		seen[nil] = len(l.own)
		own = slices.Clone(own)
		l.mu.Unlock()
		for _, e := range own {
			if match(e) {
				return e, nil, nil
			}
		}
		for _, p := range procs {
			events := p.since(seen[p])
			seen[p] += len(events)
			for _, e := range events {
				if match(e) {
					return e, p, nil
				}
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return history.Event{}, nil, fmt.Errorf("chaos: the awaited event did not come: %w", ctx.Err())
		}
	}
}

// Aim is a fault for a message, not for a moment: kills at random moments miss most
// of the bugs that a kill in the right handler finds.
type Aim struct {
	Op   history.Op    // what to wait for; "" = OpStart
	ID   string        // of this message; "" = any
	Proc string        // at this process; "" = any
	Hold time.Duration // how long the handler must have held; at least 100 ms and 3 × the settle interval. 0 = 100 ms
	// Taken is told of the event when Hold begins. May be nil.
	Taken func(history.Event)
	// Do is the fault, for example (*Proc).Kill. nil = Kill.
	Do func(*Proc) error
}

// ErrMissed: the handler ended, or its process did, before the fault: the run shows
// nothing about it.
var ErrMissed = errors.New("chaos: the handler ended before the fault could hit it: let it hold longer")

// Aim waits for the event, lets Hold pass, and hits the process. Only starts that
// come from live processes count. It fails with ErrMissed, with ctx's error, or with
// that of Do.
func (l *Lab) Aim(ctx context.Context, a Aim) error {
	if a.Op == "" {
		a.Op = history.OpStart
	}
	if a.Hold == 0 {
		a.Hold = 100 * time.Millisecond
	}
	if a.Do == nil {
		a.Do = (*Proc).Kill
	}
	e, p, err := l.Wait(ctx, func(e history.Event) bool {
		return e.Op == a.Op && (a.ID == "" || e.ID == a.ID) && (a.Proc == "" || e.Proc == a.Proc) && l.live(e)
	})
	if err != nil {
		return err
	}
	if p == nil {
		return fmt.Errorf("chaos: %s of %s is an event of the lab itself: there is no process to hit", e.Op, e.ID)
	}
	if a.Taken != nil {
		a.Taken(e)
	}
	hold := time.NewTimer(a.Hold)
	defer hold.Stop()
	select {
	case <-hold.C:
	case <-p.exited:
		return ErrMissed
	case <-ctx.Done():
		return fmt.Errorf("chaos: %w", ctx.Err())
	}
	if a.Op == history.OpStart {
		for _, x := range p.since(e.Seq - 1) {
			if x.Op == history.OpEnd && x.ID == e.ID && x.Group == e.Group {
				return ErrMissed
			}
		}
	}
	return a.Do(p)
}

// live reports whether an event's process still runs and the message of a start has
// not ended there.
func (l *Lab) live(e history.Event) bool {
	for _, p := range l.Procs() {
		if p.spec.Name != e.Proc || p.gen != e.Gen {
			continue
		}
		select {
		case <-p.exited:
			return false
		default:
		}
		for _, x := range p.since(e.Seq) {
			if e.Op == history.OpStart && x.Op == history.OpEnd && x.ID == e.ID && x.Group == e.Group {
				return false
			}
		}
		return true
	}
	return true
}

// History merges everything so far onto the lab's clock. Processes that still run
// are pinged first, so that their clocks are known at the end as well; their logs
// have no end yet, which History.Problems says. Close first for the whole story.
func (l *Lab) History() *history.History {
	for _, p := range l.Procs() {
		_ = p.Ping(20, time.Second)
	}
	l.mu.Lock()
	logs := []history.Log{{Proc: "lab", Gen: 1, Events: slices.Clone(l.own)}}
	l.mu.Unlock()
	for _, p := range l.Procs() {
		logs = append(logs, p.log())
	}
	return history.Merge(logs...)
}

// Close kills what still runs (recorded as kills), joins every goroutine and returns
// when all processes have ended. Idempotent.
func (l *Lab) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	var errs []error
	for _, p := range l.Procs() {
		select {
		case <-p.exited:
		default:
			if err := p.Kill(); err != nil && !errors.Is(err, ErrEnded) {
				errs = append(errs, err)
			}
		}
	}
	l.wg.Wait()
	return errors.Join(errs...)
}
