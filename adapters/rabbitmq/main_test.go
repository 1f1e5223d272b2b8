package rabbitmq_test

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What the tests of adapters share, by the names it has here.
var (
	within     = adaptertest.Within
	subscribe  = adaptertest.Subscribe
	settle     = adaptertest.MustSettle
	eventually = adaptertest.Eventually
)

type cutter = adaptertest.Cutter

// brokerURL is the real broker, or the test is skipped (fails where one is required).
func brokerURL(t *testing.T) string {
	t.Helper()
	return adaptertest.URL(t, "rabbitmq")
}

func config(t *testing.T) rabbitmq.Config {
	t.Helper()
	c, err := rabbitmq.ParseURL(brokerURL(t))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func open(t *testing.T, change ...func(*rabbitmq.Config)) driver.Driver {
	t.Helper()
	return adaptertest.Open(t, rabbitmq.Open, config(t), change...)
}

// fresh makes new resources and removes them with the test.
func fresh(t *testing.T, d driver.Driver, shape driver.Shape, partitions int, groups ...string) driver.Destination {
	t.Helper()
	to := driver.Destination{Shape: shape, Name: adaptertest.Name("."), Partitions: partitions}
	want := adaptertest.Create(t, d, to, groups...)
	t.Cleanup(func() {
		own, err := rabbitmq.Open(within(t, 20*time.Second), config(t))
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := own.Admin().Apply(within(t, 30*time.Second), want, driver.Delete); err != nil {
			t.Error(err)
		}
		_ = own.Close(within(t, 5*time.Second))
	})
	return to
}

func ctl(t *testing.T, args ...string) string {
	t.Helper()
	path := os.Getenv("VARAL_RABBITMQ_CTL")
	if path == "" {
		t.Skip("VARAL_RABBITMQ_CTL is not set: needs the broker's rabbitmqctl")
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("rabbitmqctl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func message(i int, key string) *driver.Message {
	m := adaptertest.Message(i)
	m.Key = key
	return m
}

func publish(t *testing.T, d driver.Driver, to driver.Destination, from, end int, key func(int) string) {
	t.Helper()
	batch := adaptertest.Messages(from, end)
	if key != nil {
		for i, m := range batch {
			m.Key = key(from + i)
		}
	}
	adaptertest.Publish(t, d, to, batch...)
}

// assignments records what core would be told.
type assignments struct {
	mu      sync.Mutex
	all     []driver.Assignment
	revoked int
}

func (a *assignments) sub(s driver.Subscription) driver.Subscription {
	s.Assigned = func(x driver.Assignment) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = append(a.all, x)
	}
	s.Revoke = func(_ context.Context, parts []string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.revoked += len(parts)
	}
	return s
}

func demand(n, limit int) driver.Demand {
	return driver.Demand{Records: n, Bytes: 1 << 30, Limit: limit}
}

// receive collects n messages, going on after Transient as core does.
func receive(t *testing.T, c driver.Consumer, n, limit int) []driver.Received {
	t.Helper()
	ctx := within(t, 30*time.Second)
	var out []driver.Received
	for len(out) < n {
		got, err := c.Receive(ctx, demand(n-len(out), limit))
		if err != nil {
			if k := driver.ClassOf(err); ctx.Err() == nil && (k == driver.Transient || k == driver.Ambiguous) {
				continue
			}
			t.Fatalf("received %d of %d: %v", len(out), n, err)
		}
		out = append(out, got...)
	}
	return out
}

// quiet checks that nothing comes for a while.
func quiet(t *testing.T, c driver.Consumer, limit int, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if got, err := c.Receive(ctx, demand(10, limit)); err == nil {
		t.Fatalf("unexpected %d messages, first %q", len(got), got[0].ID)
	}
}
