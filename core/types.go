package core

import "github.com/varal-go/varal/core/driver"

// Message is what travels; see [driver.Message].
type Message = driver.Message

// Header is one header field; see [driver.Header].
type Header = driver.Header

// Destination names where messages go to and come from; see [driver.Destination].
type Destination = driver.Destination

// Shape is queue, topic or stream; see [driver.Shape].
type Shape = driver.Shape

// The three shapes.
const (
	ShapeQueue  = driver.Queue
	ShapeTopic  = driver.Topic
	ShapeStream = driver.Stream
)

// Queue names a queue: each message goes to one consumer.
func Queue(name string) Destination { return Destination{Shape: driver.Queue, Name: name} }

// Topic names a topic: each message goes once to every group.
func Topic(name string) Destination { return Destination{Shape: driver.Topic, Name: name} }

// Stream names a stream: messages are kept and every group reads at its own
// position.
func Stream(name string) Destination { return Destination{Shape: driver.Stream, Name: name} }

// Position is a place in a log; see [driver.Position].
type Position = driver.Position

// PositionKind says how a Position is meant; see [driver.PositionKind].
type PositionKind = driver.PositionKind

// The kinds of position.
const (
	DefaultPosition = driver.Default
	Earliest        = driver.Earliest
	Latest          = driver.Latest
	At              = driver.At
	Since           = driver.Since
)

// Capabilities of one destination; see [driver.Capabilities].
type Capabilities = driver.Capabilities

// Need is something a subscription or publisher may require; see [driver.Need].
type Need = driver.Need

// The needs.
const (
	// NeedDurable: a confirmed message survives a restart of the broker.
	NeedDurable = driver.NeedDurable
	// NeedReplay: messages stay after they were acknowledged, and a group can go back to them.
	NeedReplay = driver.NeedReplay
	// NeedPosition: a group can begin at an offset or a time, or be moved there.
	NeedPosition = driver.NeedPosition
	// NeedOrdered: messages of one key are delivered in the order they were published in.
	NeedOrdered = driver.NeedOrdered
	// NeedOrderedRetry: the order holds through a failed attempt: what is behind it waits.
	NeedOrderedRetry = driver.NeedOrderedRetry
	// NeedSchedule: a message can be published now and delivered later (Message.Delay).
	NeedSchedule = driver.NeedSchedule
	// NeedDelayNack: a failed message can be given back to come again after a wait.
	NeedDelayNack = driver.NeedDelayNack
	// NeedLease: a delivery is held for a time that can be extended, and then goes to somebody else.
	NeedLease = driver.NeedLease
	// NeedDeadLetter: a rejected message is kept somewhere else and not dropped.
	NeedDeadLetter = driver.NeedDeadLetter
	// NeedCounts: the deliveries of a message are counted, so that attempts outlive the consumer.
	NeedCounts = driver.NeedCounts
	// NeedTTL: a message that waited longer than its Message.TTL is not delivered any more.
	NeedTTL = driver.NeedTTL
	// NeedDedup: a second message with the same ID is dropped, within a window of time.
	NeedDedup = driver.NeedDedup
	// NeedPriority: of the messages that wait, those with a higher Message.Priority come first.
	NeedPriority = driver.NeedPriority
	// NeedTransactions: several publishes and settles take effect together or not at all.
	NeedTransactions = driver.NeedTransactions
)

// Event is news about a connection or subscription; see [driver.Event].
type Event = driver.Event

// Resource is a destination or one of its groups; see [driver.Resource].
type Resource = driver.Resource

// Stats of a destination or group; see [driver.Stats].
type Stats = driver.Stats

// Admin creates, checks and measures destinations; see [driver.Admin].
type Admin = driver.Admin
