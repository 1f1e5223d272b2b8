package redis_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// ward is a primary with two replicas and the Sentinels that watch them, all of the test's
// own.
type ward struct {
	*server  // the first primary
	replicas []*server
	watchers []*server
}

// wardName is what the Sentinels know the primary by.
const wardName = "kitchen"

func guarded(t *testing.T, sentinels int) *ward {
	t.Helper()
	w := &ward{server: private(t)}
	host, port, _ := net.SplitHostPort(w.addr)
	for range 2 {
		w.replicas = append(w.replicas, private(t, "--replicaof", host+" "+port))
	}
	w.copied(t, 2)
	for range sentinels {
		w.watchers = append(w.watchers, sentinel(t, host, port, sentinels/2+1))
	}
	eventually(t, "the Sentinels", 15*time.Second, func() bool { return w.ready(sentinels) })
	return w
}

// copied waits until what is written now reaches so many replicas. The primary calls one
// "online" before it has loaded the first copy, and sends it nothing until then.
func (s *server) copied(t *testing.T, replicas int) {
	t.Helper()
	cn := s.client().Conn()
	defer func() { _ = cn.Close() }()
	eventually(t, "the replicas", 20*time.Second, func() bool {
		_ = cn.Incr(context.Background(), "probe").Err()
		n, err := cn.Wait(context.Background(), replicas, time.Second).Result()
		return err == nil && n == int64(replicas)
	})
}

// ready tells that every Sentinel knows the replicas and the other Sentinels.
func (w *ward) ready(sentinels int) bool {
	for _, s := range w.watchers {
		cl := goredis.NewSentinelClient(&goredis.Options{Addr: s.addr})
		replicas, err1 := cl.Replicas(context.Background(), wardName).Result()
		others, err2 := cl.Sentinels(context.Background(), wardName).Result()
		_ = cl.Close()
		if errors.Join(err1, err2) != nil || len(replicas) != 2 || len(others) != sentinels-1 {
			return false
		}
	}
	return true
}

// sentinel starts one. It rewrites its file, so that is written for it. Its failover-timeout
// is long, for twice that goes by before another failover: on a busy machine the new primary
// may be slow to answer, and the replica that would take over from it is empty while it
// copies.
func sentinel(t *testing.T, host, port string, quorum int, more ...string) *server {
	t.Helper()
	dir := t.TempDir()
	addr := adaptertest.FreeAddr(t)
	_, own, _ := net.SplitHostPort(addr)
	conf := fmt.Sprintf(`bind 127.0.0.1
port %[1]s
dir %[2]s
logfile %[2]s/log
sentinel monitor %[3]s %[4]s %[5]s %[6]d
sentinel down-after-milliseconds %[3]s 1000
sentinel failover-timeout %[3]s 60000
`, own, dir, wardName, host, port, quorum) + strings.Join(more, "\n")
	file := filepath.Join(dir, "sentinel.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, addr: addr, args: []string{adaptertest.RedisServer(t), file, "--sentinel"}}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (w *ward) config(c *redis.Config) {
	w.server.config(c)
	c.Addr, c.Sentinel, c.Addrs, c.Lease = "", wardName, nil, 2*time.Second
	for _, s := range w.watchers {
		c.Addrs = append(c.Addrs, s.addr)
	}
}

// failover kills the primary and waits until another one is named.
func (w *ward) failover() (killed, named time.Time) {
	w.t.Helper()
	w.kill()
	killed = time.Now()
	cl := goredis.NewSentinelClient(&goredis.Options{Addr: w.watchers[0].addr})
	defer func() { _ = cl.Close() }()
	eventually(w.t, "another primary", 30*time.Second, func() bool {
		addr, err := cl.GetMasterAddrByName(context.Background(), wardName).Result()
		return err == nil && net.JoinHostPort(addr[0], addr[1]) != w.addr
	})
	return killed, time.Now()
}

// tally is what happened to each message.
type tally struct {
	mu        sync.Mutex
	tries     map[string]int       // publishes
	confirmed map[string]time.Time // when
	seen      map[string]int
	first     map[string]time.Time // first seen
}

func newTally() *tally {
	return &tally{tries: map[string]int{}, confirmed: map[string]time.Time{}, seen: map[string]int{}, first: map[string]time.Time{}}
}

func (y *tally) snapshot() (tries, seen map[string]int, confirmed, first map[string]time.Time) {
	y.mu.Lock()
	defer y.mu.Unlock()
	return maps.Clone(y.tries), maps.Clone(y.seen), maps.Clone(y.confirmed), maps.Clone(y.first)
}

// count is how many were confirmed.
func (y *tally) count() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return len(y.confirmed)
}

func (y *tally) enough(n int) func() bool { return func() bool { return y.count() >= n } }

// start lets so many producers publish to a queue, and the consumers take what comes. drain
// stops the producers and waits until all that is there has come.
func (y *tally) start(t *testing.T, d driver.Driver, to driver.Destination, producers int, consumers ...driver.Consumer) (drain func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var producing, consuming sync.WaitGroup
	for _, c := range consumers {
		consuming.Go(func() { y.consume(ctx, t, c) })
	}
	stop := make(chan struct{})
	for p := range producers {
		producing.Go(func() { y.produce(t, d, to, fmt.Sprint("p", p), stop) })
	}
	finish := sync.OnceFunc(func() {
		close(stop)
		producing.Wait()
	})
	t.Cleanup(func() {
		finish()
		cancel()
		consuming.Wait()
	})
	return func() {
		t.Helper()
		finish()
		eventually(t, "the rest", 20*time.Second, func() bool {
			s, err := d.Admin().Stats(within(t, 5*time.Second), driver.Resource{Destination: to})
			return err == nil && s.Ready == 0 && s.InFlight == 0
		})
	}
}

// produce publishes one message after the other, each until it is confirmed, until stop.
func (y *tally) produce(t *testing.T, d driver.Driver, to driver.Destination, prefix string, stop <-chan struct{}) {
	for i := 0; !isClosed(stop); i++ {
		m := &driver.Message{ID: fmt.Sprintf("%s-%d", prefix, i), Body: []byte("x"), Time: time.Now()}
		for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
			y.mu.Lock()
			y.tries[m.ID]++
			y.mu.Unlock()
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			err := driver.ResultAt(d.Publish(ctx, to, []*driver.Message{m}), 0)
			cancel()
			if err == nil {
				y.mu.Lock()
				y.confirmed[m.ID] = time.Now()
				y.mu.Unlock()
				break
			}
			if k := driver.ClassOf(err); k != driver.Transient && k != driver.Ambiguous || time.Now().After(end) {
				t.Errorf("publish: %v", err)
				return
			}
		}
	}
}

// consume notes and acknowledges what comes, until ctx ends.
func (y *tally) consume(ctx context.Context, t *testing.T, c driver.Consumer) {
	for ctx.Err() == nil {
		got, err := c.Receive(ctx, demand(32))
		if err != nil {
			if ctx.Err() == nil && driver.ClassOf(err) != driver.Transient {
				t.Errorf("receive: %v", err)
				return
			}
			time.Sleep(5 * time.Millisecond) // as core does, less patiently
			continue
		}
		now := time.Now()
		y.mu.Lock()
		for _, r := range got {
			if y.seen[r.ID]++; y.seen[r.ID] == 1 {
				y.first[r.ID] = now
			}
		}
		y.mu.Unlock()
		err = settle(c, driver.Settlement{Disposition: driver.Ack}, got...)
		for i := range got {
			switch driver.ClassOf(driver.ResultAt(err, i)) {
			case 0, driver.LeaseLost, driver.Transient, driver.Ambiguous:
			default:
				t.Errorf("ack: %v", driver.ResultAt(err, i))
			}
		}
	}
}

// report judges a run with a failover in it, and returns how many messages were confirmed
// and never came.
func (y *tally) report(t *testing.T, killed, named time.Time) (lost int) {
	t.Helper()
	tries, seen, confirmed, first := y.snapshot()
	twice, after := 0, 0
	for id, at := range confirmed {
		if at.After(named) {
			after++
		}
		switch {
		case seen[id] > 0:
		case at.After(killed):
			t.Errorf("%s was confirmed %v after the primary was killed, and is lost", id, at.Sub(killed))
		default:
			lost++
		}
	}
	for id, n := range seen {
		if n < 2 {
			continue
		}
		twice++
		// What was settled with the old primary may come again from the new one, which need
		// not have heard of it.
		if tries[id] < 2 && first[id].After(named) {
			t.Errorf("%s came %d times, first %v after the failover, and was published once", id, n, first[id].Sub(named))
		}
	}
	if after == 0 || len(confirmed)-after == 0 {
		t.Errorf("%d confirmed, %d of them after the failover: this test shows little", len(confirmed), after)
	}
	t.Logf("%d confirmed (%d after the failover, which took %v), %d confirmed and lost, %d came twice", len(confirmed), after, named.Sub(killed).Round(time.Millisecond), lost, twice)
	return lost
}

// failOver publishes and consumes through a failover.
func failOver(t *testing.T, replicas int) (lost int) {
	t.Helper()
	w := guarded(t, 1)
	to := w.make(driver.Queue, 0)
	config := func(c *redis.Config) { w.config(c); c.Replicas = replicas }
	var own, sub events
	d := open(t, config, func(c *redis.Config) { c.Notify = own.tell })
	y := newTally()
	told := driver.Subscription{From: to, Notify: sub.tell}
	drain := y.start(t, d, to, 4, subscribe(t, d, told), subscribe(t, d, told))
	eventually(t, "work", 20*time.Second, y.enough(500))
	killed, named := w.failover()
	eventually(t, "work with the new primary", 20*time.Second, y.enough(y.count()+500))
	drain()
	for _, e := range []*events{&own, &sub} {
		if e.of(driver.Disconnected) == 0 || e.of(driver.Connected) == 0 {
			t.Errorf("told %v", e.n)
		}
	}
	return y.report(t, killed, named)
}

// What was confirmed and not replicated may be lost, and nothing else.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	failOver(t, 0)
}

func TestSentinelFailoverLosesNothingThatAReplicaHad(t *testing.T) {
	t.Parallel()
	if lost := failOver(t, 1); lost > 0 {
		t.Errorf("%d messages were confirmed and are lost", lost)
	}
}

// No owner meets another's shard, and every message of every key comes in order, over a
// failover in which one of the Sentinels goes too.
func TestSentinelKeyedFailover(t *testing.T) {
	t.Parallel()
	w := guarded(t, 3)
	to := w.make(driver.Queue, shardsOfTests)
	config := func(c *redis.Config) { w.config(c); c.Replicas = 1 }
	see, keys := newWatch(), keysOf(17)
	see.Loosen()
	const each = 200
	fed := insist(t, open(t, config), to, each, keys)
	join(t, see, "a", to, config)
	join(t, see, "b", to, config)
	eventually(t, "a and b", 10*time.Second, func() bool { return see.balanced("a", "b") })
	eventually(t, "work", 20*time.Second, func() bool { return see.handled() > 300 })
	w.watchers[2].kill()
	w.failover()
	<-fed
	see.all(t, each*len(keys))
	see.check(t, each, keys...)
	eventually(t, "a and b", 10*time.Second, func() bool { return see.balanced("a", "b") })
}

// A switch on purpose: blocked reads of the old primary end, and what is out stays ours.
func TestSentinelSwitchOnPurpose(t *testing.T) {
	t.Parallel()
	w := guarded(t, 1)
	to := w.make(driver.Topic, 0, "g")
	d := open(t, w.config)
	c := subscribe(t, d, driver.Subscription{From: to.ForGroup("g")})
	publish(t, d, to, 0, 2)
	first := receive(t, c, 2)
	cl := goredis.NewSentinelClient(&goredis.Options{Addr: w.watchers[0].addr})
	t.Cleanup(func() { _ = cl.Close() })
	ended := make(chan error, 1)
	go func() { // a read that waits
		_, err := c.Receive(within(t, 30*time.Second), demand(1))
		ended <- err
	}()
	eventually(t, "a Sentinel that is willing", 20*time.Second, func() bool { // it must have heard of the replicas lately
		return cl.Failover(context.Background(), wardName).Err() == nil
	})
	eventually(t, "the switch", 30*time.Second, func() bool {
		addr, err := cl.GetMasterAddrByName(context.Background(), wardName).Result()
		return err == nil && net.JoinHostPort(addr[0], addr[1]) != w.addr
	})
	eventually(t, "a publish", 20*time.Second, func() bool {
		return driver.ResultAt(d.Publish(within(t, 3*time.Second), to, []*driver.Message{message(2)}), 0) == nil
	})
	if err := <-ended; err != nil && driver.ClassOf(err) != driver.Transient {
		t.Errorf("the read that waited ended with %v", err)
	}
	eventually(t, "an ack of what the old primary handed out", 10*time.Second, func() bool {
		k := driver.ClassOf(driver.ResultAt(settle(c, driver.Settlement{Disposition: driver.Ack}, first[0]), 0))
		return k == 0 || k == driver.LeaseLost
	})
}

func TestPublishWaitsForReplicas(t *testing.T) {
	t.Parallel()
	primary := private(t)
	host, port, _ := net.SplitHostPort(primary.addr)
	to := primary.make(driver.Queue, 0)
	d := open(t, primary.config, func(c *redis.Config) { c.Replicas, c.Timeout = 1, time.Second })
	batches := map[string][]*driver.Message{"alone": {message(0)}, "of one key": {message(1), message(2)}, "late": {message(3)}}
	for _, m := range batches["of one key"] {
		m.Key = "k"
	}
	batches["late"][0].Delay = time.Millisecond
	for what, batch := range batches {
		err := d.Publish(within(t, 5*time.Second), to, batch)
		for i := range batch {
			if e := driver.ResultAt(err, i); driver.ClassOf(e) != driver.Ambiguous || !strings.Contains(e.Error(), "0 of the 1 replicas") {
				t.Errorf("%s, without a replica: %v", what, e)
			}
		}
	}
	private(t, "--replicaof", host+" "+port)
	primary.copied(t, 1)
	for what, batch := range batches {
		if err := d.Publish(within(t, 5*time.Second), to, batch); err != nil {
			t.Errorf("%s, with a replica: %v", what, err)
		}
	}
	// The first time they were stored too: Ambiguous promises neither.
	if got := ids(receive(t, subscribe(t, d, driver.Subscription{From: to}), 8)); len(got) != 8 {
		t.Errorf("%v came", got)
	}
}

func TestSentinelsThatCannotHelp(t *testing.T) {
	t.Parallel()
	w := guarded(t, 1)
	host, port, _ := net.SplitHostPort(w.addr)
	locked := sentinel(t, host, port, 1, "requirepass right").addr
	for what, c := range map[string]struct {
		change func(*redis.Config)
		class  driver.Class
		text   string
	}{
		"another name":     {func(c *redis.Config) { c.Sentinel = "cellar" }, driver.NotFound, `knows no primary of the name "cellar"`},
		"a server":         {func(c *redis.Config) { c.Addrs = []string{w.addr} }, driver.Permanent, "is a server and no Sentinel"},
		"nobody":           {func(c *redis.Config) { c.Addrs = []string{"127.0.0.1:1"} }, driver.Transient, "no Sentinel of 1 answers"},
		"no login":         {func(c *redis.Config) { c.Addrs = []string{locked} }, driver.Denied, "sentinel_password"},
		"a wrong login":    {func(c *redis.Config) { c.Addrs, c.SentinelPassword = []string{locked}, "hunter2" }, driver.Denied, "sentinel_password"},
		"its login":        {func(c *redis.Config) { c.Addrs, c.SentinelPassword = []string{locked}, "right" }, 0, ""},
		"without its name": {func(c *redis.Config) { c.Addr, c.Addrs, c.Sentinel = c.Addrs[0], nil, "" }, driver.Unsupported, "add ?sentinel=NAME"},
		"one of two":       {func(c *redis.Config) { c.Addrs = append(c.Addrs, "127.0.0.1:1") }, 0, ""},
	} {
		conf := redis.Config{}
		w.config(&conf)
		c.change(&conf)
		opens(t, what, conf, c.class, c.text)
	}
}
