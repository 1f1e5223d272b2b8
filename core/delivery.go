package core

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Delivery is one hand-out of a message to a handler: the message, where it comes
// from, and which attempt this is. It is valid until its handler returns (for
// Client.Messages: until it is settled). Header and body belong to this attempt
// alone; changing them changes neither a retry nor the dead-letter copy.
type Delivery struct {
	Message

	// Source is the destination it was read from.
	Source Destination
	// Group that reads it; "" = none.
	Group string
	// Partition of the source; "" where there are none.
	Partition string
	// Offset in a log; -1 = none.
	Offset int64
	// NativeID is the broker's own id; "" = none.
	NativeID string
	// Attempt counts the runs of a handler for this message, this one included.
	Attempt int
	// Fence grows with every change of owner of the partition; 0 = none. Hand it to a
	// downstream store that can refuse a smaller one.
	Fence uint64

	fate atomic.Uint32
	more atomic.Pointer[deliveryMore]
}

// deliveryMore is what few deliveries need, made on demand.
type deliveryMore struct {
	decision decision      // written by whoever moves fate from open to decided
	decided  chan struct{} // closed by the first decision; only for Messages

	mu   sync.Mutex
	held []heldPublish // guarded by mu
}

func (d *Delivery) demand() *deliveryMore {
	if m := d.more.Load(); m != nil {
		return m
	}
	d.more.CompareAndSwap(nil, &deliveryMore{})
	return d.more.Load()
}

// decision is what the handler wants to become of the delivery.
type decision struct {
	disposition driver.Disposition
	delay       time.Duration
	err         error
}

type heldPublish struct {
	to   Destination
	msgs []*Message
}

// The fates of a Delivery.
const (
	fateOpen     uint32 = iota
	fateDeciding        // a decision is being written
	fateDecided
	fateOver // the handler returned, or the message was settled
	fateLeaseLost
	fateRevoked
	fateClosed
)

// NewDelivery returns a delivery of m that belongs to no broker, so that a handler
// can be tested alone: Attempt 1, Offset -1. What the handler publishes through it is
// in Held.
func NewDelivery(from Destination, m Message) *Delivery {
	return &Delivery{Message: m, Source: from, Offset: -1, Attempt: 1}
}

// Ack decides that the message is done, whatever the handler returns. It does not
// block. It returns ErrAlreadySettled, ErrLeaseLost, ErrRevoked or ErrClosed when
// the delivery is no longer the handler's to settle; nothing is sent then.
func (d *Delivery) Ack() error { return d.decide(decision{disposition: driver.Ack}) }

// Nack decides that the attempt failed with err (may be nil) and that the next one
// is due after delay; 0 = as the retry policy says. Errors as for Ack.
func (d *Delivery) Nack(delay time.Duration, err error) error {
	return d.decide(decision{disposition: driver.Nack, delay: delay, err: err})
}

// Return gives the message back untried. Errors as for Ack.
func (d *Delivery) Return() error { return d.decide(decision{disposition: driver.Return}) }

// Reject decides that the message can never be handled: it goes to the dead letter.
// Errors as for Ack.
func (d *Delivery) Reject(err error) error {
	return d.decide(decision{disposition: driver.Reject, err: err})
}

func (d *Delivery) decide(dec decision) error {
	if !d.fate.CompareAndSwap(fateOpen, fateDeciding) {
		switch d.fate.Load() {
		case fateLeaseLost:
			return driver.Errorf("settle "+d.Source.String(), driver.LeaseLost, "message %q belongs to somebody else by now", d.ID)
		case fateRevoked:
			return ErrRevoked
		case fateClosed:
			return driver.Errorf("settle "+d.Source.String(), driver.Closed, "the subscription has ended")
		}
		return ErrAlreadySettled
	}
	m := d.demand()
	m.decision = dec
	d.fate.Store(fateDecided)
	if m.decided != nil {
		close(m.decided)
	}
	return nil
}

// end closes the delivery for its handler and returns what it decided, if anything.
func (d *Delivery) end(fate uint32) (decision, bool) {
	for {
		switch d.fate.Load() {
		case fateOpen:
			if d.fate.CompareAndSwap(fateOpen, fate) {
				return decision{}, false
			}
		case fateDeciding:
			// Another goroutine is between the two lines of decide: two stores away
			// from fateDecided, so spinning is shorter than any wait.
		case fateDecided:
			if d.fate.CompareAndSwap(fateDecided, fateOver) {
				return d.demand().decision, true
			}
		default:
			return decision{}, false
		}
	}
}

// Publish holds msgs until the handler has returned nil; then they are sent and
// confirmed before the delivery is settled. If the attempt fails they are dropped.
// Client.Publish sends at once instead. It never blocks.
func (d *Delivery) Publish(to Destination, msgs ...*Message) {
	m := d.demand()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = append(m.held, heldPublish{to: to, msgs: slices.Clone(msgs)}) // the caller may fill its slice anew
}

// Held calls yield for each message that Publish holds, in order.
func (d *Delivery) Held(yield func(to Destination, m *Message) bool) {
	more := d.demand()
	more.mu.Lock()
	defer more.mu.Unlock()
	for _, h := range more.held {
		for _, m := range h.msgs {
			if !yield(h.to, m) {
				return
			}
		}
	}
}

// Forward returns a copy of the delivered message that may be published again: a
// new message with the same key, type, body and headers, without the headers that
// varal itself wrote.
func (d *Delivery) Forward() *Message {
	m := &Message{Key: d.Key, Type: d.Type, Body: append([]byte(nil), d.Body...)}
	for _, h := range d.Headers {
		if !reserved(h.Key) {
			m.Headers = append(m.Headers, h)
		}
	}
	return m
}
