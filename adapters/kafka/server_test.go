package kafka_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

// refusal is what Subscribe of a new queue answers.
func refusal(t *testing.T, d driver.Driver) error {
	t.Helper()
	c, err := d.Subscribe(t.Context(), newDesk().subscription(topic(t, d, driver.Queue, 1), ""))
	if err == nil {
		shut(t, c)
	}
	return err
}

// deny answers every question for settings with a refusal.
func deny(b broker) {
	b.fake.ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.fake.KeepControl()
		req := r.(*kmsg.DescribeConfigsRequest)
		resp := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, r := range req.Resources {
			one := kmsg.NewDescribeConfigsResponseResource()
			one.ResourceType, one.ResourceName, one.ErrorCode = r.ResourceType, r.ResourceName, kerr.GroupAuthorizationFailed.Code
			resp.Resources = append(resp.Resources, one)
		}
		return resp, nil, true
	})
}

// The session timeout is the broker's (3s here, with a heartbeat every 200ms). A consumer
// that counted a longer one would keep partitions that are somebody else's; one that does
// not know it says so.
func TestServerSessionTimeout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		session, rebalance time.Duration
		blind              bool
		want               string
	}{
		"the broker's": {},
		"shorter":      {session: time.Second},
		"longer":       {session: 4 * time.Second, want: "session_timeout: 4s is longer than the 3s"},
		"too short":    {session: 300 * time.Millisecond, want: "session_timeout: 300ms does not hold two heartbeats"},
		"no time":      {rebalance: 3 * time.Second, want: "rebalance_timeout: with assignor=server"},
		"blind":        {blind: true, want: "session_timeout: the broker does not tell its own"},
		"blind, told":  {blind: true, session: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := assigning(t)
			d := b.open(t, func(conf *kafka.Config) { conf.SessionTimeout, conf.RebalanceTimeout = c.session, c.rebalance })
			to := topic(t, d, driver.Queue, 1)
			if c.blind {
				deny(b)
			}
			sub := newDesk().subscription(to, "")
			con, err := d.Subscribe(t.Context(), sub)
			if err == nil {
				shut(t, con)
			}
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want something about %s", err, c.want)
			}
		})
	}
}

// A group may have a session of its own.
func TestServerSessionOfTheGroup(t *testing.T) {
	t.Parallel()
	b := assigning(t)
	d := b.open(t)
	to := topic(t, d, driver.Queue, 1)
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, to.Name
	s, value := kmsg.NewIncrementalAlterConfigsRequestResourceConfig(), "1000"
	s.Name, s.Value = "consumer.session.timeout.ms", &value
	r.Configs = append(r.Configs, s)
	req.Resources = append(req.Resources, r)
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.conf.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := req.RequestWith(t.Context(), cl); err != nil {
		t.Fatal(err)
	}
	_, err = d.Subscribe(t.Context(), newDesk().subscription(to, ""))
	if err == nil || !strings.Contains(err.Error(), "session_timeout: 3s is longer than the 1s") {
		t.Error(err)
	}
}

// A broker that does not serve the protocol is told of, in place of a silent fall back to
// the classic one.
func TestServerNotServed(t *testing.T) {
	t.Parallel()
	t.Run("unknown", func(t *testing.T) {
		t.Parallel()
		err := refusal(t, assigning(t, kfake.MaxVersions(kversion.V3_9_0())).open(t))
		wantClass(t, err, driver.Unsupported)
		if !strings.Contains(err.Error(), "assignor: broker 0 does not know server") {
			t.Error(err)
		}
	})
	t.Run("turned off", func(t *testing.T) {
		t.Parallel()
		b := assigning(t)
		b.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ConsumerGroupHeartbeat}, Err: kerr.UnsupportedVersion})
		err := refusal(t, b.open(t))
		wantClass(t, err, driver.Unsupported)
		if !strings.Contains(err.Error(), "assignor: server (KIP-848) is turned off") {
			t.Error(err)
		}
	})
	t.Run("turned off later", func(t *testing.T) {
		t.Parallel()
		b := assigning(t)
		b.fake.ControlKey(int16(kmsg.ConsumerGroupHeartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
			b.fake.KeepControl()
			if r.(*kmsg.ConsumerGroupHeartbeatRequest).MemberEpoch < 0 {
				return nil, nil, false
			}
			resp := r.ResponseKind().(*kmsg.ConsumerGroupHeartbeatResponse)
			resp.ErrorCode = kerr.UnsupportedVersion.Code
			return resp, nil, true
		})
		d := b.open(t)
		to := topic(t, d, driver.Queue, 1)
		publish(t, d, to, messages(4, 1))
		k := consume(t, d, to, "")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := k.Receive(ctx, driver.Demand{Records: 1, Bytes: 1})
		wantClass(t, err, driver.Unsupported)
		if len(k.history) > 0 {
			t.Errorf("it was assigned %v", k.history)
		}
	})
}

// eventually waits for what tells nobody when it happens.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// seen is a commit as the broker got it.
type seen struct {
	partition int32
	epoch     int32
}

// stalling answers commits as stale while on is set, and keeps what it has got.
func stalling(b broker) (on *atomic.Bool, got func() []seen) {
	on = new(atomic.Bool)
	var mu sync.Mutex
	var all []seen
	b.fake.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.fake.KeepControl()
		req := r.(*kmsg.OffsetCommitRequest)
		resp := r.ResponseKind().(*kmsg.OffsetCommitResponse)
		for _, t := range req.Topics {
			one := kmsg.NewOffsetCommitResponseTopic()
			one.Topic, one.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				mu.Lock()
				all = append(all, seen{p.Partition, req.Generation})
				mu.Unlock()
				a := kmsg.NewOffsetCommitResponseTopicPartition()
				a.Partition, a.ErrorCode = p.Partition, kerr.StaleMemberEpoch.Code
				one.Partitions = append(one.Partitions, a)
			}
			resp.Topics = append(resp.Topics, one)
		}
		return resp, nil, on.Load()
	})
	return on, func() []seen { mu.Lock(); defer mu.Unlock(); return slices.Clone(all) }
}

// ackAll settles the last of each partition and returns what became of it.
func (k *desk) ackAll(t *testing.T, got []driver.Received) map[string]driver.Class {
	t.Helper()
	last := make(map[string]driver.Receipt)
	for _, m := range got {
		last[m.Receipt.Partition] = m.Receipt
	}
	names := slices.Sorted(maps.Keys(last))
	var batch []driver.Settlement
	for _, n := range names {
		batch = append(batch, driver.Settlement{Receipt: last[n], Disposition: driver.Ack})
	}
	err := k.Settle(t.Context(), batch)
	out := make(map[string]driver.Class)
	for i, n := range names {
		out[n] = driver.ClassOf(driver.ResultAt(err, i))
	}
	return out
}

// standstill is a member whose commit of all it has got is stale again and again, while a
// second one has taken one of its two partitions.
type standstill struct {
	to            driver.Destination
	stale         *atomic.Bool
	commits       func() []seen
	first, second *desk
	got           []driver.Received
	settled       chan map[string]driver.Class // of the commit, at its end
	moved         string                       // the partition of the second
}

func stalled(t *testing.T, b broker) *standstill {
	t.Helper()
	x := &standstill{settled: make(chan map[string]driver.Class, 1)}
	x.stale, x.commits = stalling(b)
	d := b.open(t)
	x.to = topic(t, d, driver.Queue, 2)
	publish(t, d, x.to, messages(40, 40))
	x.first = consume(t, d, x.to, "")
	x.got = x.first.collect(t, 40)
	x.stale.Store(true)
	go func() { x.settled <- x.first.ackAll(t, x.got) }()
	eventually(t, "a commit", func() bool { return len(x.commits()) > 0 })
	x.second = consume(t, d, x.to, "")
	x.second.owns(t, 1)
	x.second.mu.Lock()
	defer x.second.mu.Unlock()
	x.moved = slices.Collect(maps.Keys(x.second.open))[0]
	return x
}

// A commit that was stale is sent again under the next epoch of its member, for the
// partitions that are the member's as they were, and for no other.
func TestStaleCommit(t *testing.T) {
	t.Parallel()
	b := assigning(t)
	x := stalled(t, b)
	x.stale.Store(false)
	outcome := <-x.settled
	for name, class := range outcome {
		if want := map[bool]driver.Class{true: driver.LeaseLost}[name == x.moved]; class != want && (name == x.moved || class != driver.Transient) {
			t.Errorf("%s: class %v, want %v", name, class, want)
		}
	}
	wantOneEpoch(t, x.commits(), x.to, x.moved)
	for name, class := range x.first.ackAll(t, x.got) {
		if name != x.moved && class != 0 {
			t.Errorf("%s is still its own, and its commit has class %v", name, class)
		}
	}
}

// A partition that has gone and come back before a commit is sent again was another's in
// between: it does not go under the epoch in which the partition is back.
func TestStaleCommitOfWhatCameBack(t *testing.T) {
	t.Parallel()
	b := assigning(t, kfake.BrokerConfigs(map[string]string{"group.consumer.heartbeat.interval.ms": "20"}))
	x := stalled(t, b)
	shut(t, x.second)
	x.first.owns(t, 2)
	if class := (<-x.settled)[x.moved]; class != driver.LeaseLost {
		t.Errorf("%s: class %v, want %v", x.moved, class, driver.LeaseLost)
	}
	wantOneEpoch(t, x.commits(), x.to, x.moved)
}

// wantOneEpoch checks that all commits of a partition are of the epoch of the first.
func wantOneEpoch(t *testing.T, commits []seen, of driver.Destination, partition string) {
	t.Helper()
	for _, c := range commits {
		if fmt.Sprint(of.Name, "/", c.partition) == partition && c.epoch != commits[0].epoch {
			t.Errorf("a commit of an epoch that has ended left under %d, it began under %d", c.epoch, commits[0].epoch)
		}
	}
}

// A member that does not let go within the rebalance timeout is put out, with all it has.
// Its client would not hear of it before the Revoke has ended.
func TestPutOutInALongRevoke(t *testing.T) {
	t.Parallel()
	b := assigning(t)
	const rebalance = 4 * time.Second
	d := b.open(t, func(c *kafka.Config) { c.RebalanceTimeout = rebalance })
	to := topic(t, d, driver.Queue, 4)
	asked, ended, leave := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	first := join(t, d, func(k *desk) driver.Subscription {
		k.onRevoke = func(ctx context.Context, _ []string) {
			if once.Swap(true) {
				return
			}
			close(asked)
			<-ctx.Done()
			close(ended)
			<-leave
		}
		return k.subscription(to, "")
	})
	defer close(leave)
	first.owns(t, 4)
	consume(t, d, to, "")
	<-asked
	begun := time.Now()
	<-ended
	if took := time.Since(begun); took > rebalance-rebalance/10 {
		t.Errorf("Revoke's ctx ended after %v of %v", took, rebalance)
	}
	first.until(t, "the loss of what it was to keep", func() bool { return first.lost == 2 })
	if took := time.Since(begun); took > rebalance+200*time.Millisecond {
		t.Errorf("it was noticed after %v of %v", took, rebalance)
	}
}

// Close takes everything away before the group is left, also what the last assignment has
// just taken away: the client does not come to name it any more.
func TestCloseWhilePartitionsGo(t *testing.T) {
	t.Parallel()
	b := assigning(t)
	d := b.open(t)
	to := topic(t, d, driver.Queue, 4)
	opening, on := make(chan struct{}), make(chan struct{})
	first := join(t, d, func(k *desk) driver.Subscription {
		s := k.subscription(to, "")
		assigned := s.Assigned
		s.Assigned = func(a driver.Assignment) {
			if strings.HasSuffix(a.Partition, "/4") {
				close(opening)
				<-on
			}
			assigned(a)
		}
		return s
	})
	first.owns(t, 4)
	var early atomic.Int64
	left := make(chan struct{})
	b.fake.ControlKey(int16(kmsg.ConsumerGroupHeartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.fake.KeepControl()
		if req := r.(*kmsg.ConsumerGroupHeartbeatRequest); req.MemberEpoch == -1 && req.MemberID != "nobody" {
			select {
			case <-left:
			default:
				first.mu.Lock()
				early.Store(int64(len(first.open)))
				first.mu.Unlock()
				close(left)
			}
		}
		return nil, nil, false
	})
	widen(t, b, to.Name, 5)
	kafka.Refresh(first.Consumer)
	<-opening
	second := consume(t, d, to, "")
	eventually(t, "the second member's place in the group", func() bool { return len(b.fake.GroupInfo(to.Name).Members) == 2 })
	time.Sleep(600 * time.Millisecond) // the answer to a heartbeat takes some away: three intervals
	done := make(chan struct{})
	go func() { defer close(done); shut(t, first) }()
	time.Sleep(100 * time.Millisecond) // Close has begun
	close(on)
	<-left
	if n := early.Load(); n > 0 {
		t.Errorf("the group was left with %d partitions open", n)
	}
	<-done
	second.owns(t, 5)
}
