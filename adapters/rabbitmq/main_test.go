package rabbitmq_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// brokerURL is the real broker, or the test is skipped (fails where one is required).
func brokerURL(t *testing.T) string {
	t.Helper()
	u := os.Getenv("VARAL_RABBITMQ_URL")
	if u == "" {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), "rabbitmq") {
			t.Fatal("VARAL_RABBITMQ_URL is not set and VARAL_REQUIRE names rabbitmq")
		}
		t.Skip("VARAL_RABBITMQ_URL is not set: needs a real RabbitMQ")
	}
	return u
}

func config(t *testing.T) rabbitmq.Config {
	t.Helper()
	c, err := rabbitmq.ParseURL(brokerURL(t))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// within is a context that ends with the test or after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, change ...func(*rabbitmq.Config)) driver.Driver {
	t.Helper()
	c := config(t)
	for _, f := range change {
		f(&c)
	}
	d, err := rabbitmq.Open(within(t, 20*time.Second), c)
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

var names struct {
	sync.Mutex
	n int
}

// fresh makes new resources and removes them with the test.
func fresh(t *testing.T, d driver.Driver, shape driver.Shape, partitions int, groups ...string) driver.Destination {
	t.Helper()
	names.Lock()
	names.n++
	name := fmt.Sprintf("test.%d.%d.%d", os.Getpid(), time.Now().UnixNano()%1e9, names.n)
	names.Unlock()
	to := driver.Destination{Shape: shape, Name: name, Partitions: partitions}
	want := []driver.Resource{{Destination: to}}
	for _, g := range groups {
		want = append(want, driver.Resource{Destination: to.ForGroup(g)})
	}
	if _, err := d.Admin().Apply(within(t, 30*time.Second), want, driver.Create); err != nil {
		t.Fatal(err)
	}
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

// cutter dials and can close every connection it has dialled.
type cutter struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cutter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

func message(i int, key string) *driver.Message {
	return &driver.Message{ID: fmt.Sprintf("m-%06d", i), Key: key, Body: fmt.Appendf(nil, "body %d", i), Time: time.Now()}
}

func publish(t *testing.T, d driver.Driver, to driver.Destination, from, to2 int, key func(int) string) {
	t.Helper()
	var batch []*driver.Message
	for i := from; i < to2; i++ {
		k := ""
		if key != nil {
			k = key(i)
		}
		batch = append(batch, message(i, k))
	}
	if err := d.Publish(within(t, 30*time.Second), to, batch); err != nil {
		t.Fatal(err)
	}
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

func subscribe(t *testing.T, d driver.Driver, s driver.Subscription) driver.Consumer {
	t.Helper()
	c, err := d.Subscribe(within(t, 20*time.Second), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(within(t, 10*time.Second)) })
	return c
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

func settle(t *testing.T, c driver.Consumer, what driver.Disposition, rs ...driver.Received) {
	t.Helper()
	var batch []driver.Settlement
	for _, r := range rs {
		batch = append(batch, driver.Settlement{Receipt: r.Receipt, Disposition: what})
	}
	if err := c.Settle(within(t, 10*time.Second), batch); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, d time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %v: %s", d, what)
}
