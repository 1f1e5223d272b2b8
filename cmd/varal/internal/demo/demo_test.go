package demo_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/cmd/varal/internal/demo"
	"github.com/varal-go/varal/core/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func evening(t *testing.T, url, sabotage string, messages int) *demo.Report {
	t.Helper()
	o := demo.Options{Broker: adapters.Config{URL: url}, Messages: messages, Seed: 7, Sabotage: sabotage, Patience: time.Second}
	if !strings.HasPrefix(url, "memory:") {
		o.Patience = 10 * time.Second
	}
	r, err := demo.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// honest checks a run in which nothing was planted.
func honest(t *testing.T, r *demo.Report, messages int) {
	t.Helper()
	if !r.Clean() || r.Published != messages || r.Handled+r.DeadLettered != messages {
		t.Errorf("account: %+v", r)
	}
	if r.Retried == 0 || r.DeadLettered == 0 || !r.WalkedOut {
		t.Errorf("vacuous: %d retried, %d dead-lettered, walked out %v", r.Retried, r.DeadLettered, r.WalkedOut)
	}
	for _, row := range r.Shapes {
		if row.Published == 0 || row.Handled != row.Published-row.DeadLettered {
			t.Errorf("%s %s: %+v", row.Shape, row.Name, row)
		}
	}
}

func TestHonest(t *testing.T) {
	t.Parallel()
	honest(t, evening(t, "memory:", "", 1500), 1500)
}

// TestOneTicket: sizes at which nothing can be shown still end well.
func TestOneTicket(t *testing.T) {
	t.Parallel()
	if r := evening(t, "memory:", "", 1); !r.Clean() || r.Published != 1 {
		t.Errorf("account: %+v", r)
	}
}

// TestSabotage: an account that has not caught a planted bug proves nothing.
func TestSabotage(t *testing.T) {
	t.Parallel()
	for bug := range demo.Sabotages {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			r := evening(t, "memory:", bug, 900)
			switch bug {
			case "swap":
				if r.OutOfOrder == 0 || r.Lost != 0 {
					t.Errorf("swap: %d out of order, %d lost", r.OutOfOrder, r.Lost)
				}
			case "drop": // one of each batch of 240
				if r.Lost != 4 || r.OutOfOrder != 0 {
					t.Errorf("drop: %d lost, %d out of order; want 4 and 0", r.Lost, r.OutOfOrder)
				}
			default:
				if r.Lost == 0 || !r.WalkedOut {
					t.Errorf("early-ack: %d lost, walked out %v", r.Lost, r.WalkedOut)
				}
			}
			if r.Clean() {
				t.Error("the planted bug was not caught")
			}
		})
	}
}

// unkeyed is a broker without order per key.
type unkeyed struct{ driver.Driver }

func (u unkeyed) Capabilities(of driver.Destination) driver.Capabilities {
	if of.Partitions > 0 {
		return driver.Capabilities{}
	}
	c := u.Driver.Capabilities(of)
	c.Order = driver.NoOrder
	return c
}

func (u unkeyed) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	if to.Partitions > 0 {
		return driver.Errorf("publish", driver.Unsupported, "ordered")
	}
	return u.Driver.Publish(ctx, to, batch)
}

// TestWithoutOrder: where keyed queues are refused the evening goes on without, and says so.
func TestWithoutOrder(t *testing.T) {
	t.Parallel()
	r, err := demo.Run(t.Context(), demo.Options{
		Broker: adapters.Config{URL: "memory:"}, Messages: 900, Seed: 7, Patience: time.Second,
		Wrap: func(d driver.Driver) driver.Driver { return unkeyed{d} },
	})
	if err != nil {
		t.Fatal(err)
	}
	honest(t, r, 900)
	for _, row := range r.Shapes {
		if row.OutOfOrder != -1 {
			t.Errorf("%s %s: an order is counted that nobody promised: %+v", row.Shape, row.Name, row)
		}
	}
	if len(r.Notes) != 2 || !strings.Contains(r.Notes[0], "keyed queue (ordered)") || !strings.Contains(r.Notes[1], "keyed stream (ordered)") {
		t.Errorf("notes: %q", r.Notes)
	}
}

// streamless is a broker without streams.
type streamless struct{ driver.Driver }

func (s streamless) Capabilities(of driver.Destination) driver.Capabilities {
	if of.Shape == driver.Stream {
		return driver.Capabilities{}
	}
	return s.Driver.Capabilities(of)
}

func (s streamless) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	if to.Shape == driver.Stream {
		return driver.Errorf("publish", driver.Unsupported, "there is no stream")
	}
	return s.Driver.Publish(ctx, to, batch)
}

// TestWithoutStream: where streams are refused the evening goes on without the diary, says
// so, and counts nothing of it.
func TestWithoutStream(t *testing.T) {
	t.Parallel()
	r, err := demo.Run(t.Context(), demo.Options{
		Broker: adapters.Config{URL: "memory:"}, Messages: 900, Seed: 7, Patience: time.Second,
		Wrap: func(d driver.Driver) driver.Driver { return streamless{d} },
	})
	if err != nil {
		t.Fatal(err)
	}
	honest(t, r, 900)
	for _, row := range r.Shapes {
		if row.Shape == "stream" {
			t.Errorf("a stream that is not there is in the account: %+v", row)
		}
	}
	if len(r.Shapes) != 4 || r.Shapes[0].OutOfOrder != 0 {
		t.Errorf("account: %+v", r.Shapes)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "refuses a stream (replay)") {
		t.Errorf("notes: %q", r.Notes)
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	o := demo.Options{Broker: adapters.Config{URL: "memory:"}, Messages: 100_000, Patience: time.Second, Watch: func(p demo.Progress) {
		if p.Done > 0 {
			cancel()
		}
	}}
	start := time.Now()
	_, err := demo.Run(ctx, o)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

func asItIs(url string) string { return url }

// TestRealBrokers runs the same evening where a broker is there.
func TestRealBrokers(t *testing.T) {
	t.Parallel()
	for _, b := range []struct {
		broker, env string
		url         func(string) string // of the variable
		messages    int                 // an emulator is slow
	}{
		{"kafka", "VARAL_KAFKA_URL", asItIs, 1500},
		{"rabbitmq", "VARAL_RABBITMQ_URL", asItIs, 1500},
		{"redis", "VARAL_REDIS_URL", asItIs, 1500},
		{"sqs", "VARAL_SQS_URL", func(u string) string { return "sqs://test:test@us-east-1?wait=1s&endpoint=" + u }, 600},
	} {
		t.Run(b.broker, func(t *testing.T) {
			url := os.Getenv(b.env)
			if url == "" {
				if strings.Contains(os.Getenv("VARAL_REQUIRE"), b.broker) {
					t.Fatalf("VARAL_REQUIRE names %s and %s is not set", b.broker, b.env)
				}
				t.Skipf("%s is not set: no %s to run on", b.env, b.broker)
			}
			url = b.url(url)
			honest(t, evening(t, url, "", b.messages), b.messages)
			if r := evening(t, url, "early-ack", min(b.messages, 900)); r.Lost == 0 {
				t.Errorf("early-ack was not caught: %+v", r)
			}
		})
	}
}
