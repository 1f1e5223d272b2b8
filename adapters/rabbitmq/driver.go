package rabbitmq

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// broker is the Driver: two connections, because a memory alarm stops the broker
// reading from whatever connection publishes, and acks must not wait for that.
type broker struct {
	cfg      *settings
	pub, sub *link
	maxBytes int
	version  string

	calls sync.WaitGroup // publishes that were abandoned and still hold their slots

	mu        sync.Mutex
	closed    bool
	consumers map[driver.Consumer]struct{}
	spread    uint64 // keyless messages over shards
}

const stateBytes = 64 << 10

// Open connects once and returns the Driver. Errors: Permanent (the Config; the text
// names the field), Denied (credentials, virtual host, certificate), NotFound (no such
// host), Transient (not reachable now; the caller may try again). It returns by ctx.
func Open(ctx context.Context, c Config) (driver.Driver, error) {
	const op = "open RabbitMQ"
	cfg, err := check(c)
	if err != nil {
		return nil, driver.Errorf(op, driver.Permanent, "%w", err)
	}
	b := &broker{cfg: cfg, pub: newLink(cfg, "publish"), sub: newLink(cfg, "consume"), consumers: map[driver.Consumer]struct{}{}}
	s, err := b.pub.session(ctx)
	if err != nil {
		b.pub.wg.Wait()
		return nil, classify(op, err)
	}
	b.sub.next = b.pub.next // what did not answer now need not be asked first again
	b.version, _ = s.conn.Properties["version"].(string)
	if b.maxBytes = cfg.MaxBytes; b.maxBytes == 0 {
		b.maxBytes = defaultMax(b.version)
	}
	return b, nil
}

func defaultMax(version string) int {
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < 4 {
		return 128 << 20
	}
	return 16 << 20
}

// Capabilities of queue, keyed queue, topic and stream differ.
func (b *broker) Capabilities(of driver.Destination) driver.Capabilities {
	c := driver.Capabilities{Settle: driver.Each, Durable: true, Counts: !b.cfg.Classic, TTL: true, MaxBytes: b.maxBytes}
	switch {
	case of.Shape == driver.Stream:
		c.Settle, c.Order, c.Replay, c.Counts, c.TTL = driver.UpTo, driver.PerPartition, true, false, false
		c.StateBytes = stateBytes
		c.Emulated[driver.NeedPosition] = "a commit is a confirmed message in a quorum queue of the group"
	case of.Shape == driver.Queue && of.Partitions > 0:
		c.Order = driver.PerPartition
		c.Emulated[driver.NeedOrdered] = fmt.Sprintf("%d shard queues, each with an owner record in a quorum queue; at most one consumer per shard; the number is fixed", of.Partitions)
	}
	if b.cfg.Classic && of.Shape != driver.Stream {
		c.Priorities = b.cfg.Priorities
	}
	return c
}

// Close ends consumers, then connections, by ctx: what does not answer is cut.
func (b *broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	open := make([]driver.Consumer, 0, len(b.consumers))
	for c := range b.consumers {
		open = append(open, c)
	}
	b.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range open {
		wg.Go(func() { _ = c.Close(ctx) })
	}
	wg.Wait()
	wg.Go(func() { b.sub.close(ctx) })
	b.pub.close(ctx)
	wg.Wait()
	b.calls.Wait()
	for _, c := range open {
		if j, ok := c.(interface{ join() }); ok {
			j.join()
		}
	}
	return nil
}

func (b *broker) add(c driver.Consumer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errClosed("subscribe")
	}
	b.consumers[c] = struct{}{}
	return nil
}

func (b *broker) drop(c driver.Consumer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.consumers, c)
}

func (b *broker) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// Names. A colon keeps a group's queue apart from a shard's ("orders.0").

func shardName(name string, partitions, i int) string {
	if partitions == 0 {
		return name
	}
	return name + "." + strconv.Itoa(i)
}

func groupQueue(topic, group string) string { return topic + ":" + group }

func ownerQueue(source, group string) string {
	return strings.TrimSuffix("varal.owner:"+source+":"+group, ":")
}

func membersQueue(name, group string) string {
	return strings.TrimSuffix("varal.members:"+name+":"+group, ":")
}

// validate refuses names that RabbitMQ cannot hold or keeps for itself.
func validate(op string, d driver.Destination, group string) error {
	switch {
	case d.Shape < driver.Queue || d.Shape > driver.Stream:
		return driver.Errorf(op, driver.Permanent, "Destination.Shape is not set: use Queue, Topic or Stream")
	case d.Name == "":
		return driver.Errorf(op, driver.Permanent, "Destination.Name is empty")
	case len(d.Name)+len(group) > 220:
		return driver.Errorf(op, driver.Permanent, "Destination.Name and group: together at most 220 bytes")
	case strings.HasPrefix(d.Name, "amq."):
		return driver.Errorf(op, driver.Permanent, "Destination.Name: names that start with amq. are RabbitMQ's own")
	case d.Partitions < 0 || d.Partitions > 1000:
		return driver.Errorf(op, driver.Permanent, "Destination.Partitions: 0..1000")
	case d.Shape == driver.Topic && d.Partitions > 0:
		return driver.Errorf(op, driver.Unsupported, "a RabbitMQ topic keeps no order per key: use a keyed queue or a stream (need: %v)", driver.NeedOrdered)
	}
	return nil
}

const noLimit = 2_000_000_000

func (b *broker) queueArgs(shard bool) amqp.Table {
	// From 4.0 on the default is 20 hand-outs, after which the message is dropped; a
	// message must not vanish because its consumers restart.
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": noLimit}
	if b.cfg.Classic {
		args = amqp.Table{"x-queue-type": "classic"}
		if b.cfg.Priorities > 0 && !shard {
			args["x-max-priority"] = b.cfg.Priorities
		}
	}
	if shard {
		// The broker gives a shard's next owner nothing before the last one's channel
		// is gone and its messages are back in front.
		args["x-single-active-consumer"] = true
	}
	return args
}

// ownerArgs: the record is handed out once per change of owner, and from 4.0 on the
// broker would drop it after 20 times.
func ownerArgs() amqp.Table {
	return amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": noLimit}
}
