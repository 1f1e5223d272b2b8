// Package fakekafka mends what kfake does otherwise than Kafka, for the tests that run on it.
package fakekafka

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Keeper makes kfake spare members whose JoinGroup or SyncGroup it has not answered, as
// Kafka does (it counts a waiting member as alive). kfake lets their session run out,
// takes them off the group and never answers them: the client waits for its own
// timeout of more than a minute. The interleaving: the group's leader waits in JoinGroup
// and is killed; the other member joins, which completes the generation, and waits in
// SyncGroup for the leader's plan. Both sessions began with that generation and end
// together; if the living member's ends first, kfake drops it.
//
// Its methods may be called concurrently.
type Keeper struct {
	beat  *kgo.Client // on which heartbeats for others are sent
	every time.Duration
	life  context.Context //nolint:containedctx // of the goroutines, which no caller waits for
	end   context.CancelFunc
	wg    sync.WaitGroup

	mu      sync.RWMutex
	cluster *kfake.Cluster // guarded by mu; nil = released
}

const beats = 5 // a session

// NewKeeper returns a Keeper for clusters at the addresses of cl, whose members have the
// session timeout or a longer one. It keeps nobody until Keep is called.
func NewKeeper(cl *kfake.Cluster, session time.Duration) (*Keeper, error) {
	beat, err := kgo.NewClient(kgo.SeedBrokers(cl.ListenAddrs()...))
	if err != nil {
		return nil, err
	}
	k := &Keeper{beat: beat, every: session / beats}
	k.life, k.end = context.WithCancel(context.Background())
	return k, nil
}

// Keep spares the members of cl, in place of those of an earlier cluster.
func (k *Keeper) Keep(cl *kfake.Cluster) {
	k.mu.Lock()
	k.cluster = cl
	k.mu.Unlock()
	cl.ControlKey(int16(kmsg.JoinGroup), func(r kmsg.Request) (kmsg.Response, error, bool) {
		if r, ok := r.(*kmsg.JoinGroupRequest); ok && r.MemberID != "" {
			k.wg.Go(func() { k.await(cl, r.Group, r.MemberID, "PreparingRebalance", -1) })
		}
		return nil, nil, false
	})
	cl.ControlKey(int16(kmsg.SyncGroup), func(r kmsg.Request) (kmsg.Response, error, bool) {
		if r, ok := r.(*kmsg.SyncGroupRequest); ok {
			k.wg.Go(func() { k.await(cl, r.Group, r.MemberID, "CompletingRebalance", r.Generation) })
		}
		return nil, nil, false
	})
}

// Release lets go of the cluster. It must come before the cluster is closed: a closed one
// does not answer.
func (k *Keeper) Release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cluster = nil
}

// Close releases the cluster, and waits for what runs.
func (k *Keeper) Close() {
	k.Release()
	k.end()
	k.wg.Wait()
	k.beat.Close()
}

// keepFor is how many heartbeats a member gets at the most, two sessions long: enough to
// outlive those it waits for. One whose request was answered with an injected error is not
// waiting, may never come again, and is waited for itself.
const keepFor = 2 * beats

// await sends heartbeats for a member while its group is in the state and generation
// in which it waits; -1 = the one found first.
func (k *Keeper) await(cl *kfake.Cluster, group, member, state string, generation int32) {
	for range keepFor {
		now, epoch := k.group(cl, group)
		if generation < 0 {
			generation = epoch
		}
		if now != state || epoch != generation {
			return
		}
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group, req.MemberID, req.Generation = group, member, generation
		_, _ = req.RequestWith(k.life, k.beat) // it may have been answered in between
		select {
		case <-k.life.Done():
			return
		case <-time.After(k.every):
		}
	}
}

// group asks for a group's state; "" = there is none, or cl has been released.
func (k *Keeper) group(cl *kfake.Cluster, name string) (state string, epoch int32) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.cluster != cl {
		return "", 0
	}
	if info := cl.GroupInfo(name); info != nil {
		return info.State, info.Epoch
	}
	return "", 0
}
