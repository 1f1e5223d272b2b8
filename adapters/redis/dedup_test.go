package redis_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

var _ core.DedupStore = (*redis.Dedup)(nil)

func openDedup(t *testing.T, change ...func(*redis.Config)) *redis.Dedup {
	t.Helper()
	c := config(t)
	for _, f := range change {
		f(&c)
	}
	s, err := redis.OpenDedup(within(t, 10*time.Second), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(within(t, 10*time.Second)); err != nil {
			t.Error("close:", err)
		}
	})
	return s
}

// A mark has two states; leases and windows end by the server's clock; an old token changes
// nothing, in whatever state.
func TestDedupHasTwoStates(t *testing.T) {
	t.Parallel()
	s, ctx := openDedup(t), within(t, 30*time.Second)
	scope, id := "scope-"+rand.Text(), sha256.Sum256([]byte("a"))
	want := func(what, want string, lease time.Duration) string {
		t.Helper()
		token, held, err := s.Claim(ctx, scope, id, lease)
		got := "done"
		switch {
		case err != nil:
			t.Fatal(err)
		case token != "":
			got = "ours"
		case held > 0:
			got = "busy"
		}
		if got != want || held > time.Minute {
			t.Errorf("%s: %s for %v, want %s", what, got, held, want)
		}
		return token
	}
	lost := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, core.ErrLeaseLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	token := want("first claim", "ours", time.Minute)
	want("claimed", "busy", time.Minute)
	lost("release with a wrong token", s.Release(ctx, scope, id, "wrong"))
	lost("done in another scope", s.Done(ctx, "other-"+rand.Text(), id, token, time.Minute))
	ok("release", s.Release(ctx, scope, id, token))
	lost("release again", s.Release(ctx, scope, id, token))

	token = want("after a failure", "ours", 300*time.Millisecond)
	ok("extend", s.Extend(ctx, scope, id, token, 2*time.Second))
	<-time.After(400 * time.Millisecond)
	want("extended", "busy", time.Minute)
	_, held, err := s.Claim(ctx, scope, id, time.Minute)
	if err != nil || held <= 0 || held > 1600*time.Millisecond {
		t.Errorf("left of the lease: %v %v", held, err)
	}
	<-time.After(held + 50*time.Millisecond)
	later := want("after the lease", "ours", time.Minute)
	lost("extend with an old token", s.Extend(ctx, scope, id, token, time.Minute))
	lost("done with an old token", s.Done(ctx, scope, id, token, time.Minute))
	lost("release with an old token", s.Release(ctx, scope, id, token))

	ok("done", s.Done(ctx, scope, id, later, 500*time.Millisecond))
	want("done", "done", time.Minute)
	lost("release of what is done", s.Release(ctx, scope, id, later))
	lost("extend of what is done", s.Extend(ctx, scope, id, later, time.Minute))
	<-time.After(600 * time.Millisecond)
	token = want("after the window", "ours", time.Minute)
	ok("tidy up", s.Release(ctx, scope, id, token))
}

func TestDedupGivesAnIDToOne(t *testing.T) {
	t.Parallel()
	a, b := openDedup(t), openDedup(t)
	ctx, scope := within(t, 30*time.Second), "scope-"+rand.Text()
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		s := []*redis.Dedup{a, b}[i%2]
		wg.Go(func() {
			token, _, err := s.Claim(ctx, scope, sha256.Sum256([]byte("a")), 2*time.Second)
			if err != nil {
				t.Error(err)
			}
			if token != "" {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d claims won", won.Load())
	}
}

// A server that does not answer is an error by the deadline, and never "done".
func TestDedupOfAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	var hung atomic.Bool
	s := openDedup(t, func(c *redis.Config) {
		dial := (&net.Dialer{}).DialContext
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if hung.Load() {
				return nil, errors.New("connection refused")
			}
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &mutedConn{conn, &hung}, nil
		}
	})
	scope, id := "scope-"+rand.Text(), sha256.Sum256([]byte("a"))
	hung.Store(true)
	for what, call := range map[string]func(context.Context) error{
		"claim": func(ctx context.Context) error {
			token, held, err := s.Claim(ctx, scope, id, time.Minute)
			if token != "" || held != 0 {
				return fmt.Errorf("an answer: %q %v", token, held)
			}
			return err
		},
		"done":    func(ctx context.Context) error { return s.Done(ctx, scope, id, "t", time.Minute) },
		"release": func(ctx context.Context) error { return s.Release(ctx, scope, id, "t") },
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		began := time.Now()
		err := call(ctx)
		cancel()
		if c := driver.ClassOf(err); err == nil || c != driver.Ambiguous && c != driver.Transient {
			t.Errorf("%s: %v", what, err)
		}
		if d := time.Since(began); d > 800*time.Millisecond {
			t.Errorf("%s returned after %v", what, d)
		}
	}
}

// mutedConn loses what is written to it while muted is set.
type mutedConn struct {
	net.Conn
	muted *atomic.Bool
}

func (c *mutedConn) Write(b []byte) (int, error) {
	if c.muted.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}
