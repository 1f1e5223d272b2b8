package kafka_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

// A member that the network cuts off lets its partitions go by itself when its session
// is over: the broker gives them to somebody else then, and cannot say so.
func TestIsolatedMemberLetsGo(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		session := shortest(b)
		var w wire
		d := b.open(t, func(c *kafka.Config) { c.Dial, c.SessionTimeout = w.dial, session })
		near := b.open(t)
		to := topic(t, near, driver.Queue, 2)
		publish(t, near, to, messages(8, 8))
		k := consume(t, d, to, "")
		got := k.collect(t, 8)
		w.hole.Store(true)
		cut := time.Now()
		k.until(t, "the loss", func() bool { return k.lost == 2 })
		if took := time.Since(cut); took > session+500*time.Millisecond {
			t.Errorf("let go after %v, the session timeout is %v", took, session)
		}
		err := k.Settle(t.Context(), []driver.Settlement{{Receipt: got[0].Receipt, Disposition: driver.Ack}})
		wantClass(t, driver.ResultAt(err, 0), driver.LeaseLost)
		k.quiet(t, 200*time.Millisecond)
		w.hole.Store(false)
		w.Cut()
		k.patient = true // the end of the old session is told first
		again := k.collect(t, 8)
		for _, m := range again {
			if !k.admits(m) {
				t.Fatalf("%s came with an epoch that is not open", m.ID)
			}
		}
		k.ack(t, again, nil)
	})
}

// holdHeartbeats keeps every heartbeat waiting while held is true, and the member in
// its group meanwhile, as a broker does that stands still or is replaced by another.
func holdHeartbeats(b broker) (held *atomic.Bool) {
	held = new(atomic.Bool)
	b.fake.ControlKey(int16(kmsg.JoinGroup), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.fake.KeepControl()
		r.(*kmsg.JoinGroupRequest).SessionTimeoutMillis = 60_000
		return nil, nil, false
	})
	b.fake.ControlKey(int16(b.beat()), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.fake.KeepControl()
		b.fake.SleepControl(func() {
			for held.Load() {
				time.Sleep(time.Millisecond)
			}
		})
		return nil, nil, false
	})
	return held
}

// Where the broker kept the member after all, its partitions open again where it has
// committed: what it had let go of comes once more, nothing is passed over.
func TestMemberThatWasKeptGoesOn(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]broker{"classic": fake(t), "server": assigning(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testMemberThatWasKeptGoesOn(t, b)
		})
	}
}

func testMemberThatWasKeptGoesOn(t *testing.T, b broker) {
	held := holdHeartbeats(b)
	d := b.open(t, func(c *kafka.Config) { c.SessionTimeout = time.Second })
	to := topic(t, d, driver.Queue, 1)
	publish(t, d, to, messages(8, 1))
	k := consume(t, d, to, "")
	got := k.collect(t, 6)
	k.ack(t, got[:4], []byte("state"))
	held.Store(true)
	k.until(t, "the loss", func() bool { return k.lost == 1 })
	publish(t, d, to, messages(2, 1))
	k.quiet(t, 300*time.Millisecond)
	held.Store(false)
	again := k.collect(t, 6)
	for i, m := range again {
		if m.Offset != int64(4+i) || !k.admits(m) {
			t.Errorf("message %d after it came back is at %d, epoch open: %v", i, m.Offset, k.admits(m))
		}
	}
	k.ack(t, again, nil)
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.history[len(k.history)-1]
	if len(k.history) != 2 || a.Committed.Offset != 4 || a.High.Offset != 10 || string(a.State) != "state" || a.Fence < k.history[0].Fence {
		t.Errorf("assignments %+v", k.history)
	}
}

// standoff makes three members of a group, of which second has let go of what third gets
// and waits in a join, with two partitions, for slow, which lets go when release is called.
func standoff(t *testing.T, near, far driver.Driver) (slow, second, third *desk, release func()) {
	t.Helper()
	to := topic(t, near, driver.Queue, 6)
	asked, leave := make(chan struct{}), make(chan struct{})
	slow = join(t, near, func(k *desk) driver.Subscription {
		ask := sync.OnceFunc(func() { close(asked) })
		k.onRevoke = func(context.Context, []string) { ask(); <-leave }
		return k.subscription(to, "")
	})
	release = sync.OnceFunc(func() { close(leave) })
	t.Cleanup(release) // before the consumers are closed
	slow.owns(t, 6)
	second = consume(t, far, to, "")
	<-asked
	leave <- struct{}{}
	second.owns(t, 3)
	third = consume(t, near, to, "")
	second.until(t, "its part of the hand-over", func() bool { return len(second.open) == 2 })
	return slow, second, third, release
}

// shortest is the least session that a broker allows.
func shortest(b broker) time.Duration {
	if b.fake != nil {
		return time.Second
	}
	return 6 * time.Second
}

// Who has let go of what the next member gets waits, without the client's heartbeats, for
// those that have not: for longer than a session it is in the group all the same.
func TestLongRebalanceIsNoSilence(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		session := shortest(b)
		d := b.open(t, func(c *kafka.Config) { c.SessionTimeout = session })
		slow, second, third, release := standoff(t, d, d)
		second.quiet(t, session+session/2)
		release()
		third.owns(t, 2)
		for _, k := range []*desk{slow, second} {
			k.mu.Lock()
			if k.lost > 0 {
				t.Errorf("%d partitions were lost in a slow rebalance", k.lost)
			}
			k.mu.Unlock()
		}
	})
}

// A member that is cut off while it waits in a join, which may take as long as the
// slowest member needs, lets go no later than any other.
func TestIsolatedInAJoin(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		session := shortest(b)
		var w wire
		near := b.open(t, func(c *kafka.Config) { c.SessionTimeout = session })
		far := b.open(t, func(c *kafka.Config) { c.Dial, c.SessionTimeout = w.dial, session })
		_, second, third, release := standoff(t, near, far)
		second.quiet(t, session/2) // its join has left by now
		w.hole.Store(true)
		cut := time.Now()
		second.until(t, "the loss", func() bool { return second.lost == 2 })
		if took := time.Since(cut); took > session+500*time.Millisecond {
			t.Errorf("let go after %v, the session timeout is %v", took, session)
		}
		release()
		w.hole.Store(false)
		w.Cut()
		third.owns(t, 2)
		second.owns(t, 2)
	})
}

// A member that is put out while it waits in a join lets go then, and not when its
// client, which would start again with the partitions it has, comes back from the join.
func TestPutOutInAJoin(t *testing.T) {
	t.Parallel()
	b := fake(t)
	d := b.open(t)
	_, second, third, release := standoff(t, d, d)
	var out atomic.Bool
	b.fake.ControlKey(int16(kmsg.Heartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.fake.KeepControl()
		if !out.Load() {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.UnknownMemberID.Code
		return resp, nil, true
	})
	second.quiet(t, time.Second) // its join has left by now
	out.Store(true)
	second.until(t, "the loss", func() bool { return second.lost == 2 })
	out.Store(false)
	release()
	third.owns(t, 2)
	second.owns(t, 2)
}

// answer tells p that a request which left took ago was answered.
func answer(p *kafka.Pulse, key kmsg.Key, took time.Duration) {
	p.OnBrokerE2E(kgo.BrokerMetadata{}, int16(key), kgo.BrokerE2E{ReadWait: took})
}

// The clock runs from when an answered heartbeat left; the pulse sends its own while a join
// waits.
func TestPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start, silent := time.Now(), make(chan time.Duration, 10)
		var p *kafka.Pulse
		var mute atomic.Bool
		p = kafka.NewPulse(time.Minute, func() { silent <- time.Since(start) }, func() {
			if !mute.Load() {
				answer(p, kmsg.Heartbeat, time.Second)
			}
		})
		defer p.End()
		answer(p, kmsg.SyncGroup, 0)
		p.Begin()
		time.Sleep(30 * time.Second)
		answer(p, kmsg.Heartbeat, 10*time.Second)
		answer(p, kmsg.Heartbeat, 25*time.Second) // it left before the other
		if at := <-silent; at != 80*time.Second || p.Alive() {
			t.Errorf("silence after %v, alive %v", at, p.Alive())
		}
		answer(p, kmsg.Heartbeat, 0)
		if p.Alive() {
			t.Error("a heartbeat alone brings back what was let go")
		}
		<-silent // and says so to whoever could not listen
		answer(p, kmsg.SyncGroup, 0)
		<-silent
		if !p.Begin() {
			t.Error("the next session does not hear of the silence before it")
		}
		if p.Begin() {
			t.Error("the session after that hears of it again")
		}
		p.OnBrokerWrite(kgo.BrokerMetadata{}, int16(kmsg.JoinGroup), 0, 0, 0, nil)
		time.Sleep(time.Hour)
		if len(silent) > 0 || !p.Alive() {
			t.Error("a join that waits counts as silence")
		}
		mute.Store(true)
		<-silent
		mute.Store(false)
		time.Sleep(time.Hour)
		if p.Alive() {
			t.Error("a join that nobody hears of counts as none")
		}
		answer(p, kmsg.JoinGroup, 2*time.Hour)
		answer(p, kmsg.SyncGroup, time.Second)
		if !p.Begin() || !p.Alive() {
			t.Error("the session after a long join does not begin")
		}
	})
}

// Where the broker assigns the heartbeats are others. A member that was silent is one again
// when the broker is known to have known it since a heartbeat that is not too old. One that
// the broker waits for is out when it has not said in time that it has let go.
func TestServerPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := make(chan struct{}, 10)
		p := kafka.NewServerPulse(time.Minute, func() { silent <- struct{}{} })
		defer p.End()
		answer(p, kmsg.Heartbeat, 0)
		if _, ok := p.Answered(); ok {
			t.Error("a heartbeat of the other protocol counts")
		}
		answer(p, kmsg.ConsumerGroupHeartbeat, 0)
		first, _ := p.Answered()
		<-silent
		if p.Revive(first) || p.Alive() {
			t.Error("revived by the heartbeat whose age was the loss")
		}
		answer(p, kmsg.ConsumerGroupHeartbeat, time.Second)
		if p.Alive() {
			t.Error("a heartbeat alone brings back what was let go")
		}
		heard, ok := p.Answered()
		if !ok || !p.Revive(heard) || !p.Alive() {
			t.Error("not revived by a heartbeat of a second ago")
		}
		p.Owe(time.Now().Add(40 * time.Second))
		time.Sleep(20 * time.Second)
		p.Give()
		answer(p, kmsg.ConsumerGroupHeartbeat, time.Second) // it left before
		time.Sleep(10 * time.Second)
		answer(p, kmsg.ConsumerGroupHeartbeat, time.Second)
		time.Sleep(58 * time.Second)
		if len(silent) > 0 || !p.Alive() {
			t.Error("out, though the broker has heard that it let go")
		}
		answer(p, kmsg.ConsumerGroupHeartbeat, 0)
		p.Owe(time.Now().Add(40 * time.Second))
		time.Sleep(30 * time.Second)
		answer(p, kmsg.ConsumerGroupHeartbeat, 0)
		p.Give()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if len(silent) != 1 || p.Alive() {
			t.Error("the broker has not heard in time that it let go, and it is in")
		}
	})
}

// A process that slept through its session hands out nothing when it wakes, not even
// once the answer to a heartbeat has come, which may be that it is out.
func TestPulseAfterASleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := kafka.NewPulse(time.Hour, func() {}, func() {}) // its timer never fires in time
		answer(p, kmsg.SyncGroup, 0)
		p.Begin()
		p.Shorten(time.Minute)
		time.Sleep(5 * time.Minute)
		answer(p, kmsg.Heartbeat, time.Millisecond)
		if p.Alive() {
			t.Error("alive")
		}
		p.End()
	})
}
