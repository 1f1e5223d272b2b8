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
	Subject, Field, Have, Want string
	Done                       bool
}

// Stats of a destination or group. -1: the broker does not say.
type Stats struct {
	Ready, InFlight, Delayed, Lag int64
	Oldest                        time.Duration
	Partitions                    map[string]Stats
}

// Finding is one observation of Inspect.
type Finding struct {
	Rule, Subject, Seen, Wanted, Fix string
	// Inspected false: the setting could not be read; the finding is a guess.
	Inspected bool
}
