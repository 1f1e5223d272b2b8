package core

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Status is a snapshot of a Consumer.
type Status struct {
	// Name is the subscription's.
	Name  string `json:"name"`
	State string `json:"state"` // starting, running, paused, draining, stopped, failed
	// Error is why it has failed.
	Error string `json:"error,omitempty"`

	// InFlight and InFlightBytes are received and not settled; Limit is the bound on
	// InFlight, Running how many handlers are at work, Queued how many messages wait for one.
	InFlight      int   `json:"in_flight"`
	InFlightBytes int64 `json:"in_flight_bytes"`
	Limit         int   `json:"limit"`
	Running       int   `json:"running"`
	Waiting       int   `json:"waiting"` // in back-off
	Queued        int   `json:"queued"`
	Keys          int   `json:"keys"` // keys with unfinished messages

	// BreakerUntil is when an open breaker lets an attempt be made; in the past: that one
	// runs, or there is no message for it. Zero = it is closed, or there is none.
	BreakerUntil time.Time `json:"breaker_until,omitzero"`

	// Oldest is the age of the oldest unfinished message since it was received.
	Oldest time.Duration `json:"oldest_ns"`
	// LastReceive is when the last Receive call returned.
	LastReceive time.Time `json:"last_receive"`

	// Partitions are the open assignments, by name; Totals counts since the start.
	Partitions []PartitionStatus `json:"partitions"`
	Totals     counts            `json:"totals"`
}

// PartitionStatus is a snapshot of one assignment.
type PartitionStatus struct {
	// Partition, Epoch and Fence are those of the Assignment.
	Partition string `json:"partition"`
	Epoch     uint64 `json:"epoch"`
	Fence     uint64 `json:"fence,omitempty"`
	// InFlight is received and not settled.
	InFlight int `json:"in_flight"`
	Span     int `json:"span,omitempty"` // from the first unfinished message to the last received one
	// Paused: its Span is too long, a key of it has too many waiting, or it has more than
	// its share in flight; nothing new is asked for until that has shrunk.
	Paused bool `json:"paused,omitempty"`
}

// Status returns a snapshot.
func (s *Consumer) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{
		Name: s.name, State: s.state, Limit: s.budget.MaxRecords, Running: s.running,
		Waiting: len(s.waiting), Queued: s.queue.Len(), Keys: s.queue.Lanes(), LastReceive: s.lastRcv, Totals: s.counts,
	}
	if s.state == "running" && s.paused {
		st.State = "paused"
	}
	st.BreakerUntil = s.breaker.until
	if s.err != nil {
		st.Error = s.err.Error()
	}
	st.InFlight, st.InFlightBytes = s.budget.InUse()
	if f := s.flights.head; f != nil {
		st.Oldest = time.Since(s.arrival(f))
	}
	for name, a := range s.parts {
		st.Partitions = append(st.Partitions, PartitionStatus{
			Partition: name, Epoch: a.Epoch, Fence: a.Fence, InFlight: a.flights, Span: a.ring.Span(), Paused: a.held(),
		})
	}
	slices.SortFunc(st.Partitions, func(a, b PartitionStatus) int { return strings.Compare(a.Partition, b.Partition) })
	return st
}

// Health tells whether publishing and consuming can progress.
type Health struct {
	// Ready: there are no Reasons against it.
	Ready bool `json:"ready"`
	// Reasons say why not.
	Reasons []string `json:"reasons,omitempty"`
	// Subscriptions are all that run, by name.
	Subscriptions []Status `json:"subscriptions"`
}

// stuckAfter is how long a subscription may have work in flight of which nothing ends
// before Health turns red.
const stuckAfter = time.Minute

// Health is green only while the broker takes publishes and every subscription makes
// progress. It makes no network call.
func (c *Client) Health() Health {
	c.mu.Lock()
	closed := c.closing
	running := make([]*Consumer, 0, len(c.consumers))
	for s := range c.consumers {
		running = append(running, s)
	}
	h := Health{Subscriptions: []Status{}}
	for name, err := range c.failed {
		h.Reasons = append(h.Reasons, name+": "+err.Error())
	}
	c.mu.Unlock()
	if closed {
		h.Reasons = append(h.Reasons, "the client was closed")
	}
	for _, s := range running {
		st := s.Status()
		h.Subscriptions = append(h.Subscriptions, st)
		if why := s.unready(st); why != "" {
			h.Reasons = append(h.Reasons, st.Name+": "+why)
		}
	}
	h.Reasons = append(h.Reasons, c.link.reasons()...)
	slices.SortFunc(h.Subscriptions, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	h.Ready = len(h.Reasons) == 0
	return h
}

// unready says why a subscription cannot progress; "" = it can.
func (s *Consumer) unready(st Status) string {
	s.mu.Lock()
	receiving, down := s.receiveErr, s.dedup.down
	s.mu.Unlock()
	switch {
	case st.State != "running" && st.State != "paused":
		return st.State
	case receiving != nil:
		return "receive fails: " + receiving.Error()
	case !st.BreakerUntil.IsZero():
		return fmt.Sprintf("the breaker is open: %d attempts in a row have failed", s.p.Breaker.Failures)
	case down > 0 && !s.p.Dedup.FailOpen:
		return fmt.Sprintf("the dedup store does not answer: %d calls in a row have failed", down)
	case len(st.Partitions) == 0:
		return "no partition is assigned"
	case st.Oldest > stuckAfter && st.Waiting == 0:
		return "the oldest message has been in flight for " + st.Oldest.Round(time.Second).String()
	}
	return ""
}
