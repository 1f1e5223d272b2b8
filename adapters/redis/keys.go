package redis

import (
	"strings"

	"github.com/varal-go/varal/core/driver"
)

// keys of one destination. All carry the same hash tag, so that they are in one slot of
// a Cluster and one script may use them together.
type keys struct {
	log   string // the stream
	meta  string // hash: what the destination is
	gone  string // for a while after Apply(Delete)
	sched string // zset: published with a delay
}

func (c *Config) keys(of driver.Destination) keys {
	tag := c.Namespace + ":{" + of.Name + "}:"
	return keys{log: tag + "s", meta: tag + "meta", gone: tag + "gone", sched: tag + "z"}
}

// retry and later are the keys of one group: what it failed, to be had again at once or
// at a time. Another group never sees them.
func (k keys) retry(group string) string { return strings.TrimSuffix(k.log, "s") + "r:" + group }
func (k keys) later(group string) string { return k.sched + ":" + group }

const (
	// queueGroup is the group of a queue: it has one, whatever label a consumer bears.
	queueGroup = "queue"
	// freeConsumer holds in a group's pending list what was given back: idle for a lease,
	// so that whoever looks next takes it.
	freeConsumer = "~free"
)

// validate refuses what cannot be a destination here.
func validate(op string, d driver.Destination, group string) error {
	switch {
	case d.Shape < driver.Queue || d.Shape > driver.Stream:
		return driver.Errorf(op, driver.Permanent, "Destination.Shape is not set: use Queue, Topic or Stream")
	case d.Name == "":
		return driver.Errorf(op, driver.Permanent, "Destination.Name is empty")
	case strings.ContainsAny(d.Name, "{}"):
		return driver.Errorf(op, driver.Permanent, "Destination.Name: no braces, they name the hash slot of a key")
	case len(d.Name)+len(group) > 1024:
		return driver.Errorf(op, driver.Permanent, "Destination.Name and group: together at most 1024 bytes")
	case d.Partitions < 0:
		return driver.Errorf(op, driver.Permanent, "Destination.Partitions is %d", d.Partitions)
	case d.Partitions > 0:
		return driver.Errorf(op, driver.Unsupported, "the Redis adapter has no keyed %s yet (need: %v): use Partitions 0, without order", d.Shape, driver.NeedOrdered)
	}
	return nil
}

// groupOf is the group that a destination or subscription means; "" = none.
func groupOf(d driver.Destination, group string) string {
	if d.Shape == driver.Queue {
		return queueGroup
	}
	return group
}
