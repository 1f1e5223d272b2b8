package record

import (
	"context"
	"errors"
	"runtime"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/taps"
)

// Message tells how a member's messages are named in the history.
type Message struct {
	Group, Dest string                   // as in the publishers' events
	Number      func(*core.Delivery) int // N within Dest and Key, from 1; nil = unknown
}

// Handler wraps a handler: it reports the start before next runs and the end when next
// has returned. When the start cannot be reported next does not run: what the oracle
// does not know must not happen.
func (c *Client) Handler(m Message, next core.Handler) core.Handler {
	return func(ctx context.Context, d *core.Delivery) error {
		e := history.Event{
			Op: history.OpStart, ID: d.ID, Group: m.Group, Dest: m.Dest, Key: d.Key,
			Attempt: d.Attempt, Partition: d.Partition, Position: taps.Position(d.Offset),
		}
		if m.Number != nil {
			e.N = m.Number(d)
		}
		if err := c.Record(e); err != nil {
			return core.Return(err)
		}
		err := next(ctx, d)
		e.Op, e.Outcome = history.OpEnd, outcome(ctx, err)
		if errors.Is(err, core.ErrPermanent) {
			e.Class = history.Permanent
		}
		c.Emit(e)
		return err
	}
}

// outcome says how a handler ended: one that was cancelled has neither succeeded nor
// failed (invariant 8). A core.Return can't be told from a failure here; either explains
// why the message comes again.
func outcome(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return history.OK
	case ctx.Err() != nil:
		return history.Cancelled
	default:
		return history.Fail
	}
}

// Resource reports a count that V7 judges: the last of this name must not be above the
// first. Take the first before the load and the last when it is over.
func (c *Client) Resource(name string, n int) {
	c.Emit(history.Event{Op: history.OpStat, Class: history.Resource, Outcome: name, N: n})
}

// Resources reports the goroutines of this process and the counters of a consumer, nil
// = none. Use it where the process is the member's own.
func (c *Client) Resources(s *core.Consumer) {
	c.Resource("goroutines", runtime.NumGoroutine())
	c.Counters(s)
}

// Counters reports the counters of a consumer; all zero for nil. Ask a consumer that
// runs and is idle: one that has stopped still counts, in Queued and Keys, what it
// received and gave back unstarted.
func (c *Client) Counters(s *core.Consumer) {
	var st core.Status
	if s != nil {
		st = s.Status()
	}
	c.Resource("in flight", st.InFlight)
	c.Resource("bytes in flight", int(st.InFlightBytes))
	c.Resource("running", st.Running)
	c.Resource("back-off timers", st.Waiting)
	c.Resource("queued", st.Queued)
	c.Resource("keys", st.Keys)
}
