package core_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

// fakeKafka is a client of a Kafka in this process.
func fakeKafka(t *testing.T) *core.Client {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := adapters.Open(ctx, adapters.Config{
		URL: "kafka://" + cluster.ListenAddrs()[0], Provision: core.ProvisionCreate, Options: core.Options{Logger: quiet},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Error("close:", err)
		}
	})
	return c
}

// TestTraceContextSurvives: what W3C trace context carries arrives byte by byte with every
// attempt and in the dead letter, or the trace of a failure ends where it gets interesting.
func TestTraceContextSurvives(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"memory", "kfake", "kafka", "rabbitmq"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unique := fmt.Sprintf("trace-%d-%d", os.Getpid(), time.Now().UnixNano())
			from, dead := core.Queue(unique), core.Queue(unique+".dlq").Keyed(1)
			var c *core.Client
			if name == "kfake" {
				c = fakeKafka(t)
			} else {
				c = brokerClient(t, name, from, dead)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			trace := []core.Header{
				{Key: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
				{Key: "tracestate", Value: "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"},
			}
			if err := c.Publish(ctx, from, &core.Message{ID: "m", Key: "k", Headers: trace}); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var attempts int
			look := func(where string, m *core.Message) {
				for _, h := range trace {
					if v, _ := m.Header(h.Key); v != h.Value {
						t.Errorf("%s: %s is %q, want %q; all: %v", where, h.Key, v, h.Value, m.Headers)
					}
				}
			}
			done := make(chan error, 1)
			work, stop := context.WithCancel(ctx)
			defer stop()
			go func() {
				done <- c.Consume(work, core.Subscription{From: from, Group: "kitchen"}, func(_ context.Context, d *core.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					attempts++
					look(fmt.Sprint("attempt ", d.Attempt), &d.Message)
					return errors.New("burnt")
				}, middleware.Retry(middleware.Exponential{Base: time.Millisecond, Cap: time.Millisecond, Attempts: 3}), middleware.DeadLetter(dead))
			}()
			for _, m := range received(t, c, dead, map[string]bool{"m": true}) {
				look("dead letter", &m)
			}
			stop()
			if err := <-done; err != nil {
				t.Error("consume:", err)
			}
			if attempts != 3 {
				t.Errorf("%d attempts, want 3", attempts)
			}
		})
	}
}
