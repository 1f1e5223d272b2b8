package aws

import (
	"context"
	"fmt"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/varal-go/varal/core/driver"
)

// queueURL is the URL of a queue, asked for once. The URL is a name in later requests; its
// host is never dialled.
func (b *broker) queueURL(ctx context.Context, op string, name string) (string, error) {
	if url, ok := b.place("queue " + name); ok {
		return url, nil
	}
	if b.cfg.AccountID != "" {
		return b.keep("queue "+name, b.composedURL(name)), nil
	}
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	out, err := b.api.sqs.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	b.heard(err)
	if err != nil {
		return "", missing(op, "queue", name, asked(op, err))
	}
	return b.keep("queue "+name, sdk.ToString(out.QueueUrl)), nil
}

func (b *broker) composedURL(name string) string {
	base := strings.TrimSuffix(b.cfg.Endpoint, "/")
	if base == "" {
		base = "https://sqs." + b.api.region + "." + domain(b.api.region)
	}
	return base + "/" + b.cfg.AccountID + "/" + name
}

func domain(region string) string {
	if strings.HasPrefix(region, "cn-") {
		return "amazonaws.com.cn"
	}
	return "amazonaws.com"
}

// partition is the part of AWS that a region belongs to, as an ARN writes it.
func partition(region string) string {
	switch {
	case strings.HasPrefix(region, "cn-"):
		return "aws-cn"
	case strings.HasPrefix(region, "us-gov-"):
		return "aws-us-gov"
	}
	return "aws"
}

// topicARN is the ARN of a topic. SNS finds none by its name, so without an account the
// list is read, a hundred at a time, until it is there.
func (b *broker) topicARN(ctx context.Context, op string, name string) (string, error) {
	if arn, ok := b.place("topic " + name); ok {
		return arn, nil
	}
	if b.cfg.AccountID != "" {
		return b.keep("topic "+name, fmt.Sprintf("arn:%s:sns:%s:%s:%s", partition(b.api.region), b.api.region, b.cfg.AccountID, name)), nil
	}
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	for pages := sns.NewListTopicsPaginator(b.api.sns, &sns.ListTopicsInput{}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		b.heard(err)
		if err != nil {
			return "", asked(op, err)
		}
		for _, t := range page.Topics {
			if arn := sdk.ToString(t.TopicArn); strings.HasSuffix(arn, ":"+name) {
				return b.keep("topic "+name, arn), nil
			}
		}
	}
	return "", missing(op, "topic", name, &driver.Error{Op: op, Class: driver.NotFound})
}

// missing says what to do about a queue or topic that is not there.
func missing(op, kind, name string, err error) error {
	if driver.ClassOf(err) != driver.NotFound {
		return err
	}
	e := driver.Errorf(op, driver.NotFound, "there is no %s %q in this account and region: create it (Provision create, or varal topology apply)", kind, name)
	return e
}

func (b *broker) place(key string) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.places[key]
	return p, ok
}

func (b *broker) keep(key, place string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.places[key] = place
	return place
}

// forget makes the next use look a queue or topic up again.
func (b *broker) forget(kind, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.places, kind+" "+name)
}

// discard forgets what is gone, with its sender; calls that are under way keep that. A
// place that is only looked up again keeps its sender, because two for one FIFO queue could
// have requests with one group under way.
func (b *broker) discard(kind, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := kind + " " + name
	delete(b.senders, b.places[key])
	delete(b.places, key)
}
