package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/varal-go/varal/core/driver"
)

// The protocol of KIP-848, in which the broker assigns, differs in four ways that the
// client does not take off us. The session timeout is the broker's and in no answer to a
// member: prepare asks for it. A client whose heartbeats are answered again after a silence
// begins no new session: regain opens what was let go of. It repeats a commit that was stale
// under its next epoch, past stamp: commitAsMember sends our own. And where the broker does
// not serve the protocol it goes on with the classic one and does not say so: prepare asks,
// and fallback watches.

// Settings of groups, and of brokers for all groups.
const (
	groupSession    = "consumer.session.timeout.ms"
	groupHeartbeat  = "consumer.heartbeat.interval.ms"
	brokerPrefix    = "group."
	serverHeartbeat = 1 // the version that Kafka 4.0 has, of kmsg.ConsumerGroupHeartbeat
)

// prepare finds out whether c can be a member of a group of KIP-848, and of what session.
func (c *consumer) prepare(ctx context.Context) error {
	if err := c.d.served(ctx, c.group); err != nil {
		return err
	}
	session, err := c.d.session(ctx, c.group)
	if err != nil {
		return err
	}
	if c.d.conf.RebalanceTimeout <= session {
		return driver.Errorf(c.op, driver.Permanent, "%w", errShortRebalance(c.d.conf.RebalanceTimeout, session))
	}
	c.pulse.limit = session
	return nil
}

func errShortRebalance(have, session time.Duration) error {
	return fmt.Errorf("rebalance_timeout: with assignor=server it must be longer than the session timeout, %v is not longer than %v: partitions could go to others before this consumer can let go of them", have, session)
}

// served asks whether the brokers serve the protocol. One may know it and have it turned
// off (group.version, group.coordinator.rebalance.protocols), which only a request tells:
// that of a member that nobody is, to leave, changes nothing. Where no coordinator answers in
// time, as after a restart, it stays untold: a client joins when there is one, and fallback
// sees what it does.
func (d *kafka) served(ctx context.Context, group string) error {
	const fix = "it takes Kafka 4.0 or later with group.version=1: use another assignor, or leave it out"
	all, err := d.adm.ApiVersions(ctx)
	if err != nil {
		return d.explain(err)
	}
	for id, v := range all {
		if v.Err != nil {
			continue // it is down, or was shut while we asked
		}
		if most, ok := v.KeyMaxVersion(int16(kmsg.ConsumerGroupHeartbeat)); !ok || most < serverHeartbeat {
			return driver.Errorf("subscribe", driver.Unsupported, "assignor: broker %d does not know server (KIP-848): %s", id, fix)
		}
	}
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch = group, "nobody", -1
	brief, cancel := context.WithTimeout(ctx, min(d.conf.ConnectTimeout/2, 2*time.Second))
	defer cancel()
	resp, err := req.RequestWith(brief, d.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	switch class := classOf(err, driver.Transient); {
	case errors.Is(err, kerr.UnsupportedVersion):
		return driver.Errorf("subscribe", driver.Unsupported, "assignor: server (KIP-848) is turned off in this cluster (group.version, group.coordinator.rebalance.protocols): %s: %w", fix, err)
	case err == nil, errors.Is(err, kerr.GroupIDNotFound), class == driver.LeaseLost, class == driver.Transient:
		return nil // there is no such member, as it should be; or nobody to say so
	}
	return err
}

// session is how long the broker waits for a heartbeat of the group, or Config.SessionTimeout
// where that is shorter, or where the broker does not say.
func (d *kafka) session(ctx context.Context, group string) (time.Duration, error) {
	const op = "subscribe"
	want := d.conf.SessionTimeout
	session, beat, err := d.timing(ctx, group)
	switch {
	case ctx.Err() != nil: // also where the answer came: a session of 0 would be lost at once
		return 0, context.Cause(ctx)
	case err != nil && classOf(err, driver.Permanent) == driver.Transient:
		return 0, d.explain(err)
	case err != nil && want == 0:
		return 0, driver.Errorf(op, driver.Denied, "session_timeout: the broker does not tell its own: set it to what the broker has (group.consumer.session.timeout.ms, 45s unless changed), or grant DescribeConfigs on the group and the cluster: %w", err)
	case err != nil || want == 0:
		session = or(session, want)
	case want > session:
		return 0, driver.Errorf(op, driver.Permanent, "session_timeout: %v is longer than the %v after which the broker gives the partitions of group %s to others (assignor=server): lower it, or leave it out", want, session, group)
	default:
		session = want
	}
	if session < 2*beat {
		return 0, driver.Errorf(op, driver.Permanent, "session_timeout: %v does not hold two heartbeats, which the broker wants every %v (group.consumer.heartbeat.interval.ms): raise it, or leave it out", session, beat)
	}
	return session, nil
}

// timing asks for session timeout and heartbeat interval, of the group or, where it has
// none of its own, of the brokers.
func (d *kafka) timing(ctx context.Context, group string) (session, beat time.Duration, err error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	r.ConfigNames = []string{groupSession, groupHeartbeat}
	req.Resources = append(req.Resources, r)
	resp, err := req.RequestWith(ctx, d.cl)
	if err != nil {
		return 0, 0, err
	}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return 0, 0, err
		}
		for _, s := range r.Configs {
			switch s.Name {
			case groupSession:
				session = millis(s.Value)
			case groupHeartbeat:
				beat = millis(s.Value)
			}
		}
	}
	if session > 0 && beat > 0 {
		return session, beat, nil
	}
	s, b, err := d.brokerTiming(ctx)
	return or(session, s), or(beat, b), err
}

// brokerTiming is the shortest session and the longest interval of any broker: each may
// come to coordinate the group.
func (d *kafka) brokerTiming(ctx context.Context) (session, beat time.Duration, err error) {
	meta, err := d.adm.BrokerMetadata(ctx)
	if err != nil {
		return 0, 0, err
	}
	all, err := d.adm.DescribeBrokerConfigs(ctx, meta.Brokers.NodeIDs()...)
	if err != nil {
		return 0, 0, err
	}
	for _, b := range all {
		if b.Err != nil {
			return 0, 0, b.Err
		}
		for _, s := range b.Configs {
			v := millis(s.Value)
			switch s.Key {
			case brokerPrefix + groupSession:
				if v > 0 && (session == 0 || v < session) {
					session = v
				}
			case brokerPrefix + groupHeartbeat:
				beat = max(beat, v)
			}
		}
	}
	if session == 0 {
		return 0, 0, errors.New("it has no " + brokerPrefix + groupSession)
	}
	return session, beat, nil
}

// millis reads a setting; 0 = it has no value.
func millis(s *string) time.Duration {
	if s == nil {
		return 0
	}
	n, err := strconv.ParseInt(*s, 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

// fallback is a hook that sees the client of a member fall back to the classic protocol:
// of a broker that was replaced, or turned the protocol off, after prepare had asked. Nothing
// of the session would be as pulse takes it to be.
type fallback struct{ c *consumer }

var _ kgo.HookBrokerWrite = fallback{}

// OnBrokerWrite is the client's hook.
func (f fallback) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.JoinGroup) && f.c.d.conf.server() && !f.c.classic.Swap(true) {
		f.c.signal()
	}
}

// downgraded is the end of a consumer that fallback has seen.
func (c *consumer) downgraded() error {
	if !c.classic.Load() {
		return nil
	}
	return driver.Errorf(c.op, driver.Unsupported, "assignor: the broker does not serve server (KIP-848) any more: turn it on again (group.version=1), or use another assignor in all members of group %s", c.group)
}

// regain opens again what was let go of in a silence after which the broker knew the member
// still. Called by Receive alone, and again until it has succeeded.
//
// A heartbeat that is answered does not say how, so that the member is known is asked for:
// with its positions, under its id and epoch (memberPositions). Known at any time after an
// answered heartbeat left, it has been a member without a break, since one that was put
// out comes back only through onLost; so what the client has and we let go of has been
// nobody else's. It may have been asked back meanwhile: the broker gives it to another only
// when the client has said that it is free, which it does after onRevoked, which waits for
// regain by c.calls. Where that waits for core, and core for Receive, we must not wait:
// hence TryLock.
func (c *consumer) regain(ctx context.Context) {
	now := time.Now()
	if c.group == "" || !c.d.conf.server() || now.Before(c.look) || !c.calls.TryLock() {
		return
	}
	defer c.calls.Unlock()
	if _, ok := c.pulse.answered(); !ok {
		return
	}
	c.lock()
	want, ids := c.rejoin, append([]int32(nil), c.severed...)
	c.rejoin = c.rejoin && len(ids) == 0
	c.mu.Unlock()
	if !want || len(ids) == 0 {
		return
	}
	c.look = now.Add(lookEvery)
	ctx, cancel := context.WithTimeout(ctx, c.d.conf.ConnectTimeout)
	defer cancel()
	if !c.abortable(cancel) {
		return
	}
	if err := c.reopen(ctx, c.cl, ids); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rejoin = true
		if e := c.groupError(err); e != nil && ctx.Err() == nil {
			c.pending = e
		}
	}
}

// memberPositions asks where the group has committed, as the member that we are: the
// broker answers with an error where we are not, or at another epoch.
func (c *consumer) memberPositions(ctx context.Context, cl *kgo.Client, ids []int32) (owned []assignment, fresh []int32, err error) {
	member, epoch := cl.GroupMetadata()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group, g.MemberID, g.MemberEpoch = c.group, &member, epoch
	t := kmsg.NewOffsetFetchRequestGroupTopic()
	t.Topic, t.TopicID, t.Partitions = c.topic, c.id, ids
	g.Topics = append(g.Topics, t)
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, nil, err
	}
	if len(resp.Groups) != 1 {
		return nil, nil, errors.New("the broker did not answer for the group")
	}
	if err := kerr.ErrorForCode(resp.Groups[0].ErrorCode); err != nil {
		return nil, nil, err
	}
	owned, fresh, all := c.committed(resp.Groups[0].Topics)
	if len(all) != len(ids) {
		return nil, nil, errors.New("the broker did not answer for all partitions")
	}
	return owned, fresh, nil
}

// doubtFor is how long a broker may take to hear that a topic is gone.
const doubtFor = 10 * time.Second

// orphaned tells a consumer whose last partition was taken away that its topic is gone:
// where the broker assigns it takes back the partitions of a topic that is deleted, and no
// fetch is left to fail. Called by Receive alone.
func (c *consumer) orphaned(ctx context.Context) error {
	now := time.Now()
	c.mu.Lock()
	doubt := now.Before(c.doubt) && len(c.ring) == 0
	c.mu.Unlock()
	if !doubt || now.Before(c.look) {
		return nil
	}
	c.look = now.Add(lookEvery)
	if _, err := c.d.topic(ctx, c.topic); classOf(err, driver.Transient) == driver.NotFound {
		return classify(c.op, err, driver.NotFound)
	}
	return nil
}
