package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

const (
	rabbitPayload = 256
	rabbitBatch   = 10_000
	// rabbitWatermillBatch is smaller so that one call of Watermill, about 900 messages a
	// second, fits a sample; both sides make it.
	rabbitWatermillBatch = 3_000
	rabbitPrefetch       = 256
	rabbitWindow         = 1000
	rabbitCallers        = 64
	rabbitMultiAck       = 50
	// Messages preloaded for a second of consuming.
	rabbitPerSecond     = 50_000
	rabbitSlowPerSecond = 22_000
)

func rabbitRows() []row {
	rawBar, rawMet := atLeast(0.85)
	wmBar, wmMet := atLeast(5)
	slowBar, slowMet := atLeast(10)
	return []row{
		{
			name: "rabbitmq-publish", peer: "amqp091", bar: rawBar, met: rawMet,
			what: "one caller, 10,000 messages in one call, confirmed (raw: one channel, deferred confirms, window 1,000)",
			prepare: rabbitMatch(0, func(r *rabbitSite, q string, src *source, _ int) (ours, peer sampler) {
				return r.varalPublish(q, src, rabbitBatch), r.rawPublish(q, src)
			}),
		},
		{
			name: "rabbitmq-publish-64", peer: "amqp091", bar: rawBar, met: rawMet,
			what: "64 callers, one message a call, confirmed (raw: the same callers on one channel)",
			prepare: rabbitMatch(0, func(r *rabbitSite, q string, src *source, _ int) (ours, peer sampler) {
				return r.varalCallers(q, src), r.rawCallers(q, src)
			}),
		},
		{
			name: "rabbitmq-consume", peer: "amqp091", bar: rawBar, met: rawMet,
			what: "one consumer on a preloaded queue, handler that counts (raw: multiple ack every 50, same prefetch)",
			prepare: rabbitMatch(rabbitPerSecond, func(r *rabbitSite, q string, _ *source, n int) (ours, peer sampler) {
				return r.varalConsume(q, n, 0, middleware.Prefetch(rabbitPrefetch), middleware.Concurrency(engineWorkers)), r.rawConsume(q, n)
			}),
		},
		{
			name: "rabbitmq-watermill-publish", peer: "watermill-amqp", bar: wmBar, met: wmMet,
			what: "one caller, 3,000 messages in one call, confirmed (Watermill: ConfirmDelivery, channel pool of 1)",
			prepare: rabbitMatch(0, func(r *rabbitSite, q string, src *source, _ int) (ours, peer sampler) {
				return r.varalPublish(q, src, rabbitWatermillBatch), r.watermillPublish(q, src)
			}),
		},
		{
			name: "rabbitmq-watermill-1ms", peer: "watermill-amqp", bar: slowBar, met: slowMet,
			what: "handler of 1 ms, one subscription, prefetch 256 on both sides, ours with 256 handlers",
			prepare: rabbitMatch(rabbitSlowPerSecond, func(r *rabbitSite, q string, _ *source, n int) (ours, peer sampler) {
				return r.varalConsume(q, n, slowHandler, middleware.Prefetch(rabbitPrefetch), middleware.Concurrency(slowInFlight)), r.watermillConsume(q, n, slowHandler)
			}),
		},
	}
}

// rabbitSite is the broker under test with one connection of our own for queues and
// preloading.
type rabbitSite struct {
	url  string
	conf rabbitmq.Config
	conn *amqp.Connection
	ch   *amqp.Channel // used by one goroutine
}

func openRabbitSite() (*rabbitSite, error) {
	url := os.Getenv("VARAL_RABBITMQ_URL")
	if url == "" {
		return nil, errors.New("VARAL_RABBITMQ_URL is not set: start one with `go run ./test/brokers up rabbitmq` and load the variables it prints")
	}
	conf, err := rabbitmq.ParseURL(url)
	if err != nil {
		return nil, err
	}
	r := &rabbitSite{url: conf.URLs[0], conf: conf}
	if r.conn, err = amqp.Dial(r.url); err != nil {
		return nil, err
	}
	if r.ch, err = r.conn.Channel(); err == nil {
		err = r.ch.Confirm(false)
	}
	if err != nil {
		_ = r.conn.Close() // the error above is the one to tell
		return nil, err
	}
	return r, nil
}

// rabbitMatch prepares a row: a fresh quorum queue, emptied before every sample, and
// filled again for rows that consume.
func rabbitMatch(perSecond int, sides func(r *rabbitSite, queue string, src *source, n int) (ours, peer sampler)) func(context.Context, time.Duration) (*match, error) {
	return func(ctx context.Context, d time.Duration) (*match, error) {
		r, err := openRabbitSite()
		if err != nil {
			return nil, err
		}
		queue, src := uniqueName("queue"), newSource(rabbitPayload, 0)
		if err := r.declare(ctx, queue); err != nil {
			_ = r.conn.Close() // the error above is the one to tell
			return nil, err
		}
		n := 0
		if perSecond > 0 {
			n = int(d.Seconds()*float64(perSecond)) + rabbitBatch
		}
		m := &match{
			between: func(ctx context.Context) error {
				if _, err := r.ch.QueuePurge(queue, false); err != nil {
					return fmt.Errorf("purge: %w", err)
				}
				return publishWindow(ctx, r.ch, queue, src, &idSource{}, n)
			},
			end: func(context.Context) {
				if _, err := r.ch.QueueDelete(queue, false, false, false); err != nil {
					fmt.Fprintln(os.Stderr, "bench: queue", queue, "is left behind:", err)
				}
				_ = r.conn.Close() // nothing of it is needed any more
			},
		}
		m.ours, m.peer = sides(r, queue, src, n)
		return m, nil
	}
}

// declare has the adapter make the queue, so that all sides use what an application of
// ours would have.
func (r *rabbitSite) declare(ctx context.Context, queue string) error {
	drv, err := rabbitmq.Open(ctx, r.conf)
	if err != nil {
		return err
	}
	_, err = drv.Admin().Apply(ctx, []core.Resource{{Destination: core.Queue(queue)}}, driver.Create)
	return errors.Join(err, drv.Close(ctx))
}

func (r *rabbitSite) client(ctx context.Context) (*core.Client, error) {
	drv, err := rabbitmq.Open(ctx, r.conf)
	if err != nil {
		return nil, err
	}
	return core.NewClient(drv, core.Options{Logger: quiet}), nil
}

func (r *rabbitSite) varalPublish(queue string, src *source, batch int) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		c, err := r.client(ctx)
		if err != nil {
			return measure{}, err
		}
		defer closeClient(ctx, c)
		to := core.Queue(queue)
		return publishing(ctx, d,
			func() error { return c.Publish(ctx, to, messages(src, warmUp)...) },
			func() (int, error) { return batch, c.Publish(ctx, to, messages(src, batch)...) })
	}
}

func (r *rabbitSite) varalCallers(queue string, src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		c, err := r.client(ctx)
		if err != nil {
			return measure{}, err
		}
		defer closeClient(ctx, c)
		to := core.Queue(queue)
		return callers(ctx, d, rabbitCallers,
			func() error { return c.Publish(ctx, to, messages(src, warmUp)...) },
			func() error {
				body, _ := src.next()
				return c.Publish(ctx, to, &core.Message{Body: body})
			})
	}
}

func (r *rabbitSite) varalConsume(queue string, n int, work time.Duration, layers ...core.Layer) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		c, err := r.client(ctx)
		if err != nil {
			return measure{}, err
		}
		defer closeClient(ctx, c)
		m := newMeter(int64(n))
		if _, err := c.Start(ctx, core.Subscription{From: core.Queue(queue)}, func(context.Context, *core.Delivery) error {
			if work > 0 {
				time.Sleep(work)
			}
			m.hit()
			return nil
		}, layers...); err != nil {
			return measure{}, err
		}
		return m.watch(ctx, d)
	}
}
