package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

const shardsOfTests = 8

// watch judges what all members of a group are told and handle. Messages of a key are
// numbered from 0, and every one of every key is followed.
type watch struct {
	mu       sync.Mutex
	owner    map[string]string // by partition
	fence    map[string]uint64
	next     map[string]int      // by key: the first that nobody has settled
	times    map[string]int      // handled, by id
	doubt    map[string]bool     // settled perhaps: the answer was lost
	told     map[string][]string // by id: who settled it, and the result
	holdings map[string]int
	faults   []string
	changes  int
	replays  int
	// lax: an owner that was killed or frozen does not say that it has lost its shards.
	lax bool
}

func newWatch() *watch {
	return &watch{owner: map[string]string{}, fence: map[string]uint64{}, next: map[string]int{}, times: map[string]int{}, doubt: map[string]bool{}, told: map[string][]string{}, holdings: map[string]int{}}
}

func (w *watch) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

func (w *watch) loosen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lax = true
}

// take is the oracle: a message comes when all before it of its key are settled, and comes
// again only if its settling was not confirmed.
func (w *watch) take(r driver.Received) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := number(r.ID)
	for w.next[r.Key] < n && w.doubt[id(r.Key, w.next[r.Key])] {
		w.next[r.Key]++
	}
	switch next := w.next[r.Key]; {
	case n > next:
		w.fault("key %s: %d came before %d was settled: %v", r.Key, n, next, w.told[id(r.Key, next)])
	case n < next && !w.lax:
		w.fault("key %s: %d came again, although %d was the next", r.Key, n, next)
	case n < next:
		w.replays++
	}
	w.times[r.ID]++
}

func (w *watch) settled(r driver.Received) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next[r.Key] = max(w.next[r.Key], number(r.ID)+1)
}

// check fails for what was seen, and unless each of the keys is handled to its end.
func (w *watch) check(t *testing.T, each int, keys ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, f := range w.faults {
		if t.Error(f); i == 20 {
			break
		}
	}
	for _, k := range keys {
		for n := range each {
			if w.times[id(k, n)] == 0 {
				t.Errorf("key %s: %d was never handled", k, n)
			}
		}
	}
}

func (w *watch) handled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.times)
}

// all waits until n messages were handled, as long as there are more of them all the time.
func (w *watch) all(t *testing.T, n int) {
	t.Helper()
	const limit = 15 * time.Second
	for last, since := -1, time.Now(); ; time.Sleep(2 * time.Millisecond) {
		switch now := w.handled(); {
		case now >= n:
			return
		case now != last:
			last, since = now, time.Now()
		case time.Since(since) > limit:
			t.Fatalf("%d of %d messages were handled, and none in the last %v", now, n, limit)
		}
	}
}

func (w *watch) balanced(names ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	total, least, most := 0, shardsOfTests, 0
	for _, n := range names {
		total += w.holdings[n]
		least, most = min(least, w.holdings[n]), max(most, w.holdings[n])
	}
	return total == shardsOfTests && most-least <= 1
}

func id(key string, n int) string { return key + ":" + strconv.Itoa(n) }

func number(id string) int {
	n, _ := strconv.Atoi(id[strings.LastIndexByte(id, ':')+1:])
	return n
}

func keysOf(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("key-%02d", i))
	}
	return out
}

// member is one consumer with core's part played by the test: admission by epoch, one
// message at a time, a Revoke that waits for what runs.
type member struct {
	w      *watch
	name   string
	d      driver.Driver
	c      driver.Consumer
	net    *cutter
	mu     sync.Mutex        // held while a message is handled
	open   map[string]uint64 // guarded by w.mu
	cancel context.CancelFunc
	done   chan struct{}
	errs   []error // guarded by w.mu
}

func join(t *testing.T, w *watch, name string, from driver.Destination, change ...func(*redis.Config)) *member {
	t.Helper()
	m := &member{w: w, name: name, net: &cutter{}, open: map[string]uint64{}, done: make(chan struct{})}
	m.d = open(t, append([]func(*redis.Config){func(c *redis.Config) { c.Dial = m.net.Dial }}, change...)...)
	c, err := m.d.Subscribe(within(t, 10*time.Second), driver.Subscription{From: from, Group: "g", Assigned: m.assigned, Revoke: m.revoke})
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
	m.open[a.Partition] = a.Epoch
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
		got, err := m.c.Receive(ctx, demand(10))
		if c := driver.ClassOf(err); err != nil && c != driver.Transient && ctx.Err() == nil {
			m.w.mu.Lock()
			m.errs = append(m.errs, err)
			m.w.mu.Unlock()
			return
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
	current := m.open[r.Receipt.Partition] == r.Receipt.Epoch
	m.w.mu.Unlock()
	if !current {
		return
	}
	m.w.take(r)
	for {
		err := m.c.Settle(context.WithoutCancel(ctx), []driver.Settlement{{Receipt: r.Receipt, Disposition: driver.Ack}})
		if err == nil {
			m.w.settled(r)
		}
		m.w.mu.Lock()
		m.w.told[r.ID] = append(m.w.told[r.ID], fmt.Sprint(m.name, ": ", err))
		m.w.mu.Unlock()
		switch driver.ClassOf(driver.ResultAt(err, 0)) {
		case driver.Ambiguous:
			m.w.mu.Lock()
			m.w.doubt[r.ID] = true
			m.w.mu.Unlock()
		case driver.Transient:
		case driver.LeaseLost: // core drops what is behind a lost one in its key
			m.w.mu.Lock()
			delete(m.open, r.Receipt.Partition)
			m.w.mu.Unlock()
			return
		default:
			return
		}
		time.Sleep(5 * time.Millisecond) // as core does, again
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

// kill ends a member as a SIGKILL does: every connection is gone at once, and nobody says
// goodbye.
func (m *member) kill() {
	m.net.Down()
	m.cancel()
}

// feed publishes messages 0 to n-1 of each key, in order, a few at a time.
func feed(t *testing.T, to driver.Destination, n int, keys []string) (done <-chan struct{}) {
	t.Helper()
	d, ended := open(t), make(chan struct{})
	go func() {
		defer close(ended)
		for i := range n {
			var batch []*driver.Message
			for _, k := range keys {
				batch = append(batch, &driver.Message{ID: id(k, i), Key: k, Body: []byte("x"), Time: time.Now()})
			}
			if err := d.Publish(context.Background(), to, batch); err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			time.Sleep(2 * time.Millisecond) // a stream of messages, not a burst
		}
	}()
	t.Cleanup(func() { <-ended })
	return ended
}
