package kafka

import (
	"context"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// member is the client of a group member as its own goroutines may use it, which are
// there before Subscribe has the client to keep.
type member struct{ cl atomic.Pointer[kgo.Client] }

var _ kgo.HookNewClient = (*member)(nil)

// OnNewClient is the client's hook.
func (m *member) OnNewClient(cl *kgo.Client) { m.cl.Store(cl) }

// beat sends a heartbeat beside a join that waits, or a Revoke that an eager rebalance waits
// for. Pulse hears of the answer by its hook, but not what it was. Most are "rebalance in progress"; "unknown member" tells of a loss
// that the client would not: it starts again as a new member with the partitions it has.
func (c *consumer) beat() {
	cl := c.member.cl.Load()
	id, generation := cl.GroupMetadata()
	if id == "" {
		return
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation, req.InstanceID = c.group, id, generation, c.instanceID()
	ctx, cancel := context.WithTimeout(context.Background(), c.pulse.limit)
	defer cancel()
	resp, err := req.RequestWith(ctx, cl)
	if err == nil && (resp.ErrorCode == kerr.UnknownMemberID.Code || resp.ErrorCode == kerr.FencedInstanceID.Code) {
		c.pulse.unknown()
	}
}

// instanceID is the instance id as requests carry it.
func (c *consumer) instanceID() *string {
	if c.instance == "" {
		return nil
	}
	return &c.instance
}
