package aws

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/varal-go/varal/core/driver"
)

func (b *broker) topicSender(op, arn string, fifo bool) *sender {
	return newSender(b, fifo, b.cfg.TopicMaxBytes, func(ctx context.Context, batch []*item) []error {
		return b.sendTopic(ctx, op, arn, fifo, batch)
	})
}

// sendTopic makes one request.
func (b *broker) sendTopic(ctx context.Context, op, arn string, fifo bool, batch []*item) []error {
	in := &sns.PublishBatchInput{TopicArn: &arn}
	for i, it := range batch {
		e := types.PublishBatchRequestEntry{Id: sdk.String(strconv.Itoa(i)), Message: &it.rec.body, MessageAttributes: topicAttributes(it.rec.attrs)}
		if fifo {
			e.MessageGroupId, e.MessageDeduplicationId = &it.group, &it.dedup
		}
		in.PublishBatchRequestEntries = append(in.PublishBatchRequestEntries, e)
	}
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	out, err := b.api.sns.PublishBatch(ctx, in)
	b.heard(err)
	if err != nil {
		again := func(part []*item) []error { return b.sendTopic(ctx, op, arn, fifo, part) }
		return failed(op, err, batch, again)
	}
	r := b.newResults(op, len(batch))
	for i := range out.Successful {
		r.done(out.Successful[i].Id)
	}
	for i := range out.Failed {
		f := &out.Failed[i]
		r.failed(f.Id, f.Code, f.Message, f.SenderFault)
	}
	return r.errs
}

func topicAttributes(attrs []attribute) map[string]types.MessageAttributeValue {
	out := make(map[string]types.MessageAttributeValue, len(attrs))
	for _, a := range attrs {
		v := types.MessageAttributeValue{DataType: sdk.String(typeString), StringValue: sdk.String(a.text)}
		if a.binary {
			v = types.MessageAttributeValue{DataType: sdk.String(typeBinary), BinaryValue: a.raw}
		}
		out[a.name] = v
	}
	return out
}

// applyTopic makes, compares or deletes a topic, or one of its groups with the topic.
func (a admin) applyTopic(ctx context.Context, op string, r driver.Resource, mode driver.Mode) ([]driver.Change, error) {
	name, err := a.b.cfg.topicName(op, r.Destination)
	if err != nil {
		return nil, err
	}
	switch {
	case mode == driver.Delete && r.Group != "":
		return a.deleteGroup(ctx, op, r)
	case mode == driver.Delete:
		return a.deleteTopic(ctx, op, r, name)
	}
	arn, changes, err := a.topic(ctx, op, r, name, mode)
	if err != nil || r.Group == "" {
		return changes, err
	}
	more, err := a.group(ctx, op, r, arn, mode)
	return append(changes, more...), err
}

// topic makes a topic or reports that it is missing; its ARN is "" then.
func (a admin) topic(ctx context.Context, op string, r driver.Resource, name string, mode driver.Mode) (string, []driver.Change, error) {
	whole := r.Destination
	whole.Group = ""
	a.b.forget("topic", name)
	arn, err := a.b.topicARN(ctx, op, name)
	if err == nil && a.b.cfg.AccountID != "" {
		_, err = a.topicAttributes(ctx, op, arn)
	}
	switch {
	case err == nil:
		return arn, nil, nil
	case driver.ClassOf(err) != driver.NotFound:
		return "", nil, err
	case mode != driver.Create:
		return "", []driver.Change{exists(whole.String(), "no", "yes", false)}, nil
	}
	attrs := map[string]string{}
	if isFIFO(whole) {
		attrs["FifoTopic"], attrs["FifoThroughputScope"] = "true", "MessageGroup"
	}
	if r.Group == "" {
		maps.Copy(attrs, r.Options)
	}
	call, cancel := a.b.bounded(ctx)
	defer cancel()
	out, err := a.b.api.sns.CreateTopic(call, &sns.CreateTopicInput{Name: &name, Attributes: attrs})
	a.b.heard(err)
	if err != nil {
		return "", nil, classify(op, err)
	}
	arn = a.b.keep("topic "+name, sdk.ToString(out.TopicArn))
	return arn, []driver.Change{exists(whole.String(), "no", "yes", true)}, nil
}

func (a admin) topicAttributes(ctx context.Context, op, arn string) (map[string]string, error) {
	call, cancel := a.b.bounded(ctx)
	defer cancel()
	out, err := a.b.api.sns.GetTopicAttributes(call, &sns.GetTopicAttributesInput{TopicArn: &arn})
	a.b.heard(err)
	if err != nil {
		return nil, asked(op, err)
	}
	return out.Attributes, nil
}

// group makes the queue of a group, lets the topic send to it, and subscribes it.
func (a admin) group(ctx context.Context, op string, r driver.Resource, arn string, mode driver.Mode) ([]driver.Change, error) {
	name, err := a.b.cfg.queueName(op, r.Destination, r.Group)
	if err != nil {
		return nil, err
	}
	url, changes, err := a.queue(ctx, op, r, name, mode)
	if err != nil || url == "" || arn == "" {
		return changes, err
	}
	attrs, err := a.b.attributes(ctx, op, url, sqstypes.QueueAttributeNameQueueArn, sqstypes.QueueAttributeNamePolicy)
	if err != nil {
		return changes, err
	}
	policy, err := a.allow(ctx, op, r, url, arn, attrs, mode)
	if changes = append(changes, policy...); err != nil {
		return changes, err
	}
	subscribed, err := a.subscription(ctx, op, r, arn, attrs["QueueArn"], mode)
	return append(changes, subscribed...), err
}

// allow merges the statement of the topic into the policy of the queue. Without it SNS says
// that it published, and nothing arrives; written over the policy, it would silence whatever
// else sends to the queue.
func (a admin) allow(ctx context.Context, op string, r driver.Resource, url, arn string, attrs map[string]string, mode driver.Mode) ([]driver.Change, error) {
	policy, missing, err := mergePolicy(attrs["Policy"], attrs["QueueArn"], arn)
	if err != nil {
		return nil, driver.Errorf(op, driver.Conflict, "%w: correct it by hand", err)
	}
	if !missing {
		return nil, nil
	}
	change := driver.Change{Subject: r.Destination.String(), Field: "Policy", Have: "no sqs:SendMessage for the topic", Want: "sqs:SendMessage for " + arn}
	if mode != driver.Create {
		return []driver.Change{change}, nil
	}
	call, cancel := a.b.bounded(ctx)
	defer cancel()
	_, err = a.b.api.sqs.SetQueueAttributes(call, &sqs.SetQueueAttributesInput{QueueUrl: &url, Attributes: map[string]string{"Policy": policy}})
	a.b.heard(err)
	if err != nil {
		return nil, classify(op, err)
	}
	change.Done = true
	return []driver.Change{change}, nil
}

// subscription subscribes a queue to a topic, raw, or compares.
func (a admin) subscription(ctx context.Context, op string, r driver.Resource, arn, queue string, mode driver.Mode) ([]driver.Change, error) {
	want := map[string]string{"RawMessageDelivery": "true"}
	for _, name := range groupOptions {
		if v, ok := r.Options[name]; ok {
			want[name] = v
		}
	}
	subs, err := a.subscriptions(ctx, op, arn)
	if err != nil {
		return nil, err
	}
	for _, s := range subs {
		if s.queue == queue {
			return a.compareSubscription(ctx, op, r, s.arn, want)
		}
	}
	change := driver.Change{Subject: r.Destination.String(), Field: "subscription", Have: "no", Want: "yes"}
	if mode != driver.Create {
		return []driver.Change{change}, nil
	}
	call, cancel := a.b.bounded(ctx)
	defer cancel()
	_, err = a.b.api.sns.Subscribe(call, &sns.SubscribeInput{
		TopicArn: &arn, Protocol: sdk.String("sqs"), Endpoint: &queue, Attributes: want, ReturnSubscriptionArn: true,
	})
	a.b.heard(err)
	if err != nil {
		return nil, classify(op, err)
	}
	change.Done = true
	return []driver.Change{change}, nil
}

func (a admin) compareSubscription(ctx context.Context, op string, r driver.Resource, arn string, want map[string]string) ([]driver.Change, error) {
	call, cancel := a.b.bounded(ctx)
	defer cancel()
	out, err := a.b.api.sns.GetSubscriptionAttributes(call, &sns.GetSubscriptionAttributesInput{SubscriptionArn: &arn})
	a.b.heard(err)
	if err != nil {
		return nil, asked(op, err)
	}
	var changes []driver.Change
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have := out.Attributes[name]; have != want[name] && !sameJSON(have, want[name]) {
			changes = append(changes, driver.Change{Subject: r.Destination.String(), Field: name, Have: have, Want: want[name]})
		}
	}
	return changes, nil
}

// subscribed is a queue that a topic sends to.
type subscribed struct{ arn, queue string }

func (a admin) subscriptions(ctx context.Context, op, arn string) (out []subscribed, err error) {
	call, cancel := a.b.bounded(ctx)
	defer cancel()
	for pages := sns.NewListSubscriptionsByTopicPaginator(a.b.api.sns, &sns.ListSubscriptionsByTopicInput{TopicArn: &arn}); pages.HasMorePages(); {
		page, err := pages.NextPage(call)
		a.b.heard(err)
		if err != nil {
			return nil, asked(op, err)
		}
		for _, s := range page.Subscriptions {
			if sdk.ToString(s.Protocol) == "sqs" {
				out = append(out, subscribed{arn: sdk.ToString(s.SubscriptionArn), queue: sdk.ToString(s.Endpoint)})
			}
		}
	}
	return out, nil
}

// queueOf is the name of a queue in its ARN.
func (s subscribed) queueOf() string { return s.queue[strings.LastIndex(s.queue, ":")+1:] }

// groups lists the queues of a topic that are groups of it by their name.
func (a admin) groups(ctx context.Context, op string, d driver.Destination, arn string) ([]subscribed, error) {
	subs, err := a.subscriptions(ctx, op, arn)
	if err != nil {
		return nil, err
	}
	prefix := strings.TrimSuffix(arn[strings.LastIndex(arn, ":")+1:], fifoSuffix) + "-"
	return slices.DeleteFunc(subs, func(s subscribed) bool { return !strings.HasPrefix(s.queueOf(), prefix) }), nil
}

// deleteGroup ends a subscription and deletes its queue, if there is one.
func (a admin) deleteGroup(ctx context.Context, op string, r driver.Resource) ([]driver.Change, error) {
	name, err := a.b.cfg.queueName(op, r.Destination, r.Group)
	if err != nil {
		return nil, err
	}
	topic, err := a.b.cfg.topicName(op, r.Destination)
	if err != nil {
		return nil, err
	}
	a.b.forget("topic", topic)
	arn, err := a.b.topicARN(ctx, op, topic)
	if err == nil {
		err = a.unsubscribe(ctx, op, arn, name)
	}
	if err != nil && driver.ClassOf(err) != driver.NotFound {
		return nil, err
	}
	return a.deleteQueue(ctx, op, r.Destination, name)
}

func (a admin) unsubscribe(ctx context.Context, op, arn, queue string) error {
	subs, err := a.subscriptions(ctx, op, arn)
	if err != nil {
		return err
	}
	for _, s := range subs {
		if s.queueOf() != queue {
			continue
		}
		call, cancel := a.b.bounded(ctx)
		_, err := a.b.api.sns.Unsubscribe(call, &sns.UnsubscribeInput{SubscriptionArn: &s.arn})
		cancel()
		a.b.heard(err)
		if err = classify(op, err); err != nil && driver.ClassOf(err) != driver.NotFound {
			return err
		}
	}
	return nil
}

// deleteTopic deletes a topic and the queues of its groups.
func (a admin) deleteTopic(ctx context.Context, op string, r driver.Resource, name string) ([]driver.Change, error) {
	a.b.forget("topic", name)
	arn, err := a.b.topicARN(ctx, op, name)
	if driver.ClassOf(err) == driver.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	groups, err := a.groups(ctx, op, r.Destination, arn)
	if err != nil && driver.ClassOf(err) != driver.NotFound {
		return nil, err
	}
	call, cancel := a.b.bounded(ctx)
	defer cancel()
	_, err = a.b.api.sns.DeleteTopic(call, &sns.DeleteTopicInput{TopicArn: &arn})
	a.b.heard(err)
	a.b.discard("topic", name)
	if err != nil && driver.ClassOf(classify(op, err)) != driver.NotFound {
		return nil, classify(op, err)
	}
	changes := []driver.Change{exists(r.Destination.String(), "yes", "no", true)}
	var errs []error
	for _, g := range groups { // its subscription went with the topic, or was another's
		_, err := a.deleteQueue(ctx, op, r.Destination, g.queueOf())
		errs = append(errs, err)
	}
	return changes, errors.Join(errs...)
}

func (a admin) topicStats(ctx context.Context, op string, of driver.Resource) (driver.Stats, error) {
	name, err := a.b.cfg.topicName(op, of.Destination)
	if err != nil {
		return driver.Stats{}, err
	}
	arn, err := a.b.topicARN(ctx, op, name)
	if err != nil {
		return driver.Stats{}, err
	}
	groups, err := a.groups(ctx, op, of.Destination, arn)
	if err != nil {
		return driver.Stats{}, err
	}
	sum := driver.Stats{Oldest: -1}
	for _, g := range groups {
		url, err := a.b.queueURL(ctx, op, g.queueOf())
		if err != nil {
			return sum, err
		}
		s, err := a.queueStats(ctx, op, url)
		if err != nil {
			return sum, err
		}
		sum.Ready, sum.InFlight, sum.Delayed = plus(sum.Ready, s.Ready), plus(sum.InFlight, s.InFlight), plus(sum.Delayed, s.Delayed)
	}
	sum.Lag = plus(sum.Ready, sum.InFlight)
	return sum, nil
}
