package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsqs "github.com/ThreeDotsLabs/watermill-aws/sqs"
	"github.com/ThreeDotsLabs/watermill/message"
	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// watermillSQS sends and consumes as Watermill's documentation shows, with its defaults.
func watermillSQS(ctx context.Context, endpoint, queue string, n int, idle func() error) error {
	conf := awssdk.Config{Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")}
	at := []func(*sqs.Options){func(o *sqs.Options) { o.BaseEndpoint = &endpoint }}
	pub, err := wmsqs.NewPublisher(wmsqs.PublisherConfig{AWSConfig: conf, OptFns: at}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer pub.Close() //nolint:errcheck // the row is over
	src, batch := newSource(sqsPayload, 0), make([]*message.Message, n)
	for i := range batch {
		batch[i] = message.NewMessage(watermill.NewUUID(), sqsText(src))
	}
	if err := pub.Publish(queue, batch...); err != nil {
		return err
	}
	sub, err := wmsqs.NewSubscriber(wmsqs.SubscriberConfig{AWSConfig: conf, OptFns: at}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var handled atomic.Int64
	stop, err := route(ctx, sub, queue, func(*message.Message) error {
		handled.Add(1)
		return nil
	})
	if err != nil {
		cancel()
		return err
	}
	defer stop()
	defer cancel() // its open poll ends with it
	for end := time.Now().Add(2 * time.Minute); handled.Load() < int64(n); {
		if time.Now().After(end) {
			return fmt.Errorf("watermill: %d of %d messages were handled within two minutes", handled.Load(), n)
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	if err := wait(ctx, time.Second); err != nil { // its last delete
		return err
	}
	return idle()
}
