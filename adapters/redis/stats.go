package redis

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

// countMost bounds counting entry by entry where the server does not know a group's lag.
const countMost = 1000

// Stats implements driver.Admin. Of a topic without Group it is the sum of the groups; of a
// stream without Group, or a topic that has none, Ready is what is kept. Lag is what is
// ready or in flight.
func (a admin) Stats(ctx context.Context, of driver.Resource) (driver.Stats, error) {
	op := "stats " + of.Destination.String()
	if a.b.isClosed() {
		return driver.Stats{}, errClosed(op)
	}
	if err := validate(op, of.Destination, of.Group); err != nil {
		return driver.Stats{}, err
	}
	if err := a.b.exists(ctx, op, of.Destination); err != nil {
		return driver.Stats{}, err
	}
	result := make(chan driver.Stats, 1)
	err := a.b.bounded(ctx, func(ctx context.Context) error {
		s, err := a.stats(ctx, op, of)
		result <- s
		return err
	})
	if err != nil {
		return driver.Stats{}, classify(op, err)
	}
	return <-result, nil
}

func (a admin) stats(ctx context.Context, op string, of driver.Resource) (driver.Stats, error) {
	if of.Partitions > 0 {
		return a.statsKeyed(ctx, op, of)
	}
	k, group := a.b.cfg.keys(of.Destination), groupOf(of.Destination, of.Group)
	groups, err := a.b.ctl.XInfoGroups(ctx, k.log).Result()
	if err != nil {
		return driver.Stats{}, err
	}
	scheduled, err := a.b.ctl.ZCard(ctx, k.sched).Result()
	if err != nil {
		return driver.Stats{}, err
	}
	if group == "" && (of.Shape == driver.Stream || len(groups) == 0) {
		n, err := a.b.ctl.XLen(ctx, k.log).Result()
		return driver.Stats{Ready: n, InFlight: -1, Lag: -1, Delayed: scheduled, Oldest: -1}, err
	}
	sum := driver.Stats{Oldest: -1}
	found := false
	for _, g := range groups {
		if group != "" && g.Name != group {
			continue
		}
		found = true
		s, err := a.ofGroup(ctx, k, g)
		if err != nil {
			return sum, err
		}
		sum.Ready = plus(sum.Ready, s.Ready)
		sum.InFlight += s.InFlight
		sum.Delayed += s.Delayed
		sum.Oldest = max(sum.Oldest, s.Oldest)
	}
	if !found && of.Shape != driver.Queue {
		return sum, driver.Errorf(op, driver.NotFound, "there is no such group")
	}
	sum.Delayed += scheduled
	sum.Lag = plus(sum.Ready, sum.InFlight)
	return sum, nil
}

// plus adds two numbers of which -1 is unknown.
func plus(a, b int64) int64 {
	if a < 0 || b < 0 {
		return -1
	}
	return a + b
}

// ofGroup counts a group in the log and in its retry stream.
func (a admin) ofGroup(ctx context.Context, k keys, g goredis.XInfoGroup) (driver.Stats, error) {
	s := driver.Stats{Oldest: -1}
	retries, err := a.b.ctl.XInfoGroups(ctx, k.retry(g.Name)).Result()
	if err != nil && !isNoKey(err) {
		return s, err
	}
	for _, r := range retries {
		if r.Name == g.Name {
			if err := a.count(ctx, &s, k.retry(g.Name), r); err != nil {
				return s, err
			}
		}
	}
	if err := a.count(ctx, &s, k.log, g); err != nil {
		return s, err
	}
	s.Delayed, err = a.b.ctl.ZCard(ctx, k.later(g.Name)).Result()
	return s, err
}

// count adds what a group has of one stream. What was given back is pending with nobody
// and counts as ready.
func (a admin) count(ctx context.Context, s *driver.Stats, stream string, g goredis.XInfoGroup) error {
	var free int64
	if g.Pending > 0 {
		p, err := a.b.ctl.XPending(ctx, stream, g.Name).Result()
		if err != nil {
			return err
		}
		free = p.Consumers[freeConsumer]
	}
	next, err := a.b.ctl.XRangeN(ctx, stream, "("+g.LastDeliveredID, "+", 1).Result()
	if err != nil {
		return err
	}
	lag := g.Lag
	switch {
	case len(next) == 0:
		lag = 0
	case lag <= 0: // the server does not know: entries were deleted, or the group was moved
		some, err := a.b.ctl.XRangeN(ctx, stream, "("+g.LastDeliveredID, "+", countMost).Result()
		if err != nil {
			return err
		}
		if lag = int64(len(some)); lag == countMost {
			lag = -1
		}
	}
	if len(next) > 0 {
		if at := timeOf(next[0].ID); !at.IsZero() {
			s.Oldest = max(s.Oldest, time.Since(at))
		}
	} else {
		s.Oldest = max(s.Oldest, 0)
	}
	s.Ready = plus(plus(s.Ready, lag), free)
	s.InFlight += g.Pending - free
	return nil
}

func isNoKey(err error) bool { return err != nil && err.Error() == "ERR no such key" }
