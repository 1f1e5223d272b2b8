package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/varal-go/varal/adapters/internal/sdktext"
	"github.com/varal-go/varal/core/driver"
)

// broker is the Driver. Publishing has connections of its own: a large batch on its way
// must not hold up acks.
type broker struct {
	cfg     Config
	pub     goredis.UniversalClient
	ctl     goredis.UniversalClient // settling, receiving without waiting, Admin
	server  server
	durable string // "" = the server keeps what it confirms, else why not
	commit  *committer
	down    atomic.Bool   // Notify was told Disconnected
	dealt   atomic.Uint64 // messages without a key, for keyed destinations
	clock   serverClock
	wakes   *waker

	mu        sync.Mutex
	closed    bool
	consumers map[driver.Consumer]struct{}
	known     map[driver.Destination]time.Duration // found to exist as they are asked for: retention
}

// server is what INFO told when the driver was opened.
type server struct {
	version, eviction string
	aof, read         bool // read: the server told
}

// Open connects once and returns the Driver. Errors: Permanent (the Config; the text
// names the field), Denied (login, certificate), NotFound (no such host, or no primary of
// that name at the Sentinels), Unsupported (a Cluster without Config.Cluster, or a server before 6.2), Conflict (RequireDurable), Transient (not reachable
// now, or loading; the caller may try again). It returns by ctx.
func Open(ctx context.Context, c Config) (driver.Driver, error) {
	const op = "open Redis"
	cfg, err := c.withDefaults()
	if err != nil {
		return nil, driver.Errorf(op, driver.Permanent, "%w", err)
	}
	b := &broker{cfg: cfg, consumers: map[driver.Consumer]struct{}{}, known: map[driver.Destination]time.Duration{}}
	b.pub = b.client(flushers)
	b.ctl = b.client(32)
	b.commit = newCommitter(b)
	b.wakes = newWaker(b)
	if err := b.greet(ctx, op); err != nil {
		_ = b.pub.Close()
		_ = b.ctl.Close()
		return nil, err
	}
	b.tell(driver.Event{Kind: driver.Connected})
	if cfg.Broadcast {
		return broadcast{b}, nil
	}
	return b, nil
}

// greet asks the server who it is. A go-redis call ends by the deadline of its ctx but not
// when ctx is cancelled, so it runs beside.
func (b *broker) greet(ctx context.Context, op string) error {
	if b.cfg.Sentinel != "" {
		if err := b.bounded(ctx, func(ctx context.Context) error { return b.askSentinels(ctx, op) }); err != nil {
			return opening(op, err)
		}
	}
	var infos []map[string]string
	err := b.bounded(ctx, func(ctx context.Context) (err error) {
		infos, err = b.infos(ctx, op)
		return err
	})
	if err != nil {
		return opening(op, b.wantsTLS(err))
	}
	for _, info := range infos { // the last word is that of the worst
		if err := b.inspectServer(op, info); err != nil || b.durable != "" {
			return err
		}
	}
	return nil
}

// infos is what the server tells about itself, in a Cluster every master.
func (b *broker) infos(ctx context.Context, op string) (out []map[string]string, err error) {
	var mu sync.Mutex
	ask := func(ctx context.Context, cl *goredis.Client) error {
		raw, err := cl.Info(ctx).Result()
		if err != nil && strings.HasPrefix(err.Error(), "NOPERM") {
			err = cl.Ping(ctx).Err()
		}
		mu.Lock()
		defer mu.Unlock()
		out = append(out, parseInfo(raw))
		return err
	}
	switch cl := b.ctl.(type) {
	case *goredis.Client:
		err = ask(ctx, cl)
	case *goredis.ClusterClient:
		err = cl.ForEachMaster(ctx, ask)
		if isNoCluster(err) {
			err = driver.Errorf(op, driver.Permanent, "the server is not part of a Redis Cluster: leave cluster=true out (Config.Cluster)")
		}
	}
	return out, err
}

// opening is why Open failed. Nothing was asked that could have changed anything, so it is
// never Ambiguous.
func opening(op string, err error) error {
	if driver.ClassOf(err) != 0 {
		return err
	}
	e := &driver.Error{Op: op, Class: classOf(err), Err: sdktext.Mark(err)}
	if e.Class == driver.Ambiguous {
		e.Class = driver.Transient
	}
	return e
}

func (b *broker) inspectServer(op string, info map[string]string) error {
	b.server = server{
		version: info["redis_version"], eviction: info["maxmemory_policy"],
		aof: info["aof_enabled"] == "1", read: info["maxmemory_policy"] != "",
	}
	switch {
	case !b.server.read:
		b.durable = "this login may not read INFO, so persistence and eviction are unknown"
	case b.server.eviction != "noeviction":
		b.durable = "maxmemory-policy is " + b.server.eviction + ": the server deletes messages when its memory is full; set noeviction"
	case !b.server.aof:
		b.durable = "appendonly is off: a restart loses what came after the last snapshot; set appendonly yes"
	}
	switch {
	case info["cluster_enabled"] == "1" && !b.cfg.Cluster:
		return driver.Errorf(op, driver.Unsupported, "the server is part of a Redis Cluster: add ?cluster=true to the URL (Config.Cluster)")
	case info["redis_mode"] == "sentinel":
		return driver.Errorf(op, driver.Unsupported, "this is a Sentinel: add ?sentinel=NAME to the URL, the name that it knows the primary by (Config.Sentinel), or name the server itself")
	case tooOld(b.server.version):
		return driver.Errorf(op, driver.Unsupported, "Redis %s: at least 6.2 is needed", b.server.version)
	case b.cfg.RequireDurable && b.durable != "":
		return driver.Errorf(op, driver.Conflict, "durable: %s", b.durable)
	}
	return nil
}

func tooOld(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return err1 == nil && err2 == nil && (a < 6 || a == 6 && b < 2)
}

// parseInfo reads "name:value" lines.
func parseInfo(raw string) map[string]string {
	out := map[string]string{}
	for line := range strings.SplitSeq(raw, "\n") {
		if k, v, ok := strings.Cut(strings.TrimSuffix(line, "\r"), ":"); ok {
			out[k] = v
		}
	}
	return out
}

// options of a go-redis client. It retries nothing by itself: a repeated XADD would be a
// second message.
func (b *broker) options(conns int) *goredis.Options {
	return &goredis.Options{
		Addr: b.cfg.Addr, Username: b.cfg.User, Password: b.cfg.Password, DB: b.cfg.DB, Protocol: 2,
		ClientName: b.cfg.ClientName, Dialer: b.dialTCP, DialTimeout: b.cfg.ConnectTimeout, DialerRetries: 1,
		MaxRetries: -1, ReadTimeout: b.cfg.Timeout, WriteTimeout: b.cfg.Timeout, PoolTimeout: b.cfg.Timeout,
		ContextTimeoutEnabled: true, PoolSize: conns, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// dialTCP opens a connection, and shakes hands where TLS is asked for. The certificates
// are read again each time, so that rotated ones need no restart.
func (b *broker) dialTCP(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.ConnectTimeout)
	defer cancel()
	host, _, _ := net.SplitHostPort(addr)
	if b.cfg.mayLeak() && !loopback(host) { // one that Sentinels name
		return nil, &dialError{driver.Errorf("connect", driver.Permanent, "%w", inTheOpen(host))}
	}
	conn, err := b.cfg.Dial(ctx, network, addr)
	if err != nil {
		return nil, &dialError{err}
	}
	if b.cfg.TLS == nil {
		return conn, nil
	}
	conf, err := b.cfg.TLS.Config(host)
	if err != nil {
		_ = conn.Close()
		return nil, &dialError{driver.Errorf("connect", driver.Permanent, "%w", err)}
	}
	secure := tls.Client(conn, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, &dialError{unanswered(addr, err)}
	}
	return secure, nil
}

// bounded runs f, which asks the server, and returns by ctx. What is left of f ends within
// Timeout, because f's own ctx does; Close waits for it.
func (b *broker) bounded(ctx context.Context, f func(context.Context) error) error {
	if ctx.Err() != nil {
		return driver.Errorf("", driver.Transient, "nothing was sent: %w", context.Cause(ctx))
	}
	done := make(chan error, 1)
	inner, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.ConnectTimeout+b.cfg.Timeout)
	began := b.commit.begin(func() {
		defer cancel()
		done <- f(inner)
	})
	if !began {
		cancel()
		return errClosed("redis")
	}
	select {
	case err := <-done:
		b.heard(err)
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// heard tells Notify when the connection was lost or is back.
func (b *broker) heard(err error) {
	switch {
	case err == nil || !offline(err):
		if b.down.CompareAndSwap(true, false) {
			b.tell(driver.Event{Kind: driver.Connected})
		}
	case !errors.Is(err, context.Canceled) && driver.ClassOf(err) == 0:
		if b.down.CompareAndSwap(false, true) {
			b.tell(driver.Event{Kind: driver.Disconnected, Err: classify("redis", err)})
		}
	}
}

func (b *broker) tell(e driver.Event) {
	if b.cfg.Notify != nil {
		b.cfg.Notify(e)
	}
}

const (
	maxDelay = 365 * 24 * time.Hour
	maxLease = 365 * 24 * time.Hour
)

// Capabilities implements driver.Driver.
func (b *broker) Capabilities(of driver.Destination) driver.Capabilities {
	if of.Shape < driver.Queue || of.Shape > driver.Stream {
		return driver.Capabilities{}
	}
	if of.Partitions > 0 {
		return b.keyedCapabilities(of)
	}
	c := driver.Capabilities{
		Settle: driver.Each, Durable: b.durable == "", Counts: true, MaxBytes: b.cfg.MaxBytes,
		NackDelay: maxDelay, Lease: maxLease,
	}
	c.Emulated[driver.NeedDelayNack] = "a sorted set of the group; a consumer that waits is woken for it; a message may come up to 1 s late where that word is lost"
	if of.Shape == driver.Stream {
		c.Replay = true
		return c
	}
	c.TTL, c.Delay = true, maxDelay
	c.Emulated[driver.NeedTTL] = ttlCost
	c.Emulated[driver.NeedSchedule] = "a sorted set; a consumer that waits is woken for it; a message may come up to 1 s late where that word is lost"
	return c
}

const ttlCost = "an expired message is dropped when it is read, by the clocks of publisher and consumer"

// keyedCapabilities: no Delay and no NackDelay, for what is put aside lets later messages
// of its key pass; no Lease of a message, for that of the shard holds it.
func (b *broker) keyedCapabilities(of driver.Destination) driver.Capabilities {
	c := driver.Capabilities{
		Settle: driver.Each, Order: driver.PerPartition, Durable: b.durable == "", Counts: true, MaxBytes: b.cfg.MaxBytes,
		Replay: of.Shape == driver.Stream, TTL: of.Shape != driver.Stream,
	}
	c.Emulated[driver.NeedOrdered] = fmt.Sprintf("%d streams, each with one owner at a time under a lease that a goroutine renews; the number is fixed", of.Partitions)
	if c.TTL {
		c.Emulated[driver.NeedTTL] = ttlCost
	}
	return c
}

// Close implements driver.Driver.
func (b *broker) Close(ctx context.Context) error {
	b.mu.Lock()
	first := !b.closed
	b.closed = true
	open := make([]driver.Consumer, 0, len(b.consumers))
	for c := range b.consumers {
		open = append(open, c)
	}
	b.mu.Unlock()
	errs := make([]error, len(open))
	var wg sync.WaitGroup // all at once: each may wait for its handlers
	for i, c := range open {
		wg.Go(func() { errs[i] = c.Close(ctx) })
	}
	wg.Wait()
	if first {
		b.commit.stop(ctx, func() {
			b.wakes.close()
			_ = b.pub.Close()
			_ = b.ctl.Close()
		})
	}
	return errors.Join(errs...)
}

func (b *broker) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

func (b *broker) add(c driver.Consumer) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.consumers[c] = struct{}{}
	return true
}

func (b *broker) drop(c driver.Consumer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.consumers, c)
}
