package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/backoff"
)

// Publish sends msgs to a destination and waits until the broker has confirmed all
// of them. It fills ID and Time of a message that has none.
//
// It returns nil (all confirmed), the error of the one message, or a *BatchError with
// the outcome of each. A message ends confirmed (nil), rejected (provably not stored)
// or ErrIndeterminate: unknown; it may be stored, must not be changed any more, and
// publishing the same *Message again carries the same ID. A transient failure is
// tried again until ctx ends (or Options.PublishTimeout, where ctx has no deadline),
// unless Options.FailFast. Messages of one key keep their order. An ended ctx sends
// nothing.
func (c *Client) Publish(ctx context.Context, to Destination, msgs ...*Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if !c.begin() {
		return errClosed("publish " + to.String())
	}
	defer c.publishes.Done()
	if c.o.Observer == nil {
		return c.publish(ctx, to, msgs, true)
	}
	start := time.Now()
	err := c.publish(ctx, to, msgs, true)
	info := PublishInfo{To: to, Messages: len(msgs), Duration: time.Since(start), Err: err}
	for i := range msgs {
		if driver.ResultAt(err, i) != nil {
			info.Failed++
		}
	}
	c.o.Observer.Published(info)
	return err
}

// publish is Publish without its bookkeeping; foreign tells that the messages come
// from the application, whose headers are checked.
func (c *Client) publish(ctx context.Context, to Destination, msgs []*Message, foreign bool) error {
	b := &batch{c: c, to: c.prefixed(to), label: to, n: len(msgs), now: time.Now()}
	if err := b.checkCall(ctx); err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		bounded := withDeadline(ctx, b.now.Add(c.o.PublishTimeout))
		defer bounded.release()
		ctx = bounded
	}
	if err := c.ensure(ctx, b.to); err != nil {
		return err
	}
	if _, ok := c.provision.published.Load(to); !ok {
		c.provision.published.Store(to, struct{}{})
	}
	b.prepare(msgs, foreign)
	b.send(ctx)
	return b.result()
}

// batch is one Publish call under way.
type batch struct {
	c     *Client
	to    Destination // as the broker knows it
	label Destination // as the application calls it
	n     int
	now   time.Time // of the call
	caps  Capabilities
	wire  []*Message // what goes out; often the caller's slice, so never written to
	at    []int      // index in the call of each wire message; nil = the same
	errs  []error    // by index in the call; nil = no failure so far
	lost  map[string]bool
}

func (b *batch) op() string { return publishOp(b.label) }

// checkCall refuses what is wrong with the call as a whole.
func (b *batch) checkCall(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return driver.Errorf(b.op(), driver.Transient, "nothing was sent: %w", ctx.Err())
	case b.to.Shape < driver.Queue || b.to.Shape > driver.Stream:
		return driver.Errorf("publish", driver.Permanent, "the destination has no shape: use core.Queue, core.Topic or core.Stream")
	case b.label.Name == "":
		return driver.Errorf(b.op(), driver.Permanent, "the destination has no name")
	case b.to.Partitions < 0:
		return driver.Errorf(b.op(), driver.Permanent, "Partitions is %d", b.to.Partitions)
	}
	b.caps = b.c.d.Capabilities(b.to)
	if err := checkName("publish ", b.label, "the destination's name", b.label.Name); err != nil {
		return err
	}
	return checkName("publish ", b.label, "the group's name", b.label.Group)
}

// prepare checks every message, fills what core fills, and puts the good ones onto the
// wire: the caller's own structs, which Publish asks to leave alone where the outcome is
// unknown.
func (b *batch) prepare(msgs []*Message, foreign bool) {
	b.wire = msgs
	owned := false // b.wire is no longer the caller's slice
	var ids string
	for i, m := range msgs {
		if err := b.check(m, foreign); err != nil {
			b.fail(i, err)
			continue
		}
		if m.ID == "" {
			if ids == "" {
				ids = b.c.ids.take(len(msgs) - i)
			}
			m.ID, ids = ids[:idLen], ids[idLen:]
		}
		if m.Time.IsZero() {
			m.Time = b.now
		}
		if m.Delay > b.caps.Delay && b.caps.Delay > 0 {
			if !owned {
				b.wire, owned = slices.Clone(msgs), true
			}
			b.wire[i] = hop(*m, b.now, b.caps.Delay)
		}
	}
	if b.errs == nil {
		return
	}
	good := make([]int, 0, b.n)
	for i, err := range b.errs {
		if err == nil {
			good = append(good, i)
		}
	}
	b.keep(good)
}

// hop turns a delay past the broker's longest into a first hop: whoever of ours
// receives the message before it is due sends it on.
func hop(m Message, now time.Time, longest time.Duration) *Message {
	due := now.Add(m.Delay).UTC().Format(time.RFC3339Nano)
	m.Headers = append(slices.Clone(m.Headers), Header{Key: driver.HeaderDue, Value: due})
	m.Delay = longest
	return &m
}

// check refuses one message.
func (b *batch) check(m *Message, foreign bool) error {
	if m == nil {
		return driver.Errorf(b.op(), driver.Permanent, "a message is nil")
	}
	switch {
	case m.Delay > 0 && b.caps.Delay == 0:
		return driver.Errorf(b.op(), driver.Unsupported, "Message.Delay (schedule): this destination delivers at once; use a destination with the schedule capability")
	case m.Delay > maxRetryDelay*52:
		return driver.Errorf(b.op(), driver.Permanent, "Message.Delay of %v is over a year", m.Delay)
	case m.TTL > 0 && !b.caps.TTL:
		return driver.Errorf(b.op(), driver.Unsupported, "Message.TTL (ttl): messages of this destination do not expire")
	case m.Priority > 0 && m.Priority >= max(b.caps.Priorities, 1):
		return driver.Errorf(b.op(), driver.Unsupported, "Message.Priority %d (priority): this destination has %d levels", m.Priority, b.caps.Priorities)
	}
	if !foreign {
		if size := m.Size(); b.caps.MaxBytes > 0 && size > b.caps.MaxBytes {
			return driver.Errorf(b.op(), driver.TooLarge, "message of %d bytes; the broker takes %d", size, b.caps.MaxBytes)
		}
		return nil
	}
	return b.c.o.Limits.check(b.label, m, b.caps.MaxBytes)
}

// fail records the outcome of message i of the call.
func (b *batch) fail(i int, err error) {
	if b.errs == nil {
		b.errs = make([]error, b.n)
	}
	b.errs[i] = err
}

// place is the index in the call of wire message i.
func (b *batch) place(i int) int {
	if b.at == nil {
		return i
	}
	return b.at[i]
}

// send publishes until every message has an outcome that another try cannot change,
// or ctx ends.
func (b *batch) send(ctx context.Context) {
	for try := 1; len(b.wire) > 0; try++ {
		again := b.sendOnce(ctx)
		if len(again) == 0 || b.c.o.FailFast {
			return
		}
		wait := max(backoff.Wait(try, 50*time.Millisecond, time.Second, backoff.Half, rand.Float64()), b.throttle(again))
		if !sleep(ctx, wait) {
			return
		}
		b.keep(again)
	}
}

// sendOnce makes one try and returns the wire messages that are worth another.
func (b *batch) sendOnce(ctx context.Context) (again []int) {
	size := len(b.wire)
	if b.caps.MaxBatch > 0 {
		size = min(size, b.caps.MaxBatch)
	}
	for from := 0; from < len(b.wire); from += size {
		part := b.wire[from:min(from+size, len(b.wire))]
		err := b.sendPart(ctx, part, len(again) > 0)
		for i := range part {
			if b.record(ctx, from+i, driver.ResultAt(err, i)) {
				again = append(again, from+i)
			}
		}
	}
	return again
}

// sendPart makes one call of the driver; behind tells that an earlier part left messages
// for another try.
func (b *batch) sendPart(ctx context.Context, part []*Message, behind bool) error {
	switch {
	case ctx.Err() != nil:
		return driver.Errorf(b.op(), driver.Transient, "not sent: %w", ctx.Err())
	case behind && b.caps.Order != driver.NoOrder:
		// A later message of one of their keys must not get ahead of them.
		return driver.Errorf(b.op(), driver.Transient, "not sent: an earlier message failed")
	case len(b.lost) == 0:
		return b.c.d.Publish(ctx, b.to, part)
	}
	errs := make([]error, len(part))
	rest, at := make([]*Message, 0, len(part)), make([]int, 0, len(part))
	for i, m := range part {
		if b.lost[m.Key] {
			errs[i] = driver.Errorf(b.op(), driver.Transient, "not sent: the outcome of an earlier message of its key is unknown")
			continue
		}
		rest, at = append(rest, m), append(at, i)
	}
	if len(rest) > 0 {
		err := b.c.d.Publish(ctx, b.to, rest)
		for k, i := range at {
			errs[i] = driver.ResultAt(err, k)
		}
	}
	return driver.Batch(errs)
}

// record notes the outcome of wire message i and reports whether to try again.
func (b *batch) record(ctx context.Context, i int, err error) (again bool) {
	at := b.place(i)
	if err == nil {
		if b.errs != nil {
			b.errs[at] = nil
		}
		return false
	}
	class := driver.ClassOf(err)
	if class == 0 { // an adapter that does not know says so by saying nothing
		class = driver.Ambiguous
		err = &Error{Op: b.op(), Class: class, Err: err}
	}
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
		err = &Error{Op: b.op(), Class: class, Err: fmt.Errorf("%w: %w", ctxErr, err)}
	}
	b.fail(at, err)
	key := b.wire[i].Key
	if class == driver.Ambiguous && key != "" {
		if b.lost == nil {
			b.lost = map[string]bool{}
		}
		b.lost[key] = true
	}
	// Once a message of a key has an unknown outcome, later ones of that key wait for
	// the caller: sent now, they would overtake the copy the caller may send again.
	return class == driver.Transient && !b.lost[key]
}

// throttle is the longest hint of the broker among the failures.
func (b *batch) throttle(again []int) (after time.Duration) {
	for _, i := range again {
		if e, ok := errors.AsType[*Error](b.errs[b.place(i)]); ok {
			after = max(after, e.After)
		}
	}
	return after
}

// keep narrows the batch to these wire messages.
func (b *batch) keep(those []int) {
	wire, at := make([]*Message, len(those)), make([]int, len(those))
	for k, i := range those {
		wire[k], at[k] = b.wire[i], b.place(i)
	}
	b.wire, b.at = wire, at
}

func (b *batch) result() error {
	if b.errs == nil {
		return nil
	}
	if b.n == 1 {
		return b.errs[0]
	}
	return driver.Batch(b.errs)
}

// sleep waits for d or until ctx ends, and reports whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
