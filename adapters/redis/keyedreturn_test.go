package redis_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// mute lets a request through that holds all of some texts, once, and breaks its connection
// before the answer arrives.
type mute struct {
	texts []string
	armed atomic.Bool
	ate   chan struct{}
}

func newMute(texts ...string) *mute { return &mute{texts: texts, ate: make(chan struct{})} }

type muted struct {
	net.Conn
	by  *mute
	mu  sync.Mutex
	eat bool
}

func (m *mute) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &muted{Conn: conn, by: m}, err
}

func (c *muted) Write(b []byte) (int, error) {
	all := !slices.ContainsFunc(c.by.texts, func(s string) bool { return !bytes.Contains(b, []byte(s)) })
	if all && c.by.armed.CompareAndSwap(true, false) {
		c.mu.Lock()
		c.eat = true
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

func (c *muted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	eat := c.eat
	c.eat = false
	c.mu.Unlock()
	if eat {
		_ = c.Conn.Close()
		close(c.by.ate)
		return 0, errors.New("connection reset by the test")
	}
	return n, err
}

// sendAgain settles as core does: what ended Transient or Ambiguous is sent again.
func sendAgain(t *testing.T, c driver.Consumer, what driver.Disposition, err error, r driver.Received) {
	t.Helper()
	for tries := 0; err != nil; tries++ {
		if k := driver.ClassOf(driver.ResultAt(err, 0)); tries == 10 || k != driver.Transient && k != driver.Ambiguous {
			t.Fatalf("try %d: %v", tries, err)
		}
		err = settle(c, driver.Settlement{Disposition: what}, r)
	}
}

// The answer to a Return is lost, and the message is handed out again before core sends the
// Return a second time: that one must not give back what runs by now.
func TestKeyedReturnWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 1)
	lost := newMute("/0}:lease:", "\r\nreturn\r\n")
	d := open(t, func(c *redis.Config) { c.Dial, c.Lease = lost.dial, 20*time.Second })
	m := rawMember(t, d, driver.Subscription{From: to})
	oneKey(t, open(t), to, "k", 0, 3)
	got := receive(t, m.c, 2)
	lost.armed.Store(true)
	err := settle(m.c, driver.Settlement{Disposition: driver.Return}, got[0])
	<-lost.ate
	again := receive(t, m.c, 2)
	inOrder(t, "after the return", again, 1, 0, 2)
	sendAgain(t, m.c, driver.Return, err, got[0])
	quiet(t, m.c, 300*time.Millisecond)
	if s := stats(t, d, to); s.InFlight != 3 || s.Ready != 0 {
		t.Errorf("%+v, want 3 out: one that runs was given back", s)
	}
	mustSettle(t, m.c, driver.Ack, again...)
	mustSettle(t, m.c, driver.Ack, got[1])
}

// A Return that arrives late, after the message came back another way and runs again, does
// nothing.
func TestKeyedReturnThatArrivesLate(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 1)
	net := ice{on: []string{"\r\nreturn\r\n"}}
	d := open(t, func(c *redis.Config) { c.Dial, c.Lease = net.dial, 20*time.Second })
	m := rawMember(t, d, driver.Subscription{From: to})
	oneKey(t, open(t), to, "k", 0, 2)
	got := receive(t, m.c, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	err := m.c.Settle(ctx, []driver.Settlement{{Receipt: got[0].Receipt, Disposition: driver.Return}})
	sendAgain(t, m.c, driver.Return, err, got[0])
	again := receive(t, m.c, 2)
	inOrder(t, "after the return", again, 1, 0, 1)
	if net.thaw() == 0 {
		t.Fatal("nothing was late: this test has shown nothing")
	}
	quiet(t, m.c, 300*time.Millisecond)
	if s := stats(t, d, to); s.InFlight != 2 {
		t.Errorf("%+v, want 2 out: one that runs was given back", s)
	}
	mustSettle(t, m.c, driver.Ack, again...)
}

// What waits in the consumer goes back when its partition is paused. Where nobody knows whether
// it did it comes again all the same, before what is behind it.
func TestKeyedPauseWhoseReturnIsLost(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]bool{"after it took effect": true, "before it took effect": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := freshKeyed(t, driver.Queue, 1)
			lost := newMute("/0}:lease:", "\r\nreturn\r\n")
			net := ice{}
			dial := lost.dial
			if !arrives {
				dial = net.dial
			}
			d := open(t, func(c *redis.Config) { c.Dial, c.Lease, c.Timeout = dial, 20*time.Second, time.Second })
			m := rawMember(t, d, driver.Subscription{From: to})
			heavy(t, d, to, m.c, 5) // three wait
			lost.armed.Store(true)
			net.mu.Lock()
			net.on = []string{"\r\nreturn\r\n"}
			net.mu.Unlock()
			paused := demand(10)
			paused.Paused = []string{"0"}
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			if got, err := m.c.Receive(ctx, paused); err == nil {
				t.Fatalf("%d messages of a paused partition", len(got))
			}
			more := message(5)
			if err := open(t).Publish(within(t, 5*time.Second), to, []*driver.Message{more}); err != nil {
				t.Fatal(err)
			}
			again := receive(t, m.c, 4)
			net.thaw()
			for i, r := range again {
				if r.ID != message(i+2).ID || r.DeliveryCount != 1 {
					t.Errorf("%s, delivery %d, came in the place of %s", r.ID, r.DeliveryCount, message(i+2).ID)
				}
			}
			quiet(t, m.c, 300*time.Millisecond)
			mustSettle(t, m.c, driver.Ack, again...)
			if s := stats(t, d, to); s.Ready != 0 || s.InFlight != 0 {
				t.Errorf("%+v is left", s)
			}
		})
	}
}

// The same without partitions. Where the Return did not take effect either, the message comes
// when its lease has ended: late, and once.
func TestReturnWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	to := fresh(t, driver.Queue)
	lost := newMute("\r\nreturn\r\n")
	d := open(t, func(c *redis.Config) { c.Dial, c.Lease = lost.dial, 20*time.Second })
	c := subscribe(t, d, driver.Subscription{From: to})
	if err := open(t).Publish(within(t, 5*time.Second), to, []*driver.Message{message(0)}); err != nil {
		t.Fatal(err)
	}
	got := receive(t, c, 1)
	lost.armed.Store(true)
	err := settle(c, driver.Settlement{Disposition: driver.Return}, got[0])
	<-lost.ate
	again := receive(t, c, 1)
	if again[0].DeliveryCount != 1 {
		t.Errorf("delivery %d of a message that was not tried", again[0].DeliveryCount)
	}
	sendAgain(t, c, driver.Return, err, got[0])
	quiet(t, c, 1500*time.Millisecond)
	mustSettle(t, c, driver.Ack, again...)
}

// At the end nobody takes it again before us, and whoever comes next shall not wait for it.
func TestLastReturnIsSentAgain(t *testing.T) {
	t.Parallel()
	to := fresh(t, driver.Queue)
	var net cutter
	d := open(t, func(c *redis.Config) { c.Dial, c.Lease = net.Dial, 20*time.Second })
	c := subscribe(t, d, driver.Subscription{From: to})
	if err := open(t).Publish(within(t, 5*time.Second), to, []*driver.Message{message(0)}); err != nil {
		t.Fatal(err)
	}
	got := receive(t, c, 1)
	net.Cut()
	last := driver.Settlement{Disposition: driver.Return, Final: true}
	err := settle(c, last, got...)
	for tries := 0; err != nil && tries < 10; tries++ {
		err = settle(c, last, got...)
	}
	if err != nil {
		t.Fatal(err)
	}
	if again := receive(t, subscribe(t, open(t), driver.Subscription{From: to}), 1); again[0].DeliveryCount != 1 {
		t.Errorf("delivery %d of a message that was not tried", again[0].DeliveryCount)
	}
}

// The answer to a Nack is lost, the message is handed out again, and the Nack is sent a second
// time, which ends the first hand-out and says nothing of the present one. What is known to be
// out must still hold that: the recovery after a lost read would give it back while it runs.
func TestKeyedNackSentAgainForgetsNoHandOut(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 1)
	nack, read := newMute("/0}:lease:", "\r\nnack\r\n"), newMute("/0}:lease:", "\r\n321\r\n") // 321 is the room
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := nack.dial(ctx, network, addr)
		return &muted{Conn: conn, by: read}, err
	}
	d := open(t, func(c *redis.Config) { c.Dial, c.Lease = dial, 20*time.Second })
	m := rawMember(t, d, driver.Subscription{From: to})
	oneKey(t, open(t), to, "k", 0, 1)
	first := receive(t, m.c, 1)
	nack.armed.Store(true)
	err := settle(m.c, driver.Settlement{Disposition: driver.Nack}, first...)
	<-nack.ate
	again := receive(t, m.c, 1)
	inOrder(t, "after the nack", again, 2, 0)
	sendAgain(t, m.c, driver.Nack, err, first[0])
	read.armed.Store(true)
	oneKey(t, open(t), to, "k", 1, 2)
	ctx := within(t, 10*time.Second)
	for !isClosed(read.ate) {
		if got, err := m.c.Receive(ctx, demand(321)); ctx.Err() != nil || len(got) > 0 {
			t.Fatalf("no read was lost: %d messages, %v", len(got), err)
		}
	}
	next := receive(t, m.c, 1)
	inOrder(t, "after the lost read", next, 1, 1)
	quiet(t, m.c, 300*time.Millisecond)
	mustSettle(t, m.c, driver.Ack, again[0], next[0])
}
