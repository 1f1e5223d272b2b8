package driver

import "time"

// Mode is what Apply does about a difference. The zero Mode is invalid.
type Mode uint8

// The modes.
const (
	Create Mode = iota + 1 // make what is missing; a difference in what exists is reported, not changed
	Verify                 // report only, without any right to create
	Plan                   // report what Create would do
	Delete                 // remove what exists
)

// String returns the mode in lower case.
func (m Mode) String() string { return name(m, "create", "verify", "plan", "delete") }

// Resource is a destination, or one of its groups when Group is set.
type Resource struct {
	Destination
	// Start is where a group begins that Apply creates.
	Start Position
	// Options in the broker's words (exchange, bind, filter). Unknown = Unsupported.
	Options map[string]string
}

// Change is one difference between what is wanted and what exists.
type Change struct {
	// Subject is what differs ("topic orders"), Field the property, Have and Want its values
	// in words; Field "exists" is the whole thing.
	Subject, Field, Have, Want string
	// Done: Apply has made the change; false in the modes that only look.
	Done bool
}

// Stats of a destination or group. -1: the broker does not say.
type Stats struct {
	// Ready may be received now, InFlight is out and unsettled, Delayed comes later, Lag is
	// what the group has still to settle. All in messages.
	Ready, InFlight, Delayed, Lag int64
	// Oldest is the age of the oldest message counted.
	Oldest time.Duration
	// Partitions holds the same by partition; nil where there is none or the broker does not say.
	Partitions map[string]Stats
}

// Finding is one observation of Inspect.
type Finding struct {
	// Rule is the identifier of the check, Subject what it looked at, Seen and Wanted the
	// setting in words, Fix what to do about it.
	Rule, Subject, Seen, Wanted, Fix string
	// Inspected false: the setting could not be read; the finding is a guess.
	Inspected bool
}
