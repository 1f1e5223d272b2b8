package aws_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/core/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lease of every test: SQS counts whole seconds, and a busy machine needs some.
const lease = 2 * time.Second

// What the tests of adapters share, by the names it has here.
var (
	within     = adaptertest.Within
	message    = adaptertest.Message
	some       = adaptertest.Messages
	publish    = adaptertest.Publish
	subscribe  = adaptertest.Subscribe
	demand     = adaptertest.Demand
	receive    = adaptertest.Receive
	quiet      = adaptertest.Quiet
	settle     = adaptertest.Settle
	mustSettle = adaptertest.MustSettle
	ids        = adaptertest.IDs
)

// endpoint is that of the emulator, or the test is skipped (fails where one is required).
func endpoint(t *testing.T) string {
	t.Helper()
	return adaptertest.URL(t, "sqs")
}

func config(endpoint string) aws.Config {
	return aws.Config{
		Region: "us-east-1", Endpoint: endpoint, AccessKeyID: "test", SecretAccessKey: "test",
		Lease: lease, Wait: time.Second, Timeout: 5 * time.Second,
	}
}

func open(t *testing.T, change ...func(*aws.Config)) driver.Driver {
	t.Helper()
	return openAt(t, endpoint(t), change...)
}

func openAt(t *testing.T, url string, change ...func(*aws.Config)) driver.Driver {
	t.Helper()
	return adaptertest.Open(t, aws.Open, config(url), change...)
}

// fresh makes new resources and removes them with the test.
func fresh(t *testing.T, shape driver.Shape, partitions int, groups ...string) driver.Destination {
	t.Helper()
	return adaptertest.Fresh(t, open(t), driver.Destination{Shape: shape, Partitions: partitions}, groups...)
}

// keyed is a message of one of so many keys.
func keyed(i, keys int) *driver.Message {
	m := message(i)
	m.Key = fmt.Sprintf("k%d", i%keys)
	return m
}

func someKeyed(n, keys int) (batch []*driver.Message) {
	for i := range n {
		batch = append(batch, keyed(i, keys))
	}
	return batch
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
