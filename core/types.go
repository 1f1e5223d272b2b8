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
	NeedDurable      = driver.NeedDurable
	NeedReplay       = driver.NeedReplay
	NeedPosition     = driver.NeedPosition
	NeedOrdered      = driver.NeedOrdered
	NeedOrderedRetry = driver.NeedOrderedRetry
	NeedSchedule     = driver.NeedSchedule
	NeedDelayNack    = driver.NeedDelayNack
	NeedLease        = driver.NeedLease
	NeedDeadLetter   = driver.NeedDeadLetter
	NeedCounts       = driver.NeedCounts
	NeedTTL          = driver.NeedTTL
	NeedDedup        = driver.NeedDedup
	NeedPriority     = driver.NeedPriority
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
