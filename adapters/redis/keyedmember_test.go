package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

const shardsOfTests = 8

// watch judges what all members of a group are told and handle. Messages of a key are
// numbered from 0, and every one of every key is followed.
type watch struct {
	*adaptertest.Owners
	mu      sync.Mutex
	next    map[string]int      // by key: the first that nobody has settled
	times   map[string]int      // handled, by id
	doubt   map[string]bool     // settled perhaps: the answer was lost
	told    map[string][]string // by id: who settled it, and the result
	replays int
}

func newWatch() *watch {
	return &watch{Owners: adaptertest.NewOwners(), next: map[string]int{}, times: map[string]int{}, doubt: map[string]bool{}, told: map[string][]string{}}
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
		w.Fault("key %s: %d came before %d was settled: %v", r.Key, n, next, w.told[id(r.Key, next)])
	case n < next && !w.Lax():
		w.Fault("key %s: %d came again, although %d was the next", r.Key, n, next)
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
	w.Check(t)
	w.mu.Lock()
	defer w.mu.Unlock()
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

func (w *watch) balanced(names ...string) bool { return w.Balanced(shardsOfTests, names...) }

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

// member is one consumer.
type member struct {
	*adaptertest.Member
	w *watch
}

func join(t *testing.T, w *watch, name string, from driver.Destination, change ...func(*redis.Config)) *member {
	t.Helper()
	m := &member{w.Member(name), w}
	d := open(t, append([]func(*redis.Config){func(c *redis.Config) { c.Dial = m.Net.Dial }}, change...)...)
	m.Consume(t, d, driver.Subscription{From: from, Group: "g"}, demand(10), m.handle)
	return m
}

func (m *member) handle(ctx context.Context, c driver.Consumer, r driver.Received) {
	m.w.take(r)
	for {
		err := c.Settle(context.WithoutCancel(ctx), []driver.Settlement{{Receipt: r.Receipt, Disposition: driver.Ack}})
		if err == nil {
			m.w.settled(r)
		}
		m.w.mu.Lock()
		m.w.told[r.ID] = append(m.w.told[r.ID], fmt.Sprint(m.Name, ": ", err))
		m.w.mu.Unlock()
		switch driver.ClassOf(driver.ResultAt(err, 0)) {
		case driver.Ambiguous:
			m.w.mu.Lock()
			m.w.doubt[r.ID] = true
			m.w.mu.Unlock()
		case driver.Transient:
		case driver.LeaseLost: // core drops what is behind a lost one in its key
			m.Drop(r.Receipt.Partition)
			return
		default:
			return
		}
		time.Sleep(5 * time.Millisecond) // as core does, again
	}
}

// kill ends a member as a SIGKILL does: every connection is gone at once, and nobody says
// goodbye.
func (m *member) kill() {
	m.Net.Down()
	m.Stop()
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
