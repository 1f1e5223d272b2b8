package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/core/driver"
)

// groupOf returns the Kafka group of a destination, "" = none.
func groupOf(of driver.Destination, group string) string {
	if of.Shape == driver.Queue {
		return of.Name
	}
	return group
}

// partitionName is how a partition is called everywhere in varal.
func partitionName(topic string, id int32) string {
	return topic + "/" + strconv.Itoa(int(id))
}

// partitionID reads partitionName, and the bare number too.
func partitionID(topic, name string) (int32, bool) {
	name = strings.TrimPrefix(name, topic+"/")
	n, err := strconv.ParseInt(name, 10, 32)
	return int32(n), err == nil && n >= 0
}

// Subscribe checks that the topic exists and may be read, and joins the group.
func (d *kafka) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	op := "subscribe to " + sub.From.String()
	if d.isClosed() {
		return nil, driver.Errorf(op, driver.Closed, "%w", errClosed)
	}
	if err := checkSubscription(op, sub); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(d.conf.ConnectTimeout, time.Second))
	defer cancel()
	t, err := d.topic(ctx, sub.From.Name)
	if err != nil {
		return nil, classify(op, err, driver.Transient)
	}
	c := d.newConsumer(sub, t)
	if err := d.claim(op, c); err != nil {
		return nil, err
	}
	if err := c.start(ctx, op, t); err != nil {
		d.forget(c)
		return nil, err
	}
	if !d.keep(c) {
		_ = c.Close(ctx)
		return nil, driver.Errorf(op, driver.Closed, "%w", errClosed)
	}
	return c, nil
}

// start makes the client of c, which joins the group.
func (c *consumer) start(ctx context.Context, op string, t kadm.TopicDetail) error {
	if c.d.conf.server() && c.group != "" {
		if err := c.prepare(ctx); err != nil {
			return classify(op, err, driver.Transient)
		}
	}
	opts, err := c.subscribeOptions(ctx, t)
	if err != nil {
		return classify(op, err, driver.Transient)
	}
	if err := c.d.evict(ctx, c); err != nil {
		return classify(op, err, driver.Transient)
	}
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	c.kill = kill
	c.cl, err = kgo.NewClient(append(opts, kgo.WithContext(life))...)
	if err != nil {
		kill()
		return driver.Errorf(op, driver.Permanent, "%w", err)
	}
	return nil
}

func checkSubscription(op string, sub driver.Subscription) error {
	if err := checkDestination(op, sub.From); err != nil {
		return err
	}
	switch {
	case sub.From.Shape == driver.Topic && sub.Group == "":
		return driver.Errorf(op, driver.Permanent, "Subscription.Group is required for a topic")
	case sub.Reset != driver.Default && sub.Reset != driver.Earliest && sub.Reset != driver.Latest:
		return driver.Errorf(op, driver.Permanent, "Subscription.Reset: use Default, Earliest or Latest")
	case sub.Start.Kind > driver.Since:
		return driver.Errorf(op, driver.Permanent, "Subscription.Start: there is no such kind of position")
	case sub.Start.Kind == driver.At && sub.Start.ID != "":
		return driver.Errorf(op, driver.Unsupported, "Subscription.Start: Kafka has offsets, no ids: set Offset")
	}
	if sub.Start.Partition != "" {
		if _, ok := partitionID(sub.From.Name, sub.Start.Partition); !ok {
			return driver.Errorf(op, driver.Permanent, "Subscription.Start.Partition %q: use %s", sub.Start.Partition, partitionName(sub.From.Name, 0))
		}
	}
	return nil
}

func (d *kafka) keep(c *consumer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.consumers[c] = struct{}{}
	return true
}

func (d *kafka) forget(c *consumer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.consumers, c)
	if d.static[c.group] == c {
		delete(d.static, c.group)
	}
}

// subscribeOptions are those of a group member, or of a reader of all partitions.
func (c *consumer) subscribeOptions(ctx context.Context, t kadm.TopicDetail) ([]kgo.Opt, error) {
	conf := c.d.conf
	opts := append(conf.options(c.link), kgo.WithHooks(waker{c}),
		kgo.FetchMaxWait(conf.FetchMaxWait),
		kgo.FetchMaxPartitionBytes(int32(conf.FetchPartitionBytes)),
		kgo.FetchMaxBytes(int32(max(16<<20, conf.FetchPartitionBytes))),
		// Both explicitly: the client's own default rewinds a minute. A position that
		// is gone stops its partition until outOfRange has decided.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
	)
	if c.group != "" {
		opts = append(opts, conf.memberOptions(c.instance)...)
		return append(opts,
			kgo.ConsumerGroup(c.group),
			kgo.ConsumeTopics(c.topic),
			kgo.DisableAutoCommit(),
			kgo.WithHooks(&c.pulse, &c.member, fallback{c}),
			kgo.OnPartitionsAssigned(c.onAssigned),
			kgo.OnOffsetsFetched(c.onFetched),
			kgo.AdjustFetchOffsetsFn(c.onAdjust),
			kgo.OnPartitionsRevoked(c.onRevoked),
			kgo.OnPartitionsLost(c.onLost),
		), nil
	}
	starts, err := c.startAll(ctx, t)
	if err != nil {
		return nil, err
	}
	return append(opts, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{c.topic: starts})), nil
}

// startAll opens every partition of a stream that is read without a group.
func (c *consumer) startAll(ctx context.Context, t kadm.TopicDetail) (map[int32]kgo.Offset, error) {
	ids := make([]int32, 0, len(t.Partitions))
	for _, p := range t.Partitions.Sorted() {
		ids = append(ids, p.Partition)
	}
	start := c.sub.Start
	if start.Kind == driver.Default {
		start.Kind = driver.Latest
	}
	at, err := c.d.resolve(ctx, c.topic, start, driver.Latest, ids)
	if err != nil {
		return nil, err
	}
	high, err := c.d.resolve(ctx, c.topic, driver.Position{Kind: driver.Latest}, driver.Latest, ids)
	if err != nil {
		return nil, err
	}
	offsets := make(map[int32]kgo.Offset, len(ids))
	owned := make([]assignment, 0, len(ids))
	for _, id := range ids {
		offsets[id] = kgo.NewOffset().At(at[id])
		owned = append(owned, assignment{id: id, at: at[id], high: high[id]})
	}
	c.count = int32(len(ids))
	c.assign(0, owned)
	return offsets, nil
}

// resolve finds the offset that pos means in each of ids. A Position for one
// partition leaves the others to kind.
func (d *kafka) resolve(ctx context.Context, topic string, pos driver.Position, kind driver.PositionKind, ids []int32) (map[int32]int64, error) {
	out := make(map[int32]int64, len(ids))
	rest := ids
	if pos.Partition != "" {
		id, _ := partitionID(topic, pos.Partition)
		rest = nil
		for _, other := range ids {
			if other != id {
				rest = append(rest, other)
			}
		}
		if len(rest) > 0 {
			m, err := d.list(ctx, topic, driver.Position{Kind: kind}, rest)
			if err != nil {
				return nil, err
			}
			out = m
		}
		if len(rest) == len(ids) {
			return out, nil
		}
		rest = []int32{id}
	}
	m, err := d.list(ctx, topic, pos, rest)
	for id, at := range m {
		out[id] = at
	}
	return out, err
}

// list asks the broker for one kind of position.
func (d *kafka) list(ctx context.Context, topic string, pos driver.Position, ids []int32) (map[int32]int64, error) {
	out := make(map[int32]int64, len(ids))
	if pos.Kind == driver.At {
		for _, id := range ids {
			out[id] = max(pos.Offset, 0)
		}
		return out, nil
	}
	var listed kadm.ListedOffsets
	var err error
	switch pos.Kind {
	case driver.Latest:
		listed, err = d.adm.ListEndOffsets(ctx, topic)
	case driver.Since:
		listed, err = d.adm.ListOffsetsAfterMilli(ctx, pos.Time.UnixMilli(), topic)
	default:
		listed, err = d.adm.ListStartOffsets(ctx, topic)
	}
	if err != nil {
		return nil, d.explain(err)
	}
	var late []int32 // nothing at or after Since: the end
	for _, id := range ids {
		o, ok := listed.Lookup(topic, id)
		switch {
		case !ok:
			return nil, fmt.Errorf("the broker did not list %s", partitionName(topic, id))
		case o.Err != nil:
			return nil, o.Err
		case o.Offset < 0:
			late = append(late, id)
		default:
			out[id] = o.Offset
		}
	}
	if len(late) > 0 && pos.Kind == driver.Since {
		m, err := d.list(ctx, topic, driver.Position{Kind: driver.Latest}, late)
		if err != nil {
			return nil, err
		}
		for id, at := range m {
			out[id] = at
		}
	} else if len(late) > 0 {
		return nil, errors.New("the broker listed no offset")
	}
	return out, nil
}
