package kafka

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/core/driver"
)

// lookEvery is how often a reader without group compares what it reads with what the
// client knows of the topic. It costs no request: the client asks by itself.
const lookEvery = 250 * time.Millisecond

// grow opens partitions that the topic has got since Subscribe. Only a reader without
// group does this, which names its partitions to the client; a group hands them out.
// All that such a partition holds came after Subscribe, so whatever Subscription.Start
// says it is read from its beginning. Called by Receive alone.
func (c *consumer) grow(ctx context.Context) {
	ids := c.added()
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !c.abortable(cancel) {
		return
	}
	at, err := c.d.resolve(ctx, c.topic, driver.Position{Kind: driver.Earliest}, driver.Earliest, ids)
	if err != nil {
		return // not all brokers know them yet, or none can be reached: the next look asks again
	}
	high, err := c.d.resolve(ctx, c.topic, driver.Position{Kind: driver.Latest}, driver.Latest, ids)
	if err != nil {
		return
	}
	c.extend(ids, at, high)
}

// added returns the partitions that the client knows of and we do not read.
func (c *consumer) added() (ids []int32) {
	now := time.Now()
	if c.group != "" || now.Before(c.look) {
		return nil
	}
	c.look = now.Add(lookEvery)
	for id := c.count; ; id++ {
		if leader, _, err := c.cl.PartitionLeader(c.topic, id); err != nil || leader < 0 {
			return ids
		}
		ids = append(ids, id)
	}
}

// abortable lets Close end a grow that waits for the broker; false = it is closed. Close
// shuts c.stop before it takes the lock: one of the two sees the other.
func (c *consumer) abortable(cancel context.CancelFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.stop:
		return false
	default:
	}
	c.abort = cancel
	return true
}

// extend tells core first and the client after. Close waits for it: a Revoke before its
// Assigned would leave core with a partition that nobody takes away again.
func (c *consumer) extend(ids []int32, at, high map[int32]int64) {
	c.growing.Lock()
	defer c.growing.Unlock()
	select {
	case <-c.stop:
		return
	default:
	}
	offsets := make(map[int32]kgo.Offset, len(ids))
	owned := make([]assignment, 0, len(ids))
	for _, id := range ids {
		offsets[id] = kgo.NewOffset().At(at[id])
		owned = append(owned, assignment{id: id, at: at[id], high: high[id]})
	}
	c.assign(0, owned)
	c.cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{c.topic: offsets})
	c.count += int32(len(ids))
}

// stopGrowing ends a grow under way, after c.stop is closed: none opens anything later.
func (c *consumer) stopGrowing() {
	c.mu.Lock()
	abort := c.abort
	c.mu.Unlock()
	if abort != nil {
		abort()
	}
	c.growing.Lock()   // a look under way ends first
	c.growing.Unlock() //nolint:gocritic,staticcheck // waited for, nothing to guard
}
