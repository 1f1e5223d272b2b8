package core

import (
	"fmt"
	"strings"

	"github.com/varal-go/varal/core/driver"
)

// Support says how a need is met. The zero Support is Refused.
type Support uint8

// The supports.
const (
	Refused Support = iota
	Native
	Emulated
)

// String returns the support in lower case.
func (s Support) String() string { return [...]string{"refused", "native", "emulated"}[min(s, 2)] }

// MarshalText writes the support's name.
func (s Support) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Resolution is how one need is met at one destination.
type Resolution struct {
	// Need is what is asked for, Support how it is met.
	Need    Need    `json:"need"`
	Support Support `json:"support"`
	// Cost of an emulation, in words.
	Cost string `json:"cost,omitempty"`
}

// Resolve tells how a source with these capabilities meets a need: by the broker
// itself, by an emulation of the adapter or of core, or not at all.
func Resolve(c Capabilities, n Need) Resolution {
	r := Resolution{Need: n}
	switch {
	case n >= driver.NeedCount:
		return r
	case c.Has(n) && c.Emulated[n] != "":
		r.Support, r.Cost = Emulated, c.Emulated[n]
	case c.Has(n):
		r.Support = Native
	case n == driver.NeedDelayNack && c.Settle == driver.UpTo:
		r.Support, r.Cost = Emulated, "the message is held in its lane; its partition commits no further meanwhile"
	case n == driver.NeedDelayNack && c.Settle == driver.Each:
		r.Support, r.Cost = Emulated, "the message is held by the consumer until it is due, within MaxInFlight"
	case n == driver.NeedDeadLetter && c.Settle != driver.None:
		r.Support, r.Cost = Emulated, "core publishes the copy, waits for the confirm, then settles: a crash between leaves two copies"
	}
	return r
}

// supporters says which shapes usually have a need, for the text of a refusal.
var supporters = [driver.NeedCount]string{
	driver.NeedDurable:      "a broker that stores messages",
	driver.NeedReplay:       "a stream",
	driver.NeedPosition:     "a stream",
	driver.NeedOrdered:      "a keyed destination (Keyed(n)) or a stream",
	driver.NeedOrderedRetry: "a keyed destination (Keyed(n)) or a stream",
	driver.NeedSchedule:     "a destination whose Capabilities.Delay is not 0",
	driver.NeedDelayNack:    "a queue or topic",
	driver.NeedLease:        "a queue with leases (memory, SQS, Redis)",
	driver.NeedDeadLetter:   "middleware.DeadLetter",
	driver.NeedCounts:       "a queue that counts deliveries",
	driver.NeedTTL:          "a destination whose messages expire",
	driver.NeedDedup:        "the broker's own window, or a DedupStore of yours",
	driver.NeedPriority:     "a queue with priorities",
	driver.NeedTransactions: "a broker with transactions",
}

// resolve checks every requirement of the subscription before a message moves.
func (s *Consumer) resolve() error {
	refuse := func(n Need, why string) error {
		return driver.Errorf("subscribe "+s.name, driver.Unsupported, "%s: %s of %s; %s would do",
			n, why, s.sub.From, supporters[n])
	}
	for _, n := range s.sub.Require {
		if Resolve(s.caps, n).Support == Refused {
			return refuse(n, "required and not a capability")
		}
	}
	switch {
	case s.p.Order == ByKey && s.caps.Order == driver.NoOrder:
		return refuse(driver.NeedOrdered, "order by key is asked for and not a capability")
	case s.p.Stuck.GapSkip > 0 && s.caps.Settle != driver.UpTo:
		return driver.Errorf("subscribe "+s.name, driver.Unsupported,
			"position: Stuck.GapSkip passes over what holds up the position of a log, and %s settles each message by itself; drop GapSkip", s.sub.From)
	case s.p.NativeDeadLetter && !s.caps.DeadLetter:
		return driver.Errorf("subscribe "+s.name, driver.Unsupported,
			"dead-letter: the broker's own dead letter is not configured for %s; middleware.DeadLetter(...) would do", s.sub.From)
	case s.p.NativeDeadLetter && s.caps.Settle != driver.Each:
		// A commit says nothing about one message: it would be passed over, and kept nowhere.
		return driver.Errorf("subscribe "+s.name, driver.Unsupported,
			"dead-letter: %s does not settle each message, so none can be rejected to the broker's own dead letter; middleware.DeadLetter(...) would do", s.sub.From)
	case s.caps.Settle == driver.None && !s.p.AckFirst:
		return driver.Errorf("subscribe "+s.name, driver.Unsupported,
			"%s settles nothing: every delivery is at most once; say so with middleware.AckFirst", s.sub.From)
	case s.p.DeadLetter.Shape == s.sub.From.Shape && s.p.DeadLetter.Name == s.sub.From.Name:
		return driver.Errorf("subscribe "+s.name, driver.Permanent, "DeadLetter: %s is the source itself, so a poison message would go round for ever", s.sub.From)
	}
	return s.checkDeadLetter()
}

// checkDeadLetter refuses a dead letter that could take no message.
func (s *Consumer) checkDeadLetter() error {
	d := s.p.DeadLetter
	switch {
	case d == (Destination{}):
		return nil
	case d.Shape < driver.Queue || d.Shape > driver.Stream, strings.TrimSpace(d.Name) == "":
		return driver.Errorf("subscribe "+s.name, driver.Permanent, "DeadLetter needs a shape and a name: use core.Queue(...)")
	}
	return nil
}

// resolutions lists how every need is met, for Describe.
func resolutions(c Capabilities) []Resolution {
	out := make([]Resolution, 0, driver.NeedCount)
	for n := range driver.NeedCount {
		out = append(out, Resolve(c, n))
	}
	return out
}

func quoted(s string) string {
	if len(s) > 256 {
		s = s[:256]
	}
	return fmt.Sprintf("%q", s)
}

// printable is an id as a log may show it: as it is where that is harmless, since the
// log quotes it again.
func printable(id string) string {
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c >= 0x7f || c == '"' || i == 256 {
			return quoted(id)
		}
	}
	return id
}
