package main

import (
	"context"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

// watermillPublish publishes with the guarantee varal gives: confirmed by all in-sync
// replicas and without duplicates from the client's own retries.
func (k *kafkaSite) watermillPublish(topic string, src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		conf := wkafka.DefaultSaramaSyncPublisherConfig()
		conf.Version = sarama.V2_8_0_0
		conf.Producer.RequiredAcks = sarama.WaitForAll
		conf.Producer.Idempotent = true
		conf.Producer.Compression = sarama.CompressionSnappy
		conf.Net.MaxOpenRequests = 1 // sarama refuses to be idempotent with more
		pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{Brokers: k.conf.Brokers, OverwriteSaramaConfig: conf}, watermill.NopLogger{})
		if err != nil {
			return measure{}, err
		}
		defer pub.Close() //nolint:errcheck // the sample is over
		return publishing(ctx, d,
			func() error { return pub.Publish(topic, watermillMessages(src, warmUp)...) },
			func() (int, error) { return kafkaBatch, pub.Publish(topic, watermillMessages(src, kafkaBatch)...) })
	}
}

// watermillConsume reads a topic from its start with a fresh group and a router.
func (k *kafkaSite) watermillConsume(topic string, n int, work time.Duration) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		conf := wkafka.DefaultSaramaSubscriberConfig()
		conf.Version = sarama.V2_8_0_0
		conf.Consumer.Offsets.Initial = sarama.OffsetOldest
		group := uniqueName("group")
		defer k.forget(ctx, group)
		sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{Brokers: k.conf.Brokers, OverwriteSaramaConfig: conf, ConsumerGroup: group}, watermill.NopLogger{})
		if err != nil {
			return measure{}, err
		}
		m := newMeter(int64(n))
		stop, err := route(ctx, sub, topic, func(*message.Message) error {
			time.Sleep(work)
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
