package redis_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// ring is a Cluster of three masters, of the test's own.
type ring struct {
	*server
	nodes []*server
	ids   []string
	size  int // with the replicas
}

// clustered starts one, with a replica for each master if it is to.
func clustered(t *testing.T, replicas ...bool) *ring {
	t.Helper()
	r := &ring{size: 3}
	if len(replicas) > 0 {
		r.size = 6
	}
	ctx := within(t, 30*time.Second)
	bus := make([]string, r.size)
	for i := range bus {
		_, bus[i], _ = net.SplitHostPort(adaptertest.FreeAddr(t))
		r.nodes = append(r.nodes, private(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", "2000", "--cluster-announce-ip", "127.0.0.1", "--cluster-port", bus[i]))
	}
	r.server = r.nodes[0]
	for i, n := range r.nodes {
		cl := n.client()
		first, last := i*16384/3, (i+1)*16384/3-1
		orders := [][]any{{"CLUSTER", "ADDSLOTSRANGE", first, last}, {"CLUSTER", "SET-CONFIG-EPOCH", i + 1}}
		if i > 2 {
			orders = nil // a replica
		}
		for _, args := range orders {
			if err := cl.Do(ctx, args...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		id, err := cl.Do(ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			t.Fatal(err)
		}
		r.ids = append(r.ids, id)
	}
	for i, n := range r.nodes[1:] {
		_, port, _ := net.SplitHostPort(n.addr)
		if err := r.client().Do(ctx, "CLUSTER", "MEET", "127.0.0.1", port, bus[i+1]).Err(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the Cluster", 20*time.Second, r.whole)
	for i := 3; i < r.size; i++ {
		cl := r.nodes[i].client()
		eventually(t, "a replica", 10*time.Second, func() bool { // it must have heard of its master
			return cl.Do(ctx, "CLUSTER", "REPLICATE", r.ids[i-3]).Err() == nil
		})
		r.nodes[i].linked()
	}
	return r
}

// whole tells that every node serves.
func (r *ring) whole() bool {
	for _, n := range r.nodes {
		cl := goredis.NewClient(&goredis.Options{Addr: n.addr})
		info, err := cl.ClusterInfo(context.Background()).Result()
		_ = cl.Close()
		if err != nil || !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", r.size)) {
			return false
		}
	}
	return true
}

func (r *ring) config(c *redis.Config) {
	r.server.config(c)
	c.Addr, c.Cluster, c.Addrs, c.Lease = "", true, nil, 2*time.Second
	for _, n := range r.nodes {
		c.Addrs = append(c.Addrs, n.addr)
	}
}

// fresh makes a destination of its own.
func (r *ring) fresh(t *testing.T, shape driver.Shape, partitions int, groups ...string) driver.Destination {
	t.Helper()
	to := driver.Destination{Shape: shape, Partitions: partitions, Name: adaptertest.Name("-")}
	adaptertest.Create(t, open(t, r.config), to, groups...)
	return to
}

// owner is the index of the node that serves a key.
func (r *ring) owner(t *testing.T, key string) (node, slot int) {
	t.Helper()
	n, err := r.nodes[0].client().ClusterKeySlot(context.Background(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	shards, err := r.nodes[0].client().ClusterShards(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shards {
		for _, span := range s.Slots {
			if i := slices.Index(r.ids, s.Nodes[0].ID); n >= span.Start && n <= span.End {
				return i, int(n)
			}
		}
	}
	t.Fatalf("nobody serves %s", key)
	return 0, 0
}

// migrate moves the slot of a key to another node, key by key, as redis-cli does.
func (r *ring) migrate(t *testing.T, key string, pause time.Duration) {
	t.Helper()
	ctx := context.Background()
	from, slot := r.owner(t, key)
	to := (from + 1) % 3
	src, dst := r.nodes[from].client(), r.nodes[to].client()
	host, port, _ := net.SplitHostPort(r.nodes[to].addr)
	must := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	must(dst.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", r.ids[from]).Err())
	must(src.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", r.ids[to]).Err())
	for {
		keys, err := src.ClusterGetKeysInSlot(ctx, slot, 1).Result()
		must(err)
		if len(keys) == 0 {
			break
		}
		if err := src.Migrate(ctx, host, port, keys[0], 0, 5*time.Second).Err(); err != nil && !strings.Contains(err.Error(), "NOKEY") {
			t.Error(err)
			break
		}
		time.Sleep(pause)
	}
	must(dst.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", r.ids[to]).Err())
	must(src.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", r.ids[to]).Err())
}

func TestCluster(t *testing.T) {
	t.Parallel()
	r := clustered(t)
	t.Run("group", func(t *testing.T) {
		t.Run("plain", func(t *testing.T) { t.Parallel(); r.plain(t) })
		t.Run("keyed", func(t *testing.T) { t.Parallel(); r.keyed(t, shardsOfTests) })
		t.Run("more shards than connections", func(t *testing.T) { t.Parallel(); r.manyShards(t) })
		t.Run("tied batch", func(t *testing.T) { t.Parallel(); r.tied(t) })
		t.Run("deleted", func(t *testing.T) { t.Parallel(); r.deleted(t) })
		t.Run("refused", func(t *testing.T) { t.Parallel(); r.refused(t) })
	})
}

func (r *ring) plain(t *testing.T) {
	d := open(t, r.config)
	if c := d.Capabilities(driver.Destination{Shape: driver.Queue, Name: "q"}); !c.Durable {
		t.Error("three servers with a file are not durable")
	}
	for range 5 { // the names are in different slots
		to := r.fresh(t, driver.Topic, 0, "g", "h")
		var cs []driver.Consumer
		for _, g := range []string{"g", "h"} {
			cs = append(cs, subscribe(t, d, driver.Subscription{From: to, Group: g}))
		}
		publish(t, d, to, 0, 20)
		late := message(20)
		late.Delay = 50 * time.Millisecond
		if err := d.Publish(within(t, 5*time.Second), to, []*driver.Message{late}); err != nil {
			t.Fatal(err)
		}
		for _, c := range cs {
			got := receive(t, c, 21)
			if err := settle(c, driver.Settlement{Disposition: driver.Nack, Delay: 20 * time.Millisecond}, got[0]); err != nil {
				t.Fatal(err)
			}
			mustSettle(t, c, driver.Ack, got[1:]...)
			mustSettle(t, c, driver.Return, receive(t, c, 1)...)
			mustSettle(t, c, driver.Ack, receive(t, c, 1)...)
		}
		if s := stats(t, d, to); s.Ready != 0 || s.InFlight != 0 {
			t.Errorf("%+v", s)
		}
	}
	idle := subscribe(t, d, driver.Subscription{From: r.fresh(t, driver.Queue, 0)})
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	began := time.Now()
	if _, err := idle.Receive(ctx, demand(1)); err == nil || time.Since(began) > 450*time.Millisecond {
		t.Errorf("a cancelled read ended with %v after %v", err, time.Since(began))
	}
}

func (r *ring) keyed(t *testing.T, partitions int) {
	to := r.fresh(t, driver.Queue, partitions)
	w, keys := newWatch(), keysOf(17)
	const each = 150
	fed := insist(t, open(t, r.config), to, each, keys)
	join(t, w, "a", to, r.config)
	b := join(t, w, "b", to, r.config)
	eventually(t, "a and b", 15*time.Second, func() bool { return w.balanced("a", "b") })
	b.Leave()
	<-fed
	w.all(t, each*len(keys))
	w.check(t, each, keys...)
}

// manyShards: one consumer has more shards than it blocks connections for.
func (r *ring) manyShards(t *testing.T) {
	const partitions = 24
	to := r.fresh(t, driver.Stream, partitions, "g")
	d := open(t, r.config)
	m := rawMember(t, d, driver.Subscription{From: to, Group: "g"})
	eventually(t, "all shards", 10*time.Second, m.owns(partitions))
	for i, k := range keysOf(30) {
		began := time.Now()
		oneKey(t, d, to, k, 0, 1)
		got := receive(t, m.c, 1)
		if took := time.Since(began); took > time.Second || got[0].Key != k {
			t.Errorf("message %d: key %s came after %v", i, got[0].Key, took)
		}
		mustSettle(t, m.c, driver.Ack, got...)
	}
	if s := stats(t, d, to.ForGroup("g")); s.Ready != 0 || s.InFlight != 0 || len(s.Partitions) != partitions {
		t.Errorf("%+v", s)
	}
}

// tied: a batch in which keys come twice, over several slots.
func (r *ring) tied(t *testing.T) {
	to := r.fresh(t, driver.Stream, shardsOfTests, "g")
	d := open(t, r.config)
	m := rawMember(t, d, driver.Subscription{From: to, Group: "g"})
	var batch []*driver.Message
	for i := range 4 {
		for _, k := range keysOf(20) {
			batch = append(batch, &driver.Message{ID: id(k, i), Key: k, Body: []byte("x"), Time: time.Now()})
		}
	}
	if err := d.Publish(within(t, 5*time.Second), to, batch); err != nil {
		t.Fatal(err)
	}
	next := map[string]int{}
	for _, x := range receive(t, m.c, len(batch)) {
		if n := number(x.ID); n != next[x.Key] {
			t.Errorf("key %s: %d came, want %d", x.Key, n, next[x.Key])
		}
		next[x.Key]++
	}
}

func (r *ring) deleted(t *testing.T) {
	d := open(t, r.config)
	for _, partitions := range []int{0, shardsOfTests} {
		to := r.fresh(t, driver.Topic, partitions, "g", "h")
		publish(t, d, to, 0, 30)
		a := d.Admin()
		for _, what := range []driver.Destination{to.ForGroup("g"), to} {
			changes, err := a.Apply(within(t, 5*time.Second), []driver.Resource{{Destination: what}}, driver.Delete)
			if err != nil || len(changes) != 1 {
				t.Errorf("%s: %v %v", what, changes, err)
			}
		}
		for _, n := range r.nodes {
			keys, err := n.client().Keys(context.Background(), "varal:{"+to.Name+"*").Result()
			for _, k := range keys {
				if !strings.HasSuffix(k, ":gone") {
					t.Errorf("%s is left, %v", k, err)
				}
			}
		}
		if err := d.Publish(within(t, 5*time.Second), to, []*driver.Message{message(1)}); driver.ClassOf(driver.ResultAt(err, 0)) != driver.NotFound {
			t.Errorf("a publish to what is not there ended with %v", err)
		}
	}
}

func (r *ring) refused(t *testing.T) {
	single := private(t)
	for what, c := range map[string]struct {
		change func(*redis.Config)
		class  driver.Class
		text   string
	}{
		"not said":     {func(c *redis.Config) { c.Addr, c.Addrs, c.Cluster = c.Addrs[0], nil, false }, driver.Unsupported, "cluster=true"},
		"a database":   {func(c *redis.Config) { c.DB = 1 }, driver.Permanent, "database 0"},
		"a server":     {func(c *redis.Config) { c.Addrs = []string{single.addr} }, driver.Permanent, "not part of a Redis Cluster"},
		"nobody":       {func(c *redis.Config) { c.Addrs = []string{"127.0.0.1:1"} }, driver.Transient, "refused"},
		"one of three": {func(c *redis.Config) { c.Addrs = []string{"127.0.0.1:1", c.Addrs[2]} }, 0, ""},
	} {
		conf := redis.Config{}
		r.config(&conf)
		c.change(&conf)
		opens(t, what, conf, c.class, c.text)
	}
}

// traffic publishes and consumes while hurt is done to the Cluster: no message is lost, and
// keys stay in order. It returns what became of those of a plain queue.
func (r *ring) traffic(t *testing.T, each int, hurt func(plain, keyed driver.Destination, more func())) (tries, seen map[string]int) {
	t.Helper()
	plain, keyed := r.fresh(t, driver.Queue, 0), r.fresh(t, driver.Queue, shardsOfTests)
	d := open(t, r.config)
	y := newTally()
	drain := y.start(t, d, plain, 2, subscribe(t, d, driver.Subscription{From: plain}))
	w, keys := newWatch(), keysOf(9)
	fed := insist(t, open(t, r.config), keyed, each, keys)
	w.Loosen()
	join(t, w, "a", keyed, r.config)
	eventually(t, "work", 20*time.Second, func() bool { return w.handled() > 100 })
	hurt(plain, keyed, func() {
		eventually(t, "more work", 30*time.Second, y.enough(y.count()+21))
	})
	<-fed
	w.all(t, each*len(keys))
	w.check(t, each, keys...)
	drain()
	tries, seen, confirmed, _ := y.snapshot()
	for m := range confirmed {
		if seen[m] == 0 {
			t.Errorf("%s was confirmed and never came", m)
		}
	}
	t.Logf("%d confirmed of the queue, %d of the keyed one", len(confirmed), each*len(keys))
	return tries, seen
}

// Slots move to other nodes while messages go through them: none comes twice but for a
// publish that was repeated.
func TestClusterSlotsMove(t *testing.T) {
	t.Parallel()
	r := clustered(t)
	tries, seen := r.traffic(t, 300, func(plain, keyed driver.Destination, more func()) {
		for range 2 {
			for _, name := range []string{plain.Name, keyed.Name + "/0", keyed.Name, keyed.Name + "/2"} {
				r.migrate(t, "varal:{"+name+"}:x", 20*time.Millisecond)
				more()
			}
		}
	})
	for m, n := range seen {
		if n > tries[m] {
			t.Errorf("%s was published %d times and came %d times", m, tries[m], n)
		}
	}
}

// A node without a replica is killed: the others refuse everything until it is back.
func TestClusterNodeIsKilledAndComesBack(t *testing.T) {
	t.Parallel()
	r := clustered(t)
	r.traffic(t, 300, func(plain, _ driver.Destination, more func()) {
		at, _ := r.owner(t, "varal:{"+plain.Name+"}:x")
		for _, n := range []int{at, (at + 1) % 3} {
			r.nodes[n].kill()
			r.nodes[n].start()
			eventually(t, "the Cluster", 20*time.Second, r.whole)
			more()
		}
		r.nodes[at].kill()
		eventually(t, "the others to refuse", 20*time.Second, func() bool {
			cl := goredis.NewClient(&goredis.Options{Addr: r.nodes[(at+1)%3].addr})
			defer func() { _ = cl.Close() }()
			info, err := cl.ClusterInfo(context.Background()).Result()
			return err == nil && strings.Contains(info, "cluster_state:fail")
		})
		r.nodes[at].start()
		eventually(t, "the Cluster", 20*time.Second, r.whole)
		more()
	})
}

// A master is killed and its replica takes over: what a replica had when it was confirmed
// is there.
func TestClusterFailoverLosesNothingThatAReplicaHad(t *testing.T) {
	t.Parallel()
	r := clustered(t, true)
	to := r.fresh(t, driver.Queue, 0)
	d := open(t, r.config, func(c *redis.Config) { c.Replicas = 1 })
	y := newTally()
	drain := y.start(t, d, to, 4, subscribe(t, d, driver.Subscription{From: to}))
	eventually(t, "work", 20*time.Second, y.enough(501))
	at, _ := r.owner(t, "varal:{"+to.Name+"}:x")
	r.nodes[at].kill()
	killed := time.Now()
	r.nodes[at+3].promoted(30 * time.Second)
	named := time.Now()
	r.nodes[at].start() // as the replica of the new master, without which nothing is confirmed
	eventually(t, "more work", 30*time.Second, y.enough(y.count()+501))
	drain()
	if lost := y.report(t, killed, named); lost > 0 {
		t.Errorf("%d messages were confirmed and are lost", lost)
	}
}
