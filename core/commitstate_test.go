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
