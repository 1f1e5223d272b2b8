// Package faultnet breaks connections on purpose: a TCP proxy, a SOCKS5 front and
// a dial hook, all governed by one [Net] whose faults are switched at run time.
//
//	p, err := faultnet.Listen("127.0.0.1:5672")
//	defer p.Close()
//	… connect to p.Addr() …
//	p.BlackHole(faultnet.Both, true)
//
// Faults act on real sockets: a cut is an RST, a half-close a FIN, a black hole
// keeps both sockets open and swallows the bytes. Nothing needs rights, an OS
// tool or the other side's consent; only connections through the Net are touched.
// The package does not import testing: the lab ships in the binary.
package faultnet

import (
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// Dir is a direction of bytes, or both.
type Dir uint8

// The directions.
const (
	Up   Dir = 1 << iota // client → server
	Down                 // server → client
	Both = Up | Down
)

// String returns "up", "down", "both" or "none".
func (d Dir) String() string { return [...]string{"none", "up", "down", "both"}[d&Both] }

// Mode is what a Net does with new connections.
type Mode uint8

// The modes. The zero Mode is Pass.
const (
	Pass   Mode = iota
	Refuse      // DialContext fails with ECONNREFUSED, SOCKS5 answers "refused", the plain proxy accepts and resets at once
	Silent      // accepted, never connected onward, never answered
)

// Counts of a Net since it was made.
type Counts struct {
	Conns     int   // connections relayed
	Open      int   // of these, open now
	Refused   int   // new connections refused
	Silent    int   // new connections left unanswered
	Cut       int   // connections reset by a fault
	Up, Down  int64 // bytes forwarded
	Swallowed int64 // bytes dropped in a black hole or after a half-close
}

// Conn describes one open connection.
type Conn struct {
	ID       int // counts from 1, never reused within a Net
	Client   string
	Target   string
	Since    time.Time
	Up, Down int64 // bytes forwarded
}

// lane is the state of the faults of one direction, guarded by Net.mu.
type lane struct {
	hole, stall  bool
	slice        int
	mean, jitter time.Duration
	rng          *rand.Rand
	bandwidth    int64
	cutAfter     int64 // bytes still to forward; < 0 = off
	flipAt       int64 // bytes still to pass before the flip; < 0 = off
}

// Net governs a set of connections. Make one with New, Listen or ListenSOCKS5. All
// methods may be called concurrently.
type Net struct {
	wg sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a fault is switched
	lanes   [2]lane
	mode    Mode
	pairs   map[int]*pair
	waiting map[net.Conn]struct{} // accepted, not (or never) relayed
	closers []net.Listener
	counts  Counts
	nextID  int
	closed  bool
	done    chan struct{}
}

// New returns a Net without a listener, for DialContext.
func New() *Net {
	n := &Net{
		changed: make(chan struct{}), done: make(chan struct{}),
		pairs: map[int]*pair{}, waiting: map[net.Conn]struct{}{},
	}
	for i := range n.lanes {
		n.lanes[i] = lane{cutAfter: -1, flipAt: -1}
	}
	return n
}

// set changes the lanes of dir under the lock and wakes whoever waits on a fault.
func (n *Net) set(dir Dir, change func(*lane)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, d := range [...]Dir{Up, Down} {
		if dir&d != 0 {
			change(&n.lanes[i])
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// BlackHole swallows bytes and FINs of dir while it is on; sockets stay open. A
// connection that lost bytes cannot go on: once the hole is off, the first thing
// that would have followed resets it, as a NAT does that forgot its state.
func (n *Net) BlackHole(dir Dir, on bool) { n.set(dir, func(l *lane) { l.hole = on }) }

// Stall holds bytes of dir back while it is on and delivers them afterwards: a
// partition that heals within TCP's patience.
func (n *Net) Stall(dir Dir, on bool) { n.set(dir, func(l *lane) { l.stall = on }) }

// Latency delays what is read on dir by mean ± jitter (uniform), without limiting
// its rate. The delays are a function of seed and of the order of reads. 0, 0 = off.
func (n *Net) Latency(dir Dir, mean, jitter time.Duration, seed uint64) {
	n.set(dir, func(l *lane) {
		l.mean, l.jitter = max(mean, 0), max(jitter, 0)
		l.rng = rand.New(rand.NewPCG(seed, 0x766172616c)) //nolint:gosec // a schedule, not a secret
	})
}

// Bandwidth limits each connection's dir to so many bytes a second. ≤ 0 = off.
func (n *Net) Bandwidth(dir Dir, bytesPerSecond int64) {
	n.set(dir, func(l *lane) { l.bandwidth = max(bytesPerSecond, 0) })
}

// Slice forwards dir in writes of at most size bytes. ≤ 0 = off.
func (n *Net) Slice(dir Dir, size int) { n.set(dir, func(l *lane) { l.slice = max(size, 0) }) }

// CutAfter forwards n more bytes of dir, counted from now over all connections,
// and then resets the connection that carried the last of them. It works once.
// < 0 = off.
func (n *Net) CutAfter(dir Dir, bytes int64) { n.set(dir, func(l *lane) { l.cutAfter = bytes }) }

// FlipBit inverts the lowest bit of byte number at of dir, counted from now (0 =
// the next byte) over all connections. It works once. < 0 = off.
func (n *Net) FlipBit(dir Dir, at int64) { n.set(dir, func(l *lane) { l.flipAt = at }) }

// SetMode decides about new connections; open ones are not touched. Connections
// left silent stay so until Cut or Close.
func (n *Net) SetMode(m Mode) {
	n.mu.Lock()
	n.mode = m
	n.mu.Unlock()
}

// Heal ends every lasting fault. Connections that a fault has spoilt stay spoilt.
func (n *Net) Heal() {
	n.SetMode(Pass)
	n.set(Both, func(l *lane) { *l = lane{cutAfter: -1, flipAt: -1} })
}

// Cut resets every open connection, both sides, and those left silent. It returns
// how many connections were reset.
func (n *Net) Cut() int {
	n.mu.Lock()
	pairs := n.sorted()
	silent := make([]net.Conn, 0, len(n.waiting))
	for c := range n.waiting {
		silent = append(silent, c)
	}
	n.mu.Unlock()
	cut := 0
	for _, p := range pairs {
		if p.cut() {
			cut++
		}
	}
	for _, c := range silent {
		reset(c)
	}
	return cut
}

// CutOne resets the connection with that ID and reports whether it was open.
func (n *Net) CutOne(id int) bool {
	n.mu.Lock()
	p := n.pairs[id]
	n.mu.Unlock()
	return p != nil && p.cut()
}

// CutRandom resets one open connection chosen by r and returns its ID, 0 when none
// is open.
func (n *Net) CutRandom(r *rand.Rand) int {
	n.mu.Lock()
	pairs := n.sorted()
	n.mu.Unlock()
	if len(pairs) == 0 {
		return 0
	}
	p := pairs[r.IntN(len(pairs))]
	if !p.cut() {
		return 0
	}
	return p.id
}

// HalfClose sends a FIN in dir on every open connection; what is sent that way
// later is swallowed, the other way goes on.
func (n *Net) HalfClose(dir Dir) {
	n.mu.Lock()
	pairs := n.sorted()
	n.mu.Unlock()
	for _, p := range pairs {
		p.halfClose(dir)
	}
}

// Conns lists the open connections, oldest first.
func (n *Net) Conns() []Conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []Conn
	for _, p := range n.sorted() {
		out = append(out, Conn{
			ID: p.id, Client: p.client.RemoteAddr().String(), Target: p.target, Since: p.since,
			Up: p.pipes[0].bytes.Load(), Down: p.pipes[1].bytes.Load(),
		})
	}
	return out
}

// Counts returns the totals so far.
func (n *Net) Counts() Counts {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.counts
	c.Open = len(n.pairs)
	return c
}

// Close resets every connection, closes the listeners and returns when every
// goroutine of the Net has ended. Idempotent.
func (n *Net) Close() error {
	n.mu.Lock()
	if !n.closed {
		n.closed = true
		close(n.done)
	}
	listeners := n.closers
	n.closers = nil
	n.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close()
	}
	n.Cut()
	n.wg.Wait()
	return nil
}

// sorted returns the open pairs by ID; the caller holds mu.
func (n *Net) sorted() []*pair {
	out := make([]*pair, 0, len(n.pairs))
	for _, p := range n.pairs {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *pair) int { return a.id - b.id })
	return out
}
