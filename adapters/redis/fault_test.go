package redis_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// events counts what a hook was told.
type events struct {
	mu sync.Mutex
	n  map[driver.EventKind]int
}

func (e *events) tell(x driver.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == nil {
		e.n = map[driver.EventKind]int{}
	}
	e.n[x.Kind]++
}

func (e *events) of(k driver.EventKind) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n[k]
}

func TestACutIsSurvived(t *testing.T) {
	t.Parallel()
	var net cutter
	var own, sub events
	d := open(t, func(c *redis.Config) { c.Dial, c.Notify = net.Dial, own.tell })
	to := fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to, Notify: sub.tell})
	publish(t, d, to, 0, 2)
	first := receive(t, c, 1)[0]
	net.Down()
	err := d.Publish(within(t, 5*time.Second), to, []*driver.Message{message(9)})
	if k := driver.ClassOf(driver.ResultAt(err, 0)); k != driver.Transient && k != driver.Ambiguous {
		t.Errorf("a publish in the outage ended with %v", err)
	}
	if _, err := c.Receive(within(t, 5*time.Second), demand(1)); driver.ClassOf(err) != driver.Transient {
		t.Errorf("a Receive in the outage ended with %v", err)
	}
	net.Up()
	// The lease is the server's: the receipt outlives the connection.
	mustSettle(t, c, driver.Ack, first)
	if r := receive(t, c, 1)[0]; r.ID != message(1).ID {
		t.Errorf("%s came", r.ID)
	}
	for _, e := range []*events{&own, &sub} {
		if e.of(driver.Disconnected) == 0 || e.of(driver.Connected) == 0 {
			t.Errorf("told %v", e.n)
		}
	}
}

// silence is a connection that swallows what is written once it is told to.
type silence struct {
	net.Conn
	on chan struct{}
}

func (s silence) Write(b []byte) (int, error) {
	select {
	case <-s.on:
		return len(b), nil
	default:
		return s.Conn.Write(b)
	}
}

func TestABlackHoleIsNoticedAndCallsEndByTheirContext(t *testing.T) {
	t.Parallel()
	on := make(chan struct{})
	d := open(t, func(c *redis.Config) {
		c.Timeout = time.Second
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return silence{conn, on}, err
		}
	})
	to := fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	publish(t, d, to, 0, 1)
	receive(t, c, 1)
	close(on)
	for what, call := range map[string]func(ctx context.Context) error{
		"Publish": func(ctx context.Context) error {
			return driver.ResultAt(d.Publish(ctx, to, []*driver.Message{message(9)}), 0)
		},
		"Receive": func(ctx context.Context) error { _, err := c.Receive(ctx, demand(1)); return err },
	} {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(100*time.Millisecond, cancel)
		began := time.Now()
		err := call(ctx)
		if took := time.Since(began); took > 700*time.Millisecond || !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended %v after its start with %v", what, took, err)
		}
	}
	began := time.Now()
	if _, err := c.Receive(within(t, 10*time.Second), demand(1)); driver.ClassOf(err) != driver.Transient || time.Since(began) > 3*time.Second {
		t.Errorf("a Receive from a black hole ended with %v after %v", err, time.Since(began))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	began = time.Now()
	_ = d.Close(ctx)
	if took := time.Since(began); took > time.Second {
		t.Errorf("Close took %v", took)
	}
}

// TestWithoutMemory is not parallel: the limit holds for the whole server.
func TestWithoutMemory(t *testing.T) { //nolint:paralleltest // see above
	if !strings.Contains(os.Getenv("VARAL_RESTART"), "redis") {
		t.Skip("VARAL_RESTART does not name redis: others may be at work on it")
	}
	d, to, cl := open(t), fresh(t, driver.Queue), raw(t)
	c := subscribe(t, d, driver.Subscription{From: to})
	publish(t, d, to, 0, 3)
	got := receive(t, c, 3)
	limit := func(v string) {
		if err := cl.ConfigSet(context.Background(), "maxmemory", v).Err(); err != nil {
			t.Fatal(err)
		}
	}
	limit("1kb")
	defer limit("0")
	batch := []*driver.Message{message(7), message(8)}
	batch[0].Key, batch[1].Key = "k", "k"
	if err := d.Publish(within(t, 5*time.Second), to, batch); driver.ClassOf(driver.ResultAt(err, 0)) != driver.Transient || driver.ClassOf(driver.ResultAt(err, 1)) != driver.Transient {
		t.Errorf("a publish without memory ended with %v", err)
	}
	if err := settle(c, driver.Settlement{Disposition: driver.Nack}, got[0]); !errors.Is(err, driver.Transient) {
		t.Errorf("a nack, which needs a copy, ended with %v", err)
	}
	mustSettle(t, c, driver.Ack, got[1]) // makes room
	mustSettle(t, c, driver.Return, got[2])
	mustSettle(t, c, driver.Ack, receive(t, c, 1)...)
	limit("0")
	if err := settle(c, driver.Settlement{Disposition: driver.Nack}, got[0]); err != nil {
		t.Errorf("the nack again: %v", err)
	}
	mustSettle(t, c, driver.Ack, receive(t, c, 1)...)
}
