package redis

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// waker wakes consumers that wait when something was put aside which is due before all else:
// they know of the first they saw and wait for that one. The script that puts it aside
// publishes on a channel named as the sorted set. Where a word is lost, a consumer looks once
// in maxBlock; while nobody listens (the connection is down, the login may not), in dueBlock.
//
// One connection for all consumers of a driver, opened with the first of them.
type waker struct {
	b    *broker
	live atomic.Bool // the server has said that it will tell

	mu     sync.Mutex
	by     map[string][]*consumer // by channel
	sub    *goredis.PubSub        // nil = nobody has asked yet
	closed bool
	over   chan struct{} // closed with closed
	done   chan struct{} // closed when listen has ended

	asking sync.Mutex
	asked  map[string]bool // what the server was asked to tell; guarded by asking
}

func newWaker(b *broker) *waker {
	return &waker{b: b, by: map[string][]*consumer{}, asked: map[string]bool{}, over: make(chan struct{})}
}

func (c *consumer) channels() []string { return []string{c.keys.sched, c.keys.later(c.group)} }

// enlist begins to wake c. It does not wait for the server.
func (w *waker) enlist(c *consumer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	for _, ch := range c.channels() {
		w.by[ch] = append(w.by[ch], c)
	}
	if w.sub != nil {
		w.b.commit.begin(w.ask)
		return
	}
	w.sub, w.done = w.b.ctl.Subscribe(context.Background()), make(chan struct{})
	go w.listen()
}

// retire ends what enlist began.
func (w *waker) retire(c *consumer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ch := range c.channels() {
		w.by[ch] = slices.DeleteFunc(w.by[ch], func(o *consumer) bool { return o == c })
		if len(w.by[ch]) == 0 {
			delete(w.by, ch)
		}
	}
	if w.sub != nil && !w.closed {
		w.b.commit.begin(w.ask)
	}
}

// ask brings what the server tells in line with what is wanted now. One at a time, and each
// looks for itself: if the call of a retire came after that of the enlist that followed it,
// and each brought its own word, the new consumer's channel would be given up.
//
// It asks once: what fails is asked for again with the next connection.
func (w *waker) ask() {
	w.asking.Lock()
	defer w.asking.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), w.b.cfg.ConnectTimeout+w.b.cfg.Timeout)
	defer cancel()
	w.mu.Lock()
	sub := w.sub
	var fresh, empty []string
	for ch := range w.by {
		if !w.asked[ch] {
			fresh = append(fresh, ch)
		}
	}
	for ch := range w.asked {
		if len(w.by[ch]) == 0 {
			empty = append(empty, ch)
		}
	}
	w.mu.Unlock()
	if len(fresh) > 0 {
		_ = sub.Subscribe(ctx, fresh...)
	}
	if len(empty) > 0 {
		_ = sub.Unsubscribe(ctx, empty...)
	}
	for _, ch := range fresh {
		w.asked[ch] = true
	}
	for _, ch := range empty {
		delete(w.asked, ch)
	}
}

// listen passes on what the server says, until close.
func (w *waker) listen() {
	defer close(w.done)
	w.ask()
	for {
		got, err := w.sub.Receive(context.Background())
		switch m := got.(type) {
		case *goredis.Message:
			w.wake(m.Channel)
		case *goredis.Subscription: // after a reconnect: something may have been said meanwhile
			w.wake(m.Channel)
		}
		if w.live.Store(err == nil); err == nil {
			continue
		}
		if strings.HasPrefix(err.Error(), "NOPERM") {
			return // and never again: consumers look by themselves
		}
		t := time.NewTimer(maxBlock)
		select {
		case <-t.C:
		case <-w.over:
			t.Stop()
			return
		}
	}
}

func (w *waker) wake(channel string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.by[channel] {
		select {
		case c.wake <- struct{}{}:
		default: // it has not taken the last one yet, and looks after that
		}
	}
}

// close ends listen and waits for it.
func (w *waker) close() {
	w.mu.Lock()
	sub := w.sub
	if !w.closed {
		w.closed = true
		close(w.over)
	}
	w.mu.Unlock()
	if sub != nil {
		_ = sub.Close()
		<-w.done
	}
}
