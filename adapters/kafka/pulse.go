package kafka

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// pulse tells whether the broker can still take us for a member of the group. The
// broker gives our partitions away when it has heard no heartbeat for the session
// timeout, and cannot tell us if the network or our own process stands still. So we
// count ourselves, from when the last heartbeat that was answered left us: that is
// never later than when it arrived.
//
// While the group rebalances no heartbeats are sent. The broker waits for its members
// up to the rebalance timeout and puts none out that waits with it, so a join that
// left in time stops the clock until its sync is answered. (The protocol of KIP-848 has
// heartbeats and no joins; this adapter never asks the client for it.)
type pulse struct {
	limit  time.Duration // the session timeout
	silent func()        // called in a goroutine of its own when the limit is reached

	mu      sync.Mutex
	timer   *time.Timer // calls expire; nil before the first answer; guarded by mu
	heard   time.Time   // zero = no member; guarded by mu
	joining bool        // guarded by mu
	lost    bool        // the limit was reached; stays until begin or rest; guarded by mu
}

var (
	_ kgo.HookBrokerWrite = (*pulse)(nil)
	_ kgo.HookBrokerE2E   = (*pulse)(nil)
)

// OnBrokerWrite is the client's hook.
func (p *pulse) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key != int16(kmsg.JoinGroup) || err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.check(time.Now()); !p.lost {
		p.joining = true
	}
}

// OnBrokerE2E is the client's hook: a request was answered, or will not be.
func (p *pulse) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	switch kmsg.Key(key) {
	case kmsg.Heartbeat, kmsg.JoinGroup, kmsg.SyncGroup:
	default:
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case e.Err() != nil:
		p.joining = false
	case kmsg.Key(key) == kmsg.JoinGroup:
		return // the sync comes next
	default:
		// Silence that ended before anybody looked was silence: a process that wakes from
		// a long sleep may hear the answer to its next heartbeat, "unknown member", first.
		sent := now.Add(-e.DurationE2E())
		p.check(sent)
		p.heard, p.joining = sent, false
	}
	p.check(now)
	p.arm(now)
}

// check notes that the limit is reached. p.mu is held.
func (p *pulse) check(now time.Time) {
	if !p.joining && !p.heard.IsZero() && now.Sub(p.heard) >= p.limit {
		p.lost = true
	}
}

// arm sets the timer to when the limit will be reached. p.mu is held.
func (p *pulse) arm(now time.Time) {
	var d time.Duration
	switch {
	case p.heard.IsZero() || p.joining:
		return
	case !p.lost:
		d = p.limit - now.Sub(p.heard)
	}
	if p.timer == nil {
		p.timer = time.AfterFunc(d, p.expire)
		return
	}
	p.timer.Reset(d)
}

// expire is the timer's.
func (p *pulse) expire() {
	p.mu.Lock()
	now := time.Now()
	p.check(now)
	lost := p.lost
	if !lost { // an answer or a join came between
		p.arm(now)
	}
	p.mu.Unlock()
	if lost {
		p.silent()
	}
}

// alive reports whether what we own is still ours, as far as we can know.
func (p *pulse) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.check(time.Now())
	return !p.lost
}

// begin starts again with a session that has just been joined, and reports whether the
// limit was reached since the last one began.
func (p *pulse) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.lost
	p.lost = false
	now := time.Now()
	p.check(now)
	p.arm(now)
	return was || p.lost
}

// again calls silent once more where it came while nothing could be done about it.
func (p *pulse) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		p.arm(time.Now())
	}
}

// rest is for a member that has been put out: there is nothing to watch until it has
// joined again.
func (p *pulse) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard, p.joining, p.lost = time.Time{}, false, false
	if p.timer != nil {
		p.timer.Stop()
	}
}
