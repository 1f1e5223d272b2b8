package redis

import (
	"context"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

// makeAnyGroup creates the group of r, in every shard of a keyed destination.
func (b *broker) makeAnyGroup(ctx context.Context, op string, r driver.Resource, group string) (made bool, err error) {
	if r.Partitions == 0 {
		start, err := startID(op, r.Start)
		if err != nil {
			return false, err
		}
		return b.makeGroup(ctx, b.cfg.keys(r.Destination), group, start)
	}
	shards := b.cfg.shards(r.Destination)
	starts := make([]string, len(shards))
	for i := range shards {
		if starts[i], err = startIn(op, r.Start, &shards[i]); err != nil {
			return false, err
		}
	}
	return b.makeShardGroups(ctx, shards, group, starts)
}

// seekKeyed moves a group in every shard, or in the one that the position names. It is not
// one step for all: if it fails half-way it must be done again.
func (a admin) seekKeyed(ctx context.Context, op string, of driver.Resource, to driver.Position) error {
	var found int64 // members, or -1: no group
	err := a.b.bounded(ctx, func(ctx context.Context) error {
		members, err := beatScript.Run(ctx, a.b.ctl, []string{a.b.cfg.keys(of.Destination).members(of.Group)}, "", 0).StringSlice()
		if found = int64(len(members)); err != nil || found > 0 {
			return err
		}
		shards := a.b.cfg.shards(of.Destination)
		var calls []call
		for i := range shards {
			if to.Partition != "" && to.Partition != shards[i].label {
				continue
			}
			id, err := startID(op, to)
			if err != nil {
				return err
			}
			calls = append(calls, call{script: shardSeekScript, keys: shards[i].keys(of.Group), args: []any{of.Group, "", "", id}})
		}
		cmds, err := a.b.runAll(ctx, calls)
		for i := 0; i < len(cmds) && err == nil && found == 0; i++ {
			var res int64
			switch res, err = cmds[i].Int64(); {
			case err == nil && res < 0:
				found = -1
			case err == nil && res == 0:
				found = 1
			}
		}
		return err
	})
	if err != nil { // what is left of the call may still write to found
		return classify(op, err)
	}
	return sought(op, found)
}

// statsKeyed sums up the shards and lists them.
func (a admin) statsKeyed(ctx context.Context, op string, of driver.Resource) (driver.Stats, error) {
	sum := driver.Stats{Oldest: -1, Partitions: map[string]driver.Stats{}}
	shards := a.b.cfg.shards(of.Destination)
	out, err := a.inFlight(ctx, shards, groupOf(of.Destination, of.Group))
	if err != nil {
		return sum, err
	}
	for i, s := range shards {
		one, err := a.ofShard(ctx, op, of, &s)
		if err != nil {
			return sum, err
		}
		if out != nil && one.InFlight >= 0 {
			one.InFlight = out[i]
			one.Lag = plus(one.Ready, one.InFlight)
		}
		sum.Partitions[s.label] = one
		sum.Ready = plus(sum.Ready, one.Ready)
		sum.InFlight = plus(sum.InFlight, one.InFlight)
		sum.Lag = plus(sum.Lag, one.Lag)
		sum.Oldest = max(sum.Oldest, one.Oldest)
	}
	return sum, nil
}

// inFlight counts what is out of all shards at one moment. One shard after the other, it
// would count what one has given back and the next has handed out since, and the sum would
// pass a limit that is kept; in a Cluster it still may. nil = no group is meant.
func (a admin) inFlight(ctx context.Context, shards []shard, group string) ([]int64, error) {
	if group == "" {
		return nil, nil
	}
	together := a.b.ctl.TxPipelined
	if a.b.cfg.Cluster { // a transaction is within one slot
		together = a.b.ctl.Pipelined
	}
	cmds, err := together(ctx, func(p goredis.Pipeliner) error {
		for i := range shards {
			p.XPending(ctx, shards[i].log, group)
		}
		return nil
	})
	if err != nil && offline(err) {
		return nil, err
	}
	out := make([]int64, len(shards))
	for i, cmd := range cmds { // a group that is not there has nothing out
		if p, ok := cmd.(*goredis.XPendingCmd); ok && p.Err() == nil {
			out[i] = p.Val().Count - p.Val().Consumers[freeConsumer]
		}
	}
	return out, nil
}

func (a admin) ofShard(ctx context.Context, op string, of driver.Resource, s *shard) (driver.Stats, error) {
	group := groupOf(of.Destination, of.Group)
	groups, err := a.b.ctl.XInfoGroups(ctx, s.log).Result()
	if err != nil {
		return driver.Stats{}, err
	}
	if group == "" && (of.Shape == driver.Stream || len(groups) == 0) {
		n, err := a.b.ctl.XLen(ctx, s.log).Result()
		return driver.Stats{Ready: n, InFlight: -1, Lag: -1, Oldest: -1}, err
	}
	sum := driver.Stats{Oldest: -1}
	found := false
	for _, g := range groups {
		if group == "" || g.Name == group {
			found = true
			if err := a.count(ctx, &sum, s.log, g); err != nil {
				return sum, err
			}
		}
	}
	if !found && of.Shape == driver.Queue { // nobody has consumed yet
		err := a.count(ctx, &sum, s.log, goredis.XInfoGroup{LastDeliveredID: "0-0"})
		sum.Lag = sum.Ready
		return sum, err
	}
	if !found {
		return sum, driver.Errorf(op, driver.NotFound, "there is no such group")
	}
	sum.Lag = plus(sum.Ready, sum.InFlight)
	return sum, nil
}
