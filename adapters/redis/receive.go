package redis

import (
	"context"
	"errors"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

// fetch is a request of the script: it moves what is due, takes over what others have let
// go, and hands out up to room messages.
func (c *consumer) fetch(room int) func() answer {
	first, lease := "log", any("")
	looked := c.relook.Swap(false) || !time.Now().Before(c.look)
	if c.turn = !c.turn; c.turn { // each in turn, so that neither starves the other
		first = "retry"
	}
	if looked {
		lease = c.b.cfg.Lease.Milliseconds()
	}
	cursor := c.cursor
	return func() answer {
		ctx, cancel := context.WithTimeout(context.Background(), c.b.cfg.ConnectTimeout+c.b.cfg.Timeout)
		defer cancel()
		sent := time.Now()
		res, err := receiveScript.Run(ctx, c.b.ctl,
			[]string{c.keys.log, c.retryKey, c.keys.sched, c.keys.later(c.group)},
			c.group, c.name, room, lease, cursor[0], cursor[1], first).Slice()
		a := answer{script: true, looked: looked, due: -1, err: err}
		if err == nil {
			a.read(res, c.deadline(sent))
		}
		if vanished(a.err) {
			a.noGroup = a.err
		}
		return a
	}
}

func (c *consumer) deadline(sent time.Time) time.Time { return sent.Add(c.b.cfg.Lease) }

// read takes the answer of receive.lua apart.
func (a *answer) read(res []any, deadline time.Time) {
	if len(res) != 7 {
		a.err = errReply
		return
	}
	due, _ := res[1].(int64)
	a.due = time.Duration(due) * time.Millisecond
	if due < 0 {
		a.due = -1
	}
	a.cursor = [2]string{text(res[2]), text(res[3])}
	a.gone, _ = res[4].(int64)
	list, _ := res[6].([]any)
	for _, x := range list {
		e, _ := x.([]any)
		if len(e) != 4 {
			a.err = errReply
			return
		}
		which, _ := e[0].(int64)
		count, _ := e[2].(int64)
		fields, _ := e[3].([]any)
		a.list = append(a.list, newFetched(which == 1, text(e[1]), count, fields, deadline))
	}
	if t := text(res[5]); t != "" {
		a.err = replyError(t)
	}
}

// replyError is an error that the server gave to a command inside a script.
type replyError string

func (e replyError) Error() string { return string(e) }

// RedisError makes it one like every other (goredis.Error).
func (replyError) RedisError() {}

func newFetched(retry bool, id string, count int64, fields []any, deadline time.Time) fetched {
	f := fetched{delivery: &delivery{retry: retry, id: id, count: count, deadline: deadline}, record: readRecord(id, fields)}
	f.delivery.tries = f.record.tries
	return f
}

// wait is a request that blocks until there is a message, something is due, or it is
// time to look again.
//
// COUNT holds for each stream, so the room is shared out over both; with room for one
// only one can be asked, in turn and not for long.
func (c *consumer) wait(room int) func() answer {
	block := min(maxBlock, max(c.b.cfg.Lease/4, 50*time.Millisecond))
	now := time.Now()
	if now.Sub(c.delays) < dueMemory && !c.b.wakes.live.Load() {
		block = min(block, dueBlock)
	}
	due := time.Duration(-1) // when to end the read ourselves; -1 = its own time will do
	if !c.due.IsZero() {
		if at := max(c.due.Sub(now), time.Millisecond); at < block+lateBlock {
			block, due = min(block, at), at
		}
	}
	streams := []string{c.retryKey, c.keys.log}
	if room == 1 {
		block = min(block, lonelyBlock)
		streams = streams[1:]
	}
	return func() answer {
		sent := time.Now()
		defer c.rd.unblockWhen(due, c.wake)()
		raw, err := c.rd.wait(c.group, c.name, max(1, room/2), block, streams...)
		a := answer{due: -1}
		switch {
		case err == nil:
			a.list, a.err = c.readStreams(raw, c.deadline(sent))
		case errors.Is(err, goredis.Nil):
		case vanished(err):
			a.noGroup = err
		default:
			a.err = err
		}
		return a
	}
}

// readStreams takes the answer of XREADGROUP apart: [[key, [[id, [field, value …]] …]] …].
func (c *consumer) readStreams(raw any, deadline time.Time) ([]fetched, error) {
	var out []fetched
	streams, _ := raw.([]any)
	for _, s := range streams {
		pair, _ := s.([]any)
		if len(pair) != 2 {
			return out, errReply
		}
		entries, _ := pair[1].([]any)
		for _, x := range entries {
			e, _ := x.([]any)
			if len(e) != 2 {
				return out, errReply
			}
			fields, _ := e[1].([]any)
			out = append(out, newFetched(text(pair[0]) == c.retryKey, text(e[0]), 1, fields, deadline))
		}
	}
	return out, nil
}

// hand returns from held what the Demand allows. What has waited there for long has its
// lease renewed first, for nobody else knows of it.
func (c *consumer) hand(ctx context.Context, want driver.Demand) []driver.Received {
	c.refresh(ctx)
	c.out = c.out[:0]
	var bytes, biggest int64
	var expired []fetched
	n, now := 0, time.Now().UnixMilli()
	for ; n < len(c.held) && len(c.out) < want.Records; n++ {
		f := &c.held[n]
		if f.expires > 0 && f.expires <= now {
			expired = append(expired, *f)
			continue
		}
		size := int64(f.msg.Size())
		if len(c.out) > 0 && bytes+size > want.Bytes {
			break
		}
		bytes += size
		biggest = max(biggest, size)
		c.out = append(c.out, c.received(f))
	}
	c.biggest = max(biggest, c.biggest-c.biggest/8, 64)
	clear(c.held[:n])
	if c.held = c.held[n:]; len(c.held) == 0 {
		c.held = nil
	}
	c.discard(ctx, expired)
	return c.out
}

func (c *consumer) received(f *fetched) driver.Received {
	r := driver.Received{
		Message:  f.msg,
		Receipt:  driver.Receipt{Epoch: c.epoch.Load(), Seq: f.count, ID: f.id, Ref: f.delivery},
		Offset:   -1,
		NativeID: f.origin, DeliveryCount: int(f.delivery.tries + f.count), Deadline: f.deadline, Err: f.err,
	}
	if c.sub.From.Shape == driver.Stream {
		r.Offset = offsetOf(f.origin)
	}
	return r
}

// refresh renews the leases of what has waited in held, and forgets what is lost.
func (c *consumer) refresh(ctx context.Context) {
	fresh := time.Now().Add(c.b.cfg.Lease / 2)
	old := false
	for i := range c.held {
		old = old || c.held[i].deadline.Before(fresh)
	}
	if !old {
		return
	}
	sent := time.Now()
	results := c.settleHeld(ctx, verbExtend, c.held)
	keep := c.held[:0]
	for i, f := range c.held {
		if results[i] == nil {
			f.deadline = c.deadline(sent)
			keep = append(keep, f)
		} // else another consumer has it, or will when the lease that nobody renewed ends
	}
	clear(c.held[len(keep):])
	c.held = keep
}

// giveBack returns what core has not seen.
func (c *consumer) giveBack(ctx context.Context) error {
	if len(c.held) == 0 {
		return nil
	}
	held := c.held
	c.held = nil
	for _, err := range c.settleHeld(ctx, verbReturn, held) {
		if err != nil && driver.ClassOf(err) != driver.LeaseLost {
			return err
		}
	}
	return nil
}

// discard settles what has expired. If that fails, it comes and expires again.
func (c *consumer) discard(ctx context.Context, expired []fetched) {
	if len(expired) > 0 {
		c.settleHeld(ctx, verbAck, expired)
	}
}

// settleHeld settles deliveries that core does not know.
func (c *consumer) settleHeld(ctx context.Context, verb string, held []fetched) []error {
	s := settling{c: c, op: c.op("receive"), errs: make([]error, len(held))}
	for i := range held {
		s.add(verb, entry{at: i, d: held[i].delivery})
	}
	s.run(ctx)
	return s.errs
}
