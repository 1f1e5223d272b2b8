package driver

import (
	"context"
	"time"
)

// PositionKind says how a Position is meant.
type PositionKind uint8

// The kinds of position.
const (
	Default  PositionKind = iota // what the adapter documents: earliest for queues and topics made by us, latest for a bare stream read
	Earliest                     // the oldest message kept
	Latest                       // the next message written
	At                           // Offset or ID: this message is the first one read
	Since                        // the first message at or after Time
)

// String returns the kind in lower case.
func (k PositionKind) String() string {
	return name(k+1, "default", "earliest", "latest", "at", "since")
}

// Position is a place in a log. The zero Position is Default.
type Position struct {
	// Kind decides which of the other fields count.
	Kind PositionKind
	// Partition "" = each.
	Partition string
	// Offset or ID (where the broker names places by text) is the message of an At; Time is
	// the instant of a Since.
	Offset int64
	ID     string
	Time   time.Time
}

// Subscription is what core asks of an adapter. An adapter holds no lock while it
// calls Assigned, Revoke or Notify.
type Subscription struct {
	// From is the source.
	From Destination
	// Group. Queue: a label, all its consumers are one group. Topic: required.
	// Stream: "" = no group, nothing is committed.
	Group string
	// Start counts only for a group that has no position yet.
	Start Position
	// Reset says what to do when the position is gone: Default = that partition
	// stops; Earliest, Latest = on from there. OutOfRange is notified either way.
	Reset PositionKind
	// Temporary: the group is made for this consumer alone and ends with it.
	Temporary bool

	// Assigned opens a partition before its first message is returned. Every
	// source has at least one, "" where the broker has none. A reconnect that voids
	// receipts is Revoke + Assigned with a new Epoch.
	Assigned func(Assignment)

	// Revoke returns when core has let go: nothing runs, the last Settle is done.
	// ctx ends when ownership does (rebalance timeout; a renewable lease: no
	// deadline). Already ended = lost, no Settle. Called from Receive, Close, a
	// client's callback, or a goroutine the adapter starts for it and joins in
	// Close; a lease is renewed while it runs. After it returns nothing more is
	// asked of the broker for that partition.
	Revoke func(ctx context.Context, partitions []string)

	// Notify must not block. An adapter's Config has the same hook, for a client
	// that only publishes.
	Notify func(Event)
}

// Assignment is one period of ownership of one partition. Core admits a message
// only while Receipt.Epoch is the open Epoch of Receipt.Partition, and drops it
// otherwise: it was neither settled nor committed, so the next owner gets it.
type Assignment struct {
	// Partition is "" where the broker has none.
	Partition string
	// Epoch is > 0 and never reused within a Consumer.
	Epoch uint64
	// Fence grows with every change of owner, over all members; 0 = none. Core
	// copies it to deliveries.
	Fence uint64
	// Committed is next to read, High next to be written; zero = unknown.
	Committed, High Position
	// State was stored beside Committed.
	State []byte
}

// EventKind says what happened to a connection or subscription.
type EventKind uint8

// The kinds of event.
const (
	Connected    EventKind = iota + 1 // also after a reconnect
	Disconnected                      // reconnecting is under way, or waits for the next call
	Blocked                           // the broker takes no publishes for now
	Unblocked
	OutOfRange // a position is gone; Subscription.Reset decides
	Gone       // messages vanished before they were settled (trimmed, expired, deleted)
)

// String returns the kind in lower case.
func (k EventKind) String() string {
	return name(k, "connected", "disconnected", "blocked", "unblocked", "out of range", "gone")
}

// Event is news about a connection or subscription.
type Event struct {
	// Kind is what happened.
	Kind EventKind
	// Partition is "" when the event is about the connection.
	Partition string
	// Err is the cause, nil where there is none.
	Err error
}
