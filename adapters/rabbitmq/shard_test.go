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

	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

// watch checks the ownership of all members' partitions.
type watch struct {
	mu       sync.Mutex
	owner    map[string]string // by partition
	fence    map[string]uint64
	last     map[string]int // by key: the last message settled
	handled  map[string]int
	faults   []string
	changes  int
	holdings map[string]int
	// lost: a kill or freeze is not seen by its owner before the next one has it
	lax bool
}

func newWatch() *watch {
	return &watch{owner: map[string]string{}, fence: map[string]uint64{}, last: map[string]int{}, handled: map[string]int{}, holdings: map[string]int{}}
}

func (w *watch) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// member is one consumer with core's part played by the test: admission by epoch,
// one message at a time, a Revoke that waits for what runs.
type member struct {
	w      *watch
	name   string
	d      driver.Driver
	c      driver.Consumer
	cut    *cutter
	mu     sync.Mutex // held while a batch is handled
	open   map[string]uint64
	cancel context.CancelFunc
	done   chan struct{}
	errs   []error
}

func join(t *testing.T, w *watch, name string, q driver.Destination, change ...func(*rabbitmq.Config)) *member {
	t.Helper()
	m := &member{w: w, name: name, cut: &cutter{}, open: map[string]uint64{}, done: make(chan struct{})}
	m.d = open(t, append(change, func(c *rabbitmq.Config) { c.Dial = m.cut.Dial })...)
	c, err := m.d.Subscribe(within(t, 20*time.Second), driver.Subscription{
		From: q, Group: "g", Assigned: m.assigned, Revoke: m.revoke,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.c = c
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go m.run(ctx)
	t.Cleanup(m.leave)
	return m
}

func (m *member) assigned(a driver.Assignment) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if o := m.w.owner[a.Partition]; o != "" && o != m.name && !m.w.lax {
		m.w.fault("%s given to %s while %s has it", a.Partition, m.name, o)
	}
	if a.Fence <= m.w.fence[a.Partition] {
		m.w.fault("%s: fence %d after %d", a.Partition, a.Fence, m.w.fence[a.Partition])
	}
	m.w.owner[a.Partition], m.w.fence[a.Partition] = m.name, a.Fence
	m.w.holdings[m.name]++
	m.w.changes++
	m.open[a.Partition] = a.Epoch // guarded by w.mu
}

func (m *member) revoke(_ context.Context, parts []string) {
	m.mu.Lock() // nothing runs
	defer m.mu.Unlock()
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	for _, p := range parts {
		if m.w.owner[p] == m.name {
			m.w.owner[p] = ""
		}
		m.w.holdings[m.name]--
		delete(m.open, p)
	}
}

func (m *member) run(ctx context.Context) {
	defer close(m.done)
	for ctx.Err() == nil {
		got, err := m.c.Receive(ctx, demand(10, 64))
		if err != nil {
			if c := driver.ClassOf(err); c != driver.Transient && ctx.Err() == nil {
				m.errs = append(m.errs, err)
				return
			}
			continue
		}
		for _, r := range got {
			m.handle(ctx, r)
		}
	}
}

func (m *member) handle(ctx context.Context, r driver.Received) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.w.mu.Lock()
	if m.open[r.Receipt.Partition] != r.Receipt.Epoch {
		m.w.mu.Unlock()
		return
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(r.ID, "m-"))
	if last, ok := m.w.last[r.Key]; ok && n < last && m.w.handled[r.ID] == 0 {
		m.w.fault("key %s: first sight of %d after %d", r.Key, n, last)
	}
	m.w.mu.Unlock()
	err := m.c.Settle(ctx, []driver.Settlement{{Receipt: r.Receipt, Disposition: driver.Ack}})
	if err == nil || errors.Is(err, driver.Ambiguous) { // a commit may be stored and its answer lost
		m.w.mu.Lock()
		m.w.last[r.Key] = max(m.w.last[r.Key], n)
		m.w.handled[r.ID]++
		m.w.mu.Unlock()
	}
}

func (m *member) leave() {
	m.cancel()
	<-m.done
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = m.c.Close(ctx)
	_ = m.d.Close(ctx)
}

func (w *watch) balanced(names ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	total := 0
	for _, n := range names {
		h := w.holdings[n]
		if h > (8+len(names)-1)/len(names) {
			return false
		}
		total += h
	}
	return total == 8
}

func (w *watch) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		t.Error(f)
	}
}

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
	w.mu.Lock()
	w.lax = true // its owner does not know yet
	w.mu.Unlock()
	began = time.Now()
	b.cancel()
	b.cut.Cut()
	eventually(t, "a and c after a kill", 10*time.Second, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.holdings["a"]+w.holdings["c"] == 8 })
	t.Logf("one is cut: balanced after %v", time.Since(began))
	b.leave()
	eventually(t, "a and c", 5*time.Second, func() bool { return w.balanced("a", "c") })
	c.leave()
	eventually(t, "a alone", 5*time.Second, func() bool { return w.balanced("a") })
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	eventually(t, "all handled", 30*time.Second, func() bool { return w.count() == n })
	w.mu.Lock()
	quietFrom := w.changes
	w.mu.Unlock()
	time.Sleep(time.Second) // what must not happen has no signal
	w.mu.Lock()
	if w.changes != quietFrom {
		t.Errorf("%d changes of owner while balanced", w.changes-quietFrom)
	}
	w.mu.Unlock()
	w.check(t)
	for _, m := range []*member{a, b, c} {
		if len(m.errs) > 0 {
			t.Error(m.name, m.errs)
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
	m := join(t, w, "a", q, func(c *rabbitmq.Config) { c.Renew = 500 * time.Millisecond })
	eventually(t, "owned", 5*time.Second, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.holdings["a"] == 4 })
	time.Sleep(8 * time.Second) // more than two timeouts
	w.mu.Lock()
	if w.changes != 4 {
		t.Errorf("%d changes of owner, want the 4 first ones", w.changes)
	}
	w.mu.Unlock()
	w.check(t)
	_ = m
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
	w.mu.Lock()
	w.lax = true
	w.mu.Unlock()
	p.freeze(true)
	began := time.Now()
	eventually(t, "b has all", 20*time.Second, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.holdings["b"] == 8 })
	t.Logf("taken over from a frozen owner after %v", time.Since(began))
	publish(t, d, q, 0, 200, func(i int) string { return fmt.Sprint("k", i%10) })
	eventually(t, "all handled", 10*time.Second, func() bool { return w.count() == 200 })
	p.freeze(false)
	eventually(t, "a is back", 30*time.Second, func() bool { return w.balanced("a", "b") })
	w.check(t)
	if len(a.errs)+len(b.errs) > 0 {
		t.Error(a.errs, b.errs)
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
	w.lax = true
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
	w.check(t)
}
