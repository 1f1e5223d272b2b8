package core

import (
	"cmp"

	"github.com/varal-go/varal/core/driver"
)

// Subscription says what to consume. Required: From, and Group for a topic.
type Subscription struct {
	// From is the source.
	From Destination
	// Group. Queue: a label. Topic: required. Stream: "" = no group, nothing is
	// committed.
	Group string
	// Name labels the subscription in logs, Status and Describe. "" = "from/group".
	Name string
	// Start counts only for a group that has no position yet.
	Start Position
	// Reset says what to do when the position is gone. Default = that partition
	// stops and an event is raised; Earliest and Latest go on from there.
	Reset PositionKind
	// Temporary: the group is made for this consumer alone and ends with it.
	Temporary bool
	// Require names capabilities without which Start fails with ErrUnsupported.
	Require []Need
	// Prefer names capabilities that are reported by Describe when missing.
	Prefer []Need
	// OnEvent is told of connections, resets and messages that vanished. It must not
	// block. May be nil.
	OnEvent func(Event)
}

// name returns the label of s.
func (s *Subscription) name() string {
	switch {
	case s.Name != "":
		return s.Name
	case s.Group != "":
		return s.From.Name + "/" + s.Group
	}
	return s.From.Name
}

// validate names the first field that is wrong.
func (s *Subscription) validate() error {
	op := "subscribe " + s.From.String()
	switch {
	case s.From.Shape < driver.Queue || s.From.Shape > driver.Stream:
		return driver.Errorf("subscribe", driver.Permanent, "Subscription.From.Shape is not set: use core.Queue, core.Topic or core.Stream")
	case s.From.Name == "":
		return driver.Errorf("subscribe", driver.Permanent, "Subscription.From.Name is empty")
	case s.From.Partitions < 0:
		return driver.Errorf(op, driver.Permanent, "Subscription.From.Partitions is %d; use 0 for no order or a positive number", s.From.Partitions)
	case s.From.Group != "":
		return driver.Errorf(op, driver.Permanent, "Subscription.From.Group is for publishing to one group; name the group in Subscription.Group")
	case s.From.Shape == driver.Topic && s.Group == "":
		return driver.Errorf(op, driver.Permanent, "Subscription.Group is empty: a topic gives every group its own copy, so it must have a name")
	}
	if err := cmp.Or(checkName("subscribe ", s.From, "Subscription.From.Name", s.From.Name), checkName("subscribe ", s.From, "Subscription.Group", s.Group)); err != nil {
		return err
	}
	for _, n := range append(append([]Need(nil), s.Require...), s.Prefer...) {
		if n >= driver.NeedCount {
			return driver.Errorf(op, driver.Permanent, "Subscription.Require: unknown need %d", n)
		}
	}
	return nil
}
