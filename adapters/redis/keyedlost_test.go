package redis_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// thief breaks a connection on which an answer holds a text, once, and keeps the answer.
type thief struct {
	text  []byte
	armed atomic.Bool
	stole chan struct{}
}

func (s *thief) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &robbed{conn, s}, err
}

type robbed struct {
	net.Conn
	by *thief
}

func (r *robbed) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if bytes.Contains(b[:n], r.by.text) && r.by.armed.CompareAndSwap(true, false) {
		_ = r.Conn.Close()
		close(r.by.stole)
		return 0, errors.New("connection reset by the test")
	}
	return n, err
}

// TestKeyedReadWhoseAnswerIsLost: the server has handed messages out, and nobody here has
// heard which. They must come all the same, and before what is behind them.
func TestKeyedReadWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	to := freshKeyed(t, driver.Queue, 1)
	s := thief{text: []byte(id("k", 5)), stole: make(chan struct{})}
	d := open(t, func(c *redis.Config) { c.Dial = s.dial })
	m := rawMember(t, d, driver.Subscription{From: to})
	oneKey(t, d, to, "k", 0, 3)
	first := receive(t, m.c, 3)
	inOrder(t, "before the loss", first, 1, 0, 1, 2)
	mustSettle(t, m.c, driver.Ack, first...)
	s.armed.Store(true)
	oneKey(t, d, to, "k", 3, 6)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for !isClosed(s.stole) {
		if got, err := m.c.Receive(ctx, demand(10)); ctx.Err() != nil || len(got) > 0 {
			t.Fatalf("nothing was stolen: %d messages, %v", len(got), err)
		}
	}
	oneKey(t, d, to, "k", 6, 8)
	// Handed out a second time, which counts: the first may have been seen.
	again := receive(t, m.c, 5)
	for i, r := range again {
		if want := id("k", 3+i); r.ID != want {
			t.Errorf("%s came in the place of %s", r.ID, want)
		}
	}
	mustSettle(t, m.c, driver.Ack, again...)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
