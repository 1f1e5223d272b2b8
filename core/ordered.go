package core

import (
	"context"
	"hash/maphash"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/sendlane"
)

// OrderedOptions configure an OrderedPublisher. The zero OrderedOptions are valid; so is a
// negative field, which counts as zero.
type OrderedOptions struct {
	// Lanes is how many calls of the Publisher may be under way at the same time. A key is
	// always in the same lane, together with others. 0 = 8.
	Lanes int
	// Queue is the most messages that wait in one lane; who comes to a full lane waits.
	// Messages in flight do not count. 0 = 1024.
	Queue int
	// Batch is the most messages of one call of the Publisher. 0 = 256.
	Batch int
	// MaxBlocked is the most keys that are blocked at the same time, shared out evenly among
	// the lanes. Nothing is forgotten at the bound: a lane that has its share takes no
	// message of any other key until one of its keys is unblocked; it answers ErrTransient,
	// and nothing was sent. As a place is kept for every key that is under way, it also is
	// the most keys with a message in a lane. A lane has one at least. 0 = 8192.
	MaxBlocked int
	// SendTimeout bounds one call of the Publisher, which does not end with the ctx of a
	// caller: the others in the batch, and the key, need its outcome. 0 = 30 s.
	SendTimeout time.Duration
	// Sequence puts the number of each message within its key into the header varal-seq; see
	// Sequence. It takes one of the header fields that Limits.Headers allows.
	Sequence bool
	// MaxNumbered is the most idle keys whose last number is remembered, shared out evenly
	// among the lanes; past it the numbers of idle keys are forgotten together and what comes
	// next starts a new generation. 0 = 65,536. It says nothing where Sequence is false.
	MaxNumbered int
}

func (o *OrderedOptions) setDefaults() {
	for _, f := range []struct {
		v *int
		d int
	}{{&o.Lanes, 8}, {&o.Queue, 1024}, {&o.Batch, 256}, {&o.MaxBlocked, 8192}, {&o.MaxNumbered, 1 << 16}} {
		if *f.v <= 0 {
			*f.v = f.d
		}
	}
	if o.SendTimeout <= 0 {
		o.SendTimeout = 30 * time.Second
	}
}

// OrderedPublisher keeps the order of each key on the way to any Publisher, under
// concurrent callers and failures. It is itself a Publisher; its methods may be called
// concurrently. Close it, then the Publisher below, which stays the caller's.
//
// Two messages are of one key when Key and the destination's shape and name are the same.
// Of a key one message is in flight at a time, so its order does not rest on what the
// Publisher does with the rest of a batch. The price is a round trip per message and key;
// keys travel together. After a message of a key failed or its outcome is unknown, the key
// is blocked: others of it fail with ErrKeyBlocked, provably not sent, until that message
// is published again with success (the same *Message, or one of the same ID) or ResumeKey
// gives it up. Every failure blocks, also one that no retry will mend. Messages without a
// key have no order and block nothing.
type OrderedPublisher struct {
	below     Publisher
	o         OrderedOptions
	ids       idSource
	publisher string // of Sequence
	seed      maphash.Seed
	spread    atomic.Uint32
	lanes     []*orderedLane

	mu      sync.Mutex
	closed  bool
	under   int           // calls and busy lanes; guarded by mu
	idle    chan struct{} // closed when closed and under is 0
	stopped chan struct{} // closed when the ctx of Close has ended
}

// orderKey is a key at a destination. Partitions and Group do not matter: they change where
// or to whom a message of the key goes, not what it must stay behind.
type orderKey struct {
	shape     driver.Shape
	name, key string
}

// NewOrderedPublisher returns an OrderedPublisher over p. It starts no goroutine; each lane
// has one while there is something to send.
func NewOrderedPublisher(p Publisher, o OrderedOptions) *OrderedPublisher {
	o.setDefaults()
	ids := newIDSource()
	op := &OrderedPublisher{
		below: p, o: o, ids: ids, publisher: newPublisherID(), seed: maphash.MakeSeed(),
		idle: make(chan struct{}), stopped: make(chan struct{}),
	}
	limits := sendlane.Limits{Queue: o.Queue, Keys: share(o.MaxBlocked, o.Lanes)}
	if o.Sequence {
		limits.Numbered = share(o.MaxNumbered, o.Lanes)
	}
	for range o.Lanes {
		op.lanes = append(op.lanes, newOrderedLane(op, limits))
	}
	return op
}

func share(of, lanes int) int { return max(of/lanes, 1) }

// Publish sends msgs and waits until the Publisher below has confirmed them; see
// Client.Publish for the outcomes. It fills ID and Time of a message that has none. What is
// handed on is a copy.
//
// A message of a blocked key ends with ErrKeyBlocked, class Transient: it was not sent.
// When ctx ends, what still waits in its lane is taken out (Transient; it was not sent and
// blocks nothing) and what is in flight ends ErrIndeterminate: its key is blocked until the
// outcome is known, which unblocks the key by itself where it is a success.
//
// Values of ctx do not reach the Publisher, whose calls carry the messages of many callers:
// what reads them, a tracer for example, belongs around the OrderedPublisher.
func (p *OrderedPublisher) Publish(ctx context.Context, to Destination, msgs ...*Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return driver.Errorf(publishOp(to), driver.Transient, "nothing was sent: %w", err)
	}
	if !p.begin() {
		return driver.Errorf(publishOp(to), driver.Closed, "the ordered publisher was closed")
	}
	defer p.end()
	c := p.newCall(to, msgs)
	if cause := c.admit(ctx, p); cause != nil {
		c.leave(cause)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.leave(ctx.Err())
	case <-p.stopped:
		c.leave(errStopped)
	}
	return c.result()
}

// BlockedKey is a key that takes no other message.
type BlockedKey struct {
	// To is where the message that blocks it goes.
	To Destination
	// Key as the application gave it: print it quoted.
	Key string
	// ID of the message that blocks it.
	ID string
	// Since when it is blocked.
	Since time.Time
	// Err is the latest failure of the message, ErrIndeterminate while it is in flight and
	// its caller has gone.
	Err error
}

// Blocked returns the keys that are blocked, the longest first.
func (p *OrderedPublisher) Blocked() []BlockedKey {
	var out []BlockedKey
	for _, l := range p.lanes {
		out = l.blocked(out)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Since.Before(out[j].Since) })
	return out
}

// ResumeKey unblocks key at a destination and reports whether it was blocked. The message
// that blocked it is given up: published again it is a new one, behind those that went
// ahead. Where its outcome was unknown and Blocked still told so, a broker may yet store it
// late, behind messages that follow; that is the caller's to judge.
func (p *OrderedPublisher) ResumeKey(to Destination, key string) bool {
	k := orderKey{shape: to.Shape, name: to.Name, key: key}
	return p.laneOf(k).resume(k)
}

func (p *OrderedPublisher) laneOf(k orderKey) *orderedLane {
	return p.lanes[maphash.Comparable(p.seed, k)%uint64(len(p.lanes))]
}

// begin registers a call or a busy lane, unless the publisher is closed.
func (p *OrderedPublisher) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.under++
	return true
}

// beginLane registers a lane that becomes busy, also after Close: a call is under way then.
func (p *OrderedPublisher) beginLane() {
	p.mu.Lock()
	p.under++
	p.mu.Unlock()
}

func (p *OrderedPublisher) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.under--; p.under == 0 && p.closed {
		close(p.idle)
	}
}

// Close refuses new calls with ErrClosed and waits for those under way. When ctx ends first,
// what waits is given back unsent and the calls of the Publisher below are cancelled; what
// was in flight ends ErrIndeterminate, and Close returns an error. Blocked still tells which
// keys are blocked. Close is idempotent; later calls return nil.
func (p *OrderedPublisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	if p.under == 0 {
		close(p.idle)
	}
	p.mu.Unlock()
	select {
	case <-p.idle:
		return nil
	default:
	}
	select {
	case <-p.idle:
		return nil
	case <-ctx.Done():
	}
	close(p.stopped)
	for _, l := range p.lanes {
		l.abort()
	}
	const patience = 400 * time.Millisecond // of the 500 ms that a call may outlive its ctx
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.idle:
		return driver.Errorf("close the ordered publisher", driver.Ambiguous, "publishes under way were given up: %w", ctx.Err())
	case <-t.C:
		return driver.Errorf("close the ordered publisher", driver.Ambiguous, "the Publisher below ignores that its ctx has ended; its calls go on: %w", ctx.Err())
	}
}
