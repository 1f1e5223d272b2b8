package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// logFake is a log of n messages m1 … mn with offsets from 1, keyed by keys in turn.
func logFake(n int, keys ...string) *fake {
	f := newFake(driver.UpTo)
	f.caps.StateBytes = 4096
	f.given = driver.Assignment{
		Committed: driver.Position{Kind: driver.At, Offset: 1}, High: driver.Position{Kind: driver.At, Offset: int64(n + 1)},
	}
	f.fill(n, keys...)
	return f
}

func (f *fake) fill(n int, keys ...string) {
	for i := 1; i <= n; i++ {
		key := ""
		if len(keys) > 0 {
			key = keys[i%len(keys)]
		}
		f.push(msg(fmt.Sprint("m", i), key))
	}
}

// next is the log as the next owner finds it, after last's final commit (nil = none).
func (f *fake) next(t *testing.T, n int, keys ...string) *fake {
	t.Helper()
	final, _ := f.settlements()
	g := logFake(0)
	g.given.Committed, g.given.State = f.given.Committed, f.given.State
	g.given.High = driver.Position{Kind: driver.At, Offset: int64(n + 1)}
	if len(final) > 0 {
		last := final[len(final)-1]
		g.given.Committed.Offset, g.given.State = last.Receipt.Seq+1, last.State
		if last.Disposition == driver.Hold {
			g.given.Committed.Offset--
		}
	}
	g.fill(n, keys...)
	g.ready = g.ready[g.given.Committed.Offset-1:]
	return g
}

// runs counts the runs of each message, with the attempt each saw.
type runs struct {
	mu sync.Mutex
	of map[string][]int
}

func (r *runs) add(d *core.Delivery) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[string][]int{}
	}
	r.of[d.ID] = append(r.of[d.ID], d.Attempt)
	return len(r.of[d.ID])
}

var byKey = edit("order", func(p *core.Policy) { p.Order, p.MaxInFlight = core.ByKey, 1<<14 })

func retryAfter(wait time.Duration) core.Layer {
	return edit("retry", func(p *core.Policy) {
		p.SetRetry(core.RetryPolicy{Base: wait, Cap: wait, Jitter: core.NoJitter})
	})
}

// TestStuckHeadKeepsWhatIsDoneBehindIt: the position stands at 1 for ever, and all the
// same the next owner runs nothing twice but what was unfinished, crash or not.
func TestStuckHeadKeepsWhatIsDoneBehindIt(t *testing.T) {
	t.Parallel()
	const n = 5000
	keys := []string{"a", "b", "c", "d", "stuck"} // m4, m9, m14 … are of the stuck key
	f := logFake(n, keys...)
	h := func(ctx context.Context, d *core.Delivery) error {
		if d.Key == "stuck" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	var crashed *fake
	bubble(t, f, h, func(s *core.Consumer) {
		time.Sleep(10 * time.Second)
		crashed = f.next(t, n, keys...) // as a process that is killed now leaves it
	}, byKey, edit("drain", func(p *core.Policy) { p.DrainTimeout = -1 }))
	for name, g := range map[string]*fake{"crashed": crashed, "drained": f.next(t, n, keys...)} {
		var seen runs
		bubble(t, g, func(_ context.Context, d *core.Delivery) error { seen.add(d); return nil }, func(s *core.Consumer) {
			time.Sleep(time.Second)
			if st := s.Status(); st.Totals.Skipped != n-n/5-3 { // m1 to m3 were committed
				t.Errorf("%s: %d skipped, want %d", name, st.Totals.Skipped, n-n/5-3)
			}
		}, byKey)
		if len(seen.of) != n/5 || seen.of["m4"] == nil || seen.of["m5"] != nil {
			t.Errorf("%s: %d messages run again, want %d", name, len(seen.of), n/5)
		}
	}
}

// TestNothingDoneYet: a state without a completed head is committed beside the position
// the head has, which Hold is for.
func TestNothingDoneYet(t *testing.T) {
	t.Parallel()
	f := logFake(3)
	var seen runs
	h := func(_ context.Context, d *core.Delivery) error {
		if seen.add(d); d.ID == "m1" {
			return errors.New("no")
		}
		return nil
	}
	bubble(t, f, h, func(*core.Consumer) { time.Sleep(4 * time.Second) }, retryAfter(10*time.Second))
	final, _ := f.settlements()
	if last := final[len(final)-1]; last.Disposition != driver.Hold || last.Receipt.Seq != 1 || len(last.State) == 0 {
		t.Fatalf("the last commit is %+v", last)
	}
	g := f.next(t, 3)
	var again runs
	start := time.Time{}
	bubble(t, g, func(_ context.Context, d *core.Delivery) error { again.add(d); start = time.Now(); return nil },
		func(*core.Consumer) { time.Sleep(time.Minute) })
	if len(again.of) != 1 || !slices.Equal(again.of["m1"], []int{2}) {
		t.Errorf("runs of the next owner: %v, want the second attempt of m1", again.of)
	}
	// Both bubbles begin at the same time: m1 failed at 0 and was due at 10 s.
	if wait := start.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); wait < 10*time.Second || wait > 12*time.Second {
		t.Errorf("m1 ran again after %v, it was due after 10 s", wait)
	}
}

// TestAttemptsGoOnOverAHandOver: three owners, one count.
func TestAttemptsGoOnOverAHandOver(t *testing.T) {
	t.Parallel()
	var seen runs
	f := logFake(2)
	layers := []core.Layer{edit("dead", func(p *core.Policy) {
		p.DeadLetter = core.Queue("dlq")
		p.SetRetry(core.RetryPolicy{Base: 2 * time.Second, Cap: 2 * time.Second, Jitter: core.NoJitter, Attempts: 5})
	})}
	h := func(_ context.Context, d *core.Delivery) error { seen.add(d); return errors.New("no") }
	// Each owner's time begins anew: what was due at 4 s is due then.
	for owner, lives := range []time.Duration{3 * time.Second, 6 * time.Second, 12 * time.Second} {
		if owner > 0 {
			f = f.next(t, 2)
		}
		bubble(t, f, h, func(*core.Consumer) { time.Sleep(lives) }, layers...)
	}
	for _, id := range []string{"m1", "m2"} {
		if !slices.Equal(seen.of[id], []int{1, 2, 3, 4, 5}) {
			t.Errorf("%s: attempts %v, want 1 to 5", id, seen.of[id])
		}
	}
	if n := len(f.sent("dlq")); n != 2 {
		t.Errorf("%d dead letters, want 2", n)
	}
}

// TestHandOversDoNotPutARetryOff: a message that waits for its next attempt is due when it
// was, however many owners pass it on.
func TestHandOversDoNotPutARetryOff(t *testing.T) {
	t.Parallel()
	f := logFake(2)
	no := func(_ context.Context, d *core.Delivery) error {
		if d.ID == "m1" {
			return errors.New("no")
		}
		return nil
	}
	for range 10 {
		bubble(t, f, no, func(*core.Consumer) { time.Sleep(time.Second) }, retryAfter(5*time.Second))
		f = f.next(t, 2)
	}
	var start time.Time
	bubble(t, f, func(context.Context, *core.Delivery) error { start = time.Now(); return nil },
		func(*core.Consumer) { time.Sleep(time.Minute) })
	// All bubbles begin at the same time: m1 failed at 0 and is due at 5 s.
	if wait := start.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); wait < 5*time.Second || wait > 6*time.Second {
		t.Errorf("m1 ran again after %v, it was due after 5 s", wait)
	}
}

// TestCrashLoopingMessageIsQuarantined: what was running at three unclean ends goes to
// the dead letter before it can end a fourth process, however soon it ends one.
func TestCrashLoopingMessageIsQuarantined(t *testing.T) {
	t.Parallel()
	for _, life := range []time.Duration{3 * time.Second, 900 * time.Millisecond} {
		t.Run(life.String(), func(t *testing.T) { t.Parallel(); testCrashLoop(t, life) })
	}
}

func testCrashLoop(t *testing.T, life time.Duration) {
	f := logFake(2)
	dead := edit("dead", func(p *core.Policy) { p.DeadLetter, p.DrainTimeout = core.Queue("dlq"), -1 })
	var seen runs
	for process := range 4 {
		var killed *fake
		bubble(t, f, func(ctx context.Context, d *core.Delivery) error {
			if seen.add(d); d.ID == "m1" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, func(*core.Consumer) {
			time.Sleep(life)
			killed = f.next(t, 2)
		}, dead)
		if process == 3 {
			break
		}
		f = killed
	}
	if !slices.Equal(seen.of["m1"], []int{1, 1, 1}) || len(seen.of["m2"]) != 1 {
		t.Errorf("runs %v, want three of m1 and one of m2", seen.of)
	}
	out := f.sent("dlq")
	if len(out) != 1 || out[0].ID != "m1" {
		t.Fatalf("dead letters %v", out)
	}
	if v, _ := out[0].Header(driver.HeaderFailureReason); v != "quarantined" {
		t.Errorf("reason %q, want quarantined", v)
	}
}

// TestStateThatDoesNotFitIsIgnored: anything foreign or damaged costs a replay, and
// never a message.
func TestStateThatDoesNotFitIsIgnored(t *testing.T) {
	t.Parallel()
	const n = 300
	f := logFake(n)
	bubble(t, f, func(ctx context.Context, d *core.Delivery) error {
		if d.ID == "m1" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}, func(*core.Consumer) { time.Sleep(5 * time.Second) }, edit("p", func(p *core.Policy) { p.MaxInFlight, p.DrainTimeout = 1000, -1 }))
	good := f.next(t, n)
	for name, spoil := range map[string]func(a *driver.Assignment){
		"a bit flipped":       func(a *driver.Assignment) { a.State[len(a.State)/2] ^= 4 },
		"of another position": func(a *driver.Assignment) { a.Committed.Offset++ },
		"of another tool":     func(a *driver.Assignment) { a.State = []byte("member-1") },
		"beyond the end":      func(a *driver.Assignment) { a.High.Offset = 5 },
		"end unknown":         func(a *driver.Assignment) { a.High = driver.Position{} },
		"cut":                 func(a *driver.Assignment) { a.State = a.State[:len(a.State)-1] },
	} {
		g := f.next(t, n)
		g.given.State = slices.Clone(good.given.State)
		if len(g.given.State) == 0 {
			t.Fatal("there is no state to spoil")
		}
		spoil(&g.given)
		o := &signals{}
		var seen runs
		g.observe = o
		bubble(t, g, func(_ context.Context, d *core.Delivery) error { seen.add(d); return nil },
			func(*core.Consumer) { time.Sleep(time.Second) })
		if len(seen.of) != n {
			t.Errorf("%s: %d of %d were handled again", name, len(seen.of), n)
		}
		if told := o.count(core.SignalStateIgnored) > 0; told != (name != "of another tool") {
			t.Errorf("%s: signalled %v", name, told)
		}
	}
}

// TestStateTooLargeIsHalved: the broker takes less than it said.
func TestStateTooLargeIsHalved(t *testing.T) {
	t.Parallel()
	f := logFake(400, "a", "b", "c")
	largest := 0
	f.onSettle = func(batch []driver.Settlement) error {
		errs := make([]error, len(batch))
		for i, s := range batch {
			if len(s.State) > 100 {
				errs[i] = driver.Errorf("settle", driver.TooLarge, "the metadata is too large")
			} else {
				largest = max(largest, len(s.State))
			}
		}
		return driver.Batch(errs)
	}
	bubble(t, f, func(ctx context.Context, d *core.Delivery) error {
		if len(d.ID)%2 == 0 || d.ID == "m1" { // holes all over
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}, func(s *core.Consumer) {
		time.Sleep(20 * time.Second)
		if n := s.Status().Totals.LeaseLost; n > 0 {
			t.Errorf("%d counted as lost", n)
		}
	}, edit("p", func(p *core.Policy) { p.MaxInFlight, p.Concurrency, p.DrainTimeout = 1000, 1000, -1 }))
	if largest == 0 {
		t.Error("no state was stored in the end")
	}
}

// signals counts what an Observer is told.
type signals struct {
	core.Observer
	mu sync.Mutex
	of map[core.SignalKind]int
}

func (o *signals) Published(core.PublishInfo)                 {}
func (o *signals) Attempted(*core.Delivery, core.AttemptInfo) {}
func (o *signals) Settled(core.SettleInfo)                    {}
func (o *signals) Signalled(s core.Signal) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = map[core.SignalKind]int{}
	}
	o.of[s.Kind]++
}

func (o *signals) count(k core.SignalKind) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[k]
}

// crashes runs a log through processes that a message ends at once, until one lives, and
// returns the diary of runs of each process and the last log.
func crashes(t *testing.T, n int, keys []string, poison map[string]bool, more ...core.Layer) (processes [][]string, last *fake) {
	t.Helper()
	f := logFake(n, keys...)
	layers := append([]core.Layer{edit("dead", func(p *core.Policy) {
		p.DeadLetter, p.DrainTimeout, p.Concurrency = core.Queue("dlq"), -1, 4
	})}, more...)
	for len(processes) < 20 {
		var mu sync.Mutex
		var ran []string
		var killed *fake
		bubble(t, f, func(ctx context.Context, d *core.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if killed == nil {
				ran = append(ran, d.ID)
			}
			if poison[d.ID] && killed == nil { // as the process leaves it at this instant
				killed = f.next(t, n, keys...)
			}
			if killed != nil {
				mu.Unlock()
				<-ctx.Done()
				mu.Lock()
				return ctx.Err()
			}
			return nil
		}, func(*core.Consumer) { time.Sleep(30 * time.Second) }, layers...)
		processes = append(processes, ran)
		if killed == nil {
			return processes, f
		}
		f = killed
	}
	t.Fatalf("it goes on for ever: %v", processes)
	return nil, nil
}

// TestMessageThatEndsItsProcessAtOnce: wherever it stands, it is found, and nothing else is
// taken for it.
func TestMessageThatEndsItsProcessAtOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		poison string
		layers []core.Layer
		most   int // processes it may end
	}{
		{"first", "m1", nil, 3},
		{"among the first", "m3", nil, 5},
		{"later", "m40", nil, 6},
		{"first, by key", "m1", []core.Layer{byKey}, 3},
		{"later, by key", "m40", []core.Layer{byKey}, 6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			processes, last := crashes(t, 60, []string{"a", "b", "c"}, map[string]bool{tc.poison: true}, tc.layers...)
			if n := len(processes) - 1; n > tc.most || n < 3 {
				t.Errorf("it ended %d processes, want 3 to %d: %v", n, tc.most, processes)
			}
			out := last.sent("dlq")
			if len(out) != 1 || out[0].ID != tc.poison {
				t.Errorf("dead letters %v, want %s alone", out, tc.poison)
			}
			final, _ := last.settlements()
			if len(final) == 0 || final[len(final)-1].Receipt.Seq != 60 {
				t.Errorf("the last process committed %v, want everything", final)
			}
		})
	}
}

// TestCleanEndsAreNoCrashes: hand-overs while the first message runs, waits or has not yet
// begun count nothing against it.
func TestCleanEndsAreNoCrashes(t *testing.T) {
	t.Parallel()
	f := logFake(3)
	dead := edit("dead", func(p *core.Policy) { p.DeadLetter, p.DrainTimeout = core.Queue("dlq"), -1 })
	var seen runs
	for owner, lives := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second, 0, time.Second} {
		if owner > 0 {
			f = f.next(t, 3)
		}
		bubble(t, f, func(ctx context.Context, d *core.Delivery) error {
			if seen.add(d); d.ID == "m1" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, func(*core.Consumer) { time.Sleep(lives) }, dead)
	}
	g := f.next(t, 3)
	bubble(t, g, func(_ context.Context, d *core.Delivery) error { seen.add(d); return nil }, func(*core.Consumer) { time.Sleep(time.Second) }, dead)
	if n := len(g.sent("dlq")); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	for id, attempts := range seen.of {
		if last := attempts[len(attempts)-1]; last != 1 {
			t.Errorf("%s: attempts %v, want each the first", id, attempts)
		}
	}
}

// TestWorkGoesOnWhileCommitsFail: a beginning that cannot be noted holds nothing up for long.
func TestWorkGoesOnWhileCommitsFail(t *testing.T) {
	t.Parallel()
	f := logFake(10)
	f.onSettle = func([]driver.Settlement) error { return driver.Errorf("settle", driver.Transient, "down") }
	var seen runs
	bubble(t, f, func(_ context.Context, d *core.Delivery) error { seen.add(d); return nil }, func(*core.Consumer) {
		time.Sleep(2 * time.Second)
		seen.mu.Lock()
		early := len(seen.of)
		seen.mu.Unlock()
		time.Sleep(8 * time.Second)
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if early > 0 || len(seen.of) != 10 {
			t.Errorf("%d ran before the note was committed, %d of 10 after 10 s", early, len(seen.of))
		}
		f.mu.Lock()
		f.onSettle = nil
		f.mu.Unlock()
	}, edit("dead", func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") }))
	if final, _ := f.settlements(); len(final) == 0 || final[len(final)-1].Receipt.Seq != 10 {
		t.Errorf("committed in the end: %v", final)
	}
}

// TestLongSuspectHoldsNobodyForLong: a message under suspicion may be innocent and slow.
func TestLongSuspectHoldsNobodyForLong(t *testing.T) {
	t.Parallel()
	_, last := crashes(t, 3, nil, map[string]bool{"m1": true})
	if len(last.sent("dlq")) != 1 {
		t.Fatal("the poison was not found")
	}
	f := logFake(10)
	dead := edit("dead", func(p *core.Policy) { p.DeadLetter, p.DrainTimeout = core.Queue("dlq"), -1 })
	for range 2 { // two unclean ends while m1 runs, which are not its fault
		var killed *fake
		bubble(t, f, func(ctx context.Context, _ *core.Delivery) error { <-ctx.Done(); return ctx.Err() },
			func(*core.Consumer) { time.Sleep(time.Second); killed = f.next(t, 10) }, dead)
		f = killed
	}
	var seen runs
	bubble(t, f, func(ctx context.Context, d *core.Delivery) error {
		if seen.add(d); d.ID == "m1" {
			time.Sleep(time.Minute)
		}
		return nil
	}, func(*core.Consumer) {
		time.Sleep(3 * time.Second)
		seen.mu.Lock()
		alone := len(seen.of)
		seen.mu.Unlock()
		time.Sleep(7 * time.Second)
		seen.mu.Lock()
		all := len(seen.of)
		seen.mu.Unlock()
		if alone != 1 || all != 10 {
			t.Errorf("%d after 3 s and %d after 10 s, want m1 alone and then all", alone, all)
		}
		time.Sleep(2 * time.Minute)
	}, edit("dead", func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") }))
	if n := len(f.sent("dlq")); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}
