package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/core/driver"
)

// Values of Config.Assignor that differ in more than their balancer. What KIP-848
// (assignServer) takes is in server.go.
const (
	assignCooperative = "cooperative-sticky"
	assignServer      = "server"
)

var assignors = map[string]func() kgo.GroupBalancer{
	assignCooperative: kgo.CooperativeStickyBalancer,
	"sticky":          kgo.StickyBalancer,
	"range":           kgo.RangeBalancer,
	"roundrobin":      kgo.RoundRobinBalancer,
}

var (
	errAssignor   = errors.New("use cooperative-sticky, sticky, range, roundrobin or server")
	errInstanceID = errors.New("use 1 to 249 of a-z A-Z 0-9 . _ -, and not . or .. alone")
)

// server tells whether the broker assigns.
func (c Config) server() bool { return c.Assignor == assignServer }

// eager tells whether a rebalance takes all partitions of all members away.
func (c Config) eager() bool { return c.Assignor != assignCooperative && !c.server() }

// checkGroup checks what only members of groups have.
func (c Config) checkGroup() error {
	if !c.server() && assignors[c.Assignor] == nil {
		return errAt("assignor", errAssignor)
	}
	if c.server() && c.InstanceID != "" {
		return errors.New("instance_id: with assignor=server a consumer that takes its place again would have the Fence of the one before it: leave one of the two out")
	}
	// The clock of an eager rebalance may have run for nearly a session when we hear of it.
	if c.eager() && c.RebalanceTimeout <= c.SessionTimeout {
		return errors.New("rebalance_timeout: with an eager assignor it must be longer than session_timeout, or partitions go to others before this consumer can let go of them")
	}
	if c.server() && c.RebalanceTimeout <= c.SessionTimeout {
		return errShortRebalance(c.RebalanceTimeout, c.SessionTimeout)
	}
	if c.InstanceID != "" && !isTopicName(c.InstanceID) {
		return errAt("instance_id", errInstanceID)
	}
	return nil
}

func errAt(field string, err error) error { return errors.New(field + ": " + err.Error()) }

// memberOptions are how a member takes part in its group; instance "" = not static.
func (c Config) memberOptions(instance string) []kgo.Opt {
	if c.server() {
		// The broker's uniform assignor. Session and heartbeats are as the broker has them.
		return []kgo.Opt{kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()), kgo.RebalanceTimeout(c.RebalanceTimeout)}
	}
	opts := []kgo.Opt{
		kgo.Balancers(assignors[c.Assignor]()),
		kgo.SessionTimeout(c.SessionTimeout),
		kgo.HeartbeatInterval(max(c.SessionTimeout/beats, time.Millisecond)),
		kgo.RebalanceTimeout(c.RebalanceTimeout),
	}
	if instance != "" {
		opts = append(opts, kgo.InstanceID(instance))
	}
	return opts
}

// instanceOf is the instance id of a subscription, "" = none. A temporary group is to
// end with its consumer, which a static member does not leave.
func (c Config) instanceOf(sub driver.Subscription, group string) string {
	if group == "" || sub.Temporary {
		return ""
	}
	return c.InstanceID
}

// claim keeps a second consumer of the same instance id out of a group: the two would
// put each other out for ever.
func (d *kafka) claim(op string, c *consumer) error {
	if c.instance == "" {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.static[c.group] != nil {
		return driver.Errorf(op, driver.Conflict, "instance_id: %q is already a member of group %s in this process: open another client with another instance_id, or leave it out", c.instance, c.group)
	}
	d.static[c.group] = c
	return nil
}

// evict takes an earlier member of our instance id off the group. Without it the broker
// would put us in its place with nothing else changed, and that includes the generation:
// two owners, one after the other, would have the same Fence. With it the group pays one
// rebalance, and nobody else has got the partitions in the meantime.
func (d *kafka) evict(ctx context.Context, c *consumer) error {
	if c.instance == "" {
		return nil
	}
	left, err := d.adm.LeaveGroup(ctx, kadm.LeaveGroup(c.group).Reason("a consumer of this instance id starts").InstanceIDs(c.instance))
	if err == nil {
		err = left[c.instance].Err
	}
	if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.GroupIDNotFound) {
		return nil // there is none
	}
	return d.explain(err)
}

// groupError gives an error of the group its class and, where a field of Config decides,
// says which; nil = the consumer goes on.
func (c *consumer) groupError(err error) *driver.Error {
	switch {
	case errors.Is(err, kerr.FencedInstanceID):
		return driver.Errorf(c.op, driver.Permanent, "instance_id: another consumer of group %s has taken %q over: give each its own: %w", c.group, c.instance, err)
	case errors.Is(err, kerr.InconsistentGroupProtocol):
		// Not permanent: the others may be on their way out.
		return driver.Errorf(c.op, driver.Transient, "assignor: %s is not what the other members of group %s use: stop them all, then change it: %w", c.d.conf.Assignor, c.group, err)
	}
	e := classify(c.op, err, driver.Transient)
	switch e.Class {
	case driver.LeaseLost:
		return nil // thrown out of the group: Revoke has told it, and the client joins again
	case driver.Conflict, driver.Closed:
		e.Class = driver.Transient
	}
	return e
}

// wall is when a Revoke that begins now has to have ended. The broker's clock runs from
// the begin of the rebalance. Under a cooperative assignor the one that waits for our
// partitions begins when we have let go. An eager one has begun before, but after the last
// heartbeat was on its way that did not tell us; and where the broker assigns, its clock
// runs from when it wrote the answer that did.
func (c *consumer) wall() time.Time {
	conf := c.d.conf
	limit := conf.RebalanceTimeout - min(conf.RebalanceTimeout/10, 3*time.Second)
	if conf.Assignor == assignCooperative {
		return time.Now().Add(limit)
	}
	return c.pulse.since().Add(limit)
}
