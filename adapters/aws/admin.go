package aws

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/varal-go/varal/core/driver"
)

// admin is a driver.Admin.
type admin struct{ b *broker }

// Admin implements driver.Driver.
func (b *broker) Admin() driver.Admin { return admin{b} }

// The Options, in the words of AWS. Those of a topic's group are its queue's and its
// subscription's.
var (
	queueOptions = []string{"DelaySeconds", "KmsMasterKeyId", "MaximumMessageSize", "MessageRetentionPeriod", "RedrivePolicy", "SqsManagedSseEnabled", "VisibilityTimeout"}
	groupOptions = []string{"FilterPolicy", "FilterPolicyScope"}
	topicOptions = []string{"KmsMasterKeyId", "MaximumMessageSize"}
)

// Apply implements driver.Admin. A resource with a Group makes its topic too. Everything is
// checked before anything is done.
func (a admin) Apply(ctx context.Context, wanted []driver.Resource, mode driver.Mode) ([]driver.Change, error) {
	if a.b.isClosed() {
		return nil, errClosed("apply")
	}
	if mode < driver.Create || mode > driver.Delete {
		return nil, driver.Errorf("apply", driver.Permanent, "Mode %d is invalid", mode)
	}
	for i := range wanted {
		if err := a.check(&wanted[i]); err != nil {
			return nil, err
		}
	}
	var changes []driver.Change
	for _, r := range wanted {
		some, err := a.apply(ctx, r, mode)
		changes = append(changes, some...)
		if err != nil {
			return changes, classify("apply "+r.Destination.String(), err)
		}
	}
	return changes, nil
}

func (a admin) check(r *driver.Resource) error {
	op := "apply " + r.Destination.String()
	if err := validate(op, r.Destination); err != nil {
		return err
	}
	if err := checkStart(op, r.Shape, r.Start); err != nil {
		return err
	}
	if _, err := a.b.cfg.queueName(op, r.Destination, r.Group); err != nil && (r.Shape == driver.Queue || r.Group != "") {
		return err
	}
	known := queueOptions
	switch {
	case r.Shape == driver.Topic && r.Group != "":
		known = slices.Concat(queueOptions, groupOptions)
	case r.Shape == driver.Topic:
		known = topicOptions
	}
	for _, name := range slices.Sorted(maps.Keys(r.Options)) {
		if !slices.Contains(known, name) {
			return driver.Errorf(op, driver.Unsupported, "option %q is unknown: there are %v", name, known)
		}
	}
	return nil
}

func (a admin) apply(ctx context.Context, r driver.Resource, mode driver.Mode) ([]driver.Change, error) {
	op := "apply " + r.Destination.String()
	if r.Shape == driver.Topic {
		return a.applyTopic(ctx, op, r, mode)
	}
	r.Group = "" // a label
	name, err := a.b.cfg.queueName(op, r.Destination, "")
	if err != nil {
		return nil, err
	}
	if mode == driver.Delete {
		return a.deleteQueue(ctx, op, r.Destination, name)
	}
	_, changes, err := a.queue(ctx, op, r, name, mode)
	return changes, err
}

// queue makes a queue or reports how it differs. The URL is "" where it is missing.
func (a admin) queue(ctx context.Context, op string, r driver.Resource, name string, mode driver.Mode) (url string, changes []driver.Change, err error) {
	a.b.forget("queue", name)
	want := a.wanted(r)
	url, err = a.b.queueURL(ctx, op, name)
	if err == nil {
		changes, err = a.differences(ctx, op, r, url, want)
	}
	if driver.ClassOf(err) != driver.NotFound {
		return url, changes, err
	}
	a.b.forget("queue", name)
	if mode != driver.Create {
		return "", []driver.Change{exists(r.Destination.String(), "no", "yes", false)}, nil
	}
	call, cancel := a.b.bounded(ctx)
	defer cancel()
	out, err := a.b.api.sqs.CreateQueue(call, &sqs.CreateQueueInput{QueueName: &name, Attributes: want})
	a.b.heard(err)
	if err != nil {
		if err = classify(op, err); driver.ClassOf(err) != driver.Conflict {
			return "", nil, err
		}
		return a.raced(ctx, op, r, name, want, err)
	}
	url = a.b.keep("queue "+name, sdk.ToString(out.QueueUrl))
	return url, []driver.Change{exists(r.Destination.String(), "no", "yes", true)}, a.usable(ctx, op, url)
}

// raced looks at the queue that somebody else has made meanwhile.
func (a admin) raced(ctx context.Context, op string, r driver.Resource, name string, want map[string]string, conflict error) (string, []driver.Change, error) {
	url, err := a.b.queueURL(ctx, op, name)
	if err != nil { // it was deleted less than a minute ago, say
		return "", nil, conflict
	}
	changes, err := a.differences(ctx, op, r, url, want)
	return url, changes, err
}

// wanted are the attributes of a queue. A FIFO one has the high-throughput setting:
// otherwise all its groups together share 300 requests a second.
func (a admin) wanted(r driver.Resource) map[string]string {
	want := map[string]string{}
	if a.b.cfg.Lease > 0 {
		want["VisibilityTimeout"] = strconv.Itoa(int(seconds(a.b.cfg.Lease)))
	}
	if isFIFO(r.Destination) {
		want["FifoQueue"], want["DeduplicationScope"], want["FifoThroughputLimit"] = "true", "messageGroup", "perMessageGroupId"
	}
	for _, name := range queueOptions {
		if v, ok := r.Options[name]; ok {
			want[name] = v
		}
	}
	return want
}

// differences compares what a queue was asked to be with what it is.
func (a admin) differences(ctx context.Context, op string, r driver.Resource, url string, want map[string]string) ([]driver.Change, error) {
	have, err := a.b.attributes(ctx, op, url, types.QueueAttributeNameAll)
	if err != nil {
		return nil, err
	}
	var out []driver.Change
	for _, name := range slices.Sorted(maps.Keys(want)) {
		_, asked := r.Options[name]
		if !asked && name != "FifoQueue" {
			continue // what an existing queue says is as good: every request names its lease
		}
		if have[name] != want[name] && !sameJSON(have[name], want[name]) {
			out = append(out, driver.Change{Subject: r.Destination.String(), Field: name, Have: have[name], Want: want[name]})
		}
	}
	return out, nil
}

// usable waits until a new queue can be asked: it takes up to a second.
func (a admin) usable(ctx context.Context, op, url string) error {
	const every = 100 * time.Millisecond
	for {
		_, err := a.b.attributes(ctx, op, url, types.QueueAttributeNameQueueArn)
		if driver.ClassOf(err) != driver.NotFound {
			return err
		}
		t := time.NewTimer(every)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

func exists(subject, have, want string, done bool) driver.Change {
	return driver.Change{Subject: subject, Field: "exists", Have: have, Want: want, Done: done}
}

func (a admin) deleteQueue(ctx context.Context, op string, d driver.Destination, name string) ([]driver.Change, error) {
	url, err := a.b.queueURL(ctx, op, name)
	if err == nil {
		call, cancel := a.b.bounded(ctx)
		defer cancel()
		_, err = a.b.api.sqs.DeleteQueue(call, &sqs.DeleteQueueInput{QueueUrl: &url})
		a.b.heard(err)
		err = classify(op, err)
	}
	a.b.discard("queue", name)
	switch {
	case driver.ClassOf(err) == driver.NotFound:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return []driver.Change{exists(d.String(), "yes", "no", true)}, nil
}

// Stats implements driver.Admin. The counts are approximate, as AWS says. Of a topic without
// Group it is the sum of its groups. Oldest is in CloudWatch only.
func (a admin) Stats(ctx context.Context, of driver.Resource) (driver.Stats, error) {
	op := "stats " + of.Destination.String()
	if a.b.isClosed() {
		return driver.Stats{}, errClosed(op)
	}
	if err := validate(op, of.Destination); err != nil {
		return driver.Stats{}, err
	}
	if of.Shape == driver.Topic && of.Group == "" {
		return a.topicStats(ctx, op, of)
	}
	name, err := a.b.cfg.queueName(op, of.Destination, of.Group)
	if err != nil {
		return driver.Stats{}, err
	}
	url, err := a.b.queueURL(ctx, op, name)
	if err != nil {
		return driver.Stats{}, err
	}
	s, err := a.queueStats(ctx, op, url)
	return s, missing(op, "queue", name, err)
}

func (a admin) queueStats(ctx context.Context, op, url string) (driver.Stats, error) {
	attrs, err := a.b.attributes(ctx, op, url, types.QueueAttributeNameApproximateNumberOfMessages,
		types.QueueAttributeNameApproximateNumberOfMessagesNotVisible, types.QueueAttributeNameApproximateNumberOfMessagesDelayed)
	if err != nil {
		return driver.Stats{}, err
	}
	count := func(name string) int64 {
		n, err := strconv.ParseInt(attrs[name], 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	s := driver.Stats{
		Ready: count("ApproximateNumberOfMessages"), InFlight: count("ApproximateNumberOfMessagesNotVisible"),
		Delayed: count("ApproximateNumberOfMessagesDelayed"), Oldest: -1,
	}
	s.Lag = plus(s.Ready, s.InFlight)
	return s, nil
}

// plus adds two numbers of which -1 is unknown.
func plus(a, b int64) int64 {
	if a < 0 || b < 0 {
		return -1
	}
	return a + b
}

// Seek implements driver.Admin: there are no positions.
func (a admin) Seek(_ context.Context, of driver.Resource, _ driver.Position) error {
	return driver.Errorf("seek "+of.Destination.String(), driver.Unsupported, "replay: SQS keeps nothing that was acknowledged")
}

// Inspect implements driver.Admin.
func (a admin) Inspect(ctx context.Context, need driver.Resource) ([]driver.Finding, error) {
	changes, err := a.Apply(ctx, []driver.Resource{need}, driver.Verify)
	var found []driver.Finding
	for _, c := range changes {
		found = append(found, driver.Finding{
			Rule: "DA01", Subject: c.Subject, Seen: c.Field + " " + c.Have, Wanted: c.Field + " " + c.Want, Fix: "varal topology apply", Inspected: true,
		})
	}
	if err != nil || len(changes) > 0 || need.Shape == driver.Topic && need.Group == "" {
		return found, err
	}
	more, err := a.inspectQueue(ctx, need)
	return append(found, more...), err
}

// fewReceives is a maxReceiveCount that a deploy or two can use up: a message that a
// consumer gives back, or whose lease it lost, counts as received.
const fewReceives = 5

func (a admin) inspectQueue(ctx context.Context, need driver.Resource) ([]driver.Finding, error) {
	op := "inspect " + need.Destination.String()
	name, err := a.b.cfg.queueName(op, need.Destination, need.Group)
	if err != nil {
		return nil, err
	}
	url, err := a.b.queueURL(ctx, op, name)
	if err != nil {
		return nil, err
	}
	attrs, err := a.b.attributes(ctx, op, url, types.QueueAttributeNameAll)
	if err != nil {
		return nil, err
	}
	var found []driver.Finding
	add := func(rule, seen, wanted, fix string) {
		found = append(found, driver.Finding{Rule: rule, Subject: need.Destination.String(), Seen: seen, Wanted: wanted, Fix: fix, Inspected: true})
	}
	switch most, ok := maxReceives(attrs["RedrivePolicy"]); {
	case !ok:
		add("DA02", "no RedrivePolicy", "RedrivePolicy with maxReceiveCount 5 or more", "a message that ends its process comes again until it expires: name a dead-letter queue")
	case most < fewReceives:
		add("DA03", "maxReceiveCount "+strconv.Itoa(most), "maxReceiveCount 5 or more", "what a consumer gives back when it stops counts as received: raise it")
	}
	if n, err := strconv.Atoi(attrs["MaximumMessageSize"]); err == nil && n < a.b.cfg.MaxBytes {
		add("DA04", "MaximumMessageSize "+strconv.Itoa(n), "MaximumMessageSize "+strconv.Itoa(a.b.cfg.MaxBytes), "raise it, or set Config.MaxBytes to it")
	}
	return found, nil
}

var errPolicy = errors.New("the policy of the queue cannot be read")
