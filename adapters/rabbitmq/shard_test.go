package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

// watch judges what the members of a group are told and handle.
type watch struct {
	*adaptertest.Owners
	mu      sync.Mutex
	last    map[string]int // by key: the last message settled
	handled map[string]int
}

func newWatch() *watch {
	return &watch{Owners: adaptertest.NewOwners(), last: map[string]int{}, handled: map[string]int{}}
}

func join(t *testing.T, w *watch, name string, q driver.Destination, change ...func(*rabbitmq.Config)) *adaptertest.Member {
	t.Helper()
	m := w.Member(name)
	d := open(t, append(change, func(c *rabbitmq.Config) { c.Dial = m.Net.Dial })...)
	m.Consume(t, d, driver.Subscription{From: q, Group: "g"}, demand(10, 64), w.handle)
	return m
}

func (w *watch) handle(ctx context.Context, c driver.Consumer, r driver.Received) {
	n, _ := strconv.Atoi(strings.TrimPrefix(r.ID, "m-"))
	w.mu.Lock()
	if last, ok := w.last[r.Key]; ok && n < last && w.handled[r.ID] == 0 {
		w.Fault("key %s: first sight of %d after %d", r.Key, n, last)
	}
	w.mu.Unlock()
	err := c.Settle(ctx, []driver.Settlement{{Receipt: r.Receipt, Disposition: driver.Ack}})
	if err == nil || errors.Is(err, driver.Ambiguous) { // a commit may be stored and its answer lost
		w.mu.Lock()
		w.last[r.Key] = max(w.last[r.Key], n)
		w.handled[r.ID]++
		w.mu.Unlock()
	}
}

func (w *watch) balanced(names ...string) bool { return w.Balanced(8, names...) }

func (w *watch) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.handled)
}

func TestShardsBalance(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 8)
	w := newWatch()
	const n = 6000
	published := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < n && err == nil; i += 20 {
			var batch []*driver.Message
			for j := i; j < i+20; j++ {
				batch = append(batch, message(j, fmt.Sprint("key-", j%37)))
			}
			err = d.Publish(context.Background(), q, batch)
			time.Sleep(5 * time.Millisecond) // a stream of messages, not a burst
		}
		published <- err
	}()
	a := join(t, w, "a", q)
	eventually(t, "a has all", 5*time.Second, func() bool { return w.balanced("a") })
	b := join(t, w, "b", q)
	began := time.Now()
	eventually(t, "a and b", 5*time.Second, func() bool { return w.balanced("a", "b") })
	t.Logf("one joins: balanced after %v", time.Since(began))
	c := join(t, w, "c", q)
	eventually(t, "a, b and c", 5*time.Second, func() bool { return w.balanced("a", "b", "c") })
	w.Loosen() // its owner does not know yet
	began = time.Now()
	b.Stop()
	b.Net.Cut()
	eventually(t, "a and c after a kill", 10*time.Second, func() bool { return w.Held("a", "c") == 8 })
	t.Logf("one is cut: balanced after %v", time.Since(began))
	b.Leave()
	eventually(t, "a and c", 5*time.Second, func() bool { return w.balanced("a", "c") })
	c.Leave()
	eventually(t, "a alone", 5*time.Second, func() bool { return w.balanced("a") })
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	eventually(t, "all handled", 30*time.Second, func() bool { return w.count() == n })
	quietFrom := w.Changes()
	time.Sleep(time.Second) // what must not happen has no signal
	if n := w.Changes(); n != quietFrom {
		t.Errorf("%d changes of owner while balanced", n-quietFrom)
	}
	w.Check(t)
	for _, m := range []*adaptertest.Member{a, b, c} {
		if errs := m.Errs(); len(errs) > 0 {
			t.Error(m.Name, errs)
		}
	}
}

func TestShardsAboveTheLimit(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 4)
	c := subscribe(t, d, driver.Subscription{From: q})
	if _, err := c.Receive(within(t, 5*time.Second), demand(3, 3)); !errors.Is(err, driver.Unsupported) {
		t.Errorf("%v", err)
	}
}

// The broker closes a channel that holds a record longer than consumer_timeout.
func TestOwnerRecordIsRenewed(t *testing.T) {
	if os.Getenv("VARAL_RABBITMQ_CTL") == "" {
		t.Skip("VARAL_RABBITMQ_CTL is not set")
	}
	ctl(t, "eval", "application:set_env(rabbit,consumer_timeout,3000),application:set_env(rabbit,channel_tick_interval,1000).")
	defer ctl(t, "eval", "application:set_env(rabbit,consumer_timeout,1800000),application:set_env(rabbit,channel_tick_interval,60000).")
	d := open(t)
	q := fresh(t, d, driver.Queue, 4)
	w := newWatch()
	join(t, w, "a", q, func(c *rabbitmq.Config) { c.Renew = 500 * time.Millisecond })
	eventually(t, "owned", 5*time.Second, func() bool { return w.Held("a") == 4 })
	time.Sleep(8 * time.Second) // more than two timeouts
	if n := w.Changes(); n != 4 {
		t.Errorf("%d changes of owner, want the 4 first ones", n)
	}
	w.Check(t)
}

func TestFrozenOwner(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 8)
	p := newTCPProxy(t, brokerURL(t))
	w := newWatch()
	a := join(t, w, "a", q, func(c *rabbitmq.Config) { c.URLs = []string{p.url}; c.Heartbeat = 2 * time.Second })
	b := join(t, w, "b", q)
	eventually(t, "a and b", 5*time.Second, func() bool { return w.balanced("a", "b") })
	w.Loosen()
	p.freeze(true)
	began := time.Now()
	eventually(t, "b has all", 20*time.Second, func() bool { return w.Held("b") == 8 })
	t.Logf("taken over from a frozen owner after %v", time.Since(began))
	publish(t, d, q, 0, 200, func(i int) string { return fmt.Sprint("k", i%10) })
	eventually(t, "all handled", 10*time.Second, func() bool { return w.count() == 200 })
	p.freeze(false)
	eventually(t, "a is back", 30*time.Second, func() bool { return w.balanced("a", "b") })
	w.Check(t)
	if len(a.Errs())+len(b.Errs()) > 0 {
		t.Error(a.Errs(), b.Errs())
	}
}

// TestBrokerRestart restarts the broker's application: every connection ends.
func TestBrokerRestart(t *testing.T) {
	if !strings.Contains(os.Getenv("VARAL_RESTART"), "rabbitmq") {
		t.Skip("VARAL_RESTART does not name rabbitmq: others may be at work on it")
	}
	d := open(t)
	q := fresh(t, d, driver.Queue, 8)
	w := newWatch()
	w.Loosen()
	join(t, w, "a", q)
	join(t, w, "b", q)
	eventually(t, "a and b", 10*time.Second, func() bool { return w.balanced("a", "b") })
	publish(t, d, q, 0, 100, func(i int) string { return fmt.Sprint("k", i%10) })
	ctl(t, "stop_app")
	ctl(t, "start_app")
	eventually(t, "publishing again", 30*time.Second, func() bool {
		var batch []*driver.Message
		for i := 100; i < 200; i++ {
			batch = append(batch, message(i, fmt.Sprint("k", i%10)))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return d.Publish(ctx, q, batch) == nil
	})
	eventually(t, "all handled", 60*time.Second, func() bool { return w.count() == 200 })
	eventually(t, "balanced", 30*time.Second, func() bool { return w.balanced("a", "b") })
	w.Check(t)
}
