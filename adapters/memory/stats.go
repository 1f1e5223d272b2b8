package memory

import (
	"context"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Stats implements driver.Admin. Of a queue or topic, Lag is what is ready or in flight;
// a topic without Group is the sum of its groups. Of a stream without Group, Ready is what
// is kept and Lag and InFlight are -1.
func (a admin) Stats(ctx context.Context, of driver.Resource) (driver.Stats, error) {
	d, g, err := a.lookup(ctx, "stats", of)
	if err != nil {
		return driver.Stats{}, err
	}
	groups := []*group{g}
	if g == nil {
		if d.shape == driver.Stream {
			return d.kept(), nil
		}
		groups = d.allGroups()
	}
	var sum driver.Stats
	for _, g := range groups {
		g.mu.Lock()
		now := d.broker.now()
		g.handOver(g.src.advance(now))
		var s driver.Stats
		if g.backlog != nil {
			s = g.backlog.stats(now)
		} else {
			s = g.src.(*cursor).stats(now)
		}
		g.mu.Unlock()
		sum = plus(sum, s)
	}
	return sum, nil
}

// plus adds two Stats, partition by partition.
func plus(a, b driver.Stats) driver.Stats {
	a.Ready += b.Ready
	a.InFlight += b.InFlight
	a.Delayed += b.Delayed
	a.Lag += b.Lag
	a.Oldest = max(a.Oldest, b.Oldest)
	for name, p := range b.Partitions {
		if a.Partitions == nil {
			a.Partitions = map[string]driver.Stats{}
		}
		a.Partitions[name] = plus(a.Partitions[name], p)
	}
	return a
}

// stats counts item by item only where there are partitions.
func (b *backlog) stats(now int64) driver.Stats {
	s := driver.Stats{
		Ready: int64(b.g.ready), InFlight: int64(b.out), Delayed: int64(b.delayed),
		Lag: int64(b.g.ready + b.out),
	}
	if b.g.shared {
		s.Oldest = oldest(b.parts[0], now)
		return s
	}
	delayedIn := make([]int64, len(b.parts))
	for _, it := range b.times {
		if it.state == delayed {
			delayedIn[it.m.part]++
		}
	}
	s.Partitions = map[string]driver.Stats{}
	for i := range b.parts {
		l := &b.parts[i][0]
		p := driver.Stats{Delayed: delayedIn[i], Oldest: oldest(b.parts[i], now)}
		p.Ready = int64(l.fresh.len() + len(l.back) - l.dead)
		if t := b.g.owner[i]; t != nil {
			p.InFlight = int64(t.out)
		}
		p.Lag = p.Ready + p.InFlight
		s.Partitions[b.g.d.names[i]] = p
		s.Oldest = max(s.Oldest, p.Oldest)
	}
	return s
}

// oldest is the age of the oldest ready message.
func oldest(lanes []lane, now int64) time.Duration {
	age := time.Duration(0)
	for i := range lanes {
		l := &lanes[i]
		if it := l.peek(); it != nil {
			age = max(age, time.Duration(now-it.m.at))
		}
	}
	return age
}

// stats of a group of a stream: Lag is what is not committed, InFlight what was read of it.
func (c *cursor) stats(now int64) driver.Stats {
	c.trim(now)
	d := c.g.d
	d.mu.RLock()
	defer d.mu.RUnlock()
	s := driver.Stats{Partitions: map[string]driver.Stats{}}
	for i, l := range d.logs {
		at := min(max(c.committed[i], l.first), l.next())
		p := driver.Stats{Lag: l.next() - at}
		if t := c.g.owner[i]; t != nil && t.state != pending && t.next > at {
			p.InFlight = t.next - at
		}
		p.Ready = p.Lag - p.InFlight
		if p.Lag > 0 {
			p.Oldest = time.Duration(now - l.ring.at(int(at-l.first)).at)
		}
		sum := plus(s, p)
		sum.Partitions[d.names[i]] = p
		s = sum
	}
	return s
}

// kept is what a stream holds.
func (d *destination) kept() driver.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.broker.now()
	s := driver.Stats{InFlight: -1, Lag: -1, Partitions: map[string]driver.Stats{}}
	for i, l := range d.logs {
		l.trim(now)
		p := driver.Stats{Ready: int64(l.ring.len()), InFlight: -1, Lag: -1}
		if p.Ready > 0 {
			p.Oldest = time.Duration(now - l.ring.at(0).at)
		}
		s.Ready += p.Ready
		s.Oldest = max(s.Oldest, p.Oldest)
		s.Partitions[d.names[i]] = p
	}
	return s
}
