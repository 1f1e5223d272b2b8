//go:build unix

package sessions

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// B8 of ordering.md: two to eight members come and go every 50 to 200 ms, all of them in
// good order, in this process. On kfake the broker answers with errors besides, and
// connections break; on the real one nothing but the rebalances happens, and so nothing
// that is done may be done again.
//
// Server is KIP-848, in which the broker assigns: partitions go one by one, as in the first.
//
// Range is eager: each step is a revoke of everything from everybody, in good order. Static
// members do not leave: whoever ends keeps its partitions for a session, in which its id comes
// back, as in a rolling restart, or does not, as when there are to be fewer; and who joins waits
// for it as long, so that less changes hands. What it has done it has committed before. So
// without faults nothing may be repeated in any of them, and with faults only what an error
// kept from being committed: I4 and V5 ask for the cause of each.
//
// On SQS the queue is the one partition of every member, so what is counted as changing hands
// is who left and who came next.
func TestStorm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		on     func(*testing.T) ground
		with   string // parameters of the members' URL
		static bool
		inject bool
		last   time.Duration
		least  int // partitions that change hands
	}{
		"Kfake":               {on: hasty, inject: true, last: time.Minute, least: 20},
		"KfakeNoFaults":       {on: patient, last: 10 * time.Second, least: 5},
		"KfakeRange":          {on: hasty, with: "&assignor=range", inject: true, last: 10 * time.Second, least: 10},
		"KfakeRangeNoFaults":  {on: patient, with: "&assignor=range", last: 10 * time.Second, least: 10},
		"KfakeStatic":         {on: hasty, static: true, inject: true, last: 20 * time.Second, least: 1},
		"KfakeStaticNoFaults": {on: patient, static: true, last: 20 * time.Second, least: 1},
		"KfakeServer":         {on: hasty, with: "&assignor=server", inject: true, last: 15 * time.Second, least: 10},
		"KfakeServerNoFaults": {on: patient, with: "&assignor=server", last: 10 * time.Second, least: 5},
		"KafkaServer":         {on: func(t *testing.T) ground { return live(t, "kafka") }, with: "?assignor=server", last: 20 * time.Second, least: 10},
		"Kafka":               {on: func(t *testing.T) ground { return live(t, "kafka") }, last: time.Minute, least: 20},
		"Redis":               {on: func(t *testing.T) ground { return live(t, "redis") }, last: time.Minute, least: 20},
		"SQS":                 {on: func(t *testing.T) ground { return live(t, "sqs") }, last: 30 * time.Second, least: 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				c.last, c.least = min(c.last/2, 10*time.Second), min(c.least, 3)
			}
			on := c.on(t)
			on.url += c.with
			st := &storm{scene: newScene(t, on, core.Queue("storm").Keyed(stormParts)), least: c.least, means: wounds}
			if strings.Contains(c.with, "server") {
				st.means = serverWounds
			}
			if c.static {
				st.hasIDs()
			}
			st.run(c.inject, c.last)
		})
	}
}

// hasty has a session that a storm does not have to wait for long.
func hasty(t *testing.T) ground { return faked(t, 3, time.Second) }

func patient(t *testing.T) ground { return faked(t, 3, fakeSession) }

const (
	fewest     = 2
	most       = 8
	stormParts = 12
	stormWork  = 20 * time.Millisecond
)

func (st *storm) run(inject bool, last time.Duration) {
	s := st.scene
	if inject {
		st.faults = map[string]int{}
	}
	for range 4 {
		st.join()
	}
	stop := s.feed(200, 4, 10)
	defer stop()
	st.blow(inject, last)
	stop()
	st.calm()
	s.drained(60 * time.Second)
	st.end()
	ids := []string{"I1", "I2", "I3", "I4", "I6", "I7", "I10.dead", "V1", "V2", "V3", "V5", "V6"}
	if s.on.commits() {
		ids = append(ids, "V4")
	}
	h := s.judge(check.Params{Attempts: attempts, ResetOnCrash: true}, ids...)
	st.report(h, inject)
}

// blow has members come and go for a while, and longer where that has not brought the
// hand-overs and the work that are to be judged.
func (st *storm) blow(inject bool, last time.Duration) {
	watching, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { st.watch(watching) })
	defer watch.Wait()
	defer cancel()
	begun := time.Now()
	calm := int64(-1) // what had been assigned when the group was last seen to get anywhere
	lull := 0
	for step := 0; ; step++ {
		time.Sleep(time.Duration(50+st.rng.IntN(150)) * time.Millisecond)
		enough := st.moved.Load() >= int64(st.least) && st.worked.Load() >= leastWork
		if past := time.Since(begun); past > last && enough || past > 3*last+time.Minute {
			return
		}
		if now := st.assigned.Load(); now != calm {
			calm, lull = now, 0
		}
		// On a slow machine a join takes longer than the next member does to come, and nobody
		// would ever get anything.
		if lull++; lull > breath && lull < 4*breath {
			continue
		}
		if lull >= 4*breath {
			lull = 0
		}
		st.churn()
		// A member that an error makes join anew leaves a ghost behind, for which the
		// group waits a session: with one at every step there would be nothing else.
		if inject && step%3 == 0 {
			st.harm()
		}
	}
}

const (
	leastWork = 300 // handlers that end
	breath    = 20  // steps without an assignment after which the storm holds its breath
)

// watch counts what the storm has brought so far.
func (st *storm) watch(ctx context.Context) {
	since := map[string]bool{}
	_, _, _ = st.lab.Wait(ctx, func(e history.Event) bool {
		switch {
		case e.Op == history.OpLog && e.Class == saidRevoke, e.Op == history.OpLost:
			since[e.Partition] = true
		case e.Op == history.OpAssign:
			st.assigned.Add(1)
			if since[e.Partition] {
				st.moved.Add(1)
				delete(since, e.Partition)
			}
		case e.Op == history.OpEnd:
			st.worked.Add(1)
		}
		return false
	})
}

// storm is a group whose members come and go.
type storm struct {
	*scene
	all    []*stormer // that have not been told to leave
	least  int
	joined int
	static bool
	means  []wound
	idle   sync.Mutex
	free   []string // ids of static members that no living one has; guarded by idle
	left   sync.WaitGroup
	faults map[string]int
	wounds []*kfake.FaultHandle

	assigned, moved, worked atomic.Int64 // partitions; those of them that had an owner before; handlers that ended
}

type stormer struct {
	m     *member
	stop  context.CancelFunc
	ended <-chan error
}

func (st *storm) join() {
	// Trusting: sessions are lost all the time, and no message is why.
	a := memberArgs{Concurrency: 8, Prefetch: 64, Work: stormWork, Dead: st.dead, Trusting: true}
	if st.static {
		if a.Instance = st.anID(); a.Instance == "" {
			return // all belong to members that live, or drain
		}
	}
	st.joined++
	name := "m" + strconv.Itoa(st.joined)
	one := &stormer{}
	one.m, one.stop, one.ended = st.inProcess(name, a)
	st.all = append(st.all, one)
}

// leave tells one member to go; it drains while the others go on.
func (st *storm) leave(i int) {
	one := st.all[i]
	st.all = slices.Delete(st.all, i, i+1)
	one.stop()
	st.left.Go(func() {
		err := <-one.ended
		switch {
		case err == nil, errors.Is(err, context.Canceled):
		case st.faults != nil && errors.Is(err, core.ErrTransient): // a coordinator that is not there: the session runs out
			st.lab.Emit(history.Event{Op: history.OpLog, Class: "not left: " + err.Error()})
		default:
			st.t.Errorf("%s: %v", one.m.args.name, err)
		}
		if one.m.net != nil {
			_ = one.m.net.Close()
		}
		one.m.emit(history.Event{Op: history.OpBye})
		if id := one.m.args.Instance; id != "" {
			st.giveBack(id)
		}
	})
}

func (st *storm) churn() {
	switch n := len(st.all); {
	case n <= fewest, n < most && st.rng.IntN(2) == 0:
		st.join()
	default:
		st.leave(st.rng.IntN(n))
	}
}

func (st *storm) end() {
	st.t.Helper()
	for len(st.all) > 0 {
		st.leave(0)
	}
	st.left.Wait()
	if !st.static {
		return
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		info := st.on.fake.GroupInfo(st.dest.Name)
		if info == nil || info.State == "Empty" || info.State == "Dead" {
			return
		}
		if time.Now().After(end) {
			st.t.Fatalf("the group has members still: %+v", info)
		}
	}
}

// hasIDs makes the members static. The ids are more than the members, so that some are away
// for less than a session and some for more.
func (st *storm) hasIDs() {
	st.static = true
	for i := range most + 2 {
		st.giveBack("i" + strconv.Itoa(i))
	}
}

func (st *storm) giveBack(id string) {
	st.idle.Lock()
	defer st.idle.Unlock()
	st.free = append(st.free, id)
}

// anID takes one of the free ids, "" = there is none. Of two in three it is the last that
// became free.
func (st *storm) anID() (id string) {
	st.idle.Lock()
	defer st.idle.Unlock()
	n := len(st.free)
	if n == 0 {
		return ""
	}
	i := n - 1
	if st.rng.IntN(3) == 0 {
		i = st.rng.IntN(n)
	}
	id = st.free[i]
	st.free = slices.Delete(st.free, i, i+1)
	return id
}

// wound is an error that the broker answers with in place of doing what it was asked.
type wound struct {
	name string
	key  kmsg.Key
	err  *kerr.Error
	top  bool
}

var wounds = []wound{
	{"heartbeat REBALANCE_IN_PROGRESS", kmsg.Heartbeat, kerr.RebalanceInProgress, true},
	{"heartbeat ILLEGAL_GENERATION", kmsg.Heartbeat, kerr.IllegalGeneration, true},
	{"heartbeat UNKNOWN_MEMBER_ID", kmsg.Heartbeat, kerr.UnknownMemberID, true},
	{"heartbeat COORDINATOR_NOT_AVAILABLE", kmsg.Heartbeat, kerr.CoordinatorNotAvailable, true},
	{"join UNKNOWN_MEMBER_ID", kmsg.JoinGroup, kerr.UnknownMemberID, true},
	{"sync REBALANCE_IN_PROGRESS", kmsg.SyncGroup, kerr.RebalanceInProgress, true},
	{"find COORDINATOR_NOT_AVAILABLE", kmsg.FindCoordinator, kerr.CoordinatorNotAvailable, false},
	{"commit REBALANCE_IN_PROGRESS", kmsg.OffsetCommit, kerr.RebalanceInProgress, false},
	{"commit ILLEGAL_GENERATION", kmsg.OffsetCommit, kerr.IllegalGeneration, false},
	{"commit UNKNOWN_MEMBER_ID", kmsg.OffsetCommit, kerr.UnknownMemberID, false},
	{"commit COORDINATOR_NOT_AVAILABLE", kmsg.OffsetCommit, kerr.CoordinatorNotAvailable, false},
	{"commit OFFSET_METADATA_TOO_LARGE", kmsg.OffsetCommit, kerr.OffsetMetadataTooLarge, false},
}

// serverWounds are those of a group in which the broker assigns.
var serverWounds = []wound{
	{"heartbeat UNKNOWN_MEMBER_ID", kmsg.ConsumerGroupHeartbeat, kerr.UnknownMemberID, true},
	{"heartbeat FENCED_MEMBER_EPOCH", kmsg.ConsumerGroupHeartbeat, kerr.FencedMemberEpoch, true},
	{"heartbeat COORDINATOR_NOT_AVAILABLE", kmsg.ConsumerGroupHeartbeat, kerr.CoordinatorNotAvailable, true},
	{"heartbeat NOT_COORDINATOR", kmsg.ConsumerGroupHeartbeat, kerr.NotCoordinator, true},
	{"find COORDINATOR_NOT_AVAILABLE", kmsg.FindCoordinator, kerr.CoordinatorNotAvailable, false},
	{"fetch of offsets STALE_MEMBER_EPOCH", kmsg.OffsetFetch, kerr.StaleMemberEpoch, true},
	{"commit STALE_MEMBER_EPOCH", kmsg.OffsetCommit, kerr.StaleMemberEpoch, false},
	{"commit FENCED_MEMBER_EPOCH", kmsg.OffsetCommit, kerr.FencedMemberEpoch, false},
	{"commit UNKNOWN_MEMBER_ID", kmsg.OffsetCommit, kerr.UnknownMemberID, false},
	{"commit COORDINATOR_NOT_AVAILABLE", kmsg.OffsetCommit, kerr.CoordinatorNotAvailable, false},
	{"commit OFFSET_METADATA_TOO_LARGE", kmsg.OffsetCommit, kerr.OffsetMetadataTooLarge, false},
}

// harm does one thing that a cluster may do to its clients.
func (st *storm) harm() {
	choice := st.rng.IntN(len(st.means) + 3)
	name := ""
	switch choice - len(st.means) {
	case 0:
		name = "coordinator moved"
		st.on.fake.RehashCoordinators()
	case 1:
		name = "leaders moved"
		st.on.fake.ShufflePartitionLeaders()
	case 2:
		name = "connections closed"
		st.cut(st.all[st.rng.IntN(len(st.all))])
	default:
		w := st.means[choice]
		name = w.name
		st.wounds = append(st.wounds, st.on.fake.Fault(kfake.Fault{
			Keys: []kmsg.Key{w.key}, Group: group, Err: w.err, TopLevel: w.top, Count: 1 + st.rng.IntN(3),
		}))
	}
	st.faults[name]++
	st.lab.Emit(history.Event{Op: history.OpLog, Class: "harm: " + name})
}

func (st *storm) cut(one *stormer) {
	st.lab.Emit(history.Event{Op: history.OpFault, Outcome: history.FaultCut, Dest: one.m.args.name, N: 1})
	one.m.net.Cut()
}

// calm ends what has not hit yet.
func (st *storm) calm() {
	hits := 0
	for _, w := range st.wounds {
		hits += w.Hits()
		w.Remove()
	}
	st.t.Logf("%d members came; harm done: %v, errors answered: %d", st.joined, st.faults, hits)
}

func (st *storm) report(h *history.History, inject bool) {
	st.t.Helper()
	var pauses, handlers []time.Duration
	since, begun := map[string]int64{}, map[string]int64{}
	done := map[string]bool{}
	again, handovers, lost := 0, 0, 0
	for i := range h.Events {
		e := &h.Events[i]
		switch {
		case e.Op == history.OpLog && e.Class == saidRevoke, e.Op == history.OpLost:
			if e.Op == history.OpLost {
				lost++
			}
			since[e.Partition] = e.T
		case e.Op == history.OpAssign:
			if from, ok := since[e.Partition]; ok {
				pauses = append(pauses, time.Duration(e.T-from))
				delete(since, e.Partition)
				handovers++
			}
		case e.Op == history.OpStart:
			begun[e.Proc+e.ID] = e.T
			if done[e.ID] {
				again++
				delete(done, e.ID)
			}
		case e.Op == history.OpEnd:
			handlers = append(handlers, time.Duration(e.T-begun[e.Proc+e.ID]))
			if e.Outcome == history.OK {
				done[e.ID] = true
			}
		}
	}
	st.t.Logf("measured: B8 %s, errors injected %v: %d members came, %d handlers ended, %d partitions changed hands, %d of them lost; pause p50 %s p99 %s max %s; handler p99 %s; completed and done again: %d",
		st.on.name, inject, st.joined, len(handlers), handovers, lost, quantile(pauses, 0.5), quantile(pauses, 0.99), quantile(pauses, 1), quantile(handlers, 0.99), again)
	if !inject && again > 0 {
		st.t.Errorf("%d messages were done and done again, and all that happened was members coming and going in good order", again)
	}
	if handovers < st.least {
		st.t.Errorf("only %d partitions changed hands: that was no storm", handovers)
	}
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(int(q*float64(len(d))), len(d)-1)].Round(100 * time.Microsecond)
}
