package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/hibiken/asynq"
	goredis "github.com/redis/go-redis/v9"
)

// key of the stream that the adapter has for the queue.
func (r *redisSite) key() string { return "varal:{" + r.queue + "}:s" }

// xadd are the arguments of the adapter's XADD for the same message.
func (r *redisSite) xadd(body []byte, id string, now time.Time) *goredis.XAddArgs {
	return &goredis.XAddArgs{Stream: r.key(), NoMkStream: true, Values: []any{
		"i", id, "k", "", "h", []byte{1, 0, 0, 0}, "d", body, "t", strconv.FormatInt(now.UnixNano(), 10),
	}}
}

// pipelines publishes n messages, redisChunk in a pipeline, one after the other.
func (r *redisSite) pipelines(ctx context.Context, src *source, ids *idSource, n int) error {
	id, now := ids.take(n), time.Now()
	for from := 0; from < n; from += redisChunk {
		p := r.cl.Pipeline()
		for i := from; i < min(from+redisChunk, n); i++ {
			body, _ := src.next()
			p.XAdd(ctx, r.xadd(body, id[i*idLen:(i+1)*idLen], now))
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *redisSite) rawPublish(src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		var ids idSource
		return publishing(ctx, d,
			func() error { return r.pipelines(ctx, src, &ids, warmUp) },
			func() (int, error) { return redisBatch, r.pipelines(ctx, src, &ids, redisBatch) })
	}
}

func (r *redisSite) rawCallers(src *source, n int) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		cl := r.raw()
		defer cl.Close() //nolint:errcheck // the sample is over
		auto, err := cl.AutoPipeline()
		if err != nil {
			return measure{}, err
		}
		var ids idSource
		return callers(ctx, d, n,
			func() error { return r.pipelines(ctx, src, &ids, warmUp) },
			func() error {
				body, _ := src.next()
				return auto.XAdd(ctx, r.xadd(body, ids.take(1), time.Now())).Err()
			})
	}
}

// rawConsume is the bare loop: read a hundred, acknowledge them with one command.
func (r *redisSite) rawConsume(n int) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		ctx, cancel := context.WithCancel(ctx)
		m := newMeter(int64(n))
		failed := make(chan error, 1)
		go func() { failed <- r.readAndAck(ctx, m) }()
		got, err := m.watch(ctx, d)
		cancel()
		if ferr := <-failed; err == nil && !errors.Is(ferr, context.Canceled) {
			err = ferr
		}
		return got, err
	}
}

func (r *redisSite) readAndAck(ctx context.Context, m *meter) error {
	args := &goredis.XReadGroupArgs{Group: "queue", Consumer: "bench", Streams: []string{r.key(), ">"}, Count: 100, Block: 50 * time.Millisecond}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		got, err := r.cl.XReadGroup(ctx, args).Result()
		if errors.Is(err, goredis.Nil) {
			continue
		}
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		ids := make([]string, 0, 100)
		for _, msg := range got[0].Messages {
			ids = append(ids, msg.ID)
			m.hit()
		}
		if err := r.cl.XAck(ctx, r.key(), "queue", ids...).Err(); err != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// peerPreload is how many messages a peer finds at the start of a sample of d: more than
// it works off, and no more than it takes seconds to store.
func peerPreload(d time.Duration) int { return int(d.Seconds()*15_000) + 1000 }

// watermillConsume reads a stream in Watermill's own format.
func (r *redisSite) watermillConsume(src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		topic, n := r.queue+"-watermill", peerPreload(d)
		defer r.cl.Unlink(context.WithoutCancel(ctx), topic)
		if err := r.watermillFill(ctx, topic, src, n); err != nil {
			return measure{}, err
		}
		sub, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{Client: r.raw(), ConsumerGroup: "bench"}, watermill.NopLogger{})
		if err != nil {
			return measure{}, err
		}
		m := newMeter(int64(n))
		stop, err := route(ctx, sub, topic, func(*message.Message) error {
			m.hit()
			return nil
		})
		if err != nil {
			return measure{}, err
		}
		defer stop()
		return m.watch(ctx, d)
	}
}

func (r *redisSite) watermillFill(ctx context.Context, topic string, src *source, n int) error {
	var format redisstream.DefaultMarshallerUnmarshaller
	for ; n > 0; n -= 1000 {
		p := r.cl.Pipeline()
		for _, m := range watermillMessages(src, min(n, 1000)) {
			values, err := format.Marshal(topic, m)
			if err != nil {
				return err
			}
			p.XAdd(ctx, &goredis.XAddArgs{Stream: topic, Values: values})
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// asynqOptions are those of the server under test.
func (r *redisSite) asynqOptions() asynq.RedisClientOpt {
	return asynq.RedisClientOpt{Addr: r.conf.Addr, Username: r.conf.User, Password: r.conf.Password, DB: r.conf.DB}
}

func (r *redisSite) asynqPublish(src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		c := asynq.NewClient(r.asynqOptions())
		defer c.Close() //nolint:errcheck // the sample is over
		defer r.asynqForget(ctx)
		one := func() error {
			body, _ := src.next()
			_, err := c.EnqueueContext(ctx, asynq.NewTask("pizza", body), asynq.Queue(r.queue))
			return err
		}
		return callers(ctx, d, asynqCallers, func() error {
			for range warmUp {
				if err := one(); err != nil {
					return err
				}
			}
			return nil
		}, one)
	}
}

func (r *redisSite) asynqConsume(src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		n := peerPreload(d)
		defer r.asynqForget(ctx)
		if err := r.asynqFill(ctx, src, n); err != nil {
			return measure{}, err
		}
		m := newMeter(int64(n))
		srv := asynq.NewServer(r.asynqOptions(), asynq.Config{Concurrency: asynqCallers, Queues: map[string]int{r.queue: 1}, LogLevel: asynq.FatalLevel})
		if err := srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			m.hit()
			return nil
		})); err != nil {
			return measure{}, err
		}
		defer srv.Shutdown()
		return m.watch(ctx, d)
	}
}

func (r *redisSite) asynqFill(ctx context.Context, src *source, n int) error {
	c := asynq.NewClient(r.asynqOptions())
	defer c.Close() //nolint:errcheck // nothing of it is needed any more
	var fill sync.WaitGroup
	errs := make([]error, asynqCallers)
	for i := range errs {
		fill.Go(func() {
			for range (n + asynqCallers - 1) / asynqCallers {
				body, _ := src.next()
				if _, err := c.EnqueueContext(ctx, asynq.NewTask("pizza", body), asynq.Queue(r.queue)); err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	fill.Wait()
	return errors.Join(errs...)
}

// asynqForget deletes what Asynq keeps of the queue.
func (r *redisSite) asynqForget(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	keys := r.cl.Scan(ctx, 0, "asynq:{"+r.queue+"}:*", 10_000).Iterator()
	var batch []string
	for keys.Next(ctx) {
		if batch = append(batch, keys.Val()); len(batch) == 1000 {
			r.cl.Unlink(ctx, batch...)
			batch = batch[:0]
		}
	}
	if len(batch) > 0 {
		r.cl.Unlink(ctx, batch...)
	}
	r.cl.SRem(ctx, "asynq:queues", r.queue)
}
