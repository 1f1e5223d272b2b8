package aws

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/varal-go/varal/core/driver"
)

const (
	fifoSuffix   = ".fifo"
	maxQueueName = 80
	maxTopicName = 256
	maxGroupID   = 128 // of a message group, and of a deduplication id
)

// validate refuses what cannot be a destination here.
func validate(op string, d driver.Destination) error {
	switch {
	case d.Shape == driver.Stream:
		return driver.Errorf(op, driver.Unsupported, "SQS and SNS have no stream: a message that was acknowledged is gone; use a queue or a topic")
	case d.Shape < driver.Queue || d.Shape > driver.Stream:
		return driver.Errorf(op, driver.Permanent, "Destination.Shape is not set: use Queue or Topic")
	case d.Name == "":
		return driver.Errorf(op, driver.Permanent, "Destination.Name is empty")
	case d.Partitions < 0:
		return driver.Errorf(op, driver.Permanent, "Destination.Partitions is %d", d.Partitions)
	}
	return nil
}

// isFIFO reports whether d is a FIFO queue or topic: asked for by Partitions, or named so.
func isFIFO(d driver.Destination) bool {
	return d.Partitions > 0 || strings.HasSuffix(d.Name, fifoSuffix)
}

// wireName is the name of a queue or topic. AWS knows no dots: they are written as --.
func (c *Config) wireName(op string, d driver.Destination, group string, most int) (string, error) {
	name := c.Prefix + strings.TrimSuffix(d.Name, fifoSuffix)
	if group != "" {
		name += "-" + group
	}
	name = strings.ReplaceAll(name, ".", "--")
	if isFIFO(d) {
		name += fifoSuffix
	}
	switch {
	case !legalName(strings.TrimSuffix(name, fifoSuffix)):
		return "", driver.Errorf(op, driver.Permanent, "the name %q is not one for AWS: letters, digits, -, _ and dots only", name)
	case len(name) > most:
		return "", driver.Errorf(op, driver.Permanent, "the name %q has %d characters, AWS takes %d", name, len(name), most)
	}
	return name, nil
}

// queueName is the queue behind a queue, or behind a group of a topic.
func (c *Config) queueName(op string, d driver.Destination, group string) (string, error) {
	if d.Shape == driver.Queue {
		group = "" // a label
	}
	return c.wireName(op, d, group, maxQueueName)
}

func (c *Config) topicName(op string, d driver.Destination) (string, error) {
	return c.wireName(op, d, "", maxTopicName)
}

// legalName is the alphabet of queues and topics.
func legalName(s string) bool {
	for _, r := range s {
		if !isAlphanumeric(r) && r != '-' && r != '_' {
			return false
		}
	}
	return s != ""
}

func isAlphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// legalAttribute is the alphabet of the names of message attributes.
func legalAttribute(s string) bool {
	for _, r := range s {
		if !isAlphanumeric(r) && r != '-' && r != '_' && r != '.' {
			return false
		}
	}
	low := strings.ToLower(s)
	return s != "" && len(s) <= 256 && !strings.Contains(s, "..") && !strings.HasPrefix(s, ".") && !strings.HasSuffix(s, ".") &&
		!strings.HasPrefix(low, "aws.") && !strings.HasPrefix(low, "amazon.")
}

// legalID is the alphabet of message groups and deduplication ids: what ASCII prints.
func legalID(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= maxGroupID
}

// hashed stands for an id that AWS would not take.
func hashed(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// dedupID is the deduplication id of a message: its own id, so that whoever publishes it
// again within five minutes stores it once.
func dedupID(id string) string {
	if legalID(id) {
		return id
	}
	return hashed(id)
}

// keyless begins the message group of a message without a key: a group of its own, since
// no order was asked for and one group for all would let one consumer at a time work.
const keyless = "keyless:"

// groupOf is the message group of a message; told says that it says what the key is.
func groupOf(m *driver.Message) (group string, told bool) {
	switch {
	case m.Key == "":
		if g := keyless + m.ID; legalID(g) {
			return g, true
		}
		return keyless + hashed(m.ID), true
	case legalID(m.Key) && !strings.HasPrefix(m.Key, keyless):
		return m.Key, true
	}
	return hashed(m.Key), false
}

// keyOf is the inverse of groupOf.
func keyOf(group string) string {
	if strings.HasPrefix(group, keyless) {
		return ""
	}
	return group
}
