package redis

import (
	"context"
	"strconv"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

// Settle implements driver.Consumer. Every command looks at the shard's lease first: it
// takes effect for its owner alone, and only while the lease lasts.
func (c *keyed) Settle(ctx context.Context, batch []driver.Settlement) error {
	op := c.op("settle")
	if c.closed.Load() {
		return errClosed(op)
	}
	s := shardSettling{c: c, op: op, errs: make([]error, len(batch)), last: map[*tenure]int{}}
	for i := range batch {
		if err := s.sort(i, &batch[i]); err != nil {
			s.errs[i] = err
		}
	}
	s.run(ctx)
	return driver.Batch(s.errs)
}

// shardLot is what one command does to one shard.
type shardLot struct {
	t     *tenure
	verb  string
	at    []int // indices of the results
	ids   []string
	nums  []int64 // of the hand-outs
	args  []any
	final bool // core asks for no more
}

// shardSettling is one call. The lots of one shard are in the order of its entries, so
// these take effect in that order.
type shardSettling struct {
	c    *keyed
	op   string
	errs []error
	lots []shardLot
	last map[*tenure]int // the last lot of each
	kept bool            // of what core has not seen
}

// sort puts one settlement into a lot.
func (s *shardSettling) sort(i int, x *driver.Settlement) error {
	t, ok := x.Receipt.Ref.(*tenure)
	if !ok || t.c != s.c || t.epoch != x.Receipt.Epoch {
		return driver.Errorf(s.op, driver.LeaseLost, "the receipt is of another consumer or epoch")
	}
	if !t.live() {
		return driver.Errorf(s.op, driver.LeaseLost, "partition %s is not ours any more", t.shard.label)
	}
	switch x.Disposition {
	case driver.Ack, driver.Reject:
		s.add(t, verbAck, i, &x.Receipt)
	case driver.Nack:
		if x.Delay > 0 {
			return driver.Errorf(s.op, driver.Unsupported, "delay-nack: later messages of the key would pass; hold the message instead")
		}
		s.add(t, verbNack, i, &x.Receipt)
	case driver.Return:
		s.add(t, verbReturn, i, &x.Receipt)
		l := &s.lots[s.last[t]]
		l.final = l.final || x.Final
	case driver.Extend: // it is ours as long as its shard
	default:
		return driver.Errorf(s.op, driver.Unsupported, "disposition %v is not one of a message", x.Disposition)
	}
	return nil
}

func (s *shardSettling) add(t *tenure, verb string, at int, r *driver.Receipt) {
	n, ok := s.last[t]
	if !ok || s.lots[n].verb != verb || len(s.lots[n].at) >= settleChunk {
		n = len(s.lots)
		s.lots = append(s.lots, shardLot{t: t, verb: verb})
		s.last[t] = n
	}
	l := &s.lots[n]
	l.at, l.ids, l.nums = append(l.at, at), append(l.ids, r.ID), append(l.nums, r.Aux)
	if l.args = append(l.args, r.ID); verb != verbAck {
		l.args = append(l.args, strconv.FormatInt(r.Seq, 10))
	}
}

// run sends the lots in one pipeline and notes the results.
func (s *shardSettling) run(ctx context.Context) {
	if len(s.lots) == 0 {
		return
	}
	calls := make([]call, 0, len(s.lots))
	s.c.mu.Lock()
	for i := range s.lots {
		l := &s.lots[i]
		calls = append(calls, l.t.call(shardSettleScript, append([]any{l.verb, l.t.round}, l.args...)...))
	}
	s.c.mu.Unlock()
	calls = append(calls, s.trims()...)
	var cmds []*goredis.Cmd // read only after the call has succeeded: it may outlive ctx
	failed := s.c.b.bounded(ctx, func(ctx context.Context) error {
		mine, err := s.c.b.runAll(ctx, calls)
		if err == nil {
			cmds = mine
		}
		return err
	})
	for i := range s.lots {
		err := failed
		if err == nil {
			err = s.conclude(&s.lots[i], cmds[i])
		} else {
			err = s.unanswered(&s.lots[i], classify(s.op, err))
		}
		for _, at := range s.lots[i].at {
			s.errs[at] = err
		}
	}
}

// trims lets the server give memory back now and then. A stream keeps what it has.
func (s *shardSettling) trims() (calls []call) {
	if s.c.sub.From.Shape == driver.Stream {
		return nil
	}
	for i := range s.lots {
		l := &s.lots[i]
		if l.verb != verbAck {
			continue
		}
		if n := l.t.acked.Add(int64(len(l.at))); n >= trimEvery {
			l.t.acked.Add(-n)
			calls = append(calls, call{script: trimScript, keys: []string{l.t.shard.log}})
		}
	}
	return calls
}

// conclude is the result of one command, which holds for all of its lot.
func (s *shardSettling) conclude(l *shardLot, cmd *goredis.Cmd) error {
	switch res, err := cmd.Int64(); {
	case vanished(err):
		poke(s.c.own.kick)
		return driver.Errorf(s.op, driver.LeaseLost, "the stream or group is gone: %w", err)
	case err != nil:
		return s.unanswered(l, classify(s.op, err))
	case res == staleReturn:
		s.c.unsure(l)
		return nil
	case res < 0:
		poke(s.c.own.kick)
		return driver.Errorf(s.op, driver.LeaseLost, "another member owns partition %s", l.t.shard.label)
	default:
		s.c.lostSome(l.t.shard, res)
	}
	s.c.mu.Lock()
	l.forget()
	s.c.mu.Unlock()
	if l.verb != verbAck && !l.final {
		s.c.heat(l.t) // it comes again
	}
	return nil
}

// staleReturn is the answer to a return of a round that is over.
const staleReturn = -2

// unanswered is the result of a command of which only err is known.
//
// A return that may have taken effect is not sent again, for it could not be told from one
// of the next hand-out. The losing interleaving: it takes effect and its answer is lost; a
// read takes the message once more, under the same number of deliveries, and it runs; the
// second try gives it back, and it runs beside itself. So the next read is preceded by a
// recovery, which gives back whatever is out and not known to be: with that it is done.
// What core has not seen goes that way in any case: nobody would send it again.
func (s *shardSettling) unanswered(l *shardLot, err error) error {
	if l.verb == verbReturn && (s.kept || driver.ClassOf(err) == driver.Ambiguous) {
		s.c.unsure(l)
		return nil
	}
	if l.verb == verbNack && !l.final {
		s.c.heat(l.t) // if it took effect, the message can be read now, before core sends it again
	}
	return err
}

// unsure has a recovery give back what a return may not have.
func (c *keyed) unsure(l *shardLot) {
	c.mu.Lock()
	l.forget()
	l.t.doubted()
	c.mu.Unlock()
	if !l.final {
		poke(c.changed)
	}
}

// forget takes what a lot has settled off the list of what is out, unless it was handed out
// again meanwhile. Callers hold keyed.mu.
func (l *shardLot) forget() {
	for i, id := range l.ids {
		if l.t.out[id] == l.nums[i] {
			delete(l.t.out, id)
		}
	}
}

// settleKept settles messages that core does not know.
func (c *keyed) settleKept(ctx context.Context, verb string, list []kept) []error {
	if len(list) == 0 {
		return nil
	}
	s := shardSettling{c: c, op: c.op("receive"), errs: make([]error, len(list)), last: map[*tenure]int{}, kept: true}
	for i, k := range list {
		if k.t.live() {
			s.add(k.t, verb, i, &driver.Receipt{ID: k.id, Seq: k.count, Aux: k.n})
		}
	}
	s.run(ctx)
	return s.errs
}

// parseFence reads a fence, which the server made.
func parseFence(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}
