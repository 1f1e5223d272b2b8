package redis_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

func TestMain(m *testing.M) {
	// After many dials in vain go-redis asks once a second whether the server is back, and
	// sees that its pool was closed at the end of that second only.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// lease of every test: long enough for a busy machine, short enough to wait for.
const lease = time.Second

// What the tests of adapters share, by the names it has here.
var (
	within     = adaptertest.Within
	message    = adaptertest.Message
	subscribe  = adaptertest.Subscribe
	demand     = adaptertest.Demand
	receive    = adaptertest.Receive
	quiet      = adaptertest.Quiet
	settle     = adaptertest.Settle
	mustSettle = adaptertest.MustSettle
	eventually = adaptertest.Eventually
)

type cutter = adaptertest.Cutter

// config is that of the real server, or the test is skipped (fails where one is required).
func config(t *testing.T) redis.Config {
	t.Helper()
	c, err := redis.ParseURL(adaptertest.URL(t, "redis"))
	if err != nil {
		t.Fatal(err)
	}
	c.Lease = lease
	return c
}

// raw is a client of the test's own, to look at what is stored.
func raw(t *testing.T) *goredis.Client {
	t.Helper()
	c := config(t)
	cl := goredis.NewClient(&goredis.Options{Addr: c.Addr, Username: c.User, Password: c.Password, DB: c.DB})
	t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func open(t *testing.T, change ...func(*redis.Config)) driver.Driver {
	t.Helper()
	return adaptertest.Open(t, redis.Open, config(t), change...)
}

// opens checks that a driver opens, where class is 0, or is refused with that class and text.
func opens(t *testing.T, what string, c redis.Config, class driver.Class, text string) {
	t.Helper()
	d, err := redis.Open(within(t, 10*time.Second), c)
	switch {
	case err == nil:
		_ = d.Close(within(t, 5*time.Second))
		if class != 0 {
			t.Errorf("%s: opened", what)
		}
	case class == 0 || driver.ClassOf(err) != class || !strings.Contains(err.Error(), text) || c.SentinelPassword != "" && strings.Contains(err.Error(), c.SentinelPassword):
		t.Errorf("%s: %v (%v)", what, err, driver.ClassOf(err))
	}
}

// fresh makes new resources and removes them with the test.
func fresh(t *testing.T, shape driver.Shape, groups ...string) driver.Destination {
	t.Helper()
	return freshOf(t, driver.Destination{Shape: shape}, groups...)
}

func freshOf(t *testing.T, to driver.Destination, groups ...string) driver.Destination {
	t.Helper()
	return adaptertest.Fresh(t, open(t), to, groups...)
}

func publish(t *testing.T, d driver.Driver, to driver.Destination, from, end int) {
	t.Helper()
	adaptertest.Publish(t, d, to, adaptertest.Messages(from, end)...)
}

// ids are sorted: where nothing orders messages, a test does not look at their order.
func ids(rs []driver.Received) []string { return slices.Sorted(slices.Values(adaptertest.IDs(rs))) }

func stats(t *testing.T, d driver.Driver, of driver.Destination) driver.Stats {
	t.Helper()
	s, err := d.Admin().Stats(within(t, 10*time.Second), driver.Resource{Destination: of})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
