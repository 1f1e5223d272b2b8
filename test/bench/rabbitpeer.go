package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
)

// amqpMessage makes the AMQP message that the adapter makes of the same message: id,
// time to the second in the property and to the nanosecond in a header, persistent.
func amqpMessage(body []byte, id string, now time.Time) amqp.Publishing {
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: id, Timestamp: now, Body: body,
		Headers: amqp.Table{"varal-time": now.UTC().Format(time.RFC3339Nano)},
	}
}

var errRefused = errors.New("the broker did not confirm")

// publishWindow publishes n messages, mandatory, with at most rabbitWindow of them
// unconfirmed, and waits for all.
func publishWindow(ctx context.Context, ch *amqp.Channel, queue string, src *source, ids *idSource, n int) error {
	if n == 0 {
		return nil
	}
	id, now := ids.take(n), time.Now()
	open := make([]*amqp.DeferredConfirmation, 0, n)
	wait := func(c *amqp.DeferredConfirmation) error {
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return errors.Join(errRefused, err)
		}
		return nil
	}
	for i := range n {
		if i >= rabbitWindow {
			if err := wait(open[i-rabbitWindow]); err != nil {
				return err
			}
		}
		body, _ := src.next()
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, amqpMessage(body, id[i*idLen:(i+1)*idLen], now))
		if err != nil {
			return err
		}
		open = append(open, c)
	}
	for _, c := range open[max(0, n-rabbitWindow):] {
		if err := wait(c); err != nil {
			return err
		}
	}
	return nil
}

// confirmed opens a connection of its own with one channel in confirm mode.
func (r *rabbitSite) confirmed() (*amqp.Connection, *amqp.Channel, error) {
	conn, err := amqp.Dial(r.url)
	if err != nil {
		return nil, nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, ch, nil
}

func (r *rabbitSite) rawPublish(queue string, src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		conn, ch, err := r.confirmed()
		if err != nil {
			return measure{}, err
		}
		defer conn.Close() //nolint:errcheck // the sample is over
		var ids idSource
		return publishing(ctx, d,
			func() error { return publishWindow(ctx, ch, queue, src, &ids, warmUp) },
			func() (int, error) { return rabbitBatch, publishWindow(ctx, ch, queue, src, &ids, rabbitBatch) })
	}
}

func (r *rabbitSite) rawCallers(queue string, src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		conn, ch, err := r.confirmed()
		if err != nil {
			return measure{}, err
		}
		defer conn.Close() //nolint:errcheck // the sample is over
		var ids idSource
		return callers(ctx, d, rabbitCallers,
			func() error { return publishWindow(ctx, ch, queue, src, &ids, warmUp) },
			func() error { return publishWindow(ctx, ch, queue, src, &ids, 1) })
	}
}

func (r *rabbitSite) rawConsume(queue string, n int) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		conn, err := amqp.Dial(r.url)
		if err != nil {
			return measure{}, err
		}
		defer conn.Close() //nolint:errcheck // the sample is over
		ch, err := conn.Channel()
		if err != nil {
			return measure{}, err
		}
		if err := ch.Qos(rabbitPrefetch, 0, false); err != nil {
			return measure{}, err
		}
		in, err := ch.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
		if err != nil {
			return measure{}, err
		}
		m := newMeter(int64(n))
		failed := make(chan error, 1)
		go func() { failed <- ackEvery(ch, in, m) }()
		got, err := m.watch(ctx, d)
		_ = conn.Close() // ends the goroutine
		<-failed         // it saw the closed channel at the latest
		return got, err
	}
}

// ackEvery acknowledges rabbitMultiAck messages at once.
func ackEvery(ch *amqp.Channel, in <-chan amqp.Delivery, m *meter) error {
	k := 0
	for d := range in {
		m.hit()
		if k++; k%rabbitMultiAck == 0 {
			if err := ch.Ack(d.DeliveryTag, true); err != nil {
				return fmt.Errorf("ack: %w", err)
			}
		}
	}
	return nil
}

// existing is a topology that is there already: the queue was made with the adapter's
// arguments, and Watermill's own declaration would have to repeat them.
type existing struct{}

func (existing) BuildTopology(*amqp.Channel, wamqp.BuildTopologyParams, wamqp.Config, watermill.LoggerAdapter) error {
	return nil
}
func (existing) ExchangeDeclare(*amqp.Channel, string, wamqp.Config) error { return nil }

// watermill is Watermill's durable queue configuration on the queue under test.
func (r *rabbitSite) watermill() wamqp.Config {
	c := wamqp.NewDurableQueueConfig(r.url)
	c.TopologyBuilder = existing{}
	c.Consume.Qos.PrefetchCount = rabbitPrefetch
	c.Publish.ConfirmDelivery = true
	c.Publish.ChannelPoolSize = 1
	return c
}

func (r *rabbitSite) watermillPublish(queue string, src *source) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		pub, err := wamqp.NewPublisher(r.watermill(), watermill.NopLogger{})
		if err != nil {
			return measure{}, err
		}
		defer pub.Close() //nolint:errcheck // the sample is over
		return publishing(ctx, d,
			func() error { return pub.Publish(queue, watermillMessages(src, warmUp)...) },
			func() (int, error) {
				return rabbitWatermillBatch, pub.Publish(queue, watermillMessages(src, rabbitWatermillBatch)...)
			})
	}
}

func (r *rabbitSite) watermillConsume(queue string, n int, work time.Duration) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		sub, err := wamqp.NewSubscriber(r.watermill(), watermill.NopLogger{})
		if err != nil {
			return measure{}, err
		}
		m := newMeter(int64(n))
		stop, err := route(ctx, sub, queue, func(*message.Message) error {
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
