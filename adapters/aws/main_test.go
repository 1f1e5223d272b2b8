package aws_test

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

	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lease of every test: SQS counts whole seconds, and a busy machine needs some.
const lease = 2 * time.Second

// endpoint is that of the emulator, or the test is skipped (fails where one is required).
func endpoint(t *testing.T) string {
	t.Helper()
	u := os.Getenv("VARAL_SQS_URL")
	if u == "" {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), "sqs") {
			t.Fatal("VARAL_SQS_URL is not set and VARAL_REQUIRE names sqs")
		}
		t.Skip("VARAL_SQS_URL is not set: needs SQS or an emulator")
	}
	return u
}

func config(endpoint string) aws.Config {
	return aws.Config{
		Region: "us-east-1", Endpoint: endpoint, AccessKeyID: "test", SecretAccessKey: "test",
		Lease: lease, Wait: time.Second, Timeout: 5 * time.Second,
	}
}

// within is a context that ends with the test or after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, change ...func(*aws.Config)) driver.Driver {
	t.Helper()
	return openAt(t, endpoint(t), change...)
}

func openAt(t *testing.T, url string, change ...func(*aws.Config)) driver.Driver {
	t.Helper()
	c := config(url)
	for _, f := range change {
		f(&c)
	}
	d, err := aws.Open(within(t, 10*time.Second), c)
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
func fresh(t *testing.T, shape driver.Shape, partitions int, groups ...string) driver.Destination {
	t.Helper()
	to := driver.Destination{Shape: shape, Partitions: partitions, Name: fmt.Sprintf("test-%d-%d-%d", os.Getpid(), time.Now().UnixNano()%1e9, names.Add(1))}
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

// keyed is a message of one of so many keys.
func keyed(i, keys int) *driver.Message {
	m := message(i)
	m.Key = fmt.Sprintf("k%d", i%keys)
	return m
}

func publish(t *testing.T, d driver.Driver, to driver.Destination, batch ...*driver.Message) {
	t.Helper()
	if err := d.Publish(within(t, 20*time.Second), to, batch); err != nil {
		t.Fatal(err)
	}
}

func some(from, end int) (batch []*driver.Message) {
	for i := from; i < end; i++ {
		batch = append(batch, message(i))
	}
	return batch
}

func someKeyed(n, keys int) (batch []*driver.Message) {
	for i := range n {
		batch = append(batch, keyed(i, keys))
	}
	return batch
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
	return out
}

func sorted(s []string) []string { slices.Sort(s); return s }

func idsOf(batch []*driver.Message) (out []string) {
	for _, m := range batch {
		out = append(out, m.ID)
	}
	return out
}

// openAttributes opens a driver that sends headers as attributes.
func openAttributes(t *testing.T, names ...string) driver.Driver {
	t.Helper()
	return open(t, func(c *aws.Config) { c.Attributes = names })
}
