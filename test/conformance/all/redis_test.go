package all_test

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/conformance"
)

// redisLease is short, so that the cases about leases end soon.
const redisLease = 2 * time.Second

func init() {
	children["redis"] = func(ctx context.Context) (driver.Driver, error) { return openRedis(ctx, nil) }
	children["redis-unkeyed"] = func(ctx context.Context) (driver.Driver, error) { return openUnkeyed(ctx, nil) }
	children["redis-cluster"] = func(ctx context.Context) (driver.Driver, error) {
		return openRedisAt(ctx, nil, "VARAL_REDIS_CLUSTER_URL")
	}
	children["redis-sentinel"] = func(ctx context.Context) (driver.Driver, error) {
		return openRedisAt(ctx, nil, "VARAL_REDIS_SENTINEL_URL")
	}
}

func openRedis(ctx context.Context, dial dialer) (driver.Driver, error) {
	return openRedisAt(ctx, dial, "VARAL_REDIS_URL")
}

func openRedisAt(ctx context.Context, dial dialer, variable string) (driver.Driver, error) {
	c, err := redis.ParseURL(os.Getenv(variable))
	if err != nil {
		return nil, err
	}
	c.Dial, c.Lease, c.Timeout = dial, redisLease, 2*time.Second
	return redis.Open(ctx, c)
}

func redisHarness(t *testing.T, name string, open opener) conformance.Harness {
	h := redisHarnessAt(t, name, brokerURL(t, "VARAL_REDIS_URL", "redis"), open)
	h.Restart = restarter("redis")
	mayRestart(&h)
	return h
}

func redisHarnessAt(t *testing.T, name, raw string, open opener) conformance.Harness {
	h := overTCP(t, open)
	h.Name, h.Broker, h.Real = name, "Redis "+or(os.Getenv("VARAL_REDIS_VERSION"), "7.0"), true
	h.Spawn = respawn(name)
	h.BadCredentials = wrongRedisPassword(raw)
	h.Dedup = func(t testing.TB) core.DedupStore { return openRedisDedup(t, raw) }
	likeRedis(&h)
	return h
}

// likeRedis is what a harness has in common with those of other servers that this adapter
// speaks to.
func likeRedis(h *conformance.Harness) {
	h.Lease, h.Tolerance = redisLease, time.Second
	h.OpenDown = func(ctx context.Context) (driver.Driver, error) {
		return redis.Open(ctx, redis.Config{Addr: "127.0.0.1:1"})
	}
	const each = "Redis settles each message by itself, also those of a stream"
	h.AllowNotExercised = map[string]string{"C24": each, "C25": each}
	h.SecondTry = true
}

func openRedisDedup(t testing.TB, raw string) core.DedupStore {
	c, err := redis.ParseURL(raw)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	store, err := redis.OpenDedup(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := store.Close(ctx); err != nil {
			t.Logf("closing a store: %v", err)
		}
	})
	return store
}

// wrongRedisPassword is Harness.BadCredentials of the server at raw.
func wrongRedisPassword(raw string) func(testing.TB, string) error {
	return func(_ testing.TB, password string) error {
		// Not by url.Parse, which knows no lists of hosts.
		c, err := redis.ParseURL(strings.Replace(raw, "://", "://"+url.UserPassword("nobody", password).String()+"@", 1))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return use(redis.Open(ctx, c))
	}
}

func TestRedis(t *testing.T) {
	h := redisHarness(t, "redis", openRedis)
	h.AllowNotExercised["C33/stream"] = "across a restart: a stream with order has no delay, core holds the message"
	conformance.Run(t, h)
}

// TestRedisCluster and TestRedisSentinel run where their servers are: they are started on
// request (test/brokers up redis-cluster redis-sentinel).
func TestRedisCluster(t *testing.T) { redisSet(t, "redis-cluster", "VARAL_REDIS_CLUSTER_URL") }

func TestRedisSentinel(t *testing.T) { redisSet(t, "redis-sentinel", "VARAL_REDIS_SENTINEL_URL") }

func redisSet(t *testing.T, name, variable string) {
	raw := os.Getenv(variable)
	if raw == "" {
		t.Skipf("%s is not set: get it by go run ./test/brokers up %s", variable, name)
	}
	h := redisHarnessAt(t, name, raw, func(ctx context.Context, dial dialer) (driver.Driver, error) {
		return openRedisAt(ctx, dial, variable)
	})
	h.AllowNotExercised["C33/stream"] = "across a restart: a stream with order has no delay, core holds the message"
	h.AllowNotExercised["C54"] = "TestRedis has it; what a restart of one server of several does is tested beside the adapter"
	conformance.Run(t, h)
}

// TestRedisUnkeyed runs the suite's stream on the stream that there is: without
// partitions, and so without order.
func TestRedisUnkeyed(t *testing.T) {
	conformance.Run(t, redisHarness(t, "redis-unkeyed", openUnkeyed))
}

func openUnkeyed(ctx context.Context, dial dialer) (driver.Driver, error) {
	d, err := openRedis(ctx, dial)
	if err != nil {
		return nil, err
	}
	return unkeyed{d}, nil
}

// unkeyed takes the partitions of a stream away.
type unkeyed struct{ driver.Driver }

func plain(d driver.Destination) driver.Destination {
	if d.Shape == driver.Stream {
		d.Partitions = 0
	}
	return d
}

// Capabilities implements driver.Driver.
func (u unkeyed) Capabilities(of driver.Destination) driver.Capabilities {
	return u.Driver.Capabilities(plain(of))
}

// Publish implements driver.Driver.
func (u unkeyed) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	return u.Driver.Publish(ctx, plain(to), batch)
}

// Subscribe implements driver.Driver.
func (u unkeyed) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	if sub.From = plain(sub.From); sub.From.Shape != driver.Stream {
		return u.Driver.Subscribe(ctx, sub)
	}
	// The suite waits until four partitions have an owner. Three of them are empty.
	more := []string{"empty 1", "empty 2", "empty 3"}
	assigned, revoke := sub.Assigned, sub.Revoke
	sub.Assigned = func(a driver.Assignment) {
		assigned(a)
		for _, a.Partition = range more {
			assigned(a)
		}
	}
	sub.Revoke = func(ctx context.Context, parts []string) { revoke(ctx, append(more[:len(more):len(more)], parts...)) }
	return u.Driver.Subscribe(ctx, sub)
}

// Admin implements driver.Driver.
func (u unkeyed) Admin() driver.Admin { return unkeyedAdmin{u.Driver.Admin()} }

type unkeyedAdmin struct{ driver.Admin }

// Apply implements driver.Admin.
func (a unkeyedAdmin) Apply(ctx context.Context, want []driver.Resource, mode driver.Mode) ([]driver.Change, error) {
	own := make([]driver.Resource, len(want))
	for i, r := range want {
		r.Destination = plain(r.Destination)
		own[i] = r
	}
	return a.Admin.Apply(ctx, own, mode)
}

// Stats implements driver.Admin.
func (a unkeyedAdmin) Stats(ctx context.Context, of driver.Resource) (driver.Stats, error) {
	of.Destination = plain(of.Destination)
	return a.Admin.Stats(ctx, of)
}

// Seek implements driver.Admin.
func (a unkeyedAdmin) Seek(ctx context.Context, of driver.Resource, to driver.Position) error {
	of.Destination = plain(of.Destination)
	return a.Admin.Seek(ctx, of, to)
}
