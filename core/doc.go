// Package core is the one package an application imports beside an adapter.
//
// A [Client] publishes messages and runs subscriptions over one broker. A
// handler is written once:
//
//	func cook(ctx context.Context, d *core.Delivery) error
//
// nil acknowledges; an error is handled by its class (see [Permanent], [Ignore],
// [Return], [Halt], [RetryAfter]). What happens around the handler (how many run at
// once, order per key, retry, dead letter) is the subscription's [Policy], edited by
// the layers of package middleware; core assembles the one safe chain from it, so
// that the order in which layers are listed does not matter.
//
// What a broker can and cannot do is stated by [Client.Capabilities]. A
// subscription that needs more is refused by name at start with [ErrUnsupported];
// nothing is degraded in silence.
//
// The invariants that always hold, the wire format of the headers, and the design
// are in DESIGN.md beside this file.
package core
