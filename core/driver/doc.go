// Package driver is the service provider interface of varal: what the author of
// a broker adapter implements, and the value types that adapters and package
// core share.
//
// It is a leaf: it imports the standard library only and starts no goroutine.
// Applications import package core, which re-exports the value types by alias.
//
// The contract lives in the comments of [Driver], [Consumer] and [Admin]. The
// public suite test/conformance checks it; an adapter author needs nothing else.
//
// Three rules explain most of the shape of this package:
//
//   - Pull, batched. Back-pressure is "core does not call Receive". Core owns
//     every goroutine, timer and retry of the engine.
//   - An [Assignment] for everything. Every source has at least one partition,
//     called "" where the broker has none, and a reconnect that voids receipts is
//     a Revoke followed by an Assigned with a new Epoch. Core has no special case.
//   - A result for each entry. Publish and Settle answer nil (all done), a
//     [*BatchError] (index by index) or an [*Error] (its class holds for all).
package driver
