package redis

import (
	"context"
	"errors"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

// tombstone is how long a destination that was deleted is remembered, so that consumers
// can tell it from one that a flush took away.
const tombstone = time.Minute

// makeGroup creates a group on the log and on its own retry stream; made tells that the
// first was new. An existing group keeps its position.
func (b *broker) makeGroup(ctx context.Context, k keys, group, start string) (made bool, err error) {
	log := b.ctl.XGroupCreate(ctx, k.log, group, start).Err()
	if log != nil && !isBusy(log) {
		return false, log // and no retry stream for a log that is not there
	}
	retry := b.ctl.XGroupCreateMkStream(ctx, k.retry(group), group, "0").Err()
	if retry != nil && !isBusy(retry) {
		return false, retry
	}
	return log == nil, nil
}

// silence is how long nothing is heard of a consumer that is dead: one that lives asks at
// least once in maxBlock, and extends within its lease.
func (b *broker) silence() time.Duration { return max(3*maxBlock, b.cfg.Lease) }

func isBusy(err error) bool { return strings.HasPrefix(err.Error(), "BUSYGROUP") }

// createGroup makes the consumer's group, which must be new if it is to be private.
func (c *consumer) createGroup(ctx context.Context, op string, private bool) error {
	start, err := startID(op, c.sub.Start)
	if err != nil {
		return err
	}
	made := false
	err = c.b.bounded(ctx, func(ctx context.Context) (err error) {
		if made, err = c.b.makeGroup(ctx, c.keys, c.group, start); err == nil && !made {
			// Without it the names of those who were killed would add up.
			_ = tidyScript.Run(ctx, c.b.ctl, []string{c.keys.log, c.retryKey}, c.group, c.b.silence().Milliseconds()).Err()
		}
		return err
	})
	switch {
	case err != nil && strings.Contains(err.Error(), "requires the key to exist"):
		return agree(op, c.sub.From, make([]any, 3)) // the log went between two questions
	case err != nil:
		return classify(op, err)
	case private && !made:
		return driver.Errorf(op, driver.Conflict, "group %q exists, so it cannot be Temporary", c.group)
	}
	return nil
}

// createDestination runs create.lua. A keyed destination is there when its meta key is, and
// its streams follow: whoever comes to half of one makes the rest.
func (b *broker) createDestination(ctx context.Context, op string, of driver.Destination) (made bool, err error) {
	k := b.cfg.keys(of)
	keys := []string{k.meta, k.gone}
	if of.Partitions == 0 {
		keys = append(keys, k.log)
	}
	res, err := createScript.Run(ctx, b.ctl, keys, of.Shape.String(), layout, of.Partitions).Slice()
	if err != nil {
		return false, err
	}
	if len(res) != 4 {
		return false, errReply
	}
	made = res[0] == int64(1)
	if err := agree(op, of, res[1:]); err != nil || of.Partitions == 0 {
		return made, err
	}
	shards := b.cfg.shards(of)
	calls := make([]call, len(shards))
	for i := range shards {
		calls[i] = call{script: streamScript, keys: []string{shards[i].log}}
	}
	cmds, err := b.runAll(ctx, calls)
	if err != nil {
		return made, err
	}
	for _, cmd := range cmds {
		n, err := cmd.Int64()
		if err != nil {
			return made, err
		}
		made = made || n == 1
	}
	return made, nil
}

var errReply = errors.New("the answer of a script cannot be read")

// restore answers a stream or group that is gone while it is subscribed: what was deleted
// on purpose ends the subscription, what a flush or a failover took is made anew, at the
// start the subscription asks for. What was out is lost, and so are its receipts.
func (c *consumer) restore(ctx context.Context, cause error) error {
	const op = "receive"
	deleted, anew := false, false
	err := c.b.bounded(ctx, func(ctx context.Context) error {
		n, err := c.b.ctl.Exists(ctx, c.keys.gone).Result()
		if deleted = n > 0; deleted || err != nil {
			return err
		}
		made, err := c.b.createDestination(ctx, op, c.sub.From)
		if err != nil {
			return err
		}
		start, err := startID(op, c.sub.Start)
		if err != nil {
			return err
		}
		if c.sub.Start.Kind == driver.Latest {
			start = "0-0" // nothing that is there now was there when "the next message" was asked for
		}
		group, err := c.b.makeGroup(ctx, c.keys, c.group, start)
		anew = made || group
		return err
	})
	switch {
	case err != nil:
		return classify(c.op(op), err)
	case deleted:
		return driver.Errorf(c.op(op), driver.NotFound, "%s was deleted", c.sub.From)
	case anew:
		c.renew(cause)
	} // else another member was first, or a failover ended the read and nothing is gone
	return nil
}

// renew ends every receipt and begins a new epoch, and says so.
func (c *consumer) renew(cause error) {
	c.held = nil
	c.cursor = [2]string{"0-0", "0-0"}
	if c.sub.Revoke != nil {
		c.sub.Revoke(ended, []string{""})
	}
	epoch := c.epoch.Add(1)
	c.notify(driver.Event{Kind: driver.Gone, Err: driver.Errorf(c.op("receive"), driver.NotFound, "the stream or group was gone and is made anew: %w", cause)})
	if c.sub.Assigned != nil {
		c.sub.Assigned(driver.Assignment{Epoch: epoch})
	}
}

// leave takes the consumer out of its group, or the whole group if it is its own.
func (c *consumer) leave(ctx context.Context) error {
	return c.b.bounded(ctx, func(ctx context.Context) error {
		if !c.sub.Temporary {
			return leaveScript.Run(ctx, c.b.ctl, []string{c.keys.log, c.retryKey}, c.group, c.name).Err()
		}
		_, err := c.b.ctl.Pipelined(ctx, func(p goredis.Pipeliner) error {
			p.XGroupDestroy(ctx, c.keys.log, c.group)
			p.Unlink(ctx, c.retryKey, c.keys.later(c.group))
			return nil
		})
		if err != nil && strings.Contains(err.Error(), "requires the key to exist") {
			return nil
		}
		return err
	})
}
