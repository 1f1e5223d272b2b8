package redis

import (
	"context"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

const (
	// beatEvery bounds the time between two heartbeats, and with it how soon a member
	// sees that another one has come or gone in good order.
	beatEvery = time.Second
	// seekEvery is how often a member with less than its share looks for a shard that
	// has become free, and how soon what failed is tried again.
	seekEvery = 100 * time.Millisecond
)

// stage of a shard, as the owner sees it.
type stage uint8

const (
	idle      stage = iota // not ours
	owning                 // ours
	releasing              // ours, and a Revoke is under way
	losing                 // not ours any more, and a Revoke is under way
)

// holding is the owner's view of one shard.
type holding struct {
	stage  stage
	t      *tenure
	cancel context.CancelFunc // of the Revoke
}

// owner claims shards, keeps their leases and lets them go. All fields but kick and
// revoked are those of one goroutine, run.
//
//	idle ─ claim ─► owning ─ more than our share, or Close ─► releasing ─ Revoke returned ─► idle
//	                   └────── lease lost or run out ───────► losing ──── Revoke returned ─► idle
//
// Who may own what: members tell each other that they live by a heartbeat, and each works
// out its share from the same list of names (quota). Who has more gives the youngest back;
// who has less claims what is free. Nothing is ever taken from a member that lives.
type owner struct {
	kick    chan struct{} // look now
	revoked chan int      // a Revoke of this shard has returned
	revokes sync.WaitGroup

	held     []holding // by shard
	epoch    uint64
	quota    int
	from     int // where in the ring our part begins
	stopping bool
	restore  bool // a stream or group was gone: see to it before the next claim
}

func newOwner(n int) owner {
	return owner{kick: make(chan struct{}, 1), revoked: make(chan int, n), held: make([]holding, n)}
}

// run is the owner's goroutine. The driver's Close waits for it.
func (c *keyed) run() {
	defer close(c.left)
	defer c.own.revokes.Wait()
	ending, quit := c.ending, (<-chan struct{})(nil)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.own.kick:
		case s := <-c.own.revoked:
			c.released(s)
		case <-ending:
			ending, quit = nil, c.quit.Done()
			c.own.stopping = true
			for s := range c.own.held {
				c.handOver(s)
			}
		case <-quit:
			quit = nil
			for _, h := range c.own.held {
				if h.cancel != nil {
					h.cancel() // core must not wait for longer than Close does
				}
			}
		}
		if c.own.stopping && c.own.count(idle) == len(c.own.held) {
			c.leave()
			return
		}
		timer.Reset(c.look())
	}
}

func (o *owner) count(of stage) (n int) {
	for _, h := range o.held {
		if h.stage == of {
			n++
		}
	}
	return n
}

// look is one round: heartbeat and leases, then shares. It returns when to look again.
func (c *keyed) look() time.Duration {
	every := min(c.b.cfg.Lease/3, beatEvery)
	names, err := c.beat()
	c.heard(err)
	c.expire()
	switch {
	case err != nil: // shares stay as they are
		return c.soon(seekEvery)
	case c.own.stopping || c.isFatal():
		return c.soon(every)
	}
	c.own.quota, c.own.from = quota(names, c.name, len(c.shards))
	for c.own.count(owning) > c.own.quota {
		c.handOver(c.youngest())
	}
	if c.own.count(owning) < c.own.quota {
		if err := c.claim(); err != nil {
			c.heard(err)
			return c.soon(seekEvery)
		}
		if c.own.count(owning) < c.own.quota {
			return c.soon(min(every, seekEvery))
		}
	}
	return c.soon(every)
}

// soon is d, or less where a lease ends before.
func (c *keyed) soon(d time.Duration) time.Duration {
	now := time.Since(c.base)
	for _, h := range c.own.held {
		if h.stage == owning || h.stage == releasing {
			d = min(d, time.Duration(h.t.until.Load())-now)
		}
	}
	return max(d, time.Millisecond)
}

// bound is how long a request of the owner may take: not past the end of a lease, which
// must be seen when it comes.
func (c *keyed) bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), c.soon(min(c.b.cfg.Timeout, c.b.cfg.Lease/3)))
}

// beat sends the heartbeat and renews what we have, also while it is revoked.
func (c *keyed) beat() (names []string, err error) {
	lease := c.b.cfg.Lease.Milliseconds()
	calls := []call{{script: beatScript, keys: []string{c.keys.members(c.group)}, args: []any{c.name, lease}}}
	var of []int
	for s, h := range c.own.held {
		if (h.stage == owning || h.stage == releasing) && !h.t.over.Load() {
			calls, of = append(calls, h.t.call(renewScript, lease)), append(of, s)
		}
	}
	ctx, cancel := c.bound()
	defer cancel()
	sent := time.Since(c.base)
	cmds, err := c.b.runAll(ctx, calls)
	if err != nil {
		return nil, err
	}
	for i, s := range of {
		switch res, err := cmds[i+1].Int(); {
		case err != nil: // without memory, or busy: the lease runs on, and the next round tries again
		case res == 1:
			c.own.held[s].t.until.Store(int64(sent + c.b.cfg.Lease))
		default:
			c.own.restore = c.own.restore || res < 0
			c.lose(s)
		}
	}
	names, err = cmds[0].StringSlice()
	return names, err
}

// expire loses what our own clock says has ended.
func (c *keyed) expire() {
	for s, h := range c.own.held {
		if (h.stage == owning || h.stage == releasing) && !h.t.live() {
			c.lose(s)
		}
	}
}

func (c *keyed) youngest() (y int) {
	y = -1
	for s, h := range c.own.held {
		if h.stage == owning && (y < 0 || !h.t.since.Before(c.own.held[y].t.since)) {
			y = s
		}
	}
	return y
}

// handOver stops reading a shard and starts its Revoke. The lease is renewed until core
// has let go.
func (c *keyed) handOver(s int) {
	h := &c.own.held[s]
	if h.stage != owning {
		return
	}
	h.stage = releasing
	parent := context.Background() // a lease can be renewed for ever
	if c.own.stopping {
		parent = c.quit
	}
	ctx, cancel := context.WithCancel(parent)
	h.cancel = cancel
	c.revoke(ctx, s)
}

// lose ends a tenure whose lease is not ours any more.
func (c *keyed) lose(s int) {
	h := &c.own.held[s]
	if h.t.over.Swap(true) {
		return
	}
	if h.stage == releasing { // core is told by the ctx it has
		h.stage = losing
		h.cancel()
		return
	}
	h.stage, h.cancel = losing, nil
	c.revoke(ended, s)
}

// revoke calls Revoke beside. Reading stops first: what a request under way still brings
// is dropped, and given to the next owner by the release.
func (c *keyed) revoke(ctx context.Context, s int) {
	c.mu.Lock()
	c.owned[s] = nil
	c.mu.Unlock()
	poke(c.changed)
	label := c.shards[s].label
	c.own.revokes.Go(func() {
		if c.sub.Revoke != nil {
			c.sub.Revoke(ctx, []string{label})
		}
		c.own.revoked <- s
	})
}

// released frees a shard whose Revoke has returned. If the server does not hear of it,
// the lease runs out.
func (c *keyed) released(s int) {
	h := &c.own.held[s]
	t, lost := h.t, h.stage == losing
	if h.cancel != nil {
		h.cancel()
	}
	*h = holding{}
	t.over.Store(true)
	if lost {
		return
	}
	calls := []call{t.call(releaseScript)}
	if t.acked.Load() > 0 && c.sub.From.Shape != driver.Stream {
		calls = append(calls, call{script: trimScript, keys: []string{t.shard.log}})
	}
	ctx, cancel := c.bound()
	defer cancel()
	cmds, err := c.b.runAll(ctx, calls)
	if c.heard(err); err == nil {
		gone, _ := cmds[0].Int64()
		c.lostSome(t.shard, gone)
	}
}

// claim takes as many free shards as are missing to our share.
func (c *keyed) claim() error {
	if c.own.restore {
		if done, err := c.remake(); !done {
			return err
		}
	}
	ctx, cancel := c.bound()
	defer cancel()
	free, err := c.free(ctx)
	if err != nil {
		return err
	}
	chosen := pick(free, c.own.quota-c.own.count(owning), c.own.from)
	calls := make([]call, len(chosen))
	for i, s := range chosen {
		start, err := startIn("receive", c.sub.Start, &c.shards[s])
		if err != nil {
			return err
		}
		if c.sub.Start.Kind == driver.Latest {
			start = "0-0" // the group was made by Subscribe: if it is gone, so is what was there
		}
		calls[i] = c.callOf(claimScript, &c.shards[s], "", c.b.cfg.Lease.Milliseconds(), start)
	}
	if len(calls) == 0 {
		return nil
	}
	sent := time.Since(c.base)
	cmds, err := c.b.runAll(ctx, calls)
	if err != nil {
		return err
	}
	for i, s := range chosen {
		if err := c.claimed(s, sent, cmds[i]); err != nil {
			return err
		}
	}
	return nil
}

// free asks which of the shards that are not ours can be claimed.
func (c *keyed) free(ctx context.Context) ([]bool, error) {
	free := make([]bool, len(c.shards))
	var calls []call
	var of []int
	for s, h := range c.own.held {
		if h.stage == idle {
			calls, of = append(calls, c.callOf(peekScript, &c.shards[s], "")), append(of, s)
		}
	}
	if len(calls) == 0 {
		return free, nil
	}
	cmds, err := c.b.runAll(ctx, calls)
	if err != nil {
		return nil, err
	}
	for i, s := range of {
		left, err := cmds[i].Int64()
		free[s] = err == nil && left == 0
	}
	return free, nil
}

// claimed opens a shard if the claim has succeeded.
func (c *keyed) claimed(s int, sent time.Duration, cmd *goredis.Cmd) error {
	res, err := cmd.Slice()
	if err != nil {
		return err
	}
	switch {
	case len(res) == 1:
		c.own.restore = c.own.restore || res[0] == int64(-1)
		return nil
	case len(res) != 4:
		return errReply
	}
	c.own.epoch++
	t := &tenure{c: c, shard: &c.shards[s], at: s, epoch: c.own.epoch, fence: text(res[1]), since: time.Now(), hot: true, last: "0-0", out: map[string]int64{}}
	t.until.Store(int64(sent + c.b.cfg.Lease))
	c.own.held[s] = holding{stage: owning, t: t}
	if res[2] == int64(1) {
		c.notify(driver.Event{Kind: driver.Gone, Partition: t.shard.label, Err: driver.Errorf(c.op("receive"), driver.NotFound, "the stream or group was gone and is made anew")})
	}
	gone, _ := res[3].(int64)
	c.lostSome(t.shard, gone)
	if c.sub.Assigned != nil {
		c.sub.Assigned(driver.Assignment{Partition: t.shard.label, Epoch: t.epoch, Fence: parseFence(t.fence)})
	}
	c.mu.Lock()
	c.owned[s] = t
	c.mu.Unlock()
	poke(c.changed)
	return nil
}

// remake answers streams that are gone: what was deleted on purpose ends the subscription,
// what a flush or a failover took is made anew. done tells that claims may go on.
func (c *keyed) remake() (done bool, err error) {
	ctx, cancel := c.bound()
	defer cancel()
	n, err := c.b.ctl.Exists(ctx, c.keys.gone).Result()
	if err != nil {
		return false, err
	}
	if n > 0 {
		c.fail(driver.Errorf(c.op("receive"), driver.NotFound, "%s was deleted", c.sub.From))
		return false, nil
	}
	if _, err := c.b.createDestination(ctx, c.op("receive"), c.sub.From); err != nil {
		if k := driver.ClassOf(err); k == driver.Conflict || k == driver.NotFound {
			c.fail(err) // it is something else now
		}
		return false, err
	}
	c.own.restore = false
	return true, nil
}

// leave takes the member out of the list, or the whole group if it is its own.
func (c *keyed) leave() {
	ctx, cancel := c.bound()
	defer cancel()
	_, err := c.b.ctl.Pipelined(ctx, func(p goredis.Pipeliner) error {
		if !c.sub.Temporary {
			p.ZRem(ctx, c.keys.members(c.group), c.name)
			return nil
		}
		p.Unlink(ctx, c.keys.members(c.group))
		for i := range c.shards {
			p.XGroupDestroy(ctx, c.shards[i].log, c.group)
			p.Unlink(ctx, c.shards[i].keys(c.group)[1:]...)
		}
		return nil
	})
	if err != nil && offline(err) {
		c.heard(err)
	}
}

// createGroup makes the group in every shard, so that it begins now and not when a shard
// gets its first owner. A private group must be new.
func (c *keyed) createGroup(ctx context.Context, op string) error {
	starts := make([]string, len(c.shards))
	for i := range c.shards {
		start, err := startIn(op, c.sub.Start, &c.shards[i])
		if err != nil {
			return err
		}
		starts[i] = start
	}
	made := false
	err := c.b.bounded(ctx, func(ctx context.Context) (err error) {
		made, err = c.b.makeShardGroups(ctx, c.shards, c.group, starts)
		return err
	})
	switch {
	case err != nil && strings.Contains(err.Error(), "requires the key to exist"):
		return agree(op, c.sub.From, make([]any, 3)) // a stream went between two questions
	case err != nil:
		return classify(op, err)
	case c.sub.Temporary && !made:
		return driver.Errorf(op, driver.Conflict, "group %q exists, so it cannot be Temporary", c.group)
	}
	return nil
}

// makeShardGroups creates a group in every shard; made tells that one of them was new. An
// existing group keeps its position.
func (b *broker) makeShardGroups(ctx context.Context, shards []shard, group string, starts []string) (made bool, err error) {
	cmds, _ := b.ctl.Pipelined(ctx, func(p goredis.Pipeliner) error {
		for i := range shards {
			p.XGroupCreate(ctx, shards[i].log, group, starts[i])
		}
		return nil
	})
	for _, cmd := range cmds {
		switch err := cmd.Err(); {
		case err == nil:
			made = true
		case !isBusy(err):
			return made, err
		}
	}
	return made, nil
}
