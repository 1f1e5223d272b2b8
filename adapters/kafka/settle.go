package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/varal-go/varal/core/driver"
)

// commit is what becomes of one partition in one call of Settle.
type commit struct {
	p       *part
	at      kgo.EpochOffset
	meta    string
	entries []int // of the batch
}

var errStale = errors.New("the partition is no longer this consumer's: it went to another member, or the group took it back")

// Settle commits, of each partition, the last Ack of the batch. A commit is refused
// for an epoch that has ended, and once more when the request is ready to leave.
func (c *consumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	const op = "settle"
	select {
	case <-c.ended:
		return driver.Errorf(op, driver.Closed, "%w", errClosed)
	default:
	}
	errs := make([]error, len(batch))
	commits := c.commits(op, batch, errs)
	if c.group == "" {
		return driver.Batch(errs)
	}
	for len(commits) > 0 {
		send := c.commit
		if c.d.conf.server() {
			send = c.commitAsMember
		}
		err := send(ctx, commits, func(cm *commit, err error) {
			for _, i := range cm.entries {
				errs[i] = err
			}
		})
		if !errors.Is(err, errStale) {
			break
		}
		// A partition was lost since commits looked: the others go again.
		commits = c.sift(op, commits, errs)
	}
	return driver.Batch(errs)
}

// commits sorts the batch by partition; what cannot be committed gets its error.
func (c *consumer) commits(op string, batch []driver.Settlement, errs []error) map[int32]*commit {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[int32]*commit)
	for i := range batch {
		s := &batch[i]
		p := c.parts[s.Receipt.Partition]
		switch {
		case p == nil || p.epoch != s.Receipt.Epoch:
			errs[i] = driver.Errorf(op, driver.LeaseLost, "%w", errStale)
		case s.Disposition == driver.Extend, s.Disposition == driver.Return:
		case s.Disposition == driver.Nack:
			errs[i] = driver.Errorf(op, driver.Unsupported, "nack: a Kafka partition cannot hand out one record again; do not commit it, or publish a copy")
		case s.Disposition != driver.Ack && s.Disposition != driver.Reject && s.Disposition != driver.Hold:
			errs[i] = driver.Errorf(op, driver.Permanent, "Settlement.Disposition is not set")
		case len(s.State) > stateBytes:
			errs[i] = driver.Errorf(op, driver.TooLarge, "Settlement.State: %d bytes, commit metadata holds %d", len(s.State), stateBytes)
		default:
			cm := out[p.id]
			if cm == nil {
				cm = &commit{p: p}
				out[p.id] = cm
			}
			cm.at = kgo.EpochOffset{Epoch: int32(s.Receipt.Aux), Offset: s.Receipt.Seq + 1}
			if s.Disposition == driver.Hold {
				cm.at.Offset--
			}
			cm.meta = armour(s.State)
			cm.entries = append(cm.entries, i)
		}
	}
	return out
}

// sift drops commits whose partition has gone.
func (c *consumer) sift(op string, commits map[int32]*commit, errs []error) map[int32]*commit {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, cm := range commits {
		if c.byID[id] == cm.p {
			continue
		}
		for _, i := range cm.entries {
			errs[i] = driver.Errorf(op, driver.LeaseLost, "%w", errStale)
		}
		delete(commits, id)
	}
	return commits
}

// commit sends one request and reports each partition to done. errStale: nothing was
// sent and nothing reported.
func (c *consumer) commit(ctx context.Context, commits map[int32]*commit, done func(*commit, error)) error {
	offsets := make(map[int32]kgo.EpochOffset, len(commits))
	for id, cm := range commits {
		offsets[id] = cm.at
	}
	var member string
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		member = req.MemberID
		return c.stamp(req, commits)
	})
	var resp *kmsg.OffsetCommitResponse
	var failed error
	c.cl.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{c.topic: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, r *kmsg.OffsetCommitResponse, err error) {
			resp, failed = r, err
		})
	if errors.Is(failed, errStale) {
		return errStale
	}
	if failed == nil && isOut(resp) {
		c.disowned(member, commits)
	}
	c.answer(commits, resp, failed, done)
	return failed
}

// disowned lets go of everything when a commit was refused because the broker knows the
// member no more. Its client hears that with a heartbeat, but not while it is in one of our
// callbacks: there we would go on for as long with what is somebody else's by now, for the
// heartbeats are answered.
//
// The id and the partitions are looked at under the lock under which onLost closes them: the
// client joins anew after that, and what it has got since is no loss.
func (c *consumer) disowned(member string, commits map[int32]*commit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, _ := c.cl.GroupMetadata(); now != member {
		return
	}
	for id, cm := range commits {
		if c.byID[id] == cm.p {
			c.pulse.unknown()
			return
		}
	}
}

// answer reports what became of each commit of a request.
func (c *consumer) answer(commits map[int32]*commit, resp *kmsg.OffsetCommitResponse, failed error, done func(*commit, error)) {
	const op = "commit"
	answered := make(map[int32]bool, len(commits))
	if failed == nil && resp != nil {
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				cm := commits[p.Partition]
				if cm == nil {
					continue
				}
				answered[p.Partition] = true
				err := kerr.ErrorForCode(p.ErrorCode)
				switch {
				case err != nil && c.d.conf.server() && errors.Is(err, kerr.StaleMemberEpoch):
					// Not lost: the partition is open, and its member's next epoch is not here yet.
					done(cm, &driver.Error{Op: op, Class: driver.Transient, Err: err})
				case err != nil:
					done(cm, classify(op, err, driver.Transient))
				}
			}
		}
	}
	for id, cm := range commits {
		switch {
		case failed != nil:
			done(cm, classify(op, c.d.explain(failed), driver.Ambiguous))
		case !answered[id]:
			done(cm, driver.Errorf(op, driver.Ambiguous, "the broker did not answer for %s", cm.p.name))
		}
	}
}

// stamp writes State into a commit that is about to leave, and checks the epochs a
// last time. The interleaving it stops: Settle finds the epoch open; the member is
// thrown out and joins again under a new generation; the commit, built after that,
// carries the new generation and the broker takes it for a partition that another
// member reads by now. The client calls onLost, which closes the epoch, before it
// joins again: a request with the new generation always finds the epoch closed here.
func (c *consumer) stamp(req *kmsg.OffsetCommitRequest, commits map[int32]*commit) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			cm := commits[p.Partition]
			if cm == nil || c.byID[p.Partition] != cm.p {
				return errStale
			}
			p.Metadata = &cm.meta
		}
	}
	return nil
}
