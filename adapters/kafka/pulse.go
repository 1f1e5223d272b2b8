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
//
// Where the broker assigns (KIP-848) there is no join, and the client's heartbeats never
// stop; but while a Revoke runs it may not listen to their answers. What they could tell is
// that the broker has put us out because we let go too slowly: owe has that noticed by our
// own clock. We send none of our own: the answer to one may be the only one that carries
// the next assignment, and the client would not get it.
type pulse struct {
	limit  time.Duration // the session timeout
	server bool          // the broker assigns
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
	lost    bool        // the limit was reached; stays until begin, revive or rest; guarded by mu
	owed    time.Time   // when the broker puts us out, unless it hears that we have let go; zero = it waits for nothing; guarded by mu
	gave    time.Time   // since when heartbeats tell it so; zero = not yet; guarded by mu
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
		if p.server {
			return
		}
	case kmsg.ConsumerGroupHeartbeat:
		if !p.server {
			return
		}
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
		if !p.gave.IsZero() && sent.After(p.gave) {
			p.owed, p.gave = time.Time{}, time.Time{}
		}
		p.joining = p.joining && kmsg.Key(key) == kmsg.Heartbeat
	}
	p.check(now)
	p.arm(now)
}

// check notes that the limit is reached. p.mu is held.
func (p *pulse) check(now time.Time) {
	if !p.heard.IsZero() && now.Sub(p.heard) >= p.limit || !p.owed.IsZero() && !now.Before(p.owed) {
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
		if !p.owed.IsZero() {
			d = min(d, p.owed.Sub(now))
		}
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

// owe is for a member of which the broker has begun to wait for partitions, and which it
// puts out at until.
func (p *pulse) owe(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owed, p.gave = until, time.Time{}
	p.arm(time.Now())
}

// give is for when it has let go of them, and every heartbeat that leaves says so: the
// first that is answered settles what is owed.
func (p *pulse) give() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.owed.IsZero() {
		p.gave = time.Now()
	}
}

// answered returns when the last heartbeat left that was answered, and false where that is
// too long ago to be a member by it.
func (p *pulse) answered() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard, !p.heard.IsZero() && time.Since(p.heard) < p.limit
}

// revive ends the loss of a member that the broker has kept after all. It knew it at some
// time after the answered heartbeat left at heard, so that it has counted from that one:
// later ones may have been answered with an error. It reports whether we can still take
// ourselves for a member.
func (p *pulse) revive(heard time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if heard.IsZero() || now.Sub(heard) >= p.limit || p.heard.IsZero() {
		return false
	}
	p.lost = false
	p.check(now)
	p.arm(now)
	return !p.lost
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
	p.owed, p.gave = time.Time{}, time.Time{}
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
