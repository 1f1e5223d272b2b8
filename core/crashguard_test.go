package core_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

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

// lateLog answers its first commit too late for the note in it, with a failure, and takes
// its time for the second.
type lateLog struct {
	*fake
	calls int // the settler's own
}

func (l *lateLog) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	_, err := l.fake.Subscribe(ctx, sub)
	return l, err
}

func (l *lateLog) Settle(ctx context.Context, batch []driver.Settlement) error {
	switch l.calls++; l.calls {
	case 1:
		time.Sleep(6 * time.Second)
		return driver.Errorf("settle", driver.Transient, "down")
	case 2:
		time.Sleep(time.Second)
	}
	return l.fake.Settle(ctx, batch)
}

// TestNoteIsConfirmedLate: what the note was about has run and ended meanwhile, and its
// flight was given back.
func TestNoteIsConfirmedLate(t *testing.T) {
	t.Parallel()
	var seen runs
	f := logFake(1)
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := core.NewClient(&lateLog{fake: f}, core.Options{Logger: quiet})
		_, err := c.Start(t.Context(), in, func(_ context.Context, d *core.Delivery) error { seen.add(d); return nil },
			edit("dead", func(p *core.Policy) { p.DeadLetter = core.Queue("dlq") }))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if final, _ := f.settlements(); len(seen.of["m1"]) != 1 || len(final) == 0 || final[len(final)-1].Disposition != driver.Ack {
		t.Errorf("ran %v, settled %v", seen.of, final)
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
