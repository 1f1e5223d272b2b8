package redis

import (
	"strconv"
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

// shard is the part of a keyed destination that one stream holds: one partition. Its keys
// share a hash tag of their own, so that the shards of one destination spread over a
// Cluster. The names differ from those of a plain destination that is called "name/0".
type shard struct {
	label string // driver.Receipt.Partition
	log   string // the stream
	lease string // begins the key that tells who of a group owns the shard, and for how long
	fence string // begins the key of a group's last fence
}

// keys of the scripts of one group.
func (s *shard) keys(group string) []string { return []string{s.log, s.lease + group, s.fence + group} }

func (c *Config) shards(of driver.Destination) []shard {
	out := make([]shard, of.Partitions)
	for i := range out {
		label := strconv.Itoa(i)
		tag := c.Namespace + ":{" + of.Name + "/" + label + "}:"
		out[i] = shard{label: label, log: tag + "shard", lease: tag + "lease:", fence: tag + "fence:"}
	}
	return out
}

// logs are the streams of a destination: one, or one for each shard.
func (c *Config) logs(of driver.Destination) []string {
	if of.Partitions == 0 {
		return []string{c.keys(of).log}
	}
	out := make([]string, of.Partitions)
	for i, s := range c.shards(of) {
		out[i] = s.log
	}
	return out
}

// members is the sorted set of the consumers of a group of a keyed destination.
func (k keys) members(group string) string {
	return strings.TrimSuffix(k.log, "s") + "members:" + group
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

	maxPartitions = 1000
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
	case d.Partitions < 0 || d.Partitions > maxPartitions:
		return driver.Errorf(op, driver.Permanent, "Destination.Partitions: 0..%d", maxPartitions)
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
