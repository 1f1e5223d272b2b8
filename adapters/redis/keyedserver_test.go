package redis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// server is a Redis of the test's own, which it may hurt.
type server struct {
	t    *testing.T
	addr string
	tls  *tls.Config // nil = it listens in the open
	args []string
	mu   sync.Mutex
	cmd  *exec.Cmd
}

func private(t *testing.T, more ...string) *server {
	t.Helper()
	path, addr := adaptertest.RedisServer(t), adaptertest.FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	// With everysec the server puts a write off while an fsync is slow, so that a kill may lose
	// what it has confirmed.
	s := &server{t: t, addr: addr, args: append([]string{
		path, "--bind", "127.0.0.1", "--port", port, "--dir", t.TempDir(), "--save", "", "--appendonly", "yes", "--appendfsync", "always",
		"--maxmemory-policy", "noeviction", "--repl-diskless-sync-delay", "0",
	}, more...)}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// start starts it and waits until it answers.
func (s *server) start() {
	s.t.Helper()
	s.mu.Lock()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	err := s.cmd.Start()
	s.mu.Unlock()
	if err != nil {
		s.t.Fatal(err)
	}
	cl := s.client()
	eventually(s.t, "the server", 10*time.Second, func() bool {
		err := cl.Ping(context.Background()).Err()
		return err == nil || strings.HasPrefix(err.Error(), "NOAUTH")
	})
}

// kill is a SIGKILL.
func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) client() *goredis.Client {
	cl := goredis.NewClient(&goredis.Options{Addr: s.addr, TLSConfig: s.tls})
	s.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

// sentinel is a client of a Sentinel.
func (s *server) sentinel() *goredis.SentinelClient {
	cl := goredis.NewSentinelClient(&goredis.Options{Addr: s.addr, TLSConfig: s.tls})
	s.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

// linked waits until a replica follows its master.
func (s *server) linked() {
	s.t.Helper()
	cl := s.client()
	eventually(s.t, "the replica", 15*time.Second, func() bool {
		info, _ := cl.Info(context.Background(), "replication").Result()
		return strings.Contains(info, "master_link_status:up")
	})
}

// promoted waits until a replica has taken over.
func (s *server) promoted(limit time.Duration) {
	s.t.Helper()
	cl := s.client()
	eventually(s.t, "the replica to take over", limit, func() bool {
		role, _ := cl.Do(context.Background(), "ROLE").Slice()
		return len(role) > 0 && role[0] == "master"
	})
}

func (s *server) config(c *redis.Config) {
	c.Addr, c.User, c.Password, c.DB, c.TLS = s.addr, "", "", 0, nil
}

func (s *server) make(shape driver.Shape, partitions int, groups ...string) driver.Destination {
	s.t.Helper()
	to := driver.Destination{Shape: shape, Name: "own", Partitions: partitions}
	adaptertest.Create(s.t, open(s.t, s.config), to, groups...)
	return to
}

// insist publishes messages 0 to n-1 of each key, one round after the other, each until it
// is confirmed. Some may be stored twice.
func insist(t *testing.T, d driver.Driver, to driver.Destination, n int, keys []string) (done <-chan struct{}) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := range n {
			var batch []*driver.Message
			for _, k := range keys {
				batch = append(batch, &driver.Message{ID: id(k, i), Key: k, Body: []byte("x"), Time: time.Now()})
			}
			for end := time.Now().Add(20 * time.Second); len(batch) > 0; time.Sleep(2 * time.Millisecond) {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				err := d.Publish(ctx, to, batch)
				cancel()
				var rest []*driver.Message
				for j, m := range batch {
					if driver.ResultAt(err, j) != nil {
						rest = append(rest, m)
					}
				}
				if batch = rest; time.Now().After(end) {
					t.Errorf("publish: %v", err)
					return
				}
			}
		}
	}()
	t.Cleanup(func() { <-ended })
	return ended
}

func TestKeyedServerIsKilledAndComesBack(t *testing.T) {
	t.Parallel()
	s := private(t)
	to := s.make(driver.Queue, shardsOfTests)
	w, keys := newWatch(), keysOf(17)
	w.Loosen()
	const each = 300
	fed := insist(t, open(t, s.config), to, each, keys)
	longer := func(c *redis.Config) { s.config(c); c.Lease = 2 * time.Second }
	join(t, w, "a", to, longer)
	join(t, w, "b", to, longer)
	eventually(t, "a and b", 10*time.Second, func() bool { return w.balanced("a", "b") })
	for range 2 {
		before := w.handled()
		eventually(t, "work", 20*time.Second, func() bool { return w.handled() > before+200 })
		s.kill()
		s.start()
	}
	<-fed
	w.all(t, each*len(keys))
	eventually(t, "a and b", 10*time.Second, func() bool { return w.balanced("a", "b") })
	w.check(t, each, keys...)
}

func TestKeyedFlushAll(t *testing.T) {
	t.Parallel()
	s := private(t)
	to := s.make(driver.Stream, shardsOfTests, "g")
	d := open(t, s.config)
	m := rawMember(t, d, driver.Subscription{From: to, Group: "g"})
	eventually(t, "all shards", 5*time.Second, m.owns(shardsOfTests))
	oneKey(t, d, to, "k", 0, 3)
	old := receive(t, m.c, 2)
	fence := m.own[old[0].Receipt.Partition].Fence
	for range 2 {
		opened := m.opened
		if err := s.client().FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all shards anew", 5*time.Second, func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return len(m.own) == shardsOfTests && m.opened == opened+shardsOfTests
		})
	}
	if err := settle(m.c, driver.Settlement{Disposition: driver.Ack}, old[0]); driver.ClassOf(driver.ResultAt(err, 0)) != driver.LeaseLost {
		t.Errorf("a receipt of before ended with %v", err)
	}
	oneKey(t, d, to, "k", 3, 6)
	got := receive(t, m.c, 3)
	inOrder(t, "after the flush", got, 1, 3, 4, 5)
	mustSettle(t, m.c, driver.Ack, got...)
	if f := m.own[got[0].Receipt.Partition].Fence; f <= fence {
		t.Errorf("fence %d after %d: a store would refuse the rightful owner", f, fence)
	}
	if n := m.gone.of(driver.Gone); n == 0 {
		t.Error("nobody was told")
	}
}

// Owners go on without memory: only what they consume makes room again.
func TestKeyedWithoutMemory(t *testing.T) {
	t.Parallel()
	s := private(t)
	to := s.make(driver.Queue, 4)
	d := open(t, s.config)
	m := rawMember(t, d, driver.Subscription{From: to})
	eventually(t, "all shards", 5*time.Second, m.owns(4))
	for _, k := range keysOf(20) {
		oneKey(t, d, to, k, 0, 3)
	}
	limit := func(v string) {
		if err := s.client().ConfigSet(context.Background(), "maxmemory", v).Err(); err != nil {
			t.Fatal(err)
		}
	}
	limit("1kb")
	if err := d.Publish(within(t, 5*time.Second), to, []*driver.Message{message(1)}); driver.ClassOf(driver.ResultAt(err, 0)) != driver.Transient {
		t.Errorf("a publish without memory ended with %v", err)
	}
	time.Sleep(2 * lease) // a lease that is not renewed would have ended
	got := receive(t, m.c, 60)
	mustSettle(t, m.c, driver.Nack, got[0])
	mustSettle(t, m.c, driver.Ack, got[1:]...)
	mustSettle(t, m.c, driver.Ack, receive(t, m.c, 1)...)
	if m.opened != 4 || len(m.ends) != 0 {
		t.Errorf("%d assignments, %d revokes: the shards were lost", m.opened, len(m.ends))
	}
	b := open(t, s.config)
	_, err := b.Subscribe(within(t, 5*time.Second), driver.Subscription{From: to})
	if !errors.Is(err, driver.Transient) {
		t.Errorf("a member that starts without memory: %v", err)
	}
	limit("0")
	c := rawMember(t, b, driver.Subscription{From: to})
	eventually(t, "two each", 5*time.Second, func() bool { return m.owns(2)() && c.owns(2)() })
}

// A replica takes over: what it has not heard of is gone, its lease and fence too, and no
// owner may meet another's.
func TestKeyedFailover(t *testing.T) {
	t.Parallel()
	primary := private(t)
	host, port, _ := net.SplitHostPort(primary.addr)
	replica := private(t, "--replicaof", fmt.Sprintf("%s %s", host, port))
	to := primary.make(driver.Queue, shardsOfTests)
	replica.linked()
	var now sync.Map
	now.Store("addr", primary.addr)
	follow := func(c *redis.Config) {
		primary.config(c)
		inner := c.Dial
		if inner == nil {
			inner = (&net.Dialer{}).DialContext
		}
		c.Lease = 2 * time.Second
		c.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			addr, _ := now.Load("addr")
			return inner(ctx, network, addr.(string))
		}
	}
	w, keys := newWatch(), keysOf(17)
	w.Loosen()
	const each = 300
	fed := insist(t, open(t, follow), to, each, keys)
	join(t, w, "a", to, follow)
	join(t, w, "b", to, follow)
	eventually(t, "a and b", 10*time.Second, func() bool { return w.balanced("a", "b") })
	eventually(t, "work", 20*time.Second, func() bool { return w.handled() > 300 })
	// A clean switch: the old primary waits for the replica, then refuses writes.
	rhost, rport, _ := net.SplitHostPort(replica.addr)
	if err := primary.client().Do(context.Background(), "FAILOVER", "TO", rhost, rport, "TIMEOUT", 2000).Err(); err != nil {
		t.Fatal(err)
	}
	replica.promoted(5 * time.Second)
	now.Store("addr", replica.addr)
	primary.kill() // its connections end; new ones go to the new primary
	<-fed
	w.all(t, each*len(keys))
	w.check(t, each, keys...)
	primary.start() // for the cleanup of what was opened at its address
}
