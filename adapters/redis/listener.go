package redis

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

const (
	// waitingRecords and waitingBytes are what a listener keeps for a subscriber that is
	// slower than the channel. What comes beyond is dropped, counted and told.
	waitingRecords = 1024
	waitingBytes   = 16 << 20
	// listenEvery is how often a silent connection is asked for a sign of life.
	listenEvery = 2 * time.Second
)

// listener is a driver.Consumer of one channel. A goroutine reads it all the time, for the
// server cuts off whoever does not.
type listener struct {
	b    broadcast
	sub  driver.Subscription
	ps   *goredis.PubSub
	stop context.CancelFunc
	left chan struct{} // closed by the goroutine at its end
	news chan struct{} // something waits
	once sync.Once

	closed atomic.Bool

	mu      sync.Mutex
	waiting []record
	bytes   int
	dropped int64
	seq     int64
}

// Subscribe implements driver.Driver. It returns when the server has taken the
// subscription: what is published after that comes.
func (b broadcast) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	op := "subscribe " + sub.From.String()
	group := sub.Group
	if sub.Temporary { // one of its own, which is what every subscription has
		group = ""
	}
	if err := b.check(op, sub.From, group); err != nil {
		return nil, err
	}
	if k := sub.Start.Kind; k != driver.Default && k != driver.Latest {
		return nil, driver.Errorf(op, driver.Unsupported, "position: a broadcast topic cannot start at %q, it keeps nothing", k)
	}
	own, stop := context.WithCancel(context.Background())
	l := &listener{b: b, sub: sub, stop: stop, left: make(chan struct{}), news: make(chan struct{}, 1)}
	l.ps = b.ctl.Subscribe(own)
	err := b.bounded(ctx, func(ctx context.Context) error {
		if err := l.ps.Subscribe(ctx, b.cfg.channel(sub.From)); err != nil {
			return err
		}
		_, err := l.ps.ReceiveTimeout(ctx, b.cfg.Timeout)
		return err
	})
	if err != nil {
		stop()
		_ = l.ps.Close()
		return nil, opening(op, err)
	}
	if !b.add(l) || !b.commit.begin(func() { l.listen(own) }) {
		b.drop(l)
		stop()
		_ = l.ps.Close()
		return nil, errClosed(op)
	}
	if sub.Assigned != nil {
		sub.Assigned(driver.Assignment{Epoch: 1})
	}
	return l, nil
}

// listen is the listener's goroutine. go-redis subscribes again after a lost connection;
// what was published meanwhile is lost, and nobody knows how much that is.
func (l *listener) listen(ctx context.Context) {
	defer close(l.left)
	away, asked := false, false
	for ctx.Err() == nil {
		got, err := l.ps.ReceiveTimeout(ctx, listenEvery)
		var timeout net.Error
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if asked = false; away {
				away = false
				l.notify(driver.Connected, nil)
				l.notify(driver.Gone, driver.Errorf(l.op(), driver.NotFound, "what was published while the connection was lost did not come"))
			}
			if m, ok := got.(*goredis.Message); ok {
				l.put(unpackMessage(m.Payload))
			}
			continue
		case errors.As(err, &timeout) && timeout.Timeout() && !asked:
			asked = l.ps.Ping(ctx) == nil
			if asked {
				continue
			}
		}
		if asked = false; !away {
			away = true
			l.notify(driver.Disconnected, classify(l.op(), err))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (l *listener) op() string { return opOf("receive", &l.sub) }

func (l *listener) notify(kind driver.EventKind, err error) {
	if l.sub.Notify != nil {
		l.sub.Notify(driver.Event{Kind: kind, Err: err})
	}
}

// put keeps a message until it is asked for, or drops it.
func (l *listener) put(r record) {
	size := r.msg.Size()
	l.mu.Lock()
	full := len(l.waiting) >= waitingRecords || len(l.waiting) > 0 && l.bytes+size > waitingBytes
	if full {
		l.dropped++
	} else {
		l.waiting, l.bytes = append(l.waiting, r), l.bytes+size
	}
	l.mu.Unlock()
	poke(l.news)
}

// Receive implements driver.Consumer.
func (l *listener) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	for {
		paused := len(want.Paused) > 0
		switch {
		case l.closed.Load():
			return nil, errClosed(l.op())
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !paused:
			if out := l.take(want); len(out) > 0 {
				return out, nil
			}
		}
		select {
		case <-l.news:
		case <-l.left:
			return nil, errClosed(l.op())
		case <-ctx.Done():
		}
	}
}

// take returns what the Demand allows, and tells what was dropped.
func (l *listener) take(want driver.Demand) (out []driver.Received) {
	l.mu.Lock()
	var bytes int64
	for len(l.waiting) > 0 && len(out) < want.Records {
		r := l.waiting[0]
		size := int64(r.msg.Size())
		if len(out) > 0 && bytes+size > want.Bytes {
			break
		}
		bytes += size
		l.seq++
		out = append(out, driver.Received{Message: r.msg, Offset: -1, Err: r.err, Receipt: driver.Receipt{Epoch: 1, Seq: l.seq}})
		l.waiting[0] = record{}
		l.waiting, l.bytes = l.waiting[1:], l.bytes-int(size)
	}
	dropped := l.dropped
	l.dropped = 0
	l.mu.Unlock()
	if dropped > 0 {
		l.notify(driver.Gone, driver.Errorf(l.op(), driver.NotFound, "%d messages were dropped: they came faster than they were handled", dropped))
	}
	return out
}

// Settle implements driver.Consumer: there is nothing to settle.
func (l *listener) Settle(context.Context, []driver.Settlement) error {
	return driver.Errorf(opOf("settle", &l.sub), driver.Unsupported, "a broadcast topic settles nothing")
}

// Close implements driver.Consumer.
func (l *listener) Close(ctx context.Context) error {
	l.once.Do(func() {
		l.closed.Store(true)
		if l.sub.Revoke != nil {
			l.sub.Revoke(ctx, []string{""})
		}
		l.stop()
		_ = l.ps.Close() // ends the read
		l.b.drop(l)
	})
	select {
	case <-l.left:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
