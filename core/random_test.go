package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

const stormBytes = 400

// effects is what the handlers did. It is guarded by storm.mu.
type effects struct {
	byKey, counts bool
	attempts      int
	ok            map[string][]string // epoch/id -> for each success the id of what it published; "" = nothing
	terminal      map[string]bool     // by id: handled, or dead-lettered
	failures      map[string]int      // by id
	permanent     map[string]bool
	ended         map[int64]bool // receipts that core knows to be over
	running       map[string]int // by key
	epochs        map[uint64]int // handlers that run and do not ignore their context
	last          map[string]int // UpTo: epoch/key -> place of the last one started
	slots         int
}

func okKey(epoch uint64, id string) string { return fmt.Sprint(epoch, "/", id) }

// succeeded reports whether the handler of a message succeeded under an epoch, and what
// it published has been confirmed.
func (e *effects) succeeded(epoch uint64, id string, confirmed map[string]bool) bool {
	for _, out := range e.ok[okKey(epoch, id)] {
		if out == "" || confirmed["out/"+out] {
			return true
		}
	}
	return false
}

// succeededEver is succeeded under any epoch: a commit state outlives its own.
func (e *effects) succeededEver(id string, confirmed map[string]bool) bool {
	for key, outs := range e.ok {
		if _, of, _ := strings.Cut(key, "/"); of != id {
			continue
		}
		for _, out := range outs {
			if out == "" || confirmed["out/"+out] {
				return true
			}
		}
	}
	return false
}

func (e *effects) mayBeDead(id string, bad func(string, ...any)) {
	if !e.permanent[id] && e.failures[id] < e.attempts {
		bad("%s dead-lettered after %d failures of %d", id, e.failures[id], e.attempts)
	}
	e.terminal[id] = true
}

// fenced: after Revoke returned nothing runs, but for what ignores its context.
func (e *effects) fenced(epoch uint64, late bool, bad func(string, ...any)) {
	if n := e.epochs[epoch]; n > 0 && !late {
		bad("%d handlers of epoch %d run after its revoke had returned", n, epoch)
	}
}

// seeds is how many storms a run goes through. VARAL_SEEDS overrides it.
func seeds() int {
	if n, err := strconv.Atoi(os.Getenv("VARAL_SEEDS")); err == nil {
		return n
	}
	if raceEnabled || testing.Short() {
		return 200
	}
	return 2000
}

// TestStorm lets a broker do all it may, at random, and checks what must hold all the
// same: core/DESIGN.md says why, invariants 1 to 5 and 8 to 10. VARAL_SEED runs one.
func TestStorm(t *testing.T) {
	t.Parallel()
	if n, err := strconv.Atoi(os.Getenv("VARAL_SEED")); err == nil {
		runStorm(t, n)
		return
	}
	const lanes = 4
	for lane := range lanes {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			for seed := lane; seed < seeds() && !t.Failed(); seed += lanes {
				runStorm(t, seed)
			}
		})
	}
}

func runStorm(t *testing.T, seed int) {
	synctest.Test(t, func(t *testing.T) {
		b := newStorm(seed)
		defer func() {
			for _, v := range b.bad {
				t.Errorf("seed %d (%v, by key %v, lease %v): %s", seed, b.mode, b.effects.byKey, b.lease, v)
			}
			if len(b.bad) > 0 && testing.Verbose() {
				t.Log(strings.Join(b.log, ""))
			}
		}()
		c := core.NewClient(b, core.Options{Logger: quiet, PublishTimeout: time.Second})
		b.consume(c, false)
		b.mu.Lock()
		b.calm = true
		b.mu.Unlock()
		b.consume(c, true) // whoever comes next finds everything that is left
		b.complete()
		_ = c.Close(context.Background())
		time.Sleep(5 * time.Second) // what ignored its context
	})
}

func newStorm(seed int) *storm {
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	b := &storm{r: r, mode: driver.Each, confirmed: map[string]bool{}, effects: &effects{
		byKey: r.IntN(2) == 0, attempts: 2 + r.IntN(3), ok: map[string][]string{}, terminal: map[string]bool{}, failures: map[string]int{},
		permanent: map[string]bool{}, ended: map[int64]bool{}, running: map[string]int{}, epochs: map[uint64]int{}, last: map[string]int{},
	}}
	switch r.IntN(3) {
	case 0:
		b.mode = driver.UpTo
	case 1:
		b.lease = time.Duration(150+r.IntN(300)) * time.Millisecond
	}
	if b.mode == driver.UpTo {
		b.stateBytes = []int{0, 60, 4096}[r.IntN(3)]
	}
	b.ladder, b.quarantine = r.IntN(4) == 0, []int{-1, 7}[r.IntN(2)]
	b.effects.counts = b.mode == driver.Each && r.IntN(2) == 0
	for p := range 1 + r.IntN(3) {
		part := &stormPart{name: fmt.Sprint("p", p), fenced: map[uint64]time.Time{}}
		for i := range 5 + r.IntN(25) {
			m := driver.Message{ID: fmt.Sprintf("%s-%d", part.name, i), Time: time.Unix(1, 0), Body: make([]byte, r.IntN(60))}
			if k := r.IntN(5); k > 0 {
				m.Key = fmt.Sprintf("%s-k%d", part.name, k)
			} else if b.effects.byKey && b.lease > 0 {
				m.Key = part.name + "-k1" // the broker's order is by key
			}
			part.msgs = append(part.msgs, m)
		}
		part.done = make([]bool, len(part.msgs))
		b.parts = append(b.parts, part)
	}
	return b
}

// consume runs one consumer: through a storm, or until everything has ended.
func (b *storm) consume(c *core.Client, calm bool) {
	limit, slots := 1+b.intN(20), 1+b.intN(6)
	b.effects.slots = slots
	var s *core.Consumer
	started := make(chan struct{})
	b.inFlight = func() (int, int64) { <-started; st := s.Status(); return st.InFlight, st.InFlightBytes }
	s, err := c.Start(context.Background(), in, b.handle, edit("p", func(p *core.Policy) {
		p.MaxInFlight, p.MaxInFlightBytes, p.Concurrency = limit, stormBytes, slots
		p.DrainTimeout = 300 * time.Millisecond
		if b.effects.byKey {
			p.Order = core.ByKey
		}
		p.DeadLetter, p.Quarantine = core.Queue("dlq"), b.quarantine
		if b.ladder {
			p.Stuck = core.StuckPolicy{Cancel: 150 * time.Millisecond, Abandon: 100 * time.Millisecond}
		}
		p.SetRetry(core.RetryPolicy{Base: 20 * time.Millisecond, Cap: 200 * time.Millisecond, Attempts: b.effects.attempts})
	}))
	if err != nil {
		b.violation("start: %v", err)
		return
	}
	close(started)
	if calm {
		s.SetLimit(1)
		s.Pause()
		time.Sleep(50 * time.Millisecond)
		s.Resume()
		s.SetLimit(limit)
		b.untilDone()
		b.settled(s)
	} else {
		b.direct(s)
		if b.intN(2) == 0 { // the storm ends before the consumer does
			b.mu.Lock()
			b.calm = true
			b.mu.Unlock()
			s.SetLimit(limit)
			b.untilDone()
			b.settled(s)
		}
	}
	start := time.Now()
	err = s.Drain(context.Background())
	b.mu.Lock()
	defer b.mu.Unlock()
	failed := s.Wait() != nil && !b.ladder // with it, too many may ignore their context
	if took := time.Since(start); err != nil || failed || took > 25*time.Second {
		b.violation("drain after %v: %v, %v", took, err, s.Wait())
	}
	b.closed = true
}

// settled: nothing is left in the engine once everything has ended.
func (b *storm) settled(s *core.Consumer) {
	st := s.Status()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ladder && st.State == "failed" {
		return
	}
	if st.InFlight != 0 || st.InFlightBytes != 0 || st.Running != 0 || st.Waiting != 0 || st.Queued != 0 || st.Keys != 0 {
		b.violation("left in the engine: %+v", st)
	}
}

// direct makes things happen to a consumer for a while.
func (b *storm) direct(s *core.Consumer) {
	var wg sync.WaitGroup
	defer wg.Wait()
	busy := make([]sync.Mutex, len(b.parts))
	for range b.intN(25) {
		b.mu.Lock()
		what, k, wait, n := b.r.IntN(9), b.r.IntN(len(b.parts)), time.Duration(b.r.IntN(150))*time.Millisecond, b.r.IntN(20)
		b.mu.Unlock()
		time.Sleep(wait)
		p := b.parts[k]
		switch what {
		case 0:
			s.Pause()
			time.Sleep(wait)
			s.Resume()
		case 1, 2:
			s.SetLimit(n)
		case 3: // an adapter that forgot to revoke
			if busy[k].TryLock() {
				b.assign(p)
				busy[k].Unlock()
			}
		default:
			wg.Go(func() {
				if !busy[k].TryLock() {
					return
				}
				defer busy[k].Unlock()
				ctx, cancel := context.WithCancel(context.Background())
				if n%3 == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(n)*20*time.Millisecond)
				}
				b.revoke(ctx, p, n%2 == 0)
				cancel()
				time.Sleep(wait)
				b.assign(p)
			})
		}
	}
	wg.Wait()
	s.Resume()
}

func (b *storm) untilDone() {
	for i := 0; i < 600 && !b.allDone(); i++ {
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(3 * time.Second) // what ignores its context
}

func (b *storm) allDone() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.parts {
		for i := range p.msgs {
			if !b.isDone(p, i) {
				return false
			}
		}
	}
	return true
}

// complete: every message has ended, at the broker and in fact.
func (b *storm) complete() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.parts {
		for i := range p.msgs {
			if !b.isDone(p, i) || !b.effects.terminal[p.msgs[i].ID] {
				b.violation("%s: done at the broker %v, ended %v", p.msgs[i].ID, b.isDone(p, i), b.effects.terminal[p.msgs[i].ID])
			}
		}
	}
}

// handle is the handler of all storms.
func (b *storm) handle(ctx context.Context, d *core.Delivery) (err error) {
	b.mu.Lock()
	b.begin(d)
	what, ignores := 100, false
	wait := time.Duration(b.r.IntN(5)) * time.Millisecond
	if !b.calm {
		what, ignores = b.r.IntN(130), b.r.IntN(12) == 0
		wait = time.Duration(b.r.IntN(3)) * time.Duration(b.r.IntN(100)) * time.Millisecond
	}
	if ignores {
		wait *= 10
	}
	b.mu.Unlock()
	out := ""
	if ignores {
		time.Sleep(wait)
	} else if sleepCtx(ctx, wait) != nil {
		what = -1
	}
	if what > 110 && what < 125 {
		out = fmt.Sprint(d.ID, "@", d.Fence, "#", d.Attempt)
		d.Publish(core.Queue("out"), &core.Message{ID: out})
	}
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.finish(ctx, d, what, out)
	}()
	switch {
	case what < 0:
		return ctx.Err()
	case what < 12:
		return errors.New("no")
	case what < 15:
		return core.Permanent(errors.New("never"))
	case what < 19:
		return core.RetryAfter(100*time.Millisecond, errors.New("later"))
	case what < 23:
		return core.Return(nil)
	case what < 26:
		panic("boom")
	case what < 28:
		runtime.Goexit()
	case what < 30:
		return core.Ignore(errors.New("so what"))
	}
	return nil
}

func (b *storm) begin(d *core.Delivery) {
	e := b.effects
	e.epochs[d.Fence]++
	total := 0
	for _, n := range e.epochs {
		total += n
	}
	if total > e.slots && !b.calm && !b.ladder { // then one may be left that the first consumer abandoned
		b.violation("%d handlers at once with %d slots", total, e.slots)
	}
	b.note("begin", d.ID, d.Key, d.Fence, d.Attempt)
	p := b.part(d.Partition)
	if p.finished[d.ID] {
		b.violation("%s runs again after a clean hand-over", d.ID)
	}
	if at, ok := p.fenced[d.Fence]; ok && time.Now().After(at) || d.Fence != p.epoch && time.Now().After(p.since) {
		b.violation("%s started under an epoch that has ended", d.ID)
	}
	if !e.byKey || d.Key == "" {
		return
	}
	if e.running[d.Key]++; e.running[d.Key] > 1 && !b.calm {
		b.violation("key %s runs %d times at once", d.Key, e.running[d.Key])
	}
	for i, m := range p.msgs[:d.Offset] {
		if m.Key == d.Key && !e.terminal[m.ID] && !b.isDone(p, i) {
			b.violation("%s started before %s had ended", d.ID, m.ID)
		}
	}
	if b.mode == driver.UpTo {
		k := fmt.Sprint(d.Fence, d.Key)
		if e.last[k] > int(d.Offset) {
			b.violation("%s started after %d in one assignment", d.ID, e.last[k])
		}
		e.last[k] = int(d.Offset)
	}
}

func (b *storm) finish(ctx context.Context, d *core.Delivery, what int, out string) {
	e := b.effects
	b.note("finish", d.ID, d.Key, d.Fence, d.Attempt, what, out, ctx.Err())
	e.epochs[d.Fence]--
	if e.byKey && d.Key != "" {
		e.running[d.Key]--
	}
	stuck := errors.Is(context.Cause(ctx), core.ErrStuck) // counts as any failure
	cancelled := ctx.Err() != nil && !stuck
	switch {
	case what >= 30, what >= 28 && !cancelled: // an Ignore of a cancelled handler is an error like any other
		e.ok[okKey(d.Fence, d.ID)] = append(e.ok[okKey(d.Fence, d.ID)], out)
		e.terminal[d.ID] = true
	case cancelled, what < 0 && !stuck, what >= 19 && what < 23:
	case what >= 12 && what < 15:
		e.permanent[d.ID] = true
		e.failures[d.ID]++
	default:
		e.failures[d.ID]++
	}
}
