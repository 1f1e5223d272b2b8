package redis

import (
	"context"
	"errors"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

// shardAnswer is what a request of Receive brought: of shards, or of a wait.
type shardAnswer struct {
	reads []shardRead
	woken []*tenure // a wait: these have something
	err   error     // about the connection
}

// shardRead is the answer of shard_read.lua, or of shard_recover.lua.
type shardRead struct {
	t      *tenure
	heats  int // of t when it was asked
	doubts int // as well
	lost   bool
	clear  bool // it was a recovery
	more   bool
	last   string
	gone   int64
	list   []kept
	err    error
}

// fill asks for messages of those shards that may have some; if none may, it waits.
func (c *keyed) fill(ctx context.Context, want driver.Demand) error {
	if c.open != nil { // of an earlier call; what it was asked for counts
		return c.await(ctx)
	}
	if len(c.held) > 0 {
		return nil
	}
	all, hot, doubtful := c.readable(want.Paused)
	switch {
	case len(doubtful) > 0:
		return c.ask(ctx, false, c.recover(doubtful))
	case len(hot) > 0 && len(hot) < len(all) && time.Since(c.glanced) > glanceEvery:
		// Whoever has always something to read never waits, and only a wait would tell that
		// the other shards have something too.
		c.glanced = time.Now()
		return c.ask(ctx, false, c.wait(all, 0))
	case len(hot) > 0:
		room := max(1, min(want.Records, 1000, int(min(want.Bytes/c.biggest, 1000))))
		var asked []portionOf
		asked, c.turn = portions(room, len(hot), c.turn%len(hot))
		return c.ask(ctx, false, c.fetch(hot, asked))
	case len(all) > 0:
		return c.ask(ctx, true, c.wait(all, maxBlock))
	}
	select { // nothing to wait on but the owner
	case <-c.changed:
		return nil
	case <-ctx.Done():
	case <-c.ending:
	}
	return c.ended(ctx)
}

// fetch reads the portions in one pipeline.
func (c *keyed) fetch(hot []*tenure, asked []portionOf) func() shardAnswer {
	calls, reads := make([]call, len(asked)), make([]shardRead, len(asked))
	c.mu.Lock()
	for i, p := range asked {
		t := hot[p.at]
		calls[i], reads[i] = t.call(shardReadScript, p.size, t.round), shardRead{t: t, heats: t.heats}
	}
	c.mu.Unlock()
	return c.request(calls, reads, func(r *shardRead, cmd *goredis.Cmd) {
		res, err := cmd.Slice()
		if r.err = err; err == nil {
			r.take(res)
		}
	})
}

// request runs one script for each of reads.
func (c *keyed) request(calls []call, reads []shardRead, take func(*shardRead, *goredis.Cmd)) func() shardAnswer {
	return func() shardAnswer {
		ctx, cancel := context.WithTimeout(context.Background(), c.b.cfg.ConnectTimeout+c.b.cfg.Timeout)
		defer cancel()
		cmds, err := c.b.runAll(ctx, calls)
		for i := range reads {
			if err != nil {
				reads[i].err = err
				continue
			}
			take(&reads[i], cmds[i])
		}
		return shardAnswer{reads: reads, err: err}
	}
}

// recover gives back what reads have taken whose answers were lost.
func (c *keyed) recover(doubtful []*tenure) func() shardAnswer {
	calls, reads := make([]call, len(doubtful)), make([]shardRead, len(doubtful))
	c.mu.Lock()
	for i, t := range doubtful {
		t.round++ // also where this is a second try: the first may be still on its way
		args := []any{t.round}
		for id := range t.out {
			args = append(args, id)
		}
		calls[i], reads[i] = t.call(recoverScript, args...), shardRead{t: t, clear: true, more: true, doubts: t.doubts}
	}
	c.mu.Unlock()
	return c.request(calls, reads, func(r *shardRead, cmd *goredis.Cmd) {
		r.gone, r.err = cmd.Int64()
		if r.lost = r.gone < 0; r.lost {
			r.gone = 0
		}
	})
}

// call is a script of t's shard, with what all of them begin with.
func (t *tenure) call(s *goredis.Script, args ...any) call {
	return t.c.callOf(s, t.shard, append([]any{t.fence}, args...)...)
}

func (c *keyed) callOf(s *goredis.Script, of *shard, args ...any) call {
	return call{script: s, keys: of.keys(c.group), args: append([]any{c.group, c.name}, args...)}
}

// take reads the answer of shard_read.lua.
func (r *shardRead) take(res []any) {
	if len(res) == 1 {
		r.lost = true
		return
	}
	if len(res) != 5 {
		r.err = errReply
		return
	}
	r.more = res[1] == int64(1)
	r.last = text(res[2])
	r.gone, _ = res[3].(int64)
	list, _ := res[4].([]any)
	for _, x := range list {
		e, _ := x.([]any)
		if len(e) != 3 {
			r.err = errReply
			return
		}
		fields, _ := e[2].([]any)
		k := kept{t: r.t, id: text(e[0]), record: readRecord(text(e[0]), fields)}
		k.count, _ = e[1].(int64)
		r.list = append(r.list, k)
	}
}

// wait blocks until one of the streams has more than has been read; block 0 = it looks and
// does not wait.
func (c *keyed) wait(all []*tenure, block time.Duration) func() shardAnswer {
	streams, after := make([]string, len(all)), make([]string, len(all))
	of := make(map[string]*tenure, len(all))
	c.mu.Lock()
	for i, t := range all {
		streams[i], after[i], of[t.shard.log] = t.shard.log, t.last, t
	}
	c.mu.Unlock()
	return func() shardAnswer {
		raw, err := c.rd.peek(block, streams, after)
		var a shardAnswer
		switch {
		case errors.Is(err, goredis.Nil):
		case vanished(err): // a failover ended the read; the owner sees whether anything is gone
		case err != nil:
			a.err = err
		default:
			found, _ := raw.([]any)
			for _, x := range found {
				if pair, _ := x.([]any); len(pair) == 2 {
					a.woken = append(a.woken, of[text(pair[0])])
				}
			}
		}
		return a
	}
}

// ask runs one request beside and takes its answer. It returns ctx's error when that ends,
// with the request still open if it did not obey.
func (c *keyed) ask(ctx context.Context, waits bool, f func() shardAnswer) error {
	open := make(chan shardAnswer, 1)
	if !c.b.commit.begin(func() { open <- f() }) {
		return errClosed(c.op("receive"))
	}
	c.open, c.waits = open, waits
	return c.await(ctx)
}

// await takes the answer of the open request. A wait is ended where it waits for something
// else than there is now.
func (c *keyed) await(ctx context.Context) error {
	changed := c.changed
	if !c.waits {
		changed = nil
	}
	select {
	case a := <-c.open:
		return c.keep(a)
	case <-changed:
	case <-ctx.Done():
	case <-c.ending:
	}
	limit := time.NewTimer(obey)
	defer limit.Stop()
	for {
		if c.waits {
			c.rd.unblock()
		}
		again := time.NewTimer(10 * time.Millisecond)
		select {
		case a := <-c.open:
			again.Stop()
			err := c.keep(a)
			if e := c.ended(ctx); e != nil {
				return e
			}
			return err
		case <-limit.C:
			again.Stop()
			return c.ended(ctx)
		case <-again.C:
		}
	}
}

// keep takes an answer. What was read for a tenure that has ended meanwhile is dropped:
// the release or the next claim gives it to the next owner.
func (c *keyed) keep(a shardAnswer) error {
	c.open = nil
	c.heard(a.err)
	for _, t := range a.woken {
		if t != nil {
			c.mu.Lock()
			t.hot = true
			c.mu.Unlock()
		}
	}
	failed := a.err
	for i := range a.reads {
		r := &a.reads[i]
		c.lostSome(r.t.shard, r.gone)
		switch ours := c.note(r); {
		case !ours:
		case r.lost, vanished(r.err):
			poke(c.own.kick) // the owner finds out what there is
		case r.err != nil:
			failed = r.err
		}
	}
	if failed != nil {
		return receiveError(c.op("receive"), failed)
	}
	return nil
}

// note notes what an answer says about a shard, and reports whether that is still ours.
func (c *keyed) note(r *shardRead) (ours bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := r.t
	if c.owned[t.at] != t {
		return false
	}
	switch {
	case vanished(r.err), r.clear && r.lost: // the owner ends the tenure
		t.doubt, t.hot = false, false
		return true
	case r.err != nil, r.lost:
		// The answer was lost, or cannot be read: the server may have handed out what nobody
		// here knows of. Or we have the wrong round, or none.
		t.doubted()
		return true
	}
	if r.clear {
		t.doubt = t.doubts != r.doubts // a new one since it was asked: it does not know of that
	}
	// A message that came back after this read has heated the shard already: this
	// answer, which does not know of it, must not cool it down, or it would lie there
	// until something else is published.
	t.hot = r.more || t.heats != r.heats
	if r.last != "" {
		t.last = r.last
	}
	for i := range r.list {
		t.handed++
		r.list[i].n, t.out[r.list[i].id] = t.handed, t.handed
	}
	c.held = append(c.held, r.list...)
	return true
}

// doubted notes that there may be something out that we do not know of. Callers hold
// keyed.mu.
func (t *tenure) doubted() {
	t.doubt = true
	t.doubts++
}

// prune takes out of held what is not ours any more, and gives back what core has paused:
// it would fill the room that the others need.
func (c *keyed) prune(ctx context.Context, paused []string) error {
	if len(c.held) == 0 {
		return nil
	}
	var back []kept
	keep := c.held[:0]
	for _, k := range c.held {
		switch {
		case !c.ours(k.t):
		case slices.Contains(paused, k.t.shard.label):
			back = append(back, k)
		default:
			keep = append(keep, k)
		}
	}
	clear(c.held[len(keep):])
	c.held = keep
	for _, err := range c.settleKept(ctx, verbReturn, back) {
		if err != nil && driver.ClassOf(err) != driver.LeaseLost {
			return err
		}
	}
	return nil
}

// hand returns from held what the Demand allows, in order.
func (c *keyed) hand(ctx context.Context, want driver.Demand) []driver.Received {
	c.out = c.out[:0]
	var bytes, biggest int64
	var expired []kept
	n, now := 0, time.Now().UnixMilli()
	for ; n < len(c.held) && len(c.out) < want.Records; n++ {
		k := &c.held[n]
		if k.expires > 0 && k.expires <= now {
			expired = append(expired, *k)
			continue
		}
		size := int64(k.msg.Size())
		if len(c.out) > 0 && bytes+size > want.Bytes {
			break
		}
		bytes += size
		biggest = max(biggest, size)
		c.out = append(c.out, c.received(k))
	}
	c.biggest = max(biggest, c.biggest-c.biggest/8, 64)
	clear(c.held[:n])
	if c.held = c.held[n:]; len(c.held) == 0 {
		c.held = nil
	}
	c.settleKept(ctx, verbAck, expired) // if that fails, it comes and expires again
	return c.out
}

func (c *keyed) received(k *kept) driver.Received {
	r := driver.Received{
		Message: k.msg, Offset: -1, NativeID: k.id, DeliveryCount: int(k.count), Err: k.err,
		Receipt: driver.Receipt{Partition: k.t.shard.label, Epoch: k.t.epoch, Seq: k.count, Aux: k.n, ID: k.id, Ref: k.t},
	}
	if c.sub.From.Shape == driver.Stream {
		r.Offset = offsetOf(k.id)
	}
	return r
}
