package aws

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/varal-go/varal/core/driver"
)

// Subscribe implements driver.Driver. The queue of a topic's group, and its subscription,
// are made if they are missing, which takes the rights to.
func (b *broker) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	op := "subscribe " + sub.From.String()
	if b.isClosed() {
		return nil, errClosed(op)
	}
	if err := validate(op, sub.From); err != nil {
		return nil, err
	}
	if err := checkGroup(op, &sub); err != nil {
		return nil, err
	}
	url, lease, err := b.source(ctx, op, sub)
	if driver.ClassOf(err) == driver.NotFound && sub.From.Shape == driver.Topic {
		if err = b.makeGroup(ctx, op, sub); err == nil {
			url, lease, err = b.source(ctx, op, sub)
		}
	}
	if err != nil {
		return nil, err
	}
	c := newConsumer(b, sub, url, lease)
	c.owned = sub.Temporary
	if !b.add(c) {
		c.cut()
		return nil, errClosed(op)
	}
	if sub.Assigned != nil {
		sub.Assigned(driver.Assignment{Epoch: epoch})
	}
	return c, nil
}

// makeGroup makes the queue of a group, not its topic.
func (b *broker) makeGroup(ctx context.Context, op string, sub driver.Subscription) error {
	name, err := b.cfg.topicName(op, sub.From)
	if err != nil {
		return err
	}
	b.forget("topic", name)
	arn, err := b.topicARN(ctx, op, name)
	if err == nil && b.cfg.AccountID != "" {
		_, err = admin{b}.topicAttributes(ctx, op, arn)
	}
	if err != nil {
		return missing(op, "topic", name, err)
	}
	_, err = admin{b}.Apply(ctx, []driver.Resource{{Destination: sub.From.ForGroup(sub.Group)}}, driver.Create)
	return err
}

// source finds the queue of a subscription and the lease of its deliveries.
func (b *broker) source(ctx context.Context, op string, sub driver.Subscription) (url string, lease time.Duration, err error) {
	name, err := b.cfg.queueName(op, sub.From, sub.Group)
	if err != nil {
		return "", 0, err
	}
	b.forget("queue", name) // ask again: another process may have deleted it
	if url, err = b.queueURL(ctx, op, name); err != nil {
		return "", 0, err
	}
	attrs, err := b.attributes(ctx, op, url, types.QueueAttributeNameVisibilityTimeout)
	switch driver.ClassOf(err) {
	case 0:
	case driver.Denied: // a consumer needs no right to look; to receive without one fails later
	case driver.NotFound:
		b.forget("queue", name)
		return "", 0, missing(op, "queue", name, err)
	default:
		return "", 0, err
	}
	own, _ := strconv.Atoi(attrs["VisibilityTimeout"])
	lease = time.Duration(own) * time.Second
	if b.cfg.Lease > 0 {
		lease = b.cfg.Lease
	}
	// A request cannot ask for none: the SDK leaves a zero out, which means the queue's own.
	fill(&lease, defaultLease)
	return url, lease, nil
}

// attributes reads attributes of a queue.
func (b *broker) attributes(ctx context.Context, op, url string, names ...types.QueueAttributeName) (map[string]string, error) {
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	out, err := b.api.sqs.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: names})
	b.heard(err)
	if err != nil {
		return nil, asked(op, err)
	}
	return out.Attributes, nil
}

// checkGroup refuses what the shape does not have and gives a private group its name.
func checkGroup(op string, sub *driver.Subscription) error {
	if g := sub.From.Group; g != "" {
		if sub.Group != "" && sub.Group != g {
			return driver.Errorf(op, driver.Permanent, "From.Group is %q and Group %q: use one", g, sub.Group)
		}
		sub.Group = g
	}
	if err := checkStart(op, sub.From.Shape, sub.Start); err != nil {
		return err
	}
	switch {
	case sub.From.Shape == driver.Queue && sub.Temporary:
		return driver.Errorf(op, driver.Unsupported, "Temporary: a queue has no groups, use a topic")
	case sub.From.Shape == driver.Topic && sub.Group == "" && !sub.Temporary:
		return driver.Errorf(op, driver.Permanent, "Group is empty: a topic needs a group, or Temporary")
	case sub.From.Shape == driver.Topic && sub.Group == "":
		sub.Group = "temporary-" + unique()
	}
	return nil
}

// unique is a name that nobody else has.
func unique() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// checkStart refuses positions: nothing is kept that was acknowledged. A topic's group
// begins with what is published after it was made, whatever Latest or Earliest say.
func checkStart(op string, shape driver.Shape, start driver.Position) error {
	switch k := start.Kind; {
	case k == driver.Default, k == driver.Earliest, k == driver.Latest && shape == driver.Topic:
		return nil
	default:
		return driver.Errorf(op, driver.Unsupported, "position: a %s on SQS cannot start at %q: it has no positions", shape, k)
	}
}
