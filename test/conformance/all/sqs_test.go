package all_test

import (
	"context"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/conformance"
)

// sqsLease is short, so that the cases about leases end soon. SQS counts whole seconds, and
// an emulator that fifty publishers keep busy takes one to delete something.
const sqsLease = 3 * time.Second

// sqsParallel is how many cases run at once. Most of them wait for leases to end.
const sqsParallel = 4

func init() {
	children["sqs"] = func(ctx context.Context) (driver.Driver, error) { return openSQS(ctx, nil) }
}

func sqsConfig(endpoint string) aws.Config {
	return aws.Config{
		Region: "us-east-1", Endpoint: endpoint, AccessKeyID: "test", SecretAccessKey: "test",
		Lease: sqsLease, Wait: time.Second, Timeout: 2 * time.Second, ConnectTimeout: 2 * time.Second,
	}
}

func openSQS(ctx context.Context, dial dialer) (driver.Driver, error) {
	c := sqsConfig(os.Getenv("VARAL_SQS_URL"))
	c.Dial = dial
	return aws.Open(ctx, c)
}

// sqsDeviations are the cases in which an emulator is not what AWS is, by the name of its
// product (VARAL_SQS_PRODUCT), with the reason. A case that is not listed must pass.
var sqsDeviations = map[string]map[string]string{
	"ministack": {}, // none
	"fauxqs":    {"C19/keyed": "it hands out one message of a group at a time, and the case wants two of each of three keys out"},
}

// TestSQS runs the suite on SQS queues and SNS topics.
func TestSQS(t *testing.T) {
	raw := brokerURL(t, "VARAL_SQS_URL", "sqs")
	if u, err := url.Parse(raw); err != nil || u.Host == "" {
		t.Fatalf("VARAL_SQS_URL is no URL: %v", err)
	}
	h := overTCP(t, openSQS)
	product := or(os.Getenv("VARAL_SQS_PRODUCT"), "ministack")
	h.Name, h.Broker, h.Emulator = "sqs", product+" "+or(os.Getenv("VARAL_SQS_VERSION"), "1.5"), true
	h.Lease, h.Tolerance = sqsLease, 1500*time.Millisecond
	h.ReturnsCount, h.StopCounts = true, true
	// The emulator is one process with one thread, and looks for what has become visible in
	// a blocked message group ten times a second. Every send goes through what it remembers
	// of the last five minutes, so that ten thousand of one key take it minutes.
	h.Parallel, h.Patience = sqsParallel, 90*time.Second
	if os.Getenv("VARAL_SQS_FULL") == "" {
		h.Bulk = 500
	}
	h.Spawn, h.Restart = respawn("sqs"), restarter("sqs")
	h.OpenDown = func(ctx context.Context) (driver.Driver, error) {
		return aws.Open(ctx, sqsConfig("http://127.0.0.1:1"))
	}
	if auth := os.Getenv("VARAL_SQS_AUTH_URL"); auth != "" {
		h.BadCredentials = func(_ testing.TB, password string) error { return unknownKey(auth, password) }
	}
	h.Deviations = sqsDeviations[product]
	h.AllowNotExercised = map[string]string{}
	if h.BadCredentials == nil {
		h.AllowNotExercised["C53"] = "a wrong secret: the emulators check none, and keys only where VARAL_SQS_AUTH_URL names one with AUTH=true"
	}
	mayRestart(&h)
	h.SecondTry = true
	conformance.Run(t, h)
}

// unknownKey uses a key that the server does not know.
func unknownKey(endpoint, secret string) error {
	c := sqsConfig(endpoint)
	c.AccessKeyID, c.SecretAccessKey = "NOBODY", secret
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return use(aws.Open(ctx, c))
}
