package driver

import "context"

// Driver is one configured connection to one broker. All methods may be called
// concurrently.
type Driver interface {
	// Capabilities tells what one destination can do in this configuration. It is
	// data: no network (Open asked), constant for the Driver's life. Of a shape that the
	// broker does not have it is the zero value, whose Settle is invalid.
	Capabilities(of Destination) Capabilities

	// Publish stores a batch. It returns nil (the broker confirmed every message),
	// a *BatchError (index by index) or an *Error (its class holds for every
	// message). Messages of one Key keep their order: after one that failed
	// Transient or Ambiguous, later ones of that Key in the batch are not stored
	// and fail Transient. Core never calls with an ended ctx, sets every ID, and
	// sends at most Capabilities.MaxBatch messages (0 = any number). A message
	// that ended Ambiguous may still be read by the adapter: core does not change
	// it, nor any other message it has handed in.
	Publish(ctx context.Context, to Destination, batch []*Message) error

	// Subscribe checks that the source exists (NotFound) and may be read (Denied).
	// ctx bounds the call, not the life of the Consumer. Nothing is in flight
	// before the first Receive. Assigned and Revoke may be called before it
	// returns.
	Subscribe(ctx context.Context, sub Subscription) (Consumer, error)

	// Admin returns nil where there is none.
	Admin() Admin

	// Close ends all consumers and connections within ctx. Idempotent.
	Close(ctx context.Context) error
}

// Consumer is one live subscription. Receive has one caller, Settle has one
// caller; both may run at the same time.
type Consumer interface {
	// Receive waits for at least one message and returns no more than
	// want.Records and want.Bytes (a larger message comes alone). Cancelling ctx is
	// how core changes its Demand: the call ends within 500 ms with ctx's error,
	// also during a Revoke, and loses nothing. What was under way comes with the
	// next Receive or goes back in Close; what was asked for and has not been
	// returned counts against the next Demand. After class Transient or Ambiguous
	// core backs off and calls again, which reconnects; other classes end the
	// subscription. Core does not modify what Receive returned, so an adapter may
	// share bodies and headers between consumers. The slice is core's until the
	// next call.
	Receive(ctx context.Context, want Demand) ([]Received, error)

	// Settle answers as Publish does; entries of one Partition take effect in the
	// order given. The adapter checks the Epoch (LeaseLost) and that the broker
	// still has the message; that a receipt ends once is core's job. Entries that
	// end Transient or Ambiguous are sent again. It works until Close returns.
	Settle(ctx context.Context, batch []Settlement) error

	// Close makes Receive return class Closed, may call Revoke, and gives back
	// what was fetched and never returned. Idempotent.
	Close(ctx context.Context) error
}

// Admin creates, checks and measures destinations. It may need rights that a
// plain service does not have (Denied). By itself core calls Stats, and Apply as
// its Provision setting says.
type Admin interface {
	// Apply creates, verifies, plans or deletes resources and returns one Change
	// for each difference it found; Done tells whether it was carried out. It is
	// idempotent and safe against a race with another Apply. Verify needs no right
	// to create and creates nothing; a resource that is missing is a Change with
	// Field "exists" (and is not an error).
	Apply(ctx context.Context, want []Resource, mode Mode) ([]Change, error)

	// Stats measures one destination, or one group of it when Group is set. -1 in
	// a field: the broker does not say.
	Stats(ctx context.Context, of Resource) (Stats, error)

	// Seek moves a group to a position. Conflict while the group has members,
	// Unsupported where positions do not exist.
	Seek(ctx context.Context, of Resource, to Position) error

	// Inspect compares the broker's settings with what the need asks for.
	Inspect(ctx context.Context, need Resource) ([]Finding, error)
}
