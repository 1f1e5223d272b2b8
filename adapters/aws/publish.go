package aws

import (
	"context"
	"errors"
	"strconv"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/varal-go/varal/core/driver"
)

// Publish implements driver.Driver. Concurrent calls share requests. A batch is not atomic.
func (b *broker) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	op := "publish " + to.String()
	if b.isClosed() {
		return errClosed(op)
	}
	if err := validate(op, to); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return driver.Errorf(op, driver.Transient, "nothing was sent: %w", context.Cause(ctx))
	}
	s, name, err := b.senderOf(ctx, op, to)
	if err != nil {
		return err
	}
	p := &parcel{op: op, errs: make([]error, len(batch))}
	items := b.pack(p, to, s, batch)
	if len(items) == 0 {
		return driver.Batch(p.errs)
	}
	err = s.publish(ctx, p, items)
	for i := range batch {
		if driver.ClassOf(driver.ResultAt(err, i)) == driver.NotFound { // look it up again
			b.discard("queue", name)
			b.discard("topic", name)
			break
		}
	}
	return err
}

// senderOf finds where a destination's messages go: its queue, its topic, or the queue of
// one group of the topic.
func (b *broker) senderOf(ctx context.Context, op string, to driver.Destination) (*sender, string, error) {
	if to.Shape == driver.Topic && to.Group == "" {
		name, err := b.cfg.topicName(op, to)
		if err != nil {
			return nil, "", err
		}
		arn, err := b.topicARN(ctx, op, name)
		if err != nil {
			return nil, "", err
		}
		return b.sender(arn, func() *sender { return b.topicSender(op, arn, isFIFO(to)) }), name, nil
	}
	name, err := b.cfg.queueName(op, to, to.Group)
	if err != nil {
		return nil, "", err
	}
	url, err := b.queueURL(ctx, op, name)
	if err != nil {
		return nil, "", err
	}
	return b.sender(url, func() *sender { return b.queueSender(op, url, isFIFO(to)) }), name, nil
}

func (b *broker) sender(place string, open func() *sender) *sender {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.senders[place]
	if !ok {
		s = open()
		b.senders[place] = s
	}
	return s
}

// pack turns a batch into items; what cannot be sent fails here.
func (b *broker) pack(p *parcel, to driver.Destination, s *sender, batch []*driver.Message) []*item {
	caps := b.Capabilities(to)
	items := make([]*item, 0, len(batch))
	for i, m := range batch {
		if p.errs[i] = refuse(p.op, caps, m); p.errs[i] != nil {
			continue
		}
		it := &item{parcel: p, at: i, delay: int32((m.Delay + time.Second - 1) / time.Second)}
		told := false
		if s.fifo {
			it.group, told = groupOf(m)
			it.dedup = dedupID(m.ID)
		}
		it.rec = encode(m, b.cfg.Attributes, told)
		if it.rec.size > s.limit {
			p.errs[i] = driver.Errorf(p.op, driver.TooLarge, "message %s takes %d bytes on the wire, the limit is %d (Config.MaxBytes, TopicMaxBytes)", m.ID, it.rec.size, s.limit)
			continue
		}
		p.errs[i] = errPending
		items = append(items, it)
	}
	return items
}

// refuse says what of m the destination cannot do.
func refuse(op string, caps driver.Capabilities, m *driver.Message) error {
	size := m.Size()
	switch {
	case size > caps.MaxBytes:
		return driver.Errorf(op, driver.TooLarge, "message %s has %d bytes of headers, key and body, at most %d (Config.MaxBytes, TopicMaxBytes)", m.ID, size, caps.MaxBytes)
	case m.Delay < 0 || m.TTL < 0:
		return driver.Errorf(op, driver.Permanent, "message %s: Delay and TTL cannot be negative", m.ID)
	case m.Priority != 0:
		return driver.Errorf(op, driver.Unsupported, "message %s: priority: SQS has no levels", m.ID)
	case m.TTL > 0:
		return driver.Errorf(op, driver.Unsupported, "message %s: ttl: the retention of the queue is the same for all its messages", m.ID)
	case m.Delay > 0 && caps.Delay == 0:
		return driver.Errorf(op, driver.Unsupported, "message %s: schedule: FIFO queues and topics delay no single message; publish to a queue without Partitions", m.ID)
	case m.Delay > caps.Delay:
		return driver.Errorf(op, driver.Unsupported, "message %s: schedule: Delay is %v, at most %v", m.ID, m.Delay, caps.Delay)
	}
	return nil
}

func (b *broker) queueSender(op, url string, fifo bool) *sender {
	return newSender(b, fifo, b.cfg.MaxBytes, func(ctx context.Context, batch []*item) []error {
		return b.sendQueue(ctx, op, url, fifo, batch)
	})
}

// sendQueue makes one request. The outcome of an entry that the answer does not name is
// unknown.
func (b *broker) sendQueue(ctx context.Context, op, url string, fifo bool, batch []*item) []error {
	in := &sqs.SendMessageBatchInput{QueueUrl: &url}
	for i, it := range batch {
		e := types.SendMessageBatchRequestEntry{
			Id: sdk.String(strconv.Itoa(i)), MessageBody: &it.rec.body, MessageAttributes: queueAttributes(it.rec.attrs), DelaySeconds: it.delay,
		}
		if fifo {
			e.MessageGroupId, e.MessageDeduplicationId = &it.group, &it.dedup
		}
		in.Entries = append(in.Entries, e)
	}
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	out, err := b.api.sqs.SendMessageBatch(ctx, in)
	b.heard(err)
	if err != nil {
		again := func(part []*item) []error { return b.sendQueue(ctx, op, url, fifo, part) }
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

// failed is the outcome of a request that failed as a whole. One that was too long as a
// whole stored nothing, so its halves are sent instead.
func failed(op string, err error, batch []*item, again func([]*item) []error) []error {
	err = classify(op, err)
	if e, ok := errors.AsType[*driver.Error](err); ok && e.Class == driver.TooLarge && len(batch) > 1 {
		return append(again(batch[:len(batch)/2]), again(batch[len(batch)/2:])...)
	}
	errs := make([]error, len(batch))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func queueAttributes(attrs []attribute) map[string]types.MessageAttributeValue {
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

// results gathers the answer to a batch. Its entries are named by their place: an id of a
// message may come twice.
type results struct {
	op   string
	errs []error
	hide *secrets
}

func (b *broker) newResults(op string, n int) *results {
	r := &results{op: op, errs: make([]error, n), hide: b.api.secrets}
	for i := range r.errs {
		r.errs[i] = driver.Errorf(op, driver.Ambiguous, "the service said nothing about entry %d of a batch", i)
	}
	return r
}

func (r *results) done(id *string) {
	if i, ok := r.at(id); ok {
		r.errs[i] = nil
	}
}

func (r *results) at(id *string) (int, bool) {
	i, err := strconv.Atoi(sdk.ToString(id))
	return i, err == nil && i >= 0 && i < len(r.errs)
}

// failed: an entry that failed was not carried out. If that is not our fault, it is sent
// again.
func (r *results) failed(id, code, message *string, ours bool) {
	i, ok := r.at(id)
	if !ok {
		return
	}
	class, after := classOfCode(sdk.ToString(code), sdk.ToString(message), 400)
	if !ours && class == driver.Permanent {
		class = driver.Transient
	}
	e := driver.Errorf(r.op, class, "%s", r.hide.hidden(sdk.ToString(code)+": "+sdk.ToString(message)))
	e.After = after
	r.errs[i] = e
}
