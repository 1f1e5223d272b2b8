package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

const (
	kafkaPayload    = 100
	kafkaPartitions = 12
	kafkaBatch      = 10_000
	// kafkaPerSecond is how many messages a second of consuming is preloaded for.
	kafkaPerSecond = 1_800_000
	// kafkaSlowPerSecond is the same for a handler of 1 ms and 256 in flight.
	kafkaSlowPerSecond = 260_000
	kafkaCommit        = 100 * time.Millisecond

	kafkaInFlight = 4096

	slowInFlight = 256
	slowHandler  = time.Millisecond
)

func kafkaRows() []row {
	publishBar, publishMet := atLeast(0.85)
	wmPublishBar, wmPublishMet := atLeast(20)
	slowBar, slowMet := atLeast(10)
	return []row{
		{
			name: "kafka-publish", peer: "franz-go", bar: publishBar, met: publishMet,
			what:    "one caller, 10,000 messages in one call, 1,000 keys, all confirmed (raw: ProduceSync)",
			prepare: kafkaPublish(benchKeys, func(k *kafkaSite, topic string, src *source) sampler { return k.rawPublish(topic, src) }),
		},
		{
			name: "kafka-consume", peer: "franz-go", bar: ">= 0.75 or >= 1,000,000/s",
			met:     func(ours, q float64) bool { return q >= 0.75 || ours >= 1e6 },
			what:    "a group of one over 12 preloaded partitions, handler that counts, commits every 50-100 ms",
			prepare: kafkaConsume(middleware.Concurrency(engineWorkers)),
		},
		{
			name: "kafka-consume-by-key", peer: "franz-go", bar: ">= 0.8 or >= 1,000,000/s",
			met:     func(ours, q float64) bool { return q >= 0.8 || ours >= 1e6 },
			what:    "the same, ours in order per key over 1,000 keys; the raw client has one order per partition",
			prepare: kafkaConsume(middleware.SessionOrder(engineWorkers)),
		},
		{
			name: "kafka-watermill-publish", peer: "watermill-kafka", bar: wmPublishBar, met: wmPublishMet,
			what:    "one caller, 10,000 messages in one call, acks all and idempotent on both sides",
			prepare: kafkaPublish(0, func(k *kafkaSite, topic string, src *source) sampler { return k.watermillPublish(topic, src) }),
		},
		{
			name: "kafka-watermill-1ms", peer: "watermill-kafka", bar: slowBar, met: slowMet,
			what:    "handler of 1 ms, 12 partitions, ours with 256 in flight",
			prepare: kafkaSlow,
		},
	}
}

// kafkaSite is the broker under test with one client of our own for topics and
// preloading.
type kafkaSite struct {
	conf kafka.Config
	cl   *kgo.Client
	adm  *kadm.Client
}

var serial atomic.Int64

func uniqueName(what string) string {
	return fmt.Sprintf("bench-%s-%d-%d", what, os.Getpid(), serial.Add(1))
}

func openKafkaSite() (*kafkaSite, error) {
	url := os.Getenv("VARAL_KAFKA_URL")
	if url == "" {
		return nil, errors.New("VARAL_KAFKA_URL is not set: start one with `go run ./test/brokers up kafka` and load the variables it prints")
	}
	conf, err := kafka.ParseURL(url)
	if err != nil {
		return nil, err
	}
	k := &kafkaSite{conf: conf}
	if k.cl, err = kgo.NewClient(k.producer()...); err != nil {
		return nil, err
	}
	k.adm = kadm.NewClient(k.cl)
	return k, nil
}

// producer are the options the adapter gives its producing client; see
// adapters/kafka. They must be the same on both sides of kafka-publish.
func (k *kafkaSite) producer() []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(k.conf.Brokers...),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.ProducerBatchCompression(kgo.SnappyCompression(), kgo.NoCompression()),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytes(1048588),
	}
}

func (k *kafkaSite) create(ctx context.Context, what string) (string, error) {
	topic := uniqueName(what)
	resp, err := k.adm.CreateTopic(ctx, kafkaPartitions, 1, map[string]*string{
		"file.delete.delay.ms": kadm.StringPtr("1000"), // gigabytes a minute otherwise
	}, topic)
	if err := errors.Join(err, resp.Err); err != nil {
		return topic, err
	}
	return topic, k.appears(ctx, topic)
}

// appears waits until the broker tells of a topic just created with all its leaders.
func (k *kafkaSite) appears(ctx context.Context, topic string) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		meta, err := k.adm.Metadata(ctx, topic)
		if err != nil {
			continue
		}
		led := 0
		for _, p := range meta.Topics[topic].Partitions {
			if p.Err == nil && p.Leader >= 0 {
				led++
			}
		}
		if led == kafkaPartitions {
			return nil
		}
	}
	return fmt.Errorf("topic %s did not appear within 20 s", topic)
}

// drop deletes a topic and closes the site.
func (k *kafkaSite) drop(ctx context.Context, topic string) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if _, err := k.adm.DeleteTopic(ctx, topic); err != nil {
		fmt.Fprintln(os.Stderr, "bench: topic", topic, "is left behind:", err)
	}
	k.cl.Close()
}

// kafkaPublish prepares a publishing row: one fresh topic for all its samples.
func kafkaPublish(keys int, peer func(*kafkaSite, string, *source) sampler) func(context.Context, time.Duration) (*match, error) {
	return func(ctx context.Context, _ time.Duration) (*match, error) {
		k, err := openKafkaSite()
		if err != nil {
			return nil, err
		}
		topic, err := k.create(ctx, "publish")
		if err != nil {
			k.cl.Close()
			return nil, err
		}
		src := newSource(kafkaPayload, keys)
		return &match{
			ours: k.varalPublish(topic, src), peer: peer(k, topic, src),
			end: func(ctx context.Context) { k.drop(ctx, topic) },
		}, nil
	}
}

// client opens a varal client as an application would.
func (k *kafkaSite) client(ctx context.Context) (*core.Client, error) {
	drv, err := kafka.Open(ctx, k.conf)
	if err != nil {
		return nil, err
	}
	return core.NewClient(drv, core.Options{Logger: quiet}), nil
}

func (k *kafkaSite) varalPublish(topic string, src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		c, err := k.client(ctx)
		if err != nil {
			return measure{}, err
		}
		defer closeClient(ctx, c)
		to := core.Stream(topic).Keyed(kafkaPartitions)
		return publishing(ctx, d,
			func() error { return c.Publish(ctx, to, messages(src, warmUp)...) },
			func() (int, error) { return kafkaBatch, c.Publish(ctx, to, messages(src, kafkaBatch)...) })
	}
}

// rawPublish makes the same call with the client that the adapter uses.
func (k *kafkaSite) rawPublish(topic string, src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		cl, err := kgo.NewClient(k.producer()...)
		if err != nil {
			return measure{}, err
		}
		defer cl.Close()
		var ids idSource
		send := func(n int) error { return cl.ProduceSync(ctx, records(topic, src, &ids, n)...).FirstErr() }
		return publishing(ctx, d,
			func() error { return send(warmUp) },
			func() (int, error) { return kafkaBatch, send(kafkaBatch) })
	}
}

// records makes n records as the adapter does: an id in a header, everything of a
// batch in few allocations.
func records(topic string, src *source, ids *idSource, n int) []*kgo.Record {
	slab, out, headers := make([]kgo.Record, n), make([]*kgo.Record, n), make([]kgo.RecordHeader, n)
	id, now := []byte(ids.take(n)), time.Now()
	for i := range slab {
		body, key := src.next()
		headers[i] = kgo.RecordHeader{Key: "varal-id", Value: id[i*idLen : (i+1)*idLen]}
		slab[i] = kgo.Record{Topic: topic, Value: body, Timestamp: now, Headers: headers[i : i+1 : i+1]}
		if key != "" {
			slab[i].Key = []byte(key)
		}
		out[i] = &slab[i]
	}
	return out
}

// preload writes n messages, pipelined.
func (k *kafkaSite) preload(ctx context.Context, topic string, src *source, n int) error {
	var (
		ids    idSource
		wg     sync.WaitGroup
		failed atomic.Pointer[error]
	)
	for left := n; left > 0; left -= kafkaBatch {
		rs := records(topic, src, &ids, min(left, kafkaBatch))
		wg.Add(len(rs))
		for _, r := range rs {
			k.cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(&err)
				}
				wg.Done()
			})
		}
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return fmt.Errorf("preload: %w", *err)
	}
	return nil
}

// loaded prepares a consuming row: a topic with enough messages for every sample,
// each of which reads it with a group of its own.
func loaded(ctx context.Context, d time.Duration, what string, perSecond int, sides func(k *kafkaSite, topic string, n int) (ours, peer sampler)) (*match, error) {
	k, err := openKafkaSite()
	if err != nil {
		return nil, err
	}
	topic, err := k.create(ctx, what)
	if err != nil {
		k.cl.Close()
		return nil, err
	}
	n := int(d.Seconds()*float64(perSecond)) + kafkaBatch
	if err := k.preload(ctx, topic, newSource(kafkaPayload, benchKeys), n); err != nil {
		k.drop(context.WithoutCancel(ctx), topic)
		return nil, err
	}
	m := &match{end: func(ctx context.Context) { k.drop(ctx, topic) }}
	m.ours, m.peer = sides(k, topic, n)
	return m, nil
}

// kafkaConsume prepares a consuming row with these handlers.
func kafkaConsume(handlers core.Layer) func(context.Context, time.Duration) (*match, error) {
	return func(ctx context.Context, d time.Duration) (*match, error) {
		return loaded(ctx, d, "consume", kafkaPerSecond, func(k *kafkaSite, topic string, n int) (ours, peer sampler) {
			return k.varalConsume(topic, n, 0, middleware.Prefetch(kafkaInFlight), handlers), k.rawConsume(topic, n)
		})
	}
}

func kafkaSlow(ctx context.Context, d time.Duration) (*match, error) {
	return loaded(ctx, d, "slow", kafkaSlowPerSecond, func(k *kafkaSite, topic string, n int) (ours, peer sampler) {
		return k.varalConsume(topic, n, slowHandler, middleware.Prefetch(slowInFlight), middleware.Concurrency(slowInFlight)), k.watermillConsume(topic, n, slowHandler)
	})
}

// varalConsume reads a topic from its start with a fresh group.
func (k *kafkaSite) varalConsume(topic string, n int, work time.Duration, layers ...core.Layer) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		c, err := k.client(ctx)
		if err != nil {
			return measure{}, err
		}
		group := uniqueName("group")
		defer k.forget(ctx, group)
		defer closeClient(ctx, c)
		m := newMeter(int64(n))
		_, err = c.Start(ctx, core.Subscription{From: core.Stream(topic).Keyed(kafkaPartitions), Group: group, Start: core.Position{Kind: core.Earliest}},
			func(context.Context, *core.Delivery) error {
				if work > 0 {
					time.Sleep(work)
				}
				m.hit()
				return nil
			}, layers...)
		if err != nil {
			return measure{}, err
		}
		return m.watch(ctx, d)
	}
}

// rawConsume polls and commits what it has polled.
func (k *kafkaSite) rawConsume(topic string, n int) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		group := uniqueName("group")
		cl, err := k.rawMember(topic, group)
		if err != nil {
			return measure{}, err
		}
		m := newMeter(int64(n))
		ctx, cancel := context.WithCancel(ctx)
		failed := make(chan error, 1)
		go func() { failed <- pollAndCommit(ctx, cl, func(*kgo.Record) { m.hit() }) }()
		got, err := m.watch(ctx, d)
		cancel()
		err = errors.Join(err, <-failed)
		cl.Close()
		k.forget(context.WithoutCancel(ctx), group)
		return got, err
	}
}

// rawMember is a group member with the fetch options of the adapter.
func (k *kafkaSite) rawMember(topic, group string) (*kgo.Client, error) {
	return kgo.NewClient(kgo.SeedBrokers(k.conf.Brokers...), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.DisableAutoCommit(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.FetchMaxPartitionBytes(1<<20), kgo.FetchMaxBytes(16<<20))
}

func pollAndCommit(ctx context.Context, cl *kgo.Client, each func(*kgo.Record)) error {
	last := time.Now()
	for {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(each)
		if time.Since(last) >= kafkaCommit {
			last = time.Now()
			if err := cl.CommitUncommittedOffsets(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// forget deletes a group.
func (k *kafkaSite) forget(ctx context.Context, group string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = k.adm.DeleteGroup(ctx, group) // an empty group expires by itself
}
