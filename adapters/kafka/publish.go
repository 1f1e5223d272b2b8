package kafka

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/core/driver"
)

const (
	// maxMessageBytes is the broker's default of max.message.bytes.
	maxMessageBytes = 1048588
	// batchRoom is what a topic made by Apply takes above Config.MaxBytes: the
	// frame of batch and record, and the headers varal adds.
	batchRoom = 16 << 10
)

// topicInfo is what Publish must know of a topic before its first record.
type topicInfo struct{ maxBatch int32 }

// publishOptions: idempotent and acknowledged by all in-sync replicas are the
// client's defaults. The context of a Publish may end a record only while no request
// holds it (AllowIdempotentProduceCancellation stays off): an Ambiguous record is the
// client's until the broker has answered, so that a later one of its key cannot
// overtake it.
func (d *kafka) publishOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.ProducerBatchCompression(codecs[d.conf.Compression], kgo.NoCompression()),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), // by murmur2, as driver.PartitionOf does
		kgo.ProducerLinger(0), // core batches
		kgo.ProducerBatchMaxBytesFn(d.batchLimit),
	}
}

// batchLimit is asked by the client once per partition. The limit must be the
// topic's own: with a larger one the client would put many small messages into a
// batch that the broker refuses as a whole.
func (d *kafka) batchLimit(topic string) int32 {
	if t, ok := d.topics.Load(topic); ok {
		return t.(*topicInfo).maxBatch
	}
	return maxMessageBytes
}

// meet looks at a topic before the first publish to it: NotFound comes at once
// instead of after the client's own retries, and batchLimit knows the topic.
func (d *kafka) meet(ctx context.Context, topic string) error {
	if _, ok := d.topics.Load(topic); ok {
		return nil
	}
	if _, err := d.topic(ctx, topic); err != nil {
		return err
	}
	info := &topicInfo{maxBatch: maxMessageBytes}
	// Reading the configuration is a right of its own; without it the default holds.
	if conf, err := d.topicConfig(ctx, topic); err == nil {
		if n, err := strconv.ParseInt(conf["max.message.bytes"], 10, 32); err == nil && n >= 512 {
			info.maxBatch = int32(min(n, 1<<30))
		}
	} else if ctx.Err() != nil {
		return d.explain(err)
	}
	d.topics.Store(topic, info)
	return nil
}

// Publish stores a batch. Past ctx what has no answer yet is Ambiguous.
func (d *kafka) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	op := "publish to " + to.String()
	if d.isClosed() {
		return driver.Errorf(op, driver.Closed, "%w", errClosed)
	}
	if err := checkDestination(op, to); err != nil {
		return err
	}
	if to.Group != "" {
		return driver.Errorf(op, driver.Unsupported, "Destination.Group: a Kafka topic cannot address one of its groups")
	}
	if len(batch) == 0 {
		return nil
	}
	if err := d.meet(ctx, to.Name); err != nil {
		return classify(op, err, driver.Transient) // nothing was sent
	}
	p := d.newPublication(op, to.Name, batch)
	p.send(ctx, d)
	return p.wait(ctx, d)
}

// publication is one call of Publish.
type publication struct {
	op    string
	topic string
	out   []outgoing
	keys  []*driver.Message
	room  []kgo.RecordHeader // of send
	done  chan struct{}      // closed when every record has its answer
	gone  func()             // forgets the topic

	trouble atomic.Bool // failed is not empty

	mu     sync.Mutex
	left   int                 // records without an answer; guarded by mu
	ends   []bool              // by index: answered; guarded by mu
	errs   []error             // by index, nil = stored or no answer yet; guarded by mu
	failed map[string]struct{} // keys of which a record failed Transient or Ambiguous; guarded by mu
}

func (d *kafka) newPublication(op, topic string, batch []*driver.Message) *publication {
	return &publication{
		op: op, topic: topic, keys: batch, room: headerRoom(batch), out: make([]outgoing, len(batch)), done: make(chan struct{}),
		left: len(batch), errs: make([]error, len(batch)), ends: make([]bool, len(batch)),
		gone: func() { d.topics.Delete(topic) },
	}
}

// record makes record i of the batch, just before it is handed to the client: with
// many of them the client sends the first while the last are made.
func (p *publication) record(ctx context.Context, i int) *kgo.Record {
	o := &p.out[i]
	o.Context, o.index = ctx, i
	p.room = encode(&o.rec, p.topic, p.keys[i], p.room)
	o.rec.Context = o
	return &o.rec
}

// headerRoom is one allocation for the headers of all records.
func headerRoom(batch []*driver.Message) []kgo.RecordHeader {
	n := 0
	for _, m := range batch {
		n += headerCount(m)
	}
	return make([]kgo.RecordHeader, 0, n)
}

// refuse tells what can be told before anything is written.
func (d *kafka) refuse(op string, m *driver.Message) error {
	switch {
	case m.Delay > 0:
		return driver.Errorf(op, driver.Unsupported, "%s: Kafka has no delayed publish", driver.NeedSchedule)
	case m.Size() > d.conf.MaxBytes:
		return driver.Errorf(op, driver.TooLarge, "a message of %d bytes, the limit is %d: make it smaller, or raise max_bytes and the topic's max.message.bytes", m.Size(), d.conf.MaxBytes)
	}
	return nil
}

// send hands the records to the client in order. The client keeps the order of a
// partition: when a record fails that may be sent again, it fails everything it
// holds for that partition. What it does not hold yet is stopped here.
func (p *publication) send(ctx context.Context, d *kafka) {
	promise := p.answer // once: a method value is an allocation
	for i, m := range p.keys {
		switch err := d.refuse(p.op, m); {
		case err != nil:
			p.finish(i, err)
		case ctx.Err() != nil:
			p.finish(i, driver.Errorf(p.op, driver.Transient, "not sent: %w", context.Cause(ctx)))
		case m.Key != "" && p.trouble.Load() && p.hasFailed(m.Key):
			p.finish(i, driver.Errorf(p.op, driver.Transient, "not sent: an earlier message of its key failed"))
		default:
			d.cl.Produce(ctx, p.record(ctx, i), promise)
		}
	}
}

func (p *publication) hasFailed(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.failed[key]
	return ok
}

// answer is the promise of every record. It may come long after Publish has gone.
func (p *publication) answer(r *kgo.Record, err error) {
	o := r.Context.(*outgoing)
	if err == nil {
		p.finish(o.index, nil)
		return
	}
	class := publishClass(err)
	if class == driver.NotFound {
		p.gone()
	}
	p.finish(o.index, &driver.Error{Op: p.op, Class: class, Err: err})
}

func (p *publication) finish(i int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends[i], p.errs[i] = true, err
	if c := driver.ClassOf(err); c == driver.Transient || c == driver.Ambiguous {
		if p.failed == nil {
			p.failed = make(map[string]struct{})
		}
		p.failed[p.keys[i].Key] = struct{}{}
		p.trouble.Store(true)
	}
	if p.left--; p.left == 0 {
		close(p.done)
	}
}

// wait returns the results; when ctx ends first, what has no answer is Ambiguous:
// franz-go gives no record up that may have been sent, whatever its context says.
func (p *publication) wait(ctx context.Context, d *kafka) error {
	select {
	case <-p.done:
		return driver.Batch(p.errs) // nobody writes to it any more
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		return driver.Batch(p.errs)
	}
	late := &driver.Error{Op: p.op, Class: driver.Ambiguous, Err: fmt.Errorf("no answer from the broker: %w", d.explain(context.Cause(ctx)))}
	errs := slices.Clone(p.errs) // a late answer must not change what the caller reads
	for i, ended := range p.ends {
		if !ended {
			errs[i] = late
		}
	}
	return driver.Batch(errs)
}
