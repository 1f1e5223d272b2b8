package faultnet

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// pair relays one connection: two sockets, two pipes, two goroutines each.
type pair struct {
	n              *Net
	id             int
	client, server *net.TCPConn
	target         string
	since          time.Time
	pipes          [2]*pipe
	done           chan struct{}
	once           sync.Once
	left           atomic.Int32 // pipes that have not ended
}

// reset closes a connection with an RST: with a linger of zero the kernel drops
// what is unsent and does not send a FIN.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// relay starts the goroutines of a pair and returns at once. It reports false,
// with both sockets reset, when the Net is closed.
func (n *Net) relay(client, server *net.TCPConn, target string) bool {
	p := &pair{n: n, client: client, server: server, target: target, since: time.Now(), done: make(chan struct{})}
	p.pipes[0] = newPipe(p, 0, client, server)
	p.pipes[1] = newPipe(p, 1, server, client)
	p.left.Store(2)
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		reset(client)
		reset(server)
		return false
	}
	n.nextID++
	p.id = n.nextID
	n.pairs[p.id] = p
	n.counts.Conns++
	n.wg.Add(4) // under mu and before closed is set: Close's Wait cannot miss them
	n.mu.Unlock()
	for _, q := range p.pipes {
		go q.read()
		go q.write()
	}
	return true
}

// end closes both sockets once and reports whether it was this call.
func (p *pair) end(rst bool) bool {
	first := false
	p.once.Do(func() {
		first = true
		p.n.mu.Lock()
		delete(p.n.pairs, p.id)
		p.n.mu.Unlock()
		close(p.done)
		if rst {
			reset(p.client)
			reset(p.server)
			return
		}
		_ = p.client.Close()
		_ = p.server.Close()
	})
	return first
}

// cut is an end by a fault, and counted; a reset that a peer sent is only relayed.
func (p *pair) cut() bool {
	if !p.end(true) {
		return false
	}
	p.n.mu.Lock()
	p.n.counts.Cut++
	p.n.mu.Unlock()
	return true
}

func (p *pair) halfClose(dir Dir) {
	for i, d := range [...]Dir{Up, Down} {
		if dir&d != 0 {
			p.pipes[i].finish()
		}
	}
}

// pipeEnded is called once by each pipe's writer; after both, nothing can flow.
func (p *pair) pipeEnded() {
	if p.left.Add(-1) == 0 {
		p.end(false)
	}
}

// chunk is what one read returned; err set: the stream ended so.
type chunk struct {
	data []byte
	due  time.Time
	err  error
}

// pipe carries one direction. Its reader stamps chunks with their due time, its
// writer waits for it: so latency does not limit the rate.
type pipe struct {
	p        *pair
	lane     int // 0 up, 1 down
	src, dst *net.TCPConn
	queue    chan chunk
	bytes    atomic.Int64
	fin      atomic.Bool // a half-close was sent; swallow the rest
	lost     bool        // bytes fell into a black hole; writer's own
}

const (
	chunkSize  = 16 << 10
	queueDepth = 32 // chunks under way: 512 KiB, then back-pressure
)

func newPipe(p *pair, lane int, src, dst *net.TCPConn) *pipe {
	return &pipe{p: p, lane: lane, src: src, dst: dst, queue: make(chan chunk, queueDepth)}
}

func (q *pipe) read() {
	defer q.p.n.wg.Done()
	var last time.Time
	buf := make([]byte, chunkSize)
	for {
		k, err := q.src.Read(buf)
		c := chunk{data: append([]byte(nil), buf[:k]...), err: err}
		if k > 0 || err != nil {
			// Jitter must not reorder a byte stream: never due before the one ahead.
			if c.due = q.p.n.due(q.lane); c.due.Before(last) {
				c.due = last
			}
			last = c.due
			select {
			case q.queue <- c:
			case <-q.p.done:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (q *pipe) write() {
	defer q.p.n.wg.Done()
	for {
		select {
		case <-q.p.done:
			return
		case c := <-q.queue:
			if !q.sleepUntil(c.due) || !q.pass(c) {
				return
			}
		}
	}
}

// pass forwards or swallows one chunk and reports whether the pipe goes on.
func (q *pipe) pass(c chunk) bool {
	if !q.settle(len(c.data)) {
		return false
	}
	for len(c.data) > 0 && !q.fin.Load() && !q.lost {
		part, pace, cut := q.p.n.take(q.lane, c.data)
		if len(part) > 0 && !q.send(part) {
			return false
		}
		c.data = c.data[len(part):]
		if cut {
			q.p.cut()
			return false
		}
		if !q.sleepUntil(time.Now().Add(pace)) {
			return false
		}
		if !q.settle(len(c.data)) { // a fault may have been switched on in between
			return false
		}
	}
	if len(c.data) > 0 && !q.lost {
		q.p.n.swallowed(len(c.data)) // after a half-close
	}
	if c.err == nil {
		return true
	}
	return q.over(c.err)
}

// over ends the direction as its source ended: a FIN is passed on, a reset too.
func (q *pipe) over(err error) bool {
	for {
		hole, _, changed := q.p.n.state(q.lane)
		if !hole && q.lost {
			q.p.cut()
			return false
		}
		if !hole {
			break
		}
		select { // the FIN is in the hole as well
		case <-changed:
		case <-q.p.done:
			return false
		}
	}
	if !errors.Is(err, io.EOF) {
		q.p.end(true)
		return false
	}
	_ = q.dst.CloseWrite()
	q.p.pipeEnded()
	return false
}

// settle waits out a stall, and marks the connection as lost when size bytes meet
// a black hole. False: the pair has ended.
func (q *pipe) settle(size int) bool {
	for {
		hole, stall, changed := q.p.n.state(q.lane)
		switch {
		case size > 0 && hole:
			q.lost = true
			q.p.n.swallowed(size)
			return true
		case size > 0 && q.lost:
			q.p.cut()
			return false
		case !stall:
			return true
		}
		select {
		case <-changed:
		case <-q.p.done:
			return false
		}
	}
}

func (q *pipe) send(part []byte) bool {
	k, err := q.dst.Write(part)
	q.bytes.Add(int64(k))
	q.p.n.forwarded(q.lane, k)
	if err == nil || q.fin.Load() {
		return true
	}
	// The receiver is gone. Its own read side tells the other pipe how; a
	// sender must learn it too, as it would from a real peer.
	q.p.end(true)
	return false
}

func (q *pipe) finish() {
	q.fin.Store(true)
	_ = q.dst.CloseWrite()
}

// sleepUntil waits and reports false when the pair ended first.
func (q *pipe) sleepUntil(t time.Time) bool {
	d := time.Until(t)
	if t.IsZero() || d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-q.p.done:
		return false
	}
}

// due is when a chunk read now may go on.
func (n *Net) due(i int) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &n.lanes[i]
	d := l.mean
	if l.jitter > 0 {
		d += time.Duration(l.rng.Int64N(int64(2*l.jitter)+1)) - l.jitter
	}
	if d <= 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}

func (n *Net) state(i int) (hole, stall bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lanes[i].hole, n.lanes[i].stall, n.changed
}

// take decides how much of data goes out in one write, how long to wait after it,
// and whether the connection is cut after it. It flips a bit where asked.
func (n *Net) take(i int, data []byte) (part []byte, pace time.Duration, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &n.lanes[i]
	part = data
	if l.slice > 0 && len(part) > l.slice {
		part = part[:l.slice]
	}
	if l.bandwidth > 0 { // at most 20 ms worth, so that a change is felt soon
		if most := max(l.bandwidth/50, 1); int64(len(part)) > most {
			part = part[:most]
		}
		pace = time.Duration(int64(len(part)) * int64(time.Second) / l.bandwidth)
	}
	if l.cutAfter >= 0 {
		if int64(len(part)) >= l.cutAfter {
			part, cut = part[:l.cutAfter], true
			l.cutAfter = -1
		} else {
			l.cutAfter -= int64(len(part))
		}
	}
	if l.flipAt >= 0 {
		if l.flipAt < int64(len(part)) {
			part[l.flipAt] ^= 1
			l.flipAt = -1
		} else {
			l.flipAt -= int64(len(part))
		}
	}
	return part, pace, cut
}

func (n *Net) forwarded(i, k int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i == 0 {
		n.counts.Up += int64(k)
	} else {
		n.counts.Down += int64(k)
	}
}

func (n *Net) swallowed(k int) {
	n.mu.Lock()
	n.counts.Swallowed += int64(k)
	n.mu.Unlock()
}
