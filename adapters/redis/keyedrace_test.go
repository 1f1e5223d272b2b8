package redis_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// gate holds the first request that matches, or the answer to it, until it is opened: so a
// test can choose the interleaving.
type gate struct {
	match  func(request []byte) bool
	answer bool // hold the answer and not the request

	once sync.Once
	held chan struct{} // closed when it holds one
	open chan struct{}
}

func newGate(answer bool, match func([]byte) bool) *gate {
	return &gate{match: match, answer: answer, held: make(chan struct{}), open: make(chan struct{})}
}

type gated struct {
	net.Conn
	by   *gate
	mu   sync.Mutex
	hold bool
}

func (g *gate) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &gated{Conn: conn, by: g}, err
}

func (c *gated) Write(b []byte) (int, error) {
	if c.by.match(b) {
		c.by.once.Do(func() {
			if !c.by.answer {
				close(c.by.held)
				<-c.by.open
				return
			}
			c.mu.Lock()
			c.hold = true
			c.mu.Unlock()
		})
	}
	return c.Conn.Write(b)
}

func (c *gated) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	hold := c.hold
	c.hold = false
	c.mu.Unlock()
	if hold {
		close(c.by.held)
		<-c.by.open
	}
	return n, err
}

// A member sees that a shard is free, and another one claims it before its own claim
// arrives.
func TestKeyedClaimThatComesSecondGetsNothing(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 1)
	// A lease of a length that no other request of a new member tells together with a shard.
	g := newGate(false, func(b []byte) bool {
		return bytes.Contains(b, []byte("/0}:lease:")) && bytes.Contains(b, []byte("7654"))
	})
	late := rawMember(t, open(t, func(c *redis.Config) { c.Dial, c.Lease = g.dial, 7654*time.Millisecond }), driver.Subscription{From: to})
	<-g.held
	cl, ctx := raw(t), within(t, 20*time.Second)
	if err := cl.Del(ctx, "varal:{"+to.Name+"}:members:queue").Err(); err != nil { // the second is alone, as it sees it
		t.Fatal(err)
	}
	owner := rawMember(t, open(t), driver.Subscription{From: to})
	eventually(t, "the other one to own it", 5*time.Second, owner.owns(1))
	oneKey(t, open(t), to, "k", 0, 3)
	got := receive(t, owner.c, 3)
	let := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(let) })
	t.Cleanup(letGo)
	owner.mu.Lock()
	owner.hold = func(context.Context) { <-let } // the shard is the older member's share, later
	owner.mu.Unlock()
	close(g.open)
	time.Sleep(500 * time.Millisecond) // for the claim to come, and for what must not happen
	if !late.owns(0)() {
		t.Error("a shard has two owners")
	}
	mustSettle(t, owner.c, driver.Ack, got...)
	letGo()
	eventually(t, "the older member to have its share", 5*time.Second, late.owns(1))
}

// A message goes back between a read that finds nothing and the look at its answer.
func TestKeyedNackBeforeTheAnswerOfAnEmptyRead(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 1)
	armed := make(chan struct{})
	g := newGate(true, func(b []byte) bool {
		select {
		case <-armed:
			return bytes.Contains(b, []byte("/0}:lease:")) && bytes.Contains(b, []byte("\r\n321\r\n")) // the room
		default:
			return false
		}
	})
	d := open(t, func(c *redis.Config) { c.Dial, c.Lease = g.dial, 20*time.Second })
	m := rawMember(t, d, driver.Subscription{From: to})
	oneKey(t, open(t), to, "k", 0, 1)
	first := receive(t, m.c, 1) // all that was asked for, so the shard may have more
	close(armed)
	back := make(chan []driver.Received, 1)
	go func() {
		got, _ := m.c.Receive(within(t, 5*time.Second), driver.Demand{Records: 321, Bytes: 1 << 40, Limit: 321})
		back <- got
	}()
	<-g.held
	mustSettle(t, m.c, driver.Nack, first...)
	close(g.open)
	if got := <-back; len(got) != 1 {
		t.Errorf("%d messages came: it lies there until something else is published", len(got))
	}
}

// What waits in the consumer when the shard is lost is not handed out any more.
func TestKeyedLostShardLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	var net cutter
	to := freshKeyed(t, driver.Queue, 1)
	d := open(t, func(c *redis.Config) { c.Dial = net.Dial })
	m := rawMember(t, d, driver.Subscription{From: to})
	heavy(t, d, to, m.c, 5) // three wait
	net.Down()
	eventually(t, "the loss", 3*lease, m.owns(0))
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if got, err := m.c.Receive(ctx, demand(5)); err == nil {
		t.Errorf("%d messages of a lost shard", len(got))
	}
	net.Up()
	again := receive(t, m.c, 3) // under the next tenure
	for i, r := range again {
		if r.ID != message(i+2).ID || r.DeliveryCount != 2 {
			t.Errorf("%s, delivery %d, came in place of %d", r.ID, r.DeliveryCount, i+2)
		}
	}
}
