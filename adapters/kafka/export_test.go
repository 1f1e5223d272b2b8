package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/core/driver"
)

var (
	Armour   = armour
	Unarmour = unarmour
)

// StateBytes is the most bytes of commit state.
const StateBytes = stateBytes

// Encode makes a record of m.
func Encode(topic string, m *driver.Message) *kgo.Record {
	r := new(kgo.Record)
	encode(r, topic, m, nil)
	return r
}

// Decode makes a message of r.
func Decode(r *kgo.Record) (m driver.Message) {
	decode(&m, r, nil)
	return m
}

// Pulse watches the session of a group member.
type Pulse struct{ pulse }

// NewPulse makes a Pulse.
func NewPulse(limit time.Duration, silent, beat func()) *Pulse {
	return &Pulse{pulse{limit: limit, silent: silent, beat: beat}}
}

// NewServerPulse makes a Pulse of a group in which the broker assigns.
func NewServerPulse(limit time.Duration, silent func()) *Pulse {
	return &Pulse{pulse{limit: limit, silent: silent, server: true}}
}

// Owe is for a member that the broker puts out at until.
func (p *Pulse) Owe(until time.Time) { p.owe(until) }

// Give is for when it has let go of what the broker waits for.
func (p *Pulse) Give() { p.give() }

// Answered tells when the last answered heartbeat left, and whether it counts.
func (p *Pulse) Answered() (time.Time, bool) { return p.answered() }

// Revive ends a loss, of a member that was known after heard.
func (p *Pulse) Revive(heard time.Time) bool { return p.revive(heard) }

// Begin starts a session and tells whether the one before went silent.
func (p *Pulse) Begin() bool { return p.begin() }

// End ends the watch for good.
func (p *Pulse) End() { p.end() }

// Alive tells whether the session goes on.
func (p *Pulse) Alive() bool { return p.alive() }

// Shorten changes the limit and not the timer, which is what a process that stood still looks like.
func (p *Pulse) Shorten(limit time.Duration) { p.limit = limit }

// Refresh makes the client of a consumer ask for its topic's partitions at once: by
// itself it does so every five minutes.
func Refresh(c driver.Consumer) { c.(*consumer).cl.ForceMetadataRefresh() }

// LookEvery is how often a reader without group looks for more partitions.
const LookEvery = lookEvery
