package kafka

import (
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
