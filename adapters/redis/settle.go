package redis

import (
	"context"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

const (
	settleChunk = 256  // deliveries in one command
	trimEvery   = 1000 // acks
)

// Settle implements driver.Consumer. Deliveries that end in the same way share a command,
// and all commands one pipeline.
func (c *consumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	op := c.op("settle")
	if c.closed.Load() {
		return errClosed(op)
	}
	s := settling{c: c, op: op, errs: make([]error, len(batch)), final: true}
	for i := range batch {
		s.last = s.last || batch[i].Final
		if err := s.sort(i, &batch[i]); err != nil {
			s.errs[i] = err
		}
	}
	s.run(ctx)
	return driver.Batch(s.errs)
}

// entry is one delivery to settle.
type entry struct {
	at     int // index of its result
	d      *delivery
	delay  time.Duration // of a nack
	idle   time.Duration // of an extension: how much of the lease counts as used
	reason string
}

// lot is what one command does.
type lot struct {
	verb    string // "" = XACK, without a look at the owner
	retry   bool
	entries []entry
}

// settling is one call: entries sorted into lots.
type settling struct {
	c     *consumer
	op    string
	errs  []error
	lots  []lot
	final bool // core's, and not of what core has not seen
	last  bool // core asks for no more
	rouse bool // end our own blocked read when this is done
}

func (s *settling) add(verb string, e entry) {
	for i := range s.lots {
		l := &s.lots[i]
		if l.verb == verb && l.retry == e.d.retry && len(l.entries) < settleChunk {
			l.entries = append(l.entries, e)
			return
		}
	}
	s.lots = append(s.lots, lot{verb: verb, retry: e.d.retry, entries: []entry{e}})
}

// plain is the verb of an XACK without a look at the owner.
const plain = ""

// sort puts one settlement into a lot.
//
// An ack that is younger than its lease by our own clock needs no look: the lease was
// counted from before the request left, so on the server it has not ended, and nobody
// takes over a delivery before that. The losing interleaving is a process that stops
// between this look at the clock and the command's arrival, for longer than the lease: the
// message is then pending with its next owner, and this ack ends that. Nothing is lost by
// it, for the message was handled here, and the next owner's own ack tells him LeaseLost.
func (s *settling) sort(i int, x *driver.Settlement) error {
	d, ok := x.Receipt.Ref.(*delivery)
	if !ok || x.Receipt.Epoch != s.c.epoch.Load() {
		return driver.Errorf(s.op, driver.LeaseLost, "the receipt is of another consumer or epoch")
	}
	e := entry{at: i, d: d}
	if x.Reason != nil {
		e.reason = oneLine(x.Reason.Error())
	}
	lease := s.c.b.cfg.Lease
	switch x.Disposition {
	case driver.Ack, driver.Reject:
		if time.Now().Before(d.deadline) && !d.maybe {
			s.add(plain, e)
		} else {
			s.add(verbAck, e)
		}
	case driver.Nack:
		if x.Delay > maxDelay {
			return driver.Errorf(s.op, driver.Unsupported, "delay-nack: Delay is %v, at most %v", x.Delay, maxDelay)
		}
		e.delay = max(0, x.Delay)
		s.add(verbNack, e)
	case driver.Return:
		s.add(verbReturn, e)
	case driver.Extend:
		if x.Delay > lease {
			// The server counts from the last hand-out and knows no time to come.
			return driver.Errorf(s.op, driver.Unsupported, "lease: an extension is at most Config.Lease, %v; extend again", lease)
		}
		if x.Delay > 0 {
			e.idle = lease - x.Delay
		}
		s.add(verbExtend, e)
	default:
		return driver.Errorf(s.op, driver.Unsupported, "disposition %v is not one of a message", x.Disposition)
	}
	return nil
}

// oneLine makes a text fit for a field: short, without line breaks.
func oneLine(t string) string {
	b := []byte(t[:min(len(t), 1024)])
	for i := range b {
		if b[i] < ' ' {
			b[i] = ' '
		}
	}
	return string(b)
}

// run sends the lots in one pipeline and notes the results.
func (s *settling) run(ctx context.Context) {
	if len(s.lots) == 0 {
		return
	}
	sent := time.Now()
	var cmds []goredis.Cmder // read only after the call has succeeded: it may outlive ctx
	failed := s.c.b.bounded(ctx, func(ctx context.Context) error {
		pipe := s.c.b.ctl.Pipeline()
		mine := make([]goredis.Cmder, 0, len(s.lots))
		for i := range s.lots {
			mine = append(mine, s.c.queue(ctx, pipe, &s.lots[i]))
		}
		s.c.trim(ctx, pipe, s.acks())
		s.wake(ctx, pipe)
		if _, err := pipe.Exec(ctx); err != nil && offline(err) {
			return err
		}
		if s.rouse {
			s.c.rd.unblock()
		}
		cmds = mine
		return nil
	})
	for i := range s.lots {
		if failed != nil {
			s.fail(&s.lots[i], failed)
			continue
		}
		s.conclude(&s.lots[i], cmds[i], sent)
	}
}

// wake ends our own blocked read where it waits for something else than what there is now:
// a message that was given back lies in the pending list, where no read looks, and one that
// comes again later may be due before the read ends.
func (s *settling) wake(ctx context.Context, pipe goredis.Pipeliner) {
	for i := range s.lots {
		l := &s.lots[i]
		again := l.verb == verbReturn && s.final
		for _, e := range l.entries {
			again = again || l.verb == verbNack && e.delay > 0 && e.delay < maxBlock
		}
		if !again || s.last {
			continue
		}
		if l.verb == verbReturn {
			s.c.relook.Store(true)
		}
		if s.rouse = s.c.b.cfg.Cluster; s.rouse { // a command without a key goes to any node
			return
		}
		if id := s.c.rd.id.Load(); id != 0 {
			pipe.ClientUnblock(ctx, id)
		}
		return
	}
}

// acks counts what ends in the log.
func (s *settling) acks() (n int) {
	for i := range s.lots {
		if l := &s.lots[i]; s.final && !l.retry && l.verb != verbReturn && l.verb != verbExtend {
			n += len(l.entries)
		}
	}
	return n
}

// trim lets the server give memory back now and then. A stream keeps what it has.
func (c *consumer) trim(ctx context.Context, pipe goredis.Pipeliner, acks int) {
	if c.sub.From.Shape == driver.Stream || acks == 0 {
		return
	}
	if n := c.acked.Add(int64(acks)); n >= trimEvery {
		c.acked.Add(-n)
		pipe.Eval(ctx, trimText, []string{c.keys.log})
	}
}

func (c *consumer) stream(retry bool) string {
	if retry {
		return c.retryKey
	}
	return c.keys.log
}

// queue adds the command of a lot.
func (c *consumer) queue(ctx context.Context, pipe goredis.Pipeliner, l *lot) goredis.Cmder {
	key := c.stream(l.retry)
	if l.verb == plain {
		ids := make([]string, len(l.entries))
		for i, e := range l.entries {
			ids[i] = e.d.id
		}
		cmd := pipe.XAck(ctx, key, c.group, ids...)
		if l.retry { // nobody else reads it
			pipe.XDel(ctx, key, ids...)
		}
		return cmd
	}
	flag := "0"
	if l.retry {
		flag = "1"
	}
	args := make([]any, 0, 5+6*len(l.entries))
	args = append(args, l.verb, c.group, c.name, flag, c.b.cfg.Lease.Milliseconds())
	for _, e := range l.entries {
		wait := e.delay
		if l.verb == verbExtend {
			wait = e.idle
		}
		ms := int64((wait + time.Millisecond - 1) / time.Millisecond)
		args = append(args, e.d.id, e.d.count, ms, e.reason, e.d.tries+e.d.count, c.name+strconv.FormatInt(e.d.count, 10)+e.d.id)
	}
	return pipe.Eval(ctx, settleText, []string{key, c.retryKey, c.keys.later(c.group)}, args...)
}

// fail notes that there was no answer: each may or may not have taken effect. Core sends
// it again, and then "not pending any more" means that it did.
//
// But not a Return: a message that was returned is handed out again under the same number of
// deliveries, so the second try could not be told from one of that hand-out. The losing
// interleaving: the Return takes effect and its answer is lost; the next look hands the
// message to us again, and it runs; the second try gives it back, and it runs beside itself.
// So it counts as done. If it was not, the message comes when its lease has ended. At the
// end nothing is handed to us any more, and whoever comes next shall not wait: it is sent
// again.
func (s *settling) fail(l *lot, err error) {
	class := classOf(err)
	if k := driver.ClassOf(err); k != 0 {
		class = k
	}
	if l.verb == verbReturn && class == driver.Ambiguous && s.final && !s.last {
		return
	}
	for _, e := range l.entries {
		e.d.maybe = e.d.maybe || class == driver.Ambiguous
		s.errs[e.at] = &driver.Error{Op: s.op, Class: class, Err: err}
	}
}

// conclude notes the results of one command.
func (s *settling) conclude(l *lot, cmd goredis.Cmder, sent time.Time) {
	if err := cmd.Err(); err != nil {
		for _, e := range l.entries {
			if vanished(err) {
				s.errs[e.at] = driver.Errorf(s.op, driver.LeaseLost, "the stream or group is gone: %w", err)
			} else {
				s.errs[e.at] = classify(s.op, err)
			}
		}
		return
	}
	if l.verb == plain {
		// XACK counts and does not name. Fewer than were asked for means that the group was
		// made anew, or has a consumer with a shorter lease; which of them is not known.
		if ack, ok := cmd.(*goredis.IntCmd); ok && ack.Val() < int64(len(l.entries)) {
			for _, e := range l.entries {
				s.errs[e.at] = driver.Errorf(s.op, driver.LeaseLost, "%d of %d deliveries of one command were not ours any more", int64(len(l.entries))-ack.Val(), len(l.entries))
			}
		}
		return
	}
	eval, _ := cmd.(*goredis.Cmd)
	results, _ := eval.Val().([]any)
	for i, e := range l.entries {
		res := int64(settledLost)
		if i < len(results) {
			res, _ = results[i].(int64)
		}
		s.errs[e.at] = s.result(l.verb, e, res, sent)
	}
}

// result is the outcome of one delivery in settle.lua.
func (s *settling) result(verb string, e entry, res int64, sent time.Time) error {
	switch {
	case res == settledDone && verb == verbExtend:
		e.d.deadline = sent.Add(s.c.b.cfg.Lease - e.idle)
	case res == settledDone:
	case res == settledFull:
		return driver.Errorf(s.op, driver.Transient, "the server has no memory for the copy that comes again (OOM)")
	case res == settledGone:
		return driver.Errorf(s.op, driver.LeaseLost, "the message was deleted")
	case e.d.maybe && verb != verbExtend && sent.Before(e.d.deadline):
		// The first try had no answer, and within the lease nobody else can have taken it:
		// it took effect.
	default:
		return driver.Errorf(s.op, driver.LeaseLost, "the lease ended, or the message was settled before")
	}
	return nil
}
