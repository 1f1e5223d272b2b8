package memory

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Broker is the state that drivers share: destinations, groups and messages. It
// starts no goroutine and needs no closing. All methods may be called concurrently.
type Broker struct {
	base   time.Time // zero point of now
	epochs atomic.Uint64
	down   atomic.Bool
	silent atomic.Pointer[silence] // nil = the broker answers

	mu      sync.RWMutex // order: Broker, then destination, then group (a stream: group, then destination)
	dests   map[place]*destination
	drivers map[*client]struct{}
}

// place is what makes two destinations the same.
type place struct {
	shape driver.Shape
	name  string
}

// NewBroker returns an empty broker for several Configs.
func NewBroker() *Broker {
	return &Broker{base: time.Now(), dests: map[place]*destination{}, drivers: map[*client]struct{}{}}
}

var namedBrokers = struct {
	sync.Mutex
	m map[string]*Broker
}{m: map[string]*Broker{}}

// named returns the broker that everybody in the process gets for that name.
func named(name string) *Broker {
	namedBrokers.Lock()
	defer namedBrokers.Unlock()
	b := namedBrokers.m[name]
	if b == nil {
		b = NewBroker()
		namedBrokers.m[name] = b
	}
	return b
}

// now is the monotonic time in nanoseconds.
func (b *Broker) now() int64 { return int64(time.Since(b.base)) }

func (b *Broker) find(shape driver.Shape, name string) *destination {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.dests[place{shape, name}]
}

// SetDown makes the broker unreachable (true) or reachable again (false), for tests.
// While it is down, Publish, Receive, Settle, Subscribe and Admin answer Transient and do
// nothing; leases run on.
func (b *Broker) SetDown(down bool) {
	if b.down.Swap(down) == down {
		return
	}
	b.pokeAll()
	kind := driver.Connected
	if down {
		kind = driver.Disconnected
	}
	b.notify(kind)
}

// pokeAll makes every consumer look at the broker's flags, which were set before: one
// that looked earlier has since begun to wait (it looks and enlists under one lock),
// so it gets the poke.
func (b *Broker) pokeAll() {
	b.eachGroup(func(g *group) {
		for _, c := range g.members {
			c.poke()
		}
	})
}

func (b *Broker) notify(kind driver.EventKind) {
	b.mu.RLock()
	var hooks []func(driver.Event)
	for d := range b.drivers {
		if d.cfg.Notify != nil {
			hooks = append(hooks, d.cfg.Notify)
		}
	}
	b.mu.RUnlock()
	for _, f := range hooks {
		f(driver.Event{Kind: kind})
	}
}

// Restart does what a restart of a broker with stable storage would: messages, groups
// and commits stay, every receipt is void (LeaseLost), what was out is handed out
// again, and each consumer gets Revoke with an ended context and a new assignment with
// its next Receive.
func (b *Broker) Restart() {
	b.eachGroup(func(g *group) {
		for _, c := range g.members {
			g.evict(c, true)
		}
		if g.backlog != nil {
			g.backlog.reset()
		}
		g.rebalance()
		g.handOver(g.src.advance(b.now()))
	})
	b.notify(driver.Disconnected)
	b.notify(driver.Connected)
}

// Evict does what a broker does to the consumers of a client that was killed or frozen:
// their partitions go to other members and their receipts are void. What they hold of
// a queue or topic without partitions comes back when its lease ends. Should they call
// Receive again they join again, after a Revoke with an ended context. A driver of another
// package or broker is ignored.
func (b *Broker) Evict(d driver.Driver) {
	cl, ok := d.(*client)
	if !ok || cl.broker != b {
		return
	}
	b.eachGroup(func(g *group) {
		for _, c := range g.members {
			if c.client == cl {
				g.evict(c, !g.shared)
			}
		}
		g.rebalance()
		g.handOver(g.src.advance(b.now()))
	})
}

// eachGroup calls f for every group, its lock held.
func (b *Broker) eachGroup(f func(*group)) {
	b.mu.RLock()
	var all []*group
	for _, d := range b.dests {
		all = append(all, d.allGroups()...)
	}
	b.mu.RUnlock()
	for _, g := range all {
		g.mu.Lock()
		f(g)
		g.mu.Unlock()
	}
}

func errDown(op string) error {
	return driver.Errorf(op, driver.Transient, "the memory broker is down (SetDown); nothing happened, try again")
}
