package driver

import (
	"strconv"
	"time"
)

// Shape is what a destination does with a message: a queue divides work, a topic
// multiplies it, a stream remembers it. The zero Shape is invalid.
type Shape uint8

// The three shapes.
const (
	Queue  Shape = iota + 1 // each message to one consumer
	Topic                   // each message once to every group
	Stream                  // kept; every group reads at its own position
)

// String returns "queue", "topic" or "stream".
func (s Shape) String() string { return name(s, "queue", "topic", "stream") }

// Destination names where messages go to and come from. It is comparable.
type Destination struct {
	// Shape must be set.
	Shape Shape
	// Name in the broker's own alphabet. Required.
	Name string
	// Partitions > 0 asks for order per key: so many Kafka partitions, shard
	// queues, shard streams, or a FIFO queue. Publisher and consumer must agree.
	// 0 = no order asked.
	Partitions int
	// Group restricts a publish to this group of the destination (retry, redrive).
	// "" = everyone. A log answers Unsupported.
	Group string
}

// Keyed returns d with order per key over so many partitions.
func (d Destination) Keyed(partitions int) Destination { d.Partitions = partitions; return d }

// ForGroup returns d restricted to one group.
func (d Destination) ForGroup(group string) Destination { d.Group = group; return d }

// String returns for example "queue tickets" or "topic pizzas, group billing". Names
// that are long or hold what does not print are cut and quoted, because this text ends
// up in errors and logs.
func (d Destination) String() string {
	s := d.Shape.String() + " " + shown(d.Name)
	if d.Group != "" {
		s += ", group " + shown(d.Group)
	}
	return s
}

// shown makes a name fit for a line of text.
func shown(s string) string {
	const most = 255 // longer than any broker's limit that a name may rightly reach
	if len(s) > most {
		return strconv.Quote(s[:80] + "…")
	}
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// Message is what travels. The body is never wrapped.
type Message struct {
	// ID is unique. Core fills it when the application leaves it empty.
	ID string
	// Key is the ordering key (the session). "" = unordered, spread.
	Key string
	// Type names the kind of message, for dispatch and routing. May be empty.
	Type string
	// Headers in order; keys may repeat.
	Headers []Header
	// Body nil is a tombstone where the broker has such, else an empty body.
	Body []byte
	// Time of publishing. Core fills it when it is zero.
	Time time.Time
	// Delay: not delivered before this long after publishing. 0 = at once.
	Delay time.Duration
	// TTL: not delivered later than this after publishing. 0 = no limit.
	TTL time.Duration
	// Priority: higher first, 0 = lowest.
	Priority int
}

// Header is one header field. Key is case-sensitive; Value may hold any bytes.
type Header struct{ Key, Value string }

// Header returns the first value of key and whether there is one.
func (m *Message) Header(key string) (string, bool) {
	for i := range m.Headers {
		if m.Headers[i].Key == key {
			return m.Headers[i].Value, true
		}
	}
	return "", false
}

// Size is the number of bytes of header keys, header values, key and body: what
// counts against Capabilities.MaxBytes and Demand.Bytes.
func (m *Message) Size() int {
	n := len(m.Body) + len(m.Key)
	for i := range m.Headers {
		n += len(m.Headers[i].Key) + len(m.Headers[i].Value)
	}
	return n
}

// Names of the headers that varal itself writes. None starts with "x-", which
// RabbitMQ interprets or strips. An adapter carries ID, Type (and whatever its
// broker has no field for) under these names and removes them again on receipt.
const (
	HeaderPrefix = "varal-"

	HeaderID       = "varal-id"       // Message.ID
	HeaderKey      = "varal-key"      // Message.Key, where the broker has no key of its own
	HeaderType     = "varal-type"     // Message.Type
	HeaderTime     = "varal-time"     // Message.Time, RFC 3339 with nanoseconds, where the broker has no such field or a coarser one
	HeaderTTL      = "varal-ttl"      // Message.TTL in milliseconds
	HeaderPriority = "varal-priority" // Message.Priority
	HeaderDue      = "varal-due"      // not before, RFC 3339: a delay that goes in hops
	HeaderGroup    = "varal-group"    // the one group this copy is for
	HeaderAttempt  = "varal-attempt"  // attempts made before this copy
	HeaderSeq      = "varal-seq"      // sequence within (key, publisher), to prove order

	HeaderSource        = "varal-source"         // shape and name the message failed on
	HeaderSourceGroup   = "varal-source-group"   // group it failed in
	HeaderSourcePart    = "varal-source-part"    // partition
	HeaderSourceOffset  = "varal-source-offset"  // offset, or the broker's own id
	HeaderFirstFailure  = "varal-first-failure"  // RFC 3339
	HeaderLastFailure   = "varal-last-failure"   // RFC 3339
	HeaderAttempts      = "varal-attempts"       // attempts made in all
	HeaderFailureReason = "varal-failure-reason" // exhausted, permanent, undecodable, too_large, panic
	HeaderErrorClass    = "varal-error-class"    // class name
	HeaderError         = "varal-error"          // text, one line, at most 1 KiB
	HeaderStack         = "varal-stack"          // of a panic, at most 4 KiB
	HeaderBlockedBy     = "varal-blocked-by"     // id of the message of its key whose failure sent it along
	HeaderTruncated     = "varal-truncated"      // what was cut to fit the broker's limit
)

// Demand tells a Consumer how much core has room for.
type Demand struct {
	// Records is the room now, at least 1: all sources of this consumer together.
	Records int
	// Bytes is the room now, at least 1.
	Bytes int64
	// Limit is the most messages the broker may count as out to this consumer. It
	// may change from call to call.
	Limit int
	// Paused partitions: return nothing of these.
	Paused []string
}

// Received is one message as it came from the broker.
type Received struct {
	Message
	// Receipt names this hand-out in Settle.
	Receipt Receipt
	// Offset is the place in a log; -1 = none.
	Offset int64
	// NativeID is the broker's own id, "" = none.
	NativeID string
	// DeliveryCount counts hand-outs, this one included; 0 = the broker does not
	// count.
	DeliveryCount int
	// Deadline is the end of the lease, counted from before the request left.
	// Zero = no lease per message.
	Deadline time.Time
	// Err: not readable as a message. Body is the record as it came; core
	// dead-letters it.
	Err error
}

// Receipt names one delivery. Core reads Partition and Epoch, the rest is the
// adapter's.
type Receipt struct {
	// Partition and Epoch name the Assignment it came under.
	Partition string
	Epoch     uint64
	// Seq, Aux and ID are whatever the adapter finds the delivery by.
	Seq, Aux int64
	ID       string
	// Ref holds pointers only: a string or number in it allocates per message.
	Ref any
}

// Disposition is what becomes of a delivery. The zero Disposition is invalid.
type Disposition uint8

// The dispositions.
const (
	Ack    Disposition = iota + 1 // done
	Nack                          // failed: again after Delay, counted where the broker counts
	Return                        // not tried: again at once, not counted where the broker can help it
	Reject                        // never again for this group; core holds a confirmed copy, or chose the native dead letter
	Extend                        // not final: a longer lease
	Hold                          // not final (UpTo): everything before the receipt is done, and State belongs there
)

// String returns the disposition in lower case.
func (d Disposition) String() string {
	return name(d, "ack", "nack", "return", "reject", "extend", "hold")
}

// Settlement ends (or extends) one delivery. For SettleMode UpTo an Ack covers
// everything of the partition up to and including the receipt.
type Settlement struct {
	// Receipt is the one that came with the delivery, unchanged.
	Receipt Receipt
	// Disposition must be one of the six; the zero value is refused. Core sends Hold only
	// to an UpTo source with StateBytes; for an adapter that refuses it nothing is lost
	// but the State.
	Disposition Disposition
	// Delay of a Nack: not before, at most Capabilities.NackDelay. Of an Extend:
	// the lease from now; 0 = as long as Deadline told.
	Delay time.Duration
	// Reason is why, for the broker's own records. May be nil.
	Reason error
	// State is stored with this commit (UpTo). nil = none.
	State []byte
	// Final: core asks for no more before Close. What goes back with this entry should
	// not be handed to this consumer again: a broker would count that as an attempt.
	Final bool
}

// name returns the i-th name counted from 1, for the String methods of enums.
func name[T ~uint8](i T, names ...string) string {
	if i == 0 || int(i) > len(names) {
		return "invalid"
	}
	return names[i-1]
}
