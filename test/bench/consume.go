package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

// Bars of the consuming side alone.
const (
	barNanos  = 1000
	barAllocs = 2
)

// fountain is a broker that costs almost nothing: it hands out the same batch again
// and again. What is measured over it is the engine's consuming side alone.
type fountain struct {
	caps  driver.Capabilities
	batch []driver.Received
	seq   int64
}

// fountainBatch is the most messages one Receive returns.
const fountainBatch = 1024

func newFountain(mode driver.SettleMode, src *source) *fountain {
	f := &fountain{caps: driver.Capabilities{Settle: mode, Order: driver.PerPartition}, batch: make([]driver.Received, fountainBatch)}
	for i := range f.batch {
		r := &f.batch[i]
		r.ID = fmt.Sprintf("%032d", i)
		r.Body, r.Key = src.next()
		r.Receipt.Epoch = 1
	}
	return f
}

// The methods of driver.Driver and driver.Consumer.

func (f *fountain) Capabilities(driver.Destination) driver.Capabilities { return f.caps }
func (f *fountain) Admin() driver.Admin                                 { return nil }
func (f *fountain) Close(context.Context) error                         { return nil }
func (f *fountain) Settle(context.Context, []driver.Settlement) error   { return nil }
func (f *fountain) Publish(context.Context, driver.Destination, []*driver.Message) error {
	return driver.Errorf("publish", driver.Unsupported, "a fountain takes nothing")
}

func (f *fountain) Subscribe(_ context.Context, sub driver.Subscription) (driver.Consumer, error) {
	sub.Assigned(driver.Assignment{Epoch: 1})
	return f, nil
}

func (f *fountain) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	out := f.batch[:min(want.Records, fountainBatch)]
	for i := range out {
		f.seq++
		out[i].Receipt.Seq = f.seq
	}
	return out, nil
}

// consumeCase is one way of consuming from a fountain.
type consumeCase struct {
	name  string
	mode  driver.SettleMode
	order core.Order
}

var consumeCases = []consumeCase{
	{"engine-consume", driver.Each, core.Unordered},
	{"engine-consume-by-key", driver.Each, core.ByKey},
	{"engine-consume-log", driver.UpTo, core.Unordered},
	{"engine-consume-log-by-key", driver.UpTo, core.ByKey},
}

// start consumes into m until stop is called.
func (cc consumeCase) start(ctx context.Context, m *meter) (stop func(), err error) {
	c := core.NewClient(newFountain(cc.mode, newSource(kafkaPayload, benchKeys)), core.Options{Logger: quiet})
	order := middleware.Concurrency(engineWorkers)
	if cc.order == core.ByKey {
		order = middleware.SessionOrder(engineWorkers)
	}
	stop = func() { closeClient(ctx, c) }
	if _, err := c.Start(ctx, core.Subscription{From: core.Queue("pizzas").Keyed(1)}, func(context.Context, *core.Delivery) error {
		m.hit()
		return nil
	}, middleware.Prefetch(4096), order); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

func (cc consumeCase) sample(ctx context.Context, d time.Duration) (measure, error) {
	m := newMeter(0)
	stop, err := cc.start(ctx, m)
	if err != nil {
		return measure{}, err
	}
	defer stop()
	return m.watch(ctx, d)
}

// cost is the result of one case.
type cost struct {
	Name   string  `json:"name"`
	Nanos  float64 `json:"ns_per_message"`
	Min    float64 `json:"min_ns"`
	Max    float64 `json:"max_ns"`
	CPU    float64 `json:"cpu_ns_per_message"`
	Allocs float64 `json:"allocs_per_message"`
	Met    bool    `json:"met"`
}

// consume measures what one message costs on the consuming side, without a peer.
func (p printer) consume(ctx context.Context, o options, progress io.Writer) error {
	for _, cc := range consumeCases {
		if !strings.Contains(cc.name, o.only) {
			continue
		}
		var nanos, cpu, allocs []float64
		for i := range o.pairs {
			m, err := cc.sample(ctx, time.Duration(o.seconds*float64(time.Second)))
			if err != nil {
				return fmt.Errorf("%s: %w", cc.name, err)
			}
			nanos = append(nanos, float64(m.elapsed.Nanoseconds())/float64(m.messages))
			cpu = append(cpu, float64(m.cpu.Nanoseconds())/float64(m.messages))
			allocs = append(allocs, float64(m.allocs)/float64(m.messages))
			_, _ = fmt.Fprintf(progress, "  %s %d/%d: %.0f ns, %.0f ns of CPU, %.3f allocations a message\n", cc.name, i+1, o.pairs, nanos[i], cpu[i], allocs[i])
		}
		r := cost{Name: cc.name, Nanos: median(nanos), Min: slices.Min(nanos), Max: slices.Max(nanos), CPU: median(cpu), Allocs: median(allocs)}
		// On a machine of its own a message takes no longer than its CPU time: work that
		// runs beside other work only shortens it. On a shared one the clock says who else
		// ran. So the bar is on the smaller of the two.
		r.Met = min(r.Nanos, r.CPU) <= barNanos && r.Allocs <= barAllocs
		p.cost(r)
	}
	return nil
}

func (p printer) cost(r cost) {
	if p.json {
		p.object(r)
		return
	}
	_, _ = fmt.Fprintf(p.out, "cost %s %.0f ns/message %.3f allocs/message  min %.0f max %.0f  CPU %.0f ns/message  bar <= %d ns, <= %d allocs: %s\n",
		r.Name, r.Nanos, r.Allocs, r.Min, r.Max, r.CPU, barNanos, barAllocs, verdict(r.Met))
}
