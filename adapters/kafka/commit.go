package kafka

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// staleTries is how often a commit is sent again under the next epoch of the member.
const staleTries = 10

// commitAsMember is commit for groups of KIP-848, by a request of our own. The member's
// epoch rises with every change of the group, also where its partitions stay; before
// Kafka 4.3 (KIP-1251) a commit that leaves before it has heard of that is stale. The
// client would send it again under the new epoch whatever has become of the partition;
// here it goes through stamp each time.
func (c *consumer) commitAsMember(ctx context.Context, commits map[int32]*commit, done func(*commit, error)) error {
	for try := 0; ; try++ {
		req, err := c.stamped(commits)
		if err != nil {
			return err
		}
		resp, err := req.RequestWith(ctx, c.cl)
		if err == nil && isStale(resp) && try < staleTries && c.nextEpoch(ctx, c.cl, req) {
			continue
		}
		if err == nil && isOut(resp) {
			c.disowned(req.MemberID, commits)
			c.cl.ForceRebalance() // a heartbeat: the client has not heard of it yet
		}
		c.answer(commits, resp, err, done)
		return err
	}
}

// stamped makes the request. Member and epoch are read under the lock under which
// partitions are closed: the client tells the broker that one is free, and joins anew where
// it was put out, after onRevoked or onLost has closed it. So the epoch that goes with an
// open partition is none under which it could be another's.
func (c *consumer) stamped(commits map[int32]*commit) (*kmsg.OffsetCommitRequest, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	req := c.commitRequest(c.cl)
	t := &req.Topics[0]
	for id, cm := range commits {
		if c.byID[id] != cm.p {
			return nil, errStale
		}
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = id, cm.at.Offset, cm.at.Epoch, &cm.meta
		t.Partitions = append(t.Partitions, p)
	}
	return req, nil
}

// commitRequest is a commit of no partition yet, of the member that cl is now.
func (c *consumer) commitRequest(cl *kgo.Client) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.InstanceID = c.group, c.instanceID()
	req.MemberID, req.Generation = cl.GroupMetadata()
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.TopicID = c.topic, c.id
	req.Topics = append(req.Topics, t)
	return req
}

// nextEpoch waits until the client has heard of an epoch other than that of req, which the
// answer to a heartbeat brings; false = it does not in time.
func (c *consumer) nextEpoch(ctx context.Context, cl *kgo.Client, req *kmsg.OffsetCommitRequest) bool {
	if !c.d.conf.server() {
		return false
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for n := range 100 {
		if member, epoch := cl.GroupMetadata(); member != req.MemberID || epoch != req.Generation {
			return true
		}
		if n%20 == 0 {
			cl.ForceRebalance() // a heartbeat, at once, unless one is under way
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return false
}

// isStale reports whether a partition was refused for the epoch of the member.
func isStale(resp *kmsg.OffsetCommitResponse) bool { return refused(resp, kerr.StaleMemberEpoch) }

// isOut reports whether a partition was refused because the member is none any more, or a
// static one whose id another has taken.
func isOut(resp *kmsg.OffsetCommitResponse) bool {
	return refused(resp, kerr.UnknownMemberID) || refused(resp, kerr.FencedMemberEpoch) || refused(resp, kerr.FencedInstanceID)
}

// refused is false where there is no answer: the client has nothing to commit and sends none.
func refused(resp *kmsg.OffsetCommitResponse, as *kerr.Error) bool {
	if resp == nil {
		return false
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == as.Code {
				return true
			}
		}
	}
	return false
}
