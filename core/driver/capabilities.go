package driver

import (
	"fmt"
	"time"
)

// SettleMode is how deliveries end. The zero SettleMode is invalid.
type SettleMode uint8

// The settle modes.
const (
	Each SettleMode = iota + 1 // each delivery by itself
	UpTo                       // a log: everything up to a position
	None                       // nothing is settled: at most once
)

// String returns the mode in lower case.
func (m SettleMode) String() string { return name(m, "each", "up to", "none") }

// OrderScope is the order a source keeps.
type OrderScope uint8

// The scopes of order.
const (
	NoOrder      OrderScope = iota
	PerKey                  // messages of one key in order (SQS FIFO)
	PerPartition            // all messages of a partition in order, hence of a key
)

// String returns the scope in lower case.
func (o OrderScope) String() string { return name(o+1, "none", "per key", "per partition") }

// Capabilities of one destination. Comparable. A zero duration or size = not
// there.
type Capabilities struct {
	// Settle: whether each message is settled, or a position.
	Settle SettleMode
	// Order is what the broker keeps; it promises nothing across partitions.
	Order OrderScope
	// Durable: a confirmed message survives a restart of the broker.
	Durable bool
	// Replay: any Start, any Seek.
	Replay bool
	// DeadLetter: Reject itself keeps a copy.
	DeadLetter bool
	// Counts: DeliveryCount is the broker's.
	Counts bool
	// TTL: Message.TTL is honoured.
	TTL bool
	// Transactions: several publishes and settles take effect together.
	Transactions bool
	// Delay is the longest Message.Delay.
	Delay time.Duration
	// NackDelay is the longest Settlement.Delay of a Nack.
	NackDelay time.Duration
	// Lease is the longest total a delivery can be held by extending it.
	Lease time.Duration
	// Dedup is the window in which the broker drops a repeated ID.
	Dedup time.Duration
	// Priorities is the number of levels.
	Priorities int
	// MaxBatch is the most messages of one Publish. 0 = any number.
	MaxBatch int
	// MaxBytes is the most bytes of headers and body of one message.
	MaxBytes int
	// StateBytes is the most bytes of Settlement.State.
	StateBytes int
	// Emulated tells by Need what an emulation of the adapter costs; "" = the
	// broker's own.
	Emulated [NeedCount]string
}

// Need is something a subscription or publisher may require. One set of names for
// requirements, refusals, the gates of the conformance suite and the doctor.
type Need uint8

// The needs.
const (
	// NeedDurable: a confirmed message survives a restart of the broker.
	NeedDurable Need = iota
	// NeedReplay: messages stay after they were acknowledged, and a group can go back to them.
	NeedReplay
	// NeedPosition: a group can begin at an offset or a time, or be moved there.
	NeedPosition
	// NeedOrdered: messages of one key are delivered in the order they were published in.
	NeedOrdered
	// NeedOrderedRetry: the order holds through a failed attempt: what is behind it waits.
	NeedOrderedRetry
	// NeedSchedule: a message can be published now and delivered later (Message.Delay).
	NeedSchedule
	// NeedDelayNack: a failed message can be given back to come again after a wait.
	NeedDelayNack
	// NeedLease: a delivery is held for a time that can be extended, and then goes to somebody else.
	NeedLease
	// NeedDeadLetter: a rejected message is kept somewhere else and not dropped.
	NeedDeadLetter
	// NeedCounts: the deliveries of a message are counted, so that attempts outlive the consumer.
	NeedCounts
	// NeedTTL: a message that waited longer than its Message.TTL is not delivered any more.
	NeedTTL
	// NeedDedup: a second message with the same ID is dropped, within a window of time.
	NeedDedup
	// NeedPriority: of the messages that wait, those with a higher Message.Priority come first.
	NeedPriority
	// NeedTransactions: several publishes and settles take effect together or not at all.
	NeedTransactions
	NeedCount // how many there are
)

var needNames = [NeedCount]string{
	"durable", "replay", "position", "ordered", "ordered-retry", "schedule", "delay-nack",
	"lease", "dead-letter", "counts", "ttl", "dedup", "priority", "transactions",
}

// String returns the need's name, for example "delay-nack".
func (n Need) String() string {
	if n >= NeedCount {
		return "invalid"
	}
	return needNames[n]
}

// ParseNeed returns the need called s.
func ParseNeed(s string) (Need, error) {
	for i, n := range needNames {
		if n == s {
			return Need(i), nil
		}
	}
	return 0, fmt.Errorf("unknown need %q: the needs are %v", s, needNames)
}

// MarshalText writes the need's name.
func (n Need) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText reads a need's name.
func (n *Need) UnmarshalText(b []byte) (err error) { *n, err = ParseNeed(string(b)); return err }

// Has reports whether the need is there, the broker's own or emulated by the
// adapter (Emulated tells which).
func (c Capabilities) Has(n Need) bool {
	switch n {
	case NeedDurable:
		return c.Durable
	case NeedReplay, NeedPosition:
		return c.Replay
	case NeedOrdered, NeedOrderedRetry:
		return c.Order != NoOrder
	case NeedSchedule:
		return c.Delay > 0
	case NeedDelayNack:
		return c.NackDelay > 0
	case NeedLease:
		return c.Lease > 0
	case NeedDeadLetter:
		return c.DeadLetter
	case NeedCounts:
		return c.Counts
	case NeedTTL:
		return c.TTL
	case NeedDedup:
		return c.Dedup > 0
	case NeedPriority:
		return c.Priorities > 0
	case NeedTransactions:
		return c.Transactions
	}
	return false
}
