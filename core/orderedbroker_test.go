package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

// urlOf returns the URL of a broker, or ends the test as the house rules say.
func urlOf(t *testing.T, name string) string {
	variable := map[string]string{"memory": "", "kafka": "VARAL_KAFKA_URL", "rabbitmq": "VARAL_RABBITMQ_URL"}[name]
	if variable == "" {
		return "memory:"
	}
	u := os.Getenv(variable)
	if u == "" && strings.Contains(os.Getenv("VARAL_REQUIRE"), name) {
		t.Fatalf("%s is not set and VARAL_REQUIRE asks for %s", variable, name)
	}
	if u == "" {
		t.Skipf("%s is not set: no real %s to test on", variable, name)
	}
	return u
}

// brokerClient opens a client of a broker, whose destinations are made as they are used and
// removed with the test.
func brokerClient(t *testing.T, name string, uses ...core.Destination) *core.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := adapters.Open(ctx, adapters.Config{URL: urlOf(t, name), Provision: core.ProvisionCreate, Options: core.Options{Logger: quiet}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, d := range uses {
			if _, err := c.Admin().Apply(ctx, []driver.Resource{{Destination: d}}, driver.Delete); err != nil {
				t.Error("delete:", err)
			}
		}
		if err := c.Close(ctx); err != nil {
			t.Error("close:", err)
		}
	})
	return c
}

// received consumes from a destination until every wanted id has come, and returns what came
// in the order of handling.
func received(t *testing.T, c *core.Client, from core.Destination, want map[string]bool) (log []core.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	err := c.Consume(ctx, core.Subscription{From: from, Group: "judge"}, func(_ context.Context, d *core.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		m := d.Message
		m.Headers = append([]core.Header(nil), d.Headers...) // the delivery is valid only until here
		log = append(log, m)
		if delete(want, m.ID); len(want) == 0 {
			cancel()
		}
		return nil
	}, middleware.SessionOrder(4))
	if err != nil {
		t.Error("consume:", err)
	}
	if len(want) > 0 {
		t.Errorf("%d messages did not come", len(want))
	}
	return log
}

// TestOrderedOnBrokers publishes through a Publisher that fails at random and proves by the
// log of the broker that the order of each key is kept.
func TestOrderedOnBrokers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"memory", "kafka", "rabbitmq"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			urlOf(t, name)
			to := core.Queue(fmt.Sprintf("ordered-%d-%d", os.Getpid(), time.Now().UnixNano())).Keyed(3)
			c := brokerClient(t, name, to)
			f := &flaky{next: c, slow: 2 * time.Millisecond, rnd: rand.New(rand.NewPCG(1, 2))}
			p := core.NewOrderedPublisher(f, core.OrderedOptions{Lanes: 4, Queue: 16, Sequence: true, MaxNumbered: 16})
			s := &rush{p: p, to: to, keys: 12, callers: 3, each: 30, patient: 50 * time.Millisecond}
			s.run(t, 1)
			closeOrdered(t, p)
			want := map[string]bool{}
			for k := range s.keys {
				for c := range s.callers {
					for n := range s.each {
						if id := fmt.Sprintf("key-%d/%d/%06d", k, c, n); !s.given[id] {
							want[id] = true
						}
					}
				}
			}
			log := received(t, c, to, want)
			s.judge(t, log)
			t.Logf("%d messages handled, %d given up", len(log), len(s.given))
		})
	}
}
