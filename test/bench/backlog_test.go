package main

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// hoardEnv makes the consumer's process take all it can get.
const hoardEnv = "VARAL_BENCH_HOARD"

// backlogMain is the main of the test binary where it is the consumer's process.
func backlogMain(arg string) int {
	var wrap func(driver.Driver) driver.Driver
	if os.Getenv(hoardEnv) != "" {
		wrap = func(d driver.Driver) driver.Driver { return hoarding{d} }
	}
	if err := backlogChild(context.Background(), arg, wrap, os.Stdout); err != nil {
		_, _ = os.Stderr.WriteString("backlog: " + err.Error() + "\n")
		return 1
	}
	return 0
}

// testBacklog is one that would be seen if a consumer took it all: twice the bound and
// more.
func testBacklog(t *testing.T) backlog {
	t.Helper()
	if os.Getenv("VARAL_REDIS_URL") == "" {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), "redis") {
			t.Fatal("VARAL_REDIS_URL is not set and VARAL_REQUIRE asks for redis")
		}
		t.Skip("VARAL_REDIS_URL is not set: no real redis to test on")
	}
	if runtime.GOOS != "linux" {
		t.Skip("resident memory is read where Linux tells it")
	}
	if testing.Short() {
		return backlog{Messages: 30_000, Body: 8 << 10, InFlight: 256, Workers: 64, For: 4 * time.Second}
	}
	return backlog{Messages: 1_000_000, Body: redisPayload, InFlight: redisPrefetch, Workers: 256, For: 10 * time.Second}
}

// TestBacklogStaysAtTheBroker: what waits does not move into the consumer's memory.
func TestBacklogStaysAtTheBroker(t *testing.T) {
	b := testBacklog(t)
	got, err := measureBacklog(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("start %.1f MiB, peak %.1f MiB, bound %.1f MiB; %d of %d messages handled", mib(got.Start), mib(got.Peak), mib(b.bound(got.Start)), got.Handled, b.Messages)
	if got.Peak > b.bound(got.Start) {
		t.Errorf("resident memory grew from %.1f to %.1f MiB, bound %.1f MiB", mib(got.Start), mib(got.Peak), mib(b.bound(got.Start)))
	}
	if got.Handled == 0 || got.Handled >= int64(b.Messages) {
		t.Errorf("%d of %d messages were handled: there was no backlog to measure with", got.Handled, b.Messages)
	}
}

// TestBacklogTellsAHoard: a consumer that does take what waits is over the bound.
func TestBacklogTellsAHoard(t *testing.T) {
	b := testBacklog(t)
	b.Messages, b.Body, b.InFlight, b.Workers, b.For = 30_000, 8<<10, 256, 64, 4*time.Second
	got, err := measureBacklog(t.Context(), b, hoardEnv+"=1")
	if err != nil {
		t.Fatal(err)
	}
	if got.Peak <= b.bound(got.Start) {
		t.Errorf("a consumer that keeps all it can get stayed at %.1f MiB, within the bound of %.1f MiB", mib(got.Peak), mib(b.bound(got.Start)))
	}
}

// hoarding is a driver whose consumers take the whole backlog with their first Receive.
type hoarding struct{ driver.Driver }

func (h hoarding) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	c, err := h.Driver.Subscribe(ctx, sub)
	return &hoard{Consumer: c}, err
}

type hoard struct {
	driver.Consumer
	held []driver.Received
}

func (h *hoard) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	for all := (driver.Demand{Records: 1000, Bytes: 64 << 20, Limit: 1 << 20}); len(h.held) < 25_000; {
		got, err := h.Consumer.Receive(ctx, all)
		if err != nil {
			return nil, err
		}
		h.held = append(h.held, got...)
	}
	n := min(want.Records, len(h.held))
	out := h.held[:n]
	h.held = h.held[n:]
	return out, nil
}
