package core

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// errStopped is the cause when Close gives a call up.
var errStopped = errors.New("the ordered publisher was closed")

// orderedCall is one call of OrderedPublisher.Publish.
type orderedCall struct {
	to      Destination
	entries []orderedEntry
	left    atomic.Int32  // entries without an outcome
	done    chan struct{} // closed when left is 0
}

// orderedEntry is one message of a call, on its way through the lane of its key.
type orderedEntry struct {
	laneItem
	call   *orderedCall
	lane   *orderedLane  // nil: refused at once
	before *orderedEntry // of the same key, in the same call
	// msg is a copy: after a call that ended indeterminate, what is in flight still reads it,
	// while the caller may publish its own *Message again, which fills it.
	msg Message

	tried   bool  // admitted or refused; of the call's own goroutine
	late    bool  // a message before it failed; guarded by lane.mu
	settled bool  // it has its outcome; guarded by lane.mu
	err     error // the outcome; guarded by lane.mu until call.done is closed
}

// newCall copies the messages and gives each its lane.
func (p *OrderedPublisher) newCall(to Destination, msgs []*Message) *orderedCall {
	c := &orderedCall{to: to, entries: make([]orderedEntry, len(msgs)), done: make(chan struct{})}
	c.left.Store(int32(len(msgs)))
	var last map[orderKey]*orderedEntry
	if len(msgs) > 1 {
		last = map[orderKey]*orderedEntry{}
	}
	loose := p.lanes[p.spread.Add(1)%uint32(len(p.lanes))]
	var ids string
	for i, m := range msgs {
		e := &c.entries[i]
		e.call, e.Value = c, e
		if m == nil {
			e.tried = true
			e.settle(driver.Errorf(publishOp(to), driver.Permanent, "a message is nil"))
			continue
		}
		if m.ID == "" {
			if ids == "" {
				ids = p.ids.take(len(msgs) - i)
			}
			m.ID, ids = ids[:idLen], ids[idLen:]
		}
		if m.Time.IsZero() {
			m.Time = time.Now()
		}
		e.msg, e.ID, e.lane = *m, m.ID, loose
		if m.Key == "" {
			continue
		}
		e.Keyed, e.Key = true, orderKey{shape: to.Shape, name: to.Name, key: m.Key}
		e.lane = p.laneOf(e.Key)
		if last != nil {
			e.before = last[e.Key]
			last[e.Key] = e
		}
	}
	return c
}

// settle gives e its outcome. lane.mu is held, where there is a lane.
func (e *orderedEntry) settle(err error) {
	if e.settled {
		return
	}
	e.settled, e.err = true, err
	if e.call.left.Add(-1) == 0 {
		close(e.call.done)
	}
}

// admit brings the messages into their lanes, those of a lane in order. Where lanes are full
// it waits for one of them after it has served the others. It returns why it gave up.
func (c *orderedCall) admit(ctx context.Context, p *OrderedPublisher) (cause error) {
	for {
		room := c.admitSome(p)
		if room == nil {
			return nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.stopped:
			return errStopped
		}
	}
}

// admitSome admits what there is room for. It returns nil when that was the rest.
func (c *orderedCall) admitSome(p *OrderedPublisher) (room <-chan struct{}) {
	if len(c.entries) == 1 {
		if l := c.entries[0].lane; l != nil {
			return l.admitOf(c)
		}
		return nil
	}
	for _, l := range p.lanes {
		if !c.has(l) {
			continue
		}
		if full := l.admitOf(c); full != nil && room == nil {
			room = full
		}
	}
	return room
}

// has reports whether a message of c has yet to be admitted into l.
func (c *orderedCall) has(l *orderedLane) bool {
	for i := range c.entries {
		if e := &c.entries[i]; e.lane == l && !e.tried {
			return true
		}
	}
	return false
}

// leave ends what has no outcome, the last first: were the first of a key taken out first,
// its lane could send the second before that is taken out as well.
func (c *orderedCall) leave(cause error) {
	now := time.Now()
	for i := range c.entries {
		if e := &c.entries[len(c.entries)-1-i]; e.lane != nil {
			e.lane.leave(e, cause, now)
		}
	}
}

// result is that of the call. Every entry has its outcome.
func (c *orderedCall) result() error {
	if len(c.entries) == 1 {
		return c.entries[0].err
	}
	var errs []error
	for i := range c.entries {
		if err := c.entries[i].err; err != nil {
			if errs == nil {
				errs = make([]error, len(c.entries))
			}
			errs[i] = err
		}
	}
	return driver.Batch(errs)
}
