package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// batched is bubble for a BatchHandler.
func batched(t *testing.T, f *fake, limit int, h core.BatchHandler, act func(s *core.Consumer), layers ...core.Layer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		s, err := c.StartBatch(t.Context(), in, limit, h, layers...)
		if err != nil {
			t.Fatal(err)
		}
		act(s)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		do(t, c.Close(ctx))
	})
}

func ids(batch []*core.Delivery) (out []string) {
	for _, d := range batch {
		out = append(out, fmt.Sprint(d.ID, "#", d.Attempt))
	}
	return out
}

// TestBatchesOfAKey: the next messages of one key, at most the limit, in order; failure at
// an index completes what stands before it and leaves what is behind untried.
func TestBatchesOfAKey(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.SettleMode{driver.Each, driver.UpTo} {
		f := newFake(mode)
		var mu sync.Mutex
		var calls [][]string
		failed := false
		batched(t, f, 3, func(_ context.Context, batch []*core.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, ids(batch))
			if len(calls) == 1 {
				time.Sleep(time.Second) // so that the rest is there
			}
			if i := slices.IndexFunc(batch, func(d *core.Delivery) bool { return d.ID == "m3" }); i >= 0 && !failed {
				failed = true
				return core.FailedAt(i, errors.New("no"))
			}
			return nil
		}, func(s *core.Consumer) {
			for i := range 8 {
				f.push(msg(fmt.Sprint("m", i), "a"))
			}
			time.Sleep(time.Minute)
			mu.Lock()
			defer mu.Unlock()
			want := [][]string{{"m0#1", "m1#1", "m2#1"}, {"m3#1", "m4#1", "m5#1"}, {"m3#2", "m4#1", "m5#1"}, {"m6#1", "m7#1"}}
			if fmt.Sprint(calls) != fmt.Sprint(want) && fmt.Sprint(calls[1:]) != fmt.Sprint([][]string{{"m1#1", "m2#1", "m3#1"}, {"m3#2", "m4#1", "m5#1"}, {"m6#1", "m7#1"}}) {
				t.Errorf("%v: calls %v, want %v", mode, calls, want)
			}
			if st := s.Status(); st.InFlight != 0 || st.Keys != 0 || st.Running != 0 || st.Totals.Failed != 1 {
				t.Errorf("%v: %+v", mode, st)
			}
		}, byKey)
	}
}

func TestBatchRefusals(t *testing.T) {
	t.Parallel()
	h := func(context.Context, []*core.Delivery) error { return nil }
	c := client(newFake(driver.Each))
	for name, start := range map[string]func() error{
		"no handler": func() error { return c.ConsumeBatch(t.Context(), in, 1, nil) },
		"limit 0":    func() error { return c.ConsumeBatch(t.Context(), in, 0, h) },
		"wrapped": func() error {
			return c.ConsumeBatch(t.Context(), in, 2, h, edit("w", func(p *core.Policy) {
				p.Wrappers = []core.Wrapper{{Name: "log", Wrap: func(h core.Handler) core.Handler { return h }}}
			}))
		},
		"ack first": func() error {
			return c.ConsumeBatch(t.Context(), in, 2, h, edit("a", func(p *core.Policy) { p.AckFirst = true }))
		},
		"abandon": func() error {
			return c.ConsumeBatch(t.Context(), in, 2, h, stuck(core.StuckPolicy{Cancel: 1, Abandon: 1}, nil))
		},
	} {
		if err := start(); !errors.Is(err, core.ErrPermanent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBatchStorm: batches that fail anywhere, panic, exit, decide some of their messages
// themselves and publish, through a broker that hands out at random. Whatever happens,
// a key's messages end in order, each once, and nothing is left.
func TestBatchStorm(t *testing.T) {
	t.Parallel()
	for seed := range 300 {
		batchStorm(t, uint64(seed))
	}
}

type batchBook struct {
	mu sync.Mutex
	r  *rand.Rand
}

func batchStorm(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	f := newFake([]driver.SettleMode{driver.Each, driver.UpTo}[r.IntN(2)])
	keyed := r.IntN(3) > 0
	b := &batchBook{r: r}
	refusals := r.IntN(10)
	f.onPublish = func(driver.Destination, []*driver.Message) error {
		if b.chance(refusals) {
			return driver.Errorf("publish", driver.Transient, "busy")
		}
		return nil
	}
	n, keys := 20+r.IntN(60), 1+r.IntN(4)
	order := edit("o", func(p *core.Policy) {
		p.DeadLetter, p.Concurrency = core.Queue("dlq"), 1+r.IntN(4)
		if keyed {
			p.Order = core.ByKey
		}
		p.SetRetry(core.RetryPolicy{Base: 10 * time.Millisecond, Cap: 50 * time.Millisecond, Attempts: 3})
	})
	limit := 1 + r.IntN(6)
	batched(t, f, limit, func(_ context.Context, batch []*core.Delivery) error { return b.handle(t, seed, keyed, limit, batch) }, func(s *core.Consumer) {
		for i := range n {
			f.push(msg(fmt.Sprint("m", i), fmt.Sprint("k", i%keys)))
			if b.chance(20) {
				time.Sleep(time.Duration(b.intN(20)) * time.Millisecond)
			}
		}
		time.Sleep(5 * time.Minute)
		if st := s.Status(); st.InFlight != 0 || st.Running != 0 || st.Keys != 0 || st.Waiting != 0 || st.Queued != 0 {
			t.Errorf("seed %d: left: %+v", seed, st)
		}
	}, order)
	b.check(t, seed, f, n)
}

func (b *batchBook) chance(percent int) bool { return b.intN(100) < percent }

func (b *batchBook) intN(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.r.IntN(n)
}

func (b *batchBook) handle(t *testing.T, seed uint64, keyed bool, limit int, batch []*core.Delivery) error {
	if len(batch) > limit {
		t.Errorf("seed %d: %d in a batch of %d", seed, len(batch), limit)
	}
	for i, d := range batch {
		if keyed && (d.Key != batch[0].Key || i > 0 && d.Offset <= batch[i-1].Offset) {
			t.Errorf("seed %d: batch %v", seed, ids(batch))
		}
	}
	time.Sleep(time.Duration(b.intN(5)) * time.Millisecond)
	at := b.intN(len(batch))
	for i, d := range batch {
		if b.chance(20) {
			d.Publish(core.Queue("out"), &core.Message{ID: d.ID})
		}
		if i < at && b.chance(10) {
			_ = d.Ack()
		}
	}
	switch b.intN(20) {
	case 0:
		panic("boom")
	case 1:
		runtime.Goexit()
	case 2:
		return errors.New("no")
	case 3, 4:
		return core.FailedAt(at, errors.New("no"))
	case 5:
		return core.FailedAt(at, core.Permanent(errors.New("never")))
	case 6:
		return core.FailedAt(at, core.Return(nil))
	case 7:
		_ = batch[at].Nack(time.Millisecond, nil)
	case 8:
		_ = batch[at].Reject(errors.New("never"))
	case 9:
		return core.FailedAt(len(batch)+3, errors.New("no such index"))
	}
	return nil
}

// check: with individual settlements every message was settled once; on a log the
// position has reached the end.
func (b *batchBook) check(t *testing.T, seed uint64, f *fake, n int) {
	t.Helper()
	final, _ := f.settlements()
	if f.caps.Settle == driver.UpTo {
		if len(final) == 0 || final[len(final)-1].Receipt.Seq != int64(n) {
			t.Errorf("seed %d: the position is %v, want %d", seed, final, n)
		}
		return
	}
	times := map[int64]int{}
	for _, s := range final {
		times[s.Receipt.Seq]++
		if s.Disposition != driver.Ack && s.Disposition != driver.Reject && s.Disposition != driver.Return {
			t.Errorf("seed %d: %v of %d", seed, s.Disposition, s.Receipt.Seq)
		}
	}
	for seq := int64(1); seq <= int64(n); seq++ {
		if times[seq] != 1 {
			t.Errorf("seed %d: message %d was settled %d times", seed, seq, times[seq])
		}
	}
}
