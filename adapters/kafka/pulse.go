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
// The client sends no heartbeats while it waits in a join, for up to the slowest member's
// rebalance timeout. The broker does not expect any, but that it holds the join we cannot
// know: cut off right after it was written, or put out while our process stood still,
// we would wait with partitions that are somebody else's. So we send them ourselves; they
// go over another connection and are answered at once.
//
// While an eager rebalance waits for us to let go the client does send heartbeats, but does
// not listen to the answer until we have: put out at the rebalance timeout, we would not know.
// So we send our own then, too.
type pulse struct {
	limit  time.Duration // the session timeout
	silent func()        // called in a goroutine of its own when the limit is reached
	beat   func()        // sends a heartbeat; called likewise, one at a time, while a join or a Revoke waits

	calls sync.WaitGroup // of silent and beat

	mu      sync.Mutex
	timer   *time.Timer // calls expire; nil before the first answer; guarded by mu
	heard   time.Time   // zero = no member; guarded by mu
	before  time.Time   // heard, one answer earlier; guarded by mu
	joining bool        // guarded by mu
	holding bool        // guarded by mu
	beating bool        // beat runs; guarded by mu
	lost    bool        // the limit was reached; stays until begin or rest; guarded by mu
	ended   bool        // guarded by mu
}

// beats is how many heartbeats fit into a session.
const beats = 6

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
	now := time.Now()
	p.joining = true
	p.check(now)
	p.arm(now)
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
		p.joining = p.joining && kmsg.Key(key) == kmsg.Heartbeat
	case kmsg.Key(key) == kmsg.JoinGroup:
		return // the sync comes next
	default:
		// Silence that ended before anybody looked was silence: a process that wakes from
		// a long sleep may hear the answer to its next heartbeat, "unknown member", first.
		sent := now.Add(-e.DurationE2E())
		p.check(sent)
		if sent.After(p.heard) { // the client's and ours may be answered in another order
			p.before, p.heard = p.heard, sent
		}
		p.joining = p.joining && kmsg.Key(key) == kmsg.Heartbeat
	}
	p.check(now)
	p.arm(now)
}

// check notes that the limit is reached. p.mu is held.
func (p *pulse) check(now time.Time) {
	if !p.heard.IsZero() && now.Sub(p.heard) >= p.limit {
		p.lost = true
	}
}

// arm sets the timer to when there is something to do. p.mu is held.
func (p *pulse) arm(now time.Time) {
	if p.heard.IsZero() || p.ended {
		return
	}
	var d time.Duration
	if !p.lost {
		d = p.limit - now.Sub(p.heard)
		if p.joining || p.holding {
			d = min(d, p.limit/beats)
		}
	}
	if p.timer == nil {
		p.timer = time.AfterFunc(d, p.expire)
		return
	}
	p.timer.Reset(d)
}

// expire is the timer's.
func (p *pulse) expire() {
	call := p.due()
	if call == nil {
		return
	}
	defer p.calls.Done()
	call()
}

// due returns what there is to do, if anything; it counts in calls.
func (p *pulse) due() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.heard.IsZero() {
		return nil
	}
	now := time.Now()
	p.check(now)
	var call func()
	switch {
	case p.lost:
		call = p.silent
	case (p.joining || p.holding) && !p.beating:
		p.beating, call = true, p.ask
	}
	if !p.lost { // when beat gets no answer; or an answer came between
		p.arm(now)
	}
	if call != nil {
		p.calls.Add(1)
	}
	return call
}

// ask calls beat.
func (p *pulse) ask() {
	p.beat()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beating = false
}

// unknown is for a member that the broker says it does not know.
func (p *pulse) unknown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.heard.IsZero() {
		p.lost = true
		p.arm(time.Now())
	}
}

// since is a moment at which a rebalance that we have just heard of had not begun: when the
// heartbeat before the one that told us left. Where there was none, we own nothing yet.
func (p *pulse) since() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.before.IsZero() {
		return time.Now()
	}
	return p.before
}

// hold starts and ends the watch over a Revoke.
func (p *pulse) hold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding = on
	p.arm(time.Now())
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
	p.heard, p.before, p.joining, p.lost = time.Time{}, time.Time{}, false, false
	if p.timer != nil {
		p.timer.Stop()
	}
}

// end is rest for good, and waits for what was called.
func (p *pulse) end() {
	p.rest()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.calls.Wait()
}
