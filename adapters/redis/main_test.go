package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

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

// config is that of the real server, or the test is skipped (fails where one is required).
func config(t *testing.T) redis.Config {
	t.Helper()
	u := os.Getenv("VARAL_REDIS_URL")
	if u == "" {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), "redis") {
			t.Fatal("VARAL_REDIS_URL is not set and VARAL_REQUIRE names redis")
		}
		t.Skip("VARAL_REDIS_URL is not set: needs a real Redis")
	}
	c, err := redis.ParseURL(u)
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

// within is a context that ends with the test or after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, change ...func(*redis.Config)) driver.Driver {
	t.Helper()
	c := config(t)
	for _, f := range change {
		f(&c)
	}
	d, err := redis.Open(within(t, 10*time.Second), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(within(t, 10*time.Second)); err != nil {
			t.Error("close:", err)
		}
	})
	return d
}

var names atomic.Int64

// fresh makes new resources and removes them with the test.
func fresh(t *testing.T, shape driver.Shape, groups ...string) driver.Destination {
	t.Helper()
	return freshOf(t, driver.Destination{Shape: shape}, groups...)
}

func freshOf(t *testing.T, to driver.Destination, groups ...string) driver.Destination {
	t.Helper()
	to.Name = fmt.Sprintf("test-%d-%d-%d", os.Getpid(), time.Now().UnixNano()%1e9, names.Add(1))
	want := []driver.Resource{{Destination: to}}
	for _, g := range groups {
		want = append(want, driver.Resource{Destination: to.ForGroup(g)})
	}
	d := open(t) // closed after the cleanup below
	if _, err := d.Admin().Apply(within(t, 10*time.Second), want, driver.Create); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := d.Admin().Apply(within(t, 10*time.Second), want[:1], driver.Delete); err != nil {
			t.Error(err)
		}
	})
	return to
}

func message(i int) *driver.Message {
	return &driver.Message{ID: fmt.Sprintf("m-%06d", i), Body: fmt.Appendf(nil, "body %d", i), Time: time.Now()}
}

func publish(t *testing.T, d driver.Driver, to driver.Destination, from, end int) {
	t.Helper()
	var batch []*driver.Message
	for i := from; i < end; i++ {
		batch = append(batch, message(i))
	}
	if err := d.Publish(within(t, 10*time.Second), to, batch); err != nil {
		t.Fatal(err)
	}
}

func subscribe(t *testing.T, d driver.Driver, s driver.Subscription) driver.Consumer {
	t.Helper()
	c, err := d.Subscribe(within(t, 10*time.Second), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(within(t, 10*time.Second)) })
	return c
}

func demand(n int) driver.Demand { return driver.Demand{Records: n, Bytes: 1 << 30, Limit: n} }

// receive collects n messages, going on after Transient as core does.
func receive(t *testing.T, c driver.Consumer, n int) []driver.Received {
	t.Helper()
	ctx := within(t, 15*time.Second)
	var out []driver.Received
	for len(out) < n {
		got, err := c.Receive(ctx, demand(n-len(out)))
		if err != nil && (ctx.Err() != nil || driver.ClassOf(err) != driver.Transient) {
			t.Fatalf("received %d of %d: %v", len(out), n, err)
		}
		if len(got) > n-len(out) {
			t.Fatalf("%d messages for a demand of %d", len(got), n-len(out))
		}
		out = append(out, got...)
	}
	return out
}

// quiet checks that nothing comes for a while.
func quiet(t *testing.T, c driver.Consumer, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	got, err := c.Receive(ctx, demand(10))
	if err == nil {
		t.Fatalf("unexpected %d messages, first %q", len(got), got[0].ID)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func settle(c driver.Consumer, s driver.Settlement, rs ...driver.Received) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var batch []driver.Settlement
	for _, r := range rs {
		s.Receipt = r.Receipt
		batch = append(batch, s)
	}
	return c.Settle(ctx, batch)
}

func mustSettle(t *testing.T, c driver.Consumer, what driver.Disposition, rs ...driver.Received) {
	t.Helper()
	if err := settle(c, driver.Settlement{Disposition: what}, rs...); err != nil {
		t.Fatal(err)
	}
}

func ids(rs []driver.Received) []string {
	var out []string
	for _, r := range rs {
		out = append(out, r.ID)
	}
	slices.Sort(out)
	return out
}

func stats(t *testing.T, d driver.Driver, of driver.Destination) driver.Stats {
	t.Helper()
	s, err := d.Admin().Stats(within(t, 10*time.Second), driver.Resource{Destination: of})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
