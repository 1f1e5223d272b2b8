package all_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/chaos/fakekafka"
	"github.com/varal-go/varal/test/chaos/faultnet"
	"github.com/varal-go/varal/test/conformance"
)

// kfakeSession is how long kfake waits for a member that says nothing.
const kfakeSession = 1500 * time.Millisecond

// fakeKafka is kfake with one broker. It mends what kfake does with members that wait
// (see fakekafka.Keeper), and can be restarted: it comes back at its address with what it had.
type fakeKafka struct {
	t    *testing.T
	opts []kfake.Opt
	addr string

	mu      sync.Mutex
	cluster *kfake.Cluster    // guarded by mu; nil = closed
	keeper  *fakekafka.Keeper // guarded by mu
}

func startKfake(t *testing.T, opts ...kfake.Opt) *fakeKafka {
	t.Helper()
	f := &fakeKafka{t: t, opts: append(opts, kfake.GroupMinSessionTimeout(100*time.Millisecond), kfake.DataDir(t.TempDir()))}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.open(0); err != nil {
		t.Fatal(err)
	}
	f.addr = f.cluster.ListenAddrs()[0]
	t.Cleanup(func() {
		f.close()
		f.keeper.Close()
	})
	return f
}

// open starts the cluster at a port; 0 = any. f.mu is held.
func (f *fakeKafka) open(port int) error {
	cl, err := kfake.NewCluster(append(f.opts, kfake.Ports(port))...)
	if err != nil {
		return err
	}
	f.cluster = cl
	if f.keeper == nil {
		if f.keeper, err = fakekafka.NewKeeper(cl, kfakeSession); err != nil {
			return err
		}
	}
	f.keeper.Keep(cl)
	return nil
}

func (f *fakeKafka) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cluster != nil {
		f.keeper.Release()
		f.cluster.Close()
		f.cluster = nil
	}
}

// restart ends all connections, stores everything and starts again from that.
func (f *fakeKafka) restart(t testing.TB) {
	_, p, _ := net.SplitHostPort(f.addr)
	port, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	f.close()
	f.mu.Lock()
	defer f.mu.Unlock()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err = f.open(port); err == nil {
			return
		}
		if time.Now().After(deadline) { // somebody's outgoing connection has got the port
			t.Fatalf("kfake did not come back at %s: %v", f.addr, err)
		}
	}
}

func (f *fakeKafka) dial(ctx context.Context, d dialer) (driver.Driver, error) {
	return kafka.Open(ctx, kafka.Config{Brokers: []string{f.addr}, Dial: d, SessionTimeout: kfakeSession})
}

func TestKfake(t *testing.T) {
	conformance.Run(t, kfakeHarness(t))
}

func kfakeHarness(t *testing.T) conformance.Harness {
	fake := startKfake(t)
	h := overTCP(t, fake.dial)
	h.Name, h.Broker = "kafka", "kfake (franz-go)"
	h.Session, h.Tolerance = kfakeSession, 1500*time.Millisecond
	h.Spawn = func(t testing.TB, job conformance.Job) *conformance.Process { return spawnKfake(t, fake.dial, job) }
	h.OpenDown = func(ctx context.Context) (driver.Driver, error) {
		return kafka.Open(ctx, kafka.Config{Brokers: []string{"127.0.0.1:1"}})
	}
	h.Restart = fake.restart
	guarded := startKfake(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "varal", "right"))
	h.BadCredentials = func(_ testing.TB, password string) error {
		return wrongKafkaPassword("kafka://"+guarded.addr, password)
	}
	h.AllowNotExercised = map[string]string{} // nothing
	h.SecondTry = true
	return h
}

// TestKfakeSparesWhoWaits leads kfake through what fakekafka.Keeper tells of: the leader dies after
// the generation has begun, and the member that waits for its plan has the shorter
// session. It must be answered when the leader's session is over.
func TestKfakeSparesWhoWaits(t *testing.T) {
	t.Parallel()
	fake := startKfake(t)
	leader, other := newMember(t, fake, 4*kfakeSession/5), newMember(t, fake, 2*kfakeSession/5)
	if id := leader.join(t).LeaderID; id != leader.id {
		t.Fatalf("the first member is %q, the leader %q", leader.id, id)
	}
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		other.join(t)
	}()
	for fake.cluster.GroupInfo("g").State != "PreparingRebalance" {
		time.Sleep(time.Millisecond)
	}
	leader.join(t) // and is not heard of again
	<-joined
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.MemberID, sync.Generation = "g", other.id, other.generation
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := sync.RequestWith(ctx, other.cl)
	if err != nil {
		t.Fatalf("SyncGroup of a member whose leader died was not answered: %v", err)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); !errors.Is(err, kerr.RebalanceInProgress) {
		t.Errorf("SyncGroup of a member whose leader died: %v, want %v", err, kerr.RebalanceInProgress)
	}
}

// member is a group member that does only what it is told.
type member struct {
	cl         *kgo.Client
	session    time.Duration
	id         string
	generation int32
}

func newMember(t *testing.T, f *fakeKafka, session time.Duration) *member {
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return &member{cl: cl, session: session}
}

// join sends JoinGroup, twice where the member has no id yet.
func (m *member) join(t *testing.T) *kmsg.JoinGroupResponse {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.ProtocolType = "g", "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(m.session.Milliseconds()), 60_000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name = "any"
	req.Protocols = append(req.Protocols, p)
	for {
		req.MemberID = m.id
		resp, err := req.RequestWith(t.Context(), m.cl)
		if err != nil {
			t.Errorf("JoinGroup: %v", err)
			return kmsg.NewPtrJoinGroupResponse()
		}
		m.id, m.generation = resp.MemberID, resp.Generation
		if !errors.Is(kerr.ErrorForCode(resp.ErrorCode), kerr.MemberIDRequired) {
			return resp
		}
	}
}

// spawnKfake runs a job in this process, on connections of its own that go dead with
// it.
func spawnKfake(t testing.TB, open opener, job conformance.Job) *conformance.Process {
	own := faultnet.New()
	d, err := open(context.Background(), own.DialContext)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDriver(t, d); _ = own.Close() })
	p := conformance.SpawnLocal(t, d, nil, 0, nil, job)
	kill, freeze, thaw := p.Kill, p.Freeze, p.Thaw
	p.Kill = func() { kill(); own.SetMode(faultnet.Refuse); own.Cut() }
	p.Freeze = func() { freeze(); own.SetMode(faultnet.Silent); own.Stall(faultnet.Both, true) }
	p.Thaw = func() { own.Heal(); thaw() }
	t.Cleanup(own.Heal)
	return p
}
