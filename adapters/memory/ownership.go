package memory

import (
	"cmp"
	"context"
	"slices"
)

type tenureState uint8

const (
	pending  tenureState = iota // given, Assigned not called yet
	opening                     // Assigned is running
	open                        // messages flow
	revoking                    // nothing is handed out; core settles what it has
	ended
)

// tenure is one period in which one consumer owns one partition ("" in a shared group).
type tenure struct {
	c            *consumer
	part         int
	name         string
	epoch, fence uint64
	state        tenureState
	cancel       context.CancelFunc // of the Revoke in progress: ownership ended early

	// backlog
	out    int
	listed bool
	usual  itemList // out under the consumer's own lease, by its end
	odd    itemList // out under leases of another length
	// cursor
	next    int64 // offset to hand out next
	stopped bool  // its position is gone and Reset says to stop
}

// newTenure makes c the owner of part. Its Receive opens it: were Assigned called from
// here, on behalf of another consumer, it could overtake a Revoke or follow a Close.
func (g *group) newTenure(c *consumer, part int) {
	t := &tenure{c: c, part: part, epoch: g.d.broker.epochs.Add(1)}
	if !g.shared {
		g.fences[part]++
		t.name, t.fence = g.d.names[part], g.fences[part]
		g.owner[part] = t
	}
	c.tenures = append(c.tenures, t)
	c.poke() // c may be about to wait
}

// end ends a tenure; giveBack returns what it has out.
func (g *group) end(t *tenure, giveBack bool) {
	if t.state == ended {
		return
	}
	if giveBack {
		g.src.release(t)
	}
	t.state = ended
	t.c.out -= t.out
	if i := slices.Index(t.c.tenures, t); i >= 0 {
		t.c.tenures = slices.Delete(t.c.tenures, i, i+1)
	}
	if !g.shared && g.owner[t.part] == t {
		g.owner[t.part] = nil
	}
	t.c.unblock()
}

// lose takes a partition away at once: its owner gets Revoke with an ended context.
func (g *group) lose(t *tenure) { g.strip(t, true) }

func (g *group) strip(t *tenure, giveBack bool) {
	was := t.state
	if was == revoking {
		t.cancel()
	}
	g.end(t, giveBack)
	// A tenure being opened is revoked by its opener, after Assigned has returned: the
	// other order would leave core with a partition that nobody takes away again.
	if was == open {
		g.revoke(t.c, []*tenure{t})
	}
}

// evict takes everything from c, which joins again with its next Receive.
func (g *group) evict(c *consumer, giveBack bool) {
	if c.state != running {
		return
	}
	for _, t := range slices.Clone(c.tenures) {
		g.strip(t, giveBack)
	}
	c.joined = false
	c.poke()
}

// revoke runs Revoke for tenures of c that are revoking (a hand-over: they end when it
// returns) or ended (lost), in a goroutine that Close joins. It starts with the group's
// lock held.
func (g *group) revoke(c *consumer, ts []*tenure) {
	ctx, cancel := context.WithCancel(context.Background())
	names := make([]string, len(ts))
	for i, t := range ts {
		t.cancel, names[i] = cancel, t.name
		c.letting[t.part]++
		if t.state == ended {
			cancel()
		}
	}
	done := make(chan struct{})
	c.revokes = append(c.revokes, done)
	go func() {
		defer close(done)
		defer cancel()
		if c.sub.Revoke != nil {
			c.sub.Revoke(ctx, names)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, t := range ts {
			c.letting[t.part]--
			g.end(t, true)
		}
		c.revokes = slices.DeleteFunc(c.revokes, func(d chan struct{}) bool { return d == done })
		g.rebalance()
		c.poke() // a tenure of the same partition may have waited for this
		g.handOver(g.src.advance(g.d.broker.now()))
	}()
}

// rebalance spreads the partitions: K/n for each member, and one more for the K%n that
// hold most already, so that a balanced group stays as it is.
func (g *group) rebalance() {
	if g.shared {
		return
	}
	var live []*consumer
	for _, c := range g.members {
		if c.joined && c.state == running {
			live = append(live, c)
		}
	}
	if len(live) == 0 {
		return
	}
	slices.SortStableFunc(live, func(a, b *consumer) int { return cmp.Compare(b.held(), a.held()) })
	base, extra := len(g.owner)/len(live), len(g.owner)%len(live)
	quota := func(i int) int {
		if i < extra {
			return base + 1
		}
		return base
	}
	for i, c := range live {
		if over := c.held() - quota(i); over > 0 {
			g.shed(c, over)
		}
	}
	i := len(live) - 1
	for part, t := range g.owner {
		if t != nil {
			continue
		}
		for i >= 0 && live[i].held() >= quota(i) {
			i--
		}
		if i < 0 {
			return
		}
		g.newTenure(live[i], part)
	}
}

// shed makes c give up n partitions, the youngest first. One that is being opened is
// left for the rebalance that follows its opening.
func (g *group) shed(c *consumer, n int) {
	var leaving []*tenure
	for _, t := range slices.Backward(slices.Clone(c.tenures)) {
		if n == 0 {
			break
		}
		switch t.state {
		case pending:
			g.end(t, false)
			n--
		case open:
			t.state = revoking
			leaving = append(leaving, t)
			n--
		}
	}
	if len(leaving) > 0 {
		g.revoke(c, leaving)
	}
}

// openPending calls Assigned for what was given to c. The lock is held when it is called
// and when it returns, not in between.
func (c *consumer) openPending() {
	g := c.g
	var ts []*tenure
	for _, t := range c.tenures {
		if t.state == pending && c.letting[t.part] == 0 {
			t.state = opening
			ts = append(ts, t)
		}
	}
	if len(ts) == 0 {
		return
	}
	for _, t := range ts {
		a := g.src.describe(t)
		g.mu.Unlock()
		if c.sub.Assigned != nil {
			c.sub.Assigned(a)
		}
		g.mu.Lock()
	}
	for _, t := range ts {
		if t.state == ended {
			g.revoke(c, []*tenure{t})
			continue
		}
		t.state = open
	}
	g.rebalance()
}
