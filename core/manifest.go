package core

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Manifest is what a client runs, as plain JSON and without secrets.
type Manifest struct {
	// Broker is Options.Broker, Prefix what every name begins with, Provision the mode in words.
	Broker    string `json:"broker"`
	Prefix    string `json:"prefix,omitempty"`
	Provision string `json:"provision"`
	// Requests made of the broker since the client was opened, by operation; empty where
	// nobody counts them (Options.Requests).
	Requests map[string]int64 `json:"requests,omitempty"`
	// Subscriptions run now, by name. Publishers are what has been published to so far.
	Subscriptions []SubscriptionManifest `json:"subscriptions"`
	Publishers    []DestinationManifest  `json:"publishers"`
}

// DestinationManifest is one destination the client has published to.
type DestinationManifest struct {
	// Shape is queue, topic or stream; Name is without the prefix; Partitions 0 = not keyed.
	Shape      string `json:"shape"`
	Name       string `json:"name"`
	Partitions int    `json:"partitions,omitempty"`
	// Capabilities tells for each need how the destination meets it.
	Capabilities []Resolution `json:"capabilities"`
}

// SubscriptionManifest is one subscription with its whole policy.
type SubscriptionManifest struct {
	// Name identifies it in logs and metrics; Shape, From, Partitions and Group are its source.
	Name       string `json:"name"`
	Shape      string `json:"shape"`
	From       string `json:"from"`
	Partitions int    `json:"partitions,omitempty"`
	Group      string `json:"group,omitempty"`
	// Order is that of the policy, Settle that of the broker: each, or up to a position.
	Order  string `json:"order"`
	Settle string `json:"settle"`
	// MaxInFlight in messages and MaxInFlightBytes bound what is unsettled, Concurrency what is being handled.
	MaxInFlight      int   `json:"max_in_flight"`
	MaxInFlightBytes int64 `json:"max_in_flight_bytes"`
	Concurrency      int   `json:"concurrency"`
	// Retry, DeadLetter, NativeDeadLetter and Exhausted say what becomes of a failure; see Policy.
	Retry            RetryPolicy `json:"retry"`
	DeadLetter       string      `json:"dead_letter,omitempty"`
	NativeDeadLetter bool        `json:"native_dead_letter,omitempty"`
	Exhausted        string      `json:"exhausted"`
	// Timeout is per attempt, 0 = none; DrainTimeout bounds the stop. Both in nanoseconds.
	Timeout      time.Duration `json:"timeout_ns,omitempty"`
	DrainTimeout time.Duration `json:"drain_timeout_ns"`
	// AfterTerminal is what becomes of a key behind a message that failed for good, Stuck
	// what is done about work that does not end.
	AfterTerminal string      `json:"after_terminal"`
	Stuck         StuckPolicy `json:"stuck"`
	// Breaker is when all is stopped for a while, nil = never.
	Breaker *BreakerPolicy `json:"breaker,omitempty"`
	// RetryBudget bounds all retries together, nil = not.
	RetryBudget *RetryBudgetPolicy `json:"retry_budget,omitempty"`
	// Dedup is how duplicates are told, nil = not at all.
	Dedup *DedupManifest `json:"dedup,omitempty"`
	// AckFirst: settled before the handler runs, at most once.
	AckFirst bool `json:"ack_first,omitempty"`
	// Layers are the layers by name, in the order listed; Chain is the way of a message, step by step.
	Layers []string `json:"layers"`
	Chain  []string `json:"chain"`
	// Require is what Start has insisted on.
	Require []Need `json:"require,omitempty"`
	Missing []Need `json:"missing,omitempty"` // preferred and not there
	// Capabilities tells for each need how the source meets it.
	Capabilities []Resolution `json:"capabilities"`
}

// DedupManifest is the part of a DedupPolicy that can be shown.
type DedupManifest struct {
	// Scope is where its marks are kept apart.
	Scope string `json:"scope"`
	// ByKey: a function of the application names the event, else Message.ID does.
	ByKey bool `json:"by_key,omitempty"`
	// Lease of a claim. Like Keep, in nanoseconds.
	Lease time.Duration `json:"lease_ns"`
	// Keep is how long a mark is remembered.
	Keep time.Duration `json:"keep_ns"`
	// FailOpen: messages are handled while the store does not answer.
	FailOpen bool `json:"fail_open,omitempty"`
}

// Describe returns the manifest of what runs now.
func (c *Client) Describe() Manifest {
	m := Manifest{
		Broker: c.o.Broker, Prefix: c.o.Prefix, Provision: c.o.Provision.String(),
		Subscriptions: []SubscriptionManifest{}, Publishers: []DestinationManifest{},
	}
	if c.o.Requests != nil {
		m.Requests = c.o.Requests()
	}
	c.mu.Lock()
	for s := range c.consumers {
		m.Subscriptions = append(m.Subscriptions, s.manifest())
	}
	c.mu.Unlock()
	c.provision.published.Range(func(k, _ any) bool {
		d := k.(Destination)
		m.Publishers = append(m.Publishers, DestinationManifest{
			Shape: d.Shape.String(), Name: d.Name,
			Partitions: d.Partitions, Capabilities: resolutions(c.Capabilities(d)),
		})
		return true
	})
	slices.SortFunc(m.Subscriptions, func(a, b SubscriptionManifest) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(m.Publishers, func(a, b DestinationManifest) int { return strings.Compare(a.Shape+a.Name, b.Shape+b.Name) })
	return m
}

// DescribeSubscription assembles a subscription without starting it, and returns its
// manifest: what Start would run, or the error it would return.
func (c *Client) DescribeSubscription(sub Subscription, layers ...Layer) (SubscriptionManifest, error) {
	s, err := c.plan(sub, func(context.Context, *Delivery) error { return nil }, layers)
	if err != nil {
		return SubscriptionManifest{}, err
	}
	return s.manifest(), nil
}

func (s *Consumer) manifest() SubscriptionManifest {
	p := s.p
	m := SubscriptionManifest{
		Name: s.name, Shape: s.sub.From.Shape.String(), From: s.sub.From.Name, Partitions: s.sub.From.Partitions,
		Group: s.sub.Group, Order: p.Order.String(), Settle: s.caps.Settle.String(),
		MaxInFlight: p.MaxInFlight, MaxInFlightBytes: p.MaxInFlightBytes, Concurrency: p.Concurrency,
		Retry: p.Retry, NativeDeadLetter: p.NativeDeadLetter, Exhausted: p.Exhausted.String(),
		Timeout: p.Timeout, DrainTimeout: p.DrainTimeout, AckFirst: p.AckFirst,
		AfterTerminal: p.AfterTerminal.String(), Stuck: p.Stuck,
		Layers: p.LayerNames(), Chain: s.chain(), Require: s.sub.Require, Capabilities: resolutions(s.caps),
	}
	if p.DeadLetter != (Destination{}) {
		m.DeadLetter = p.DeadLetter.String()
	}
	if p.Breaker.Failures > 0 {
		m.Breaker = &p.Breaker
	}
	if d := p.Dedup; d.Store != nil {
		m.Dedup = &DedupManifest{Scope: s.dedupScope(), ByKey: d.Key != nil, Lease: d.Lease, Keep: d.Keep, FailOpen: d.FailOpen}
	}
	if p.RetryBudget.PerSecond > 0 {
		m.RetryBudget = &p.RetryBudget
	}
	for _, n := range s.sub.Prefer {
		if Resolve(s.caps, n).Support == Refused {
			m.Missing = append(m.Missing, n)
		}
	}
	return m
}

// chain names the steps of a message through this subscription, in order.
func (s *Consumer) chain() []string {
	p := s.p
	out := []string{"receive", "admit", "decode"}
	if p.AckFirst {
		out = append(out, "settle", "commit")
	}
	if p.Order == ByKey {
		out = append(out, "lane per key")
	}
	out = append(out, "slot")
	if p.Timeout > 0 {
		out = append(out, "timeout "+p.Timeout.String())
	}
	if p.Dedup.Store != nil {
		out = append(out, "dedup claim")
	}
	for _, w := range p.Wrappers {
		out = append(out, w.Name)
	}
	out = append(out, "recover", "handler")
	if p.AckFirst {
		return out
	}
	if p.Dedup.Store != nil {
		out = append(out, "dedup mark")
	}
	return append(out, "classify", s.route(), "settle", "commit")
}

// route says how a failed attempt comes again.
func (s *Consumer) route() string {
	switch {
	case s.caps.Settle != driver.Each || s.p.Order == ByKey:
		return "retry in its lane"
	case s.brokerCounts() && s.caps.NackDelay > 0:
		return "retry by the broker"
	case s.brokerCounts():
		return "retry held here, then by the broker"
	}
	return "retry held here"
}
