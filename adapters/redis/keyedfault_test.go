package redis_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// ice is a network that can freeze: what is written then is accepted and arrives when it
// thaws, as the packets of a stopped machine do, even if the client has given the
// connection up. Nothing is read meanwhile.
type ice struct {
	mu     sync.Mutex
	refuse bool
	on     []string // requests that freeze their connection, each once
	conns  []*iceConn
}

type iceConn struct {
	net.Conn
	on *ice
	// Guarded by on.mu.
	frozen bool
	late   []byte
	closed bool // while frozen
}

func (i *ice) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	i.mu.Lock()
	refuse := i.refuse
	i.mu.Unlock()
	if refuse {
		return nil, errors.New("frozen by the test")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &iceConn{Conn: conn, on: i}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.conns = append(i.conns, c)
	return c, nil
}

func (c *iceConn) Write(b []byte) (int, error) {
	c.on.mu.Lock()
	defer c.on.mu.Unlock()
	if i := slices.IndexFunc(c.on.on, func(s string) bool { return bytes.Contains(b, []byte(s)) }); i >= 0 {
		c.on.on = slices.Delete(c.on.on, i, i+1)
		c.frozen = true
	}
	if c.frozen {
		c.late = append(c.late, b...)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *iceConn) Close() error {
	c.on.mu.Lock()
	defer c.on.mu.Unlock()
	if c.frozen {
		c.closed = true
		return c.SetReadDeadline(time.Now()) // ends its reader
	}
	return c.Conn.Close()
}

// freeze stops every connection there is, and refuses new ones if it is to.
func (i *ice) freeze(refuse bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refuse = refuse
	for _, c := range i.conns {
		c.frozen = true
	}
}

// thaw delivers what was written, and returns how much that was.
func (i *ice) thaw() (late int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refuse = false
	for _, c := range i.conns {
		_ = c.SetWriteDeadline(time.Time{})
		n, _ := c.Conn.Write(c.late)
		if late += n; c.closed {
			// Half of it, so that the server reads what has just been written.
			_ = c.Conn.(*net.TCPConn).CloseWrite()
		}
		c.late, c.frozen = nil, false
	}
	return late
}

func TestKeyedFrozenOwnerCanDoNothingAfterItsLease(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 1)
	var net ice
	da := open(t, func(c *redis.Config) { c.Dial = net.dial })
	db := open(t)
	a := rawMember(t, da, driver.Subscription{From: to})
	oneKey(t, db, to, "k", 0, 6)
	got := receive(t, a.c, 3)
	first := a.own["0"]
	net.freeze(true)
	stopped := time.Now()
	// Both are on their way when the owner freezes, and arrive after its lease.
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := a.c.Settle(ctx, []driver.Settlement{{Receipt: got[0].Receipt, Disposition: driver.Ack}}); err == nil {
		t.Fatal("a settlement over a frozen network")
	}
	ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if late, err := a.c.Receive(ctx, demand(1)); err == nil {
		t.Fatalf("%d messages from a frozen network", len(late))
	}
	began := time.Now()
	b := rawMember(t, db, driver.Subscription{From: to})
	again := receive(t, b.c, 3)
	if took := time.Since(began); took > lease+time.Second {
		t.Errorf("taken over after %v, the lease is %v", took, lease)
	}
	inOrder(t, "the heir", again, 2, 0, 1, 2)
	eventually(t, "the frozen owner to see by its own clock that it is none", time.Second, a.owns(0))
	if !slices.Equal(a.ends, []bool{true}) {
		t.Errorf("its Revoke said %v, want that ownership is over already", a.ends)
	}
	if took := a.at[0].Sub(stopped); took > lease+150*time.Millisecond {
		t.Errorf("it saw that %v after the freeze, the lease is %v", took, lease)
	}
	if late := net.thaw(); late == 0 {
		t.Error("nothing was on its way: this test shows little")
	}
	time.Sleep(100 * time.Millisecond) // what arrives late takes its time
	if s := stats(t, db, to); s.InFlight != 3 || s.Ready != 3 {
		t.Errorf("after the thaw %+v, want 3 out with the heir and 3 ready", s)
	}
	for _, what := range []driver.Disposition{driver.Ack, driver.Nack, driver.Return} {
		if err := settle(a.c, driver.Settlement{Disposition: what}, got[1]); driver.ClassOf(driver.ResultAt(err, 0)) != driver.LeaseLost {
			t.Errorf("the old owner's %v ended with %v", what, err)
		}
	}
	mustSettle(t, b.c, driver.Ack, again...)
	inOrder(t, "the heir", receive(t, b.c, 3), 1, 3, 4, 5)
	if b.own["0"].Fence <= first.Fence {
		t.Errorf("fence %d after %d", b.own["0"].Fence, first.Fence)
	}
}

// While a Revoke is in progress the shard stays ours, and so do the others; the last
// Settle in it counts, and only then the next owner gets it.
func TestKeyedLeaseIsRenewedDuringARevoke(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Queue, 4)
	a := rawMember(t, d, driver.Subscription{From: to})
	keys := keysOf(40)
	for _, k := range keys {
		oneKey(t, d, to, k, 0, 1)
	}
	eventually(t, "a has all", 5*time.Second, a.owns(4))
	got := receive(t, a.c, 40)
	let := make(chan struct{})
	release := sync.OnceFunc(func() { close(let) })
	t.Cleanup(release)
	a.mu.Lock()
	a.hold = func(ctx context.Context) {
		if ctx.Err() != nil {
			t.Error("a Revoke of what is ours began with an ended ctx")
		}
		<-let
	}
	a.mu.Unlock()
	b := rawMember(t, d, driver.Subscription{From: to})
	time.Sleep(3 * lease) // the drain: longer than any lease that nobody renews
	if !b.owns(0)() {
		t.Fatal("the next owner did not wait for the Revoke")
	}
	mustSettle(t, a.c, driver.Ack, got...)
	release()
	eventually(t, "two each", 3*time.Second, func() bool { return a.owns(2)() && b.owns(2)() })
	quiet(t, b.c, 200*time.Millisecond)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.opened != 4 || len(a.ends) != 2 {
		t.Errorf("the first member had %d assignments and %d revokes, want 4 and 2", a.opened, len(a.ends))
	}
}

func TestKeyedCutIsSurvivedWithinTheLease(t *testing.T) {
	t.Parallel()
	var net cutter
	to := freshKeyed(t, driver.Queue, 4)
	d := open(t, func(c *redis.Config) { c.Dial, c.Lease = net.Dial, 3*time.Second })
	m := rawMember(t, d, driver.Subscription{From: to})
	eventually(t, "all shards", 5*time.Second, m.owns(4))
	oneKey(t, d, to, "k", 0, 3)
	got := receive(t, m.c, 2)
	net.Down()
	eventually(t, "word of the outage", 5*time.Second, func() bool { return m.gone.of(driver.Disconnected) == 1 })
	net.Up()
	inOrder(t, "after the cut", receive(t, m.c, 1), 1, 2)
	mustSettle(t, m.c, driver.Ack, got...)
	if m.opened != 4 || len(m.ends) != 0 {
		t.Errorf("%d assignments, %d revokes: the cut cost the shards", m.opened, len(m.ends))
	}
}

func TestKeyedShardThatVanishedIsMadeAnew(t *testing.T) {
	t.Parallel()
	d, cl, to := open(t), raw(t), freshKeyed(t, driver.Topic, 1, "g")
	m := rawMember(t, d, driver.Subscription{From: to, Group: "g"})
	oneKey(t, d, to, "k", 0, 2)
	got := receive(t, m.c, 1)
	before := m.own["0"]
	for what, harm := range map[string]func(){
		"the stream":   func() { cl.Del(context.Background(), "varal:{"+to.Name+"/0}:shard") },
		"the group":    func() { cl.XGroupDestroy(context.Background(), "varal:{"+to.Name+"/0}:shard", "g") },
		"all its keys": func() { flush(t, to.Name) },
	} {
		gone := m.gone.of(driver.Gone)
		harm()
		eventually(t, what+" made anew", 5*time.Second, func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.own["0"].Fence > before.Fence && m.gone.of(driver.Gone) > gone
		})
		before = m.own["0"]
		if err := settle(m.c, driver.Settlement{Disposition: driver.Ack}, got...); driver.ClassOf(driver.ResultAt(err, 0)) != driver.LeaseLost {
			t.Errorf("%s: a receipt of before ended with %v", what, err)
		}
		oneKey(t, d, to, "k", 10, 12)
		ctx := within(t, 10*time.Second)
		for last := -1; last != 11; {
			rs, err := m.c.Receive(ctx, demand(5))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for _, r := range rs {
				if last, got = number(r.ID), rs; r.Receipt.Epoch != before.Epoch {
					t.Errorf("%s: epoch %d, want %d", what, r.Receipt.Epoch, before.Epoch)
				}
			}
		}
	}
}

// flush deletes every key of a destination, as FLUSHALL does to all.
func flush(t *testing.T, name string) {
	t.Helper()
	cl, ctx := raw(t), within(t, 10*time.Second)
	for it := cl.Scan(ctx, 0, "varal:{"+name+"*", 1000).Iterator(); it.Next(ctx); {
		cl.Del(ctx, it.Val())
	}
}

func TestKeyedConsumersEndWhenTheirSourceIsDeleted(t *testing.T) {
	t.Parallel()
	d, to := open(t), freshKeyed(t, driver.Queue, 3)
	c := subscribe(t, d, driver.Subscription{From: to})
	oneKey(t, d, to, "k", 0, 1)
	receive(t, c, 1)
	if _, err := d.Admin().Apply(within(t, 5*time.Second), []driver.Resource{{Destination: to}}, driver.Delete); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(within(t, 5*time.Second), demand(1)); !errors.Is(err, driver.NotFound) {
		t.Errorf("Receive ended with %v", err)
	}
	if keys := raw(t).Keys(context.Background(), "varal:{"+to.Name+"*").Val(); len(keys) != 2 { // tombstone; the members until they leave
		t.Errorf("%v are left", keys)
	}
}

// counted counts what is sent.
type counted struct {
	net.Conn
	add func()
}

func (c counted) Write(b []byte) (int, error) { c.add(); return c.Conn.Write(b) }

// A member that waits asks the server a few times a second, however many shards it has.
func TestKeyedIdleCostDoesNotGrowWithTheShards(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 64)
	var mu sync.Mutex
	sent := 0
	d := open(t, func(c *redis.Config) {
		c.Lease = 6 * time.Second
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return counted{conn, func() { mu.Lock(); sent++; mu.Unlock() }}, err
		}
	})
	m := rawMember(t, d, driver.Subscription{From: to})
	eventually(t, "all shards", 5*time.Second, m.owns(64))
	quiet(t, m.c, 500*time.Millisecond) // reads all shards once
	mu.Lock()
	sent = 0
	mu.Unlock()
	quiet(t, m.c, 4*time.Second)
	mu.Lock()
	defer mu.Unlock()
	if sent > 6*4 { // a read that waits and a round of the owner each second, with room for their pieces
		t.Errorf("%d writes in 4 s", sent)
	}
}

// deaf is a network whose answers can be lost: what is asked arrives.
type deaf struct {
	mu   sync.Mutex
	lose bool
}

type deafConn struct {
	net.Conn
	on *deaf
}

func (d *deaf) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return deafConn{conn, d}, err
}

func (d *deaf) set(lose bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lose = lose
}

func (c deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.on.mu.Lock()
	defer c.on.mu.Unlock()
	if c.on.lose && err == nil {
		_ = c.Close()
		return 0, errors.New("lost by the test")
	}
	return n, err
}

// The server has handed messages out and the answer is lost: nothing of it may stay out
// while the shard is ours, nor be overtaken, nor may what is out by right come twice.
func TestKeyedLostAnswersAreReadAgainInOrder(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 1)
	var net deaf
	d := open(t, func(c *redis.Config) { c.Dial, c.Lease = net.dial, 20*time.Second })
	pub := open(t)
	m := rawMember(t, d, driver.Subscription{From: to})
	oneKey(t, pub, to, "k", 0, 10)
	out := receive(t, m.c, 2)
	for i := range 3 {
		net.set(true)
		if got, err := m.c.Receive(within(t, 5*time.Second), demand(3)); driver.ClassOf(err) != driver.Transient {
			t.Fatalf("%d messages, %v: no answer was lost", len(got), err)
		}
		net.set(false)
		if s := stats(t, pub, to); i == 0 && s.InFlight != 5 {
			t.Fatalf("%+v: the server has handed out nothing, so this test shows nothing", s)
		}
	}
	rest := receive(t, m.c, 8)
	inOrder(t, "after the losses", rest, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	mustSettle(t, m.c, driver.Ack, append(out, rest...)...)
	quiet(t, m.c, 200*time.Millisecond)
	if s := stats(t, pub, to); s.InFlight != 0 || s.Ready != 0 {
		t.Errorf("%+v is left", s)
	}
	if m.opened != 1 {
		t.Errorf("%d assignments: it should not have cost the shard", m.opened)
	}
}

// A read that was given up may reach the server long after. It may not take anything then,
// or the reads that follow would overtake what it took.
func TestKeyedLateReadTakesNothing(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 1)
	var net ice
	d := open(t, func(c *redis.Config) { c.Dial, c.Lease, c.Timeout = net.dial, 20*time.Second, 200*time.Millisecond })
	pub := open(t)
	m := rawMember(t, d, driver.Subscription{From: to})
	oneKey(t, pub, to, "k", 0, 10)
	out := receive(t, m.c, 2)
	net.freeze(false)
	out = append(out, receive(t, m.c, 3)...) // over new connections, after some tries
	if late := net.thaw(); late == 0 {
		t.Error("nothing was on its way: this test shows little")
	}
	time.Sleep(100 * time.Millisecond) // what arrives late takes its time
	if s := stats(t, pub, to); s.InFlight != 5 {
		t.Errorf("%d are out after the thaw, and we know of 5", s.InFlight)
	}
	out = append(out, receive(t, m.c, 5)...)
	inOrder(t, "all", out, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	mustSettle(t, m.c, driver.Ack, out...)
	if s := stats(t, pub, to); s.InFlight != 0 || s.Ready != 0 || m.opened != 1 {
		t.Errorf("%+v is left, after %d assignments", s, m.opened)
	}
}

// The same for the request that cleans up after it: late, it does not know what is out.
func TestKeyedLateRecoveryGivesNothingBack(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 1)
	var net ice
	var freeze []string
	for _, text := range []string{redis.ReadScript, redis.RecoverScript} {
		freeze = append(freeze, raw(t).ScriptLoad(within(t, 5*time.Second), text).Val())
	}
	d := open(t, func(c *redis.Config) { c.Dial, c.Lease, c.Timeout = net.dial, 20*time.Second, 200*time.Millisecond })
	pub := open(t)
	m := rawMember(t, d, driver.Subscription{From: to})
	oneKey(t, pub, to, "k", 0, 10)
	out := receive(t, m.c, 2)
	net.mu.Lock()
	net.on = freeze
	net.mu.Unlock()
	out = append(out, receive(t, m.c, 3)...) // after a read and a recovery that are late
	net.mu.Lock()
	if len(net.on) > 0 {
		t.Errorf("%d of 2 requests are not late: this test shows little", len(net.on))
	}
	net.mu.Unlock()
	net.thaw()
	time.Sleep(100 * time.Millisecond) // what arrives late takes its time
	if s := stats(t, pub, to); s.InFlight != 5 || s.Ready != 5 {
		t.Errorf("%+v after the thaw, and we know of 5 that are out", s)
	}
	out = append(out, receive(t, m.c, 5)...)
	inOrder(t, "all", out, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	mustSettle(t, m.c, driver.Ack, out...)
}
