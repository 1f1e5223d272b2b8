package kafka

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/varal-go/varal/core/driver"
)

// assignment is one partition that has become ours.
type assignment struct {
	id       int32
	at, high int64
	state    []byte
}

// assign opens partitions and tells core, before their first record is fetched.
func (c *consumer) assign(fence uint64, owned []assignment) {
	c.mu.Lock()
	told := c.admit(fence, owned)
	c.mu.Unlock()
	c.tell(told)
}

// admit opens partitions. c.mu is held.
func (c *consumer) admit(fence uint64, owned []assignment) []driver.Assignment {
	told := make([]driver.Assignment, 0, len(owned))
	for _, a := range owned {
		c.epoch++
		p := &part{id: a.id, name: partitionName(c.topic, a.id), epoch: c.epoch}
		_, p.paused = c.paused[p.name]
		c.parts[p.name], c.byID[p.id] = p, p
		c.ring = append(c.ring, p)
		told = append(told, driver.Assignment{
			Partition: p.name,
			Epoch:     p.epoch,
			Fence:     fence,
			Committed: driver.Position{Kind: driver.At, Partition: p.name, Offset: a.at},
			High:      driver.Position{Kind: driver.At, Partition: p.name, Offset: a.high},
			State:     a.state,
		})
	}
	c.opening = true
	return told
}

// tell is the second half of assign. What sever would have taken away meanwhile it
// takes away after: a Revoke before its Assigned would leave core with a partition that
// nobody takes away again.
func (c *consumer) tell(told []driver.Assignment) {
	if c.sub.Assigned != nil {
		for _, a := range told {
			c.sub.Assigned(a)
		}
	}
	c.mu.Lock()
	c.opening = false
	c.mu.Unlock()
	c.pulse.again()
}

// onFetched is called by the client between an assignment and its first fetch. It
// answers with an error where the broker did: the client then joins again.
func (c *consumer) onFetched(ctx context.Context, cl *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	c.calls.Lock()
	defer c.calls.Unlock()
	if err := c.downgraded(); err != nil {
		return err
	}
	c.adjust = nil
	if len(resp.Groups) == 0 {
		return nil
	}
	owned, fresh, ids := c.committed(resp.Groups[0].Topics)
	if len(ids) == 0 {
		return nil
	}
	owned, starts, err := c.locate(ctx, cl, owned, fresh, ids)
	if err != nil {
		return err
	}
	// The offsets of a partition that is still open are fetched again only when a
	// session broke off in between; the client will read it from the committed
	// offset once more, so receipts given out for it are void.
	c.lose(ctx, ids)
	c.adjust = starts
	c.unhalt(cl, ids)
	c.assign(fenceOf(cl), owned)
	return nil
}

// fenceOf is the generation of the group, or where the broker assigns the epoch of the
// member. That grows with each owner too: the broker gives a partition away under a new epoch
// of the group, to a member that has reached it, and the owner before it reaches it only
// when it has let go.
func fenceOf(cl *kgo.Client) uint64 {
	_, generation := cl.GroupMetadata()
	return uint64(max(generation, 0))
}

// locate completes owned: by where fresh partitions start, which it returns too, and by
// the ends of all.
func (c *consumer) locate(ctx context.Context, cl *kgo.Client, owned []assignment, fresh, ids []int32) ([]assignment, map[int32]int64, error) {
	high, err := c.d.resolve(ctx, c.topic, driver.Position{Kind: driver.Latest}, driver.Latest, ids)
	if err != nil {
		return nil, nil, err
	}
	starts, err := c.begin(ctx, cl, fresh)
	if err != nil {
		return nil, nil, err
	}
	for id, at := range starts {
		owned = append(owned, assignment{id: id, at: at})
	}
	for i := range owned {
		owned[i].high = high[owned[i].id]
	}
	return owned, starts, nil
}

// unhalt undoes the pause of a partition that was out of range in an earlier life.
func (c *consumer) unhalt(cl *kgo.Client, ids []int32) {
	c.mu.Lock()
	var on []int32
	for _, id := range ids {
		if _, ok := c.paused[partitionName(c.topic, id)]; !ok {
			on = append(on, id)
		}
	}
	c.mu.Unlock()
	if len(on) > 0 {
		cl.ResumeFetchPartitions(map[string][]int32{c.topic: on})
	}
}

// committed splits the answer into partitions with a position and fresh ones.
func (c *consumer) committed(topics []kmsg.OffsetFetchResponseGroupTopic) (owned []assignment, fresh, ids []int32) {
	for _, t := range topics {
		if t.Topic != c.topic && t.TopicID != c.id {
			continue
		}
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				continue // the client reports it with the next poll
			}
			ids = append(ids, p.Partition)
			if p.Offset < 0 {
				fresh = append(fresh, p.Partition)
				continue
			}
			a := assignment{id: p.Partition, at: p.Offset}
			if p.Metadata != nil {
				a.state, _ = unarmour(*p.Metadata)
			}
			owned = append(owned, a)
		}
	}
	return owned, fresh, ids
}

// begin finds where a group without position starts, and commits a place that would
// not be found again. Without that: the group starts at Latest, gets ten messages,
// dies before its first commit, starts at Latest, and the ten are lost.
func (c *consumer) begin(ctx context.Context, cl *kgo.Client, fresh []int32) (map[int32]int64, error) {
	if len(fresh) == 0 {
		return nil, nil
	}
	start := c.sub.Start
	if start.Kind == driver.Default {
		start.Kind = driver.Earliest
	}
	at, err := c.d.resolve(ctx, c.topic, start, driver.Earliest, fresh)
	if err != nil || start.Kind == driver.Earliest {
		return at, err
	}
	req := c.commitRequest(cl)
	t := &req.Topics[0]
	for id, offset := range at {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = id, offset, -1, new(string)
		t.Partitions = append(t.Partitions, p)
	}
	resp, err := req.RequestWith(ctx, cl)
	for try := 0; err == nil && isStale(resp) && try < staleTries && c.nextEpoch(ctx, cl, req); try++ {
		req.MemberID, req.Generation = cl.GroupMetadata() // nothing is open yet that could have gone meanwhile
		resp, err = req.RequestWith(ctx, cl)
	}
	if err != nil {
		return nil, err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, err
			}
		}
	}
	return at, nil
}

// onAdjust is called by the client right after onFetched: what begin found is where
// fetching starts, so that what core was told and what it gets agree.
func (c *consumer) onAdjust(_ context.Context, m map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	for id, at := range c.adjust {
		if _, ok := m[c.topic][id]; ok {
			m[c.topic][id] = kgo.NewOffset().At(at)
		}
	}
	return m, nil
}

// onRevoked is called by the client when partitions go. Where the broker assigns and Close
// has begun it is all of them: a client that leaves names only what its last assignment
// holds, and does not come to name what that has just taken away.
func (c *consumer) onRevoked(ctx context.Context, _ *kgo.Client, m map[string][]int32) {
	c.calls.Lock()
	defer c.calls.Unlock()
	ids := m[c.topic]
	select {
	case <-c.stop:
		if c.d.conf.server() {
			ids = c.held()
		}
	default:
	}
	c.revoke(ctx, ids)
}

// onLost is called by the client when it is no member any more.
func (c *consumer) onLost(ctx context.Context, _ *kgo.Client, m map[string][]int32) {
	c.calls.Lock()
	defer c.calls.Unlock()
	ids := m[c.topic]
	if c.d.conf.server() {
		ids = c.held()
	}
	c.lose(ctx, ids)
	c.pulse.rest() // not before: until they are closed nothing may be handed out
}

// revoke gives partitions back in order: nothing more of them is returned, core lets
// go and settles, then their epoch ends. The client sends heartbeats meanwhile, but not
// while it leaves: a Revoke of Close that lasts longer than the session is a loss, which
// pulse finds.
func (c *consumer) revoke(ctx context.Context, ids []int32) {
	ctx, cancel := context.WithDeadline(ctx, c.wall())
	defer cancel()
	switch {
	case c.d.conf.eager():
		c.pulse.hold(true)
		defer c.pulse.hold(false)
	case c.d.conf.server() && len(ids) > 0:
		c.pulse.owe(c.pulse.since().Add(c.d.conf.RebalanceTimeout))
	}
	c.lock()
	c.forget(ids)
	names := c.close(ids, false)
	if c.hurry = cancel; c.late {
		cancel()
	}
	c.mu.Unlock()
	if len(names) > 0 && c.sub.Revoke != nil {
		c.sub.Revoke(ctx, names)
	}
	c.mu.Lock()
	c.hurry = nil
	c.close(ids, true)
	if c.d.conf.server() && len(c.ring) == 0 {
		c.doubt = time.Now().Add(doubtFor)
	}
	c.mu.Unlock()
}

// lose ends partitions that are not ours any more.
func (c *consumer) lose(ctx context.Context, ids []int32) {
	c.lock()
	c.forget(ids)
	names := c.close(ids, true)
	c.mu.Unlock()
	c.revokeLost(ctx, names)
}

func (c *consumer) revokeLost(ctx context.Context, names []string) {
	if len(names) == 0 || c.sub.Revoke == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	c.sub.Revoke(ctx, names)
}

// close drops what lies in the queues of partitions, and with forever their epochs.
// It returns the names of those that were open. c.mu is held.
func (c *consumer) close(ids []int32, forever bool) []string {
	var names []string
	for _, id := range ids {
		p := c.byID[id]
		if p == nil {
			continue
		}
		names = append(names, p.name)
		c.drop(p)
		p.leave = true
		if forever {
			delete(c.byID, id)
			delete(c.parts, p.name)
			for i, other := range c.ring {
				if other == p {
					c.ring = append(c.ring[:i:i], c.ring[i+1:]...)
					break
				}
			}
		}
	}
	return names
}

// drop empties the queue of p. c.mu is held.
func (c *consumer) drop(p *part) {
	if !p.paused {
		c.records -= p.len()
		c.bytes -= p.bytes
	}
	p.queue, p.head, p.bytes = nil, 0, 0
}

// held returns open, and what has been let go of that the client still has.
func (c *consumer) held() []int32 {
	ids := c.open()
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(ids, c.severed...)
}

// open returns the ids of all partitions that are ours.
func (c *consumer) open() []int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]int32, 0, len(c.ring))
	for _, p := range c.ring {
		ids = append(ids, p.id)
	}
	return ids
}
