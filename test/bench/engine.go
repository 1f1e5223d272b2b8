package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

const (
	benchKeys = 1000
	// outstanding is the most messages published and not handled, on both sides: the
	// publisher waits there, so that what is measured is the whole path in balance
	// and not a publisher that runs away. Watermill's gochannel starts a goroutine for
	// each of them.
	outstanding   = 1000
	engineBatch   = 100
	engineWorkers = 16
	engineShards  = 8
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1}))

func engineRows() []row {
	bar, met := atLeast(8)
	mk := func(name, what string, keyed bool, batch int) row {
		return row{
			name: name, peer: "watermill-gochannel", what: what, bar: bar, met: met,
			prepare: func(context.Context, time.Duration) (*match, error) {
				src := newSource(kafkaPayload, 0)
				if keyed {
					src = newSource(kafkaPayload, benchKeys)
				}
				return &match{ours: inProcess(varalMemory).sampler(src, batch), peer: inProcess(goChannel).sampler(src, batch)}, nil
			},
		}
	}
	return []row{
		mk("engine-unordered", "publish in batches of 100, in-process broker, handler, ack", false, engineBatch),
		mk("engine-unordered-single", "the same with one message a call", false, 1),
		mk("engine-by-key", "the same in batches of 100 with 1,000 keys, ours in order per key", true, engineBatch),
	}
}

// gate keeps the publisher at most outstanding messages ahead of the handlers.
type gate struct {
	sent    int64
	handled *meter
}

// wait blocks until n more may be sent. It waits for the meter's tick: a sleep of 20 µs
// lasts a millisecond on some machines, in which a fast engine handles all that is
// outstanding and then stands still.
func (g *gate) wait(ctx context.Context, n int) error {
	for g.sent+int64(n)-g.handled.n.Load() > outstanding {
		select {
		case <-g.handled.tick:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	g.sent += int64(n)
	return nil
}

// flow publishes until ctx ends or publish fails, and returns why.
func flow(ctx context.Context, m *meter, batch int, publish func(ctx context.Context, n int) error) error {
	g := gate{handled: m}
	for left := m.total; m.total == 0 || left > 0; left -= int64(batch) {
		n := batch
		if m.total > 0 {
			n = int(min(int64(batch), left))
		}
		if err := g.wait(ctx, n); err != nil {
			return err
		}
		if err := publish(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// inProcess is a broker in this process with one handler that counts in m; stop ends
// both.
type inProcess func(ctx context.Context, src *source, m *meter) (publish func(ctx context.Context, n int) error, stop func(), err error)

// sampler measures the whole path of an in-process broker.
func (open inProcess) sampler(src *source, batch int) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		m := newMeter(0)
		publish, stop, err := open(ctx, src, m)
		if err != nil {
			return measure{}, err
		}
		defer stop()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		failed := make(chan error, 1)
		go func() { failed <- flow(ctx, m, batch, publish) }()
		got, err := m.watch(ctx, d)
		cancel()
		if ferr := <-failed; err == nil && !errors.Is(ferr, context.Canceled) {
			err = ferr
		}
		return got, err
	}
}

// varalMemory is a varal client over adapters/memory.
func varalMemory(ctx context.Context, src *source, m *meter) (func(context.Context, int) error, func(), error) {
	drv, err := memory.Open(ctx, memory.Config{})
	if err != nil {
		return nil, nil, err
	}
	c := core.NewClient(drv, core.Options{Logger: quiet, Provision: core.ProvisionCreate})
	stop := func() { closeClient(ctx, c) }
	to := core.Queue("pizzas")
	layers := []core.Layer{middleware.Prefetch(outstanding)}
	if len(src.keys) > 0 {
		to = to.Keyed(engineShards)
		layers = append(layers, middleware.SessionOrder(engineWorkers))
	} else {
		layers = append(layers, middleware.Concurrency(engineWorkers))
	}
	if _, err := c.Start(ctx, core.Subscription{From: to}, func(context.Context, *core.Delivery) error {
		m.hit()
		return nil
	}, layers...); err != nil {
		stop()
		return nil, nil, err
	}
	return func(ctx context.Context, n int) error { return c.Publish(ctx, to, messages(src, n)...) }, stop, nil
}

// goChannel is Watermill's router on its in-process pub/sub.
func goChannel(ctx context.Context, src *source, m *meter) (func(context.Context, int) error, func(), error) {
	ps := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	stop, err := route(ctx, ps, "pizzas", func(*message.Message) error {
		m.hit()
		return nil
	})
	return func(_ context.Context, n int) error { return ps.Publish("pizzas", watermillMessages(src, n)...) }, stop, err
}

// messages makes n fresh messages, two allocations for all of them.
func messages(src *source, n int) []*core.Message {
	slab, out := make([]core.Message, n), make([]*core.Message, n)
	for i := range slab {
		slab[i].Body, slab[i].Key = src.next()
		out[i] = &slab[i]
	}
	return out
}

func closeClient(ctx context.Context, c *core.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	_ = c.Close(ctx) // the sample is over
}

// watermillMessages makes n messages as Watermill's documentation does.
func watermillMessages(src *source, n int) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		body, key := src.next()
		out[i] = message.NewMessage(watermill.NewUUID(), body)
		if key != "" {
			out[i].Metadata.Set("key", key)
		}
	}
	return out
}

// route runs a Watermill router with one handler; stop ends it and its subscriber.
func route(ctx context.Context, sub message.Subscriber, topic string, h message.NoPublishHandlerFunc) (stop func(), err error) {
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	r.AddConsumerHandler("cook", topic, sub, h)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	select {
	case <-r.Running():
	case err := <-done:
		return nil, errors.Join(errors.New("the router did not start"), err)
	}
	var once atomic.Bool
	return func() {
		if once.Swap(true) {
			return
		}
		_ = r.Close() // the sample is over
		<-done
		_ = sub.Close() // the router has done so unless it failed
	}, nil
}
