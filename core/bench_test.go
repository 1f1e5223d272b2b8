package core_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// fountain hands out total messages as fast as they are asked for: what is measured
// over it is the engine alone.
type fountain struct {
	fake
	left  int
	seq   int64
	keys  []string
	body  []byte
	batch []driver.Received
}

func (f *fountain) Subscribe(_ context.Context, sub driver.Subscription) (driver.Consumer, error) {
	sub.Assigned(driver.Assignment{Epoch: 1})
	return f, nil
}

func (f *fountain) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	n := min(want.Records, f.left)
	if n == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	f.left -= n
	f.batch = f.batch[:0]
	for range n {
		f.seq++
		f.batch = append(f.batch, driver.Received{
			Message: driver.Message{ID: "id", Key: f.keys[int(f.seq)%len(f.keys)], Body: f.body},
			Receipt: driver.Receipt{Epoch: 1, Seq: f.seq},
		})
	}
	return f.batch, nil
}

func (f *fountain) Settle(context.Context, []driver.Settlement) error { return nil }
func (f *fountain) Close(context.Context) error                       { return nil }

func newFountain(mode driver.SettleMode, n, keys int) *fountain {
	f := &fountain{left: n, body: make([]byte, 100)}
	f.caps = driver.Capabilities{Settle: mode, Order: driver.PerPartition}
	for k := range max(keys, 1) {
		f.keys = append(f.keys, fmt.Sprint("key-", k))
	}
	return f
}

// consumeN runs n messages of 1,000 keys through the engine.
func consumeN(tb testing.TB, mode driver.SettleMode, n int, order core.Order, o core.Observer) {
	consumeKeys(tb, mode, n, 1000, order, o)
}

func consumeKeys(tb testing.TB, mode driver.SettleMode, n, keys int, order core.Order, o core.Observer) {
	f := newFountain(mode, n, keys)
	c := core.NewClient(f, core.Options{Logger: quiet, Observer: o})
	done := make(chan struct{})
	var handled atomic.Int64
	h := func(context.Context, *core.Delivery) error {
		if handled.Add(1) == int64(n) {
			close(done)
		}
		return nil
	}
	s, err := c.Start(context.Background(), in, h, edit("p", func(p *core.Policy) {
		p.Order, p.MaxInFlight, p.Concurrency = order, 4096, 16
	}))
	if err != nil {
		tb.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(time.Minute):
		tb.Fatalf("%d of %d handled: %+v", handled.Load(), n, s.Status())
	}
	if err := c.Close(context.Background()); err != nil {
		tb.Fatal(err)
	}
}

func BenchmarkConsume(b *testing.B) {
	for _, mode := range []driver.SettleMode{driver.Each, driver.UpTo} {
		for _, order := range []core.Order{core.Unordered, core.ByKey} {
			b.Run(mode.String()+"/"+order.String(), func(b *testing.B) {
				b.ReportAllocs()
				consumeN(b, mode, b.N, order, nil)
			})
		}
	}
}

// idle is an Observer that does nothing: what it costs is what being told costs.
type idle struct{}

func (idle) Published(core.PublishInfo)                 {}
func (idle) Attempted(*core.Delivery, core.AttemptInfo) {}
func (idle) Settled(core.SettleInfo)                    {}
func (idle) Signalled(core.Signal)                      {}

func TestConsumeAllocatesAtMostTwicePerMessage(t *testing.T) {
	const n = 20_000
	for _, order := range []core.Order{core.Unordered, core.ByKey} {
		for name, o := range map[string]core.Observer{"without an observer": nil, "with one": idle{}} {
			per := testing.AllocsPerRun(1, func() { consumeN(t, driver.Each, n, order, o) }) / n
			if per > 2 {
				t.Errorf("%s, %s: %.2f allocations a message, the budget is 2", order, name, per)
			}
			t.Logf("%s, %s: %.3f allocations a message", order, name, per)
		}
	}
}
