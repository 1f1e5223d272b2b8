package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

const (
	redisPayload  = 100
	redisBatch    = 10_000
	redisChunk    = 512 // of one pipeline, as in the adapter
	redisPrefetch = 1024
	redisCallers  = 64
	asynqCallers  = 100
	// Messages preloaded for a second of consuming.
	redisPerSecond = 200_000
)

func redisRows() []row {
	rawBar, rawMet := atLeast(0.8)
	halfBar, halfMet := atLeast(0.5)
	slowBar, slowMet := atLeast(10)
	asynqBar, asynqMet := atLeast(2.5)
	bullPublishBar, bullPublishMet := atLeast(3)
	bullConsumeBar, bullConsumeMet := atLeast(5)
	return []row{
		{
			name: "redis-publish", peer: "go-redis", bar: rawBar, met: rawMet,
			what: "one caller, 10,000 messages in one call, confirmed (raw: pipelines of 512 XADD, as the adapter's)",
			prepare: redisMatch(0, func(r *redisSite, src *source, _ int) (ours, peer sampler) {
				return r.varalPublish(src), r.rawPublish(src)
			}),
		},
		{
			name: "redis-publish-64", peer: "go-redis", bar: rawBar, met: rawMet,
			what: "64 callers, one message a call, confirmed (raw: XADD through go-redis's AutoPipeline)",
			prepare: redisMatch(0, func(r *redisSite, src *source, _ int) (ours, peer sampler) {
				return r.varalCallers(src, redisCallers), r.rawCallers(src, redisCallers)
			}),
		},
		{
			name: "redis-consume", peer: "go-redis", bar: halfBar, met: halfMet,
			what: "one consumer on a preloaded stream, handler that counts (raw: XREADGROUP COUNT 100 and one XACK, in a loop)",
			prepare: redisMatch(redisPerSecond, func(r *redisSite, _ *source, n int) (ours, peer sampler) {
				return r.varalConsume(n), r.rawConsume(n)
			}),
		},
		{
			name: "redis-watermill-consume", peer: "watermill-redisstream", bar: slowBar, met: slowMet,
			what: "one subscription on a preloaded stream, handler that counts",
			prepare: redisMatch(redisPerSecond, func(r *redisSite, src *source, n int) (ours, peer sampler) {
				return r.varalConsume(n), r.watermillConsume(src)
			}),
		},
		{
			name: "redis-asynq-publish", peer: "asynq", bar: asynqBar, met: asynqMet,
			what: "100 callers, one message a call, confirmed",
			prepare: redisMatch(0, func(r *redisSite, src *source, _ int) (ours, peer sampler) {
				return r.varalCallers(src, asynqCallers), r.asynqPublish(src)
			}),
		},
		{
			name: "redis-asynq-consume", peer: "asynq", bar: slowBar, met: slowMet,
			what: "preloaded queue, handler that counts (Asynq: concurrency 100)",
			prepare: redisMatch(redisPerSecond, func(r *redisSite, src *source, n int) (ours, peer sampler) {
				return r.varalConsume(n), r.asynqConsume(src)
			}),
		},
		{
			name: "redis-bullmq-publish", peer: "bullmq", bar: bullPublishBar, met: bullPublishMet,
			what: "100 callers, one message a call, confirmed (BullMQ: add, in a Node process)",
			prepare: bullMatch(0, func(r *redisSite, src *source, _ int, b *bull) (ours, peer sampler) {
				return r.varalCallers(src, bullCallers), b.sample(r, "publish")
			}),
		},
		{
			name: "redis-bullmq-consume", peer: "bullmq", bar: bullConsumeBar, met: bullConsumeMet,
			what: "preloaded queue, handler that counts, concurrency 100 on both sides (BullMQ: a worker in a Node process)",
			prepare: bullMatch(redisPerSecond, func(r *redisSite, _ *source, n int, b *bull) (ours, peer sampler) {
				return r.varalConsumeWith(n, bullCallers), b.sample(r, "consume")
			}),
		},
	}
}

// redisSite is the server under test, and the queue of the sample.
type redisSite struct {
	conf  redis.Config
	cl    *goredis.Client // for the peers, and for what is left of them
	drv   driver.Driver   // makes, fills and deletes queues
	queue string
}

func openRedisSite(ctx context.Context) (*redisSite, error) {
	url := os.Getenv("VARAL_REDIS_URL")
	if url == "" {
		return nil, errors.New("VARAL_REDIS_URL is not set: start one with `go run ./test/brokers up redis` and load the variables it prints")
	}
	conf, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	drv, err := redis.Open(ctx, conf)
	if err != nil {
		return nil, err
	}
	r := &redisSite{conf: conf, drv: drv}
	r.cl = r.raw()
	return r, nil
}

// raw is a client of the library itself.
func (r *redisSite) raw() *goredis.Client {
	return goredis.NewClient(&goredis.Options{
		Addr: r.conf.Addr, Username: r.conf.User, Password: r.conf.Password, DB: r.conf.DB, Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// redisMatch prepares a row: before every sample a fresh queue, filled for rows that
// consume.
func redisMatch(perSecond int, sides func(r *redisSite, src *source, n int) (ours, peer sampler)) func(context.Context, time.Duration) (*match, error) {
	return func(ctx context.Context, d time.Duration) (*match, error) {
		r, err := openRedisSite(ctx)
		if err != nil {
			return nil, err
		}
		n := 0
		if perSecond > 0 {
			n = int(d.Seconds()*float64(perSecond)) + redisBatch
		}
		src := newSource(redisPayload, 0)
		m := &match{
			between: func(ctx context.Context) error { return r.renew(ctx, src, n) },
			end:     r.close,
		}
		m.ours, m.peer = sides(r, src, n)
		return m, nil
	}
}

// renew deletes the queue of the last sample and fills another.
func (r *redisSite) renew(ctx context.Context, src *source, n int) error {
	if err := r.drop(ctx); err != nil {
		return err
	}
	r.queue = uniqueName("queue")
	if _, err := r.drv.Admin().Apply(ctx, []core.Resource{{Destination: core.Queue(r.queue)}}, driver.Create); err != nil {
		return err
	}
	c := core.NewClient(unclosed{r.drv}, core.Options{Logger: quiet})
	defer closeClient(ctx, c)
	for ; n > 0; n -= redisBatch {
		if err := c.Publish(ctx, core.Queue(r.queue), messages(src, min(n, redisBatch))...); err != nil {
			return fmt.Errorf("preload: %w", err)
		}
	}
	return nil
}

// unclosed outlives the client that fills a queue.
type unclosed struct{ driver.Driver }

func (unclosed) Close(context.Context) error { return nil }

func (r *redisSite) drop(ctx context.Context) error {
	if r.queue == "" {
		return nil
	}
	_, err := r.drv.Admin().Apply(ctx, []core.Resource{{Destination: core.Queue(r.queue)}}, driver.Delete)
	return err
}

func (r *redisSite) close(ctx context.Context) {
	if err := errors.Join(r.drop(ctx), r.drv.Close(ctx), r.cl.Close()); err != nil {
		fmt.Fprintln(os.Stderr, "bench: queue", r.queue, "is left behind:", err)
	}
}

func (r *redisSite) client(ctx context.Context) (*core.Client, error) {
	drv, err := redis.Open(ctx, r.conf)
	if err != nil {
		return nil, err
	}
	return core.NewClient(drv, core.Options{Logger: quiet}), nil
}

func (r *redisSite) varalPublish(src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		c, err := r.client(ctx)
		if err != nil {
			return measure{}, err
		}
		defer closeClient(ctx, c)
		to := core.Queue(r.queue)
		return publishing(ctx, d,
			func() error { return c.Publish(ctx, to, messages(src, warmUp)...) },
			func() (int, error) { return redisBatch, c.Publish(ctx, to, messages(src, redisBatch)...) })
	}
}

func (r *redisSite) varalCallers(src *source, n int) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		c, err := r.client(ctx)
		if err != nil {
			return measure{}, err
		}
		defer closeClient(ctx, c)
		to := core.Queue(r.queue)
		return callers(ctx, d, n,
			func() error { return c.Publish(ctx, to, messages(src, warmUp)...) },
			func() error {
				body, _ := src.next()
				return c.Publish(ctx, to, &core.Message{Body: body})
			})
	}
}

func (r *redisSite) varalConsume(n int) sampler { return r.varalConsumeWith(n, engineWorkers) }

func (r *redisSite) varalConsumeWith(n, workers int) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		c, err := r.client(ctx)
		if err != nil {
			return measure{}, err
		}
		defer closeClient(ctx, c)
		m := newMeter(int64(n))
		if _, err := c.Start(ctx, core.Subscription{From: core.Queue(r.queue)}, func(context.Context, *core.Delivery) error {
			m.hit()
			return nil
		}, middleware.Prefetch(redisPrefetch), middleware.Concurrency(workers)); err != nil {
			return measure{}, err
		}
		return m.watch(ctx, d)
	}
}
