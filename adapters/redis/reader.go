package redis

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// reader is the connection that a consumer waits on. It is one of its own because a
// blocked read holds it, and because only the server can end such a read: go-redis does
// not when ctx is cancelled.
type reader struct {
	b  *broker
	id atomic.Int64 // CLIENT ID of the connection; 0 = not told

	// In a Cluster: key leads to the node, at is the one that we are connected to.
	key string
	at  atomic.Pointer[string]

	mu     sync.Mutex
	client *goredis.Client
	closed bool
}

// newReader makes one that waits on streams in the slot of key.
func newReader(b *broker, key string) *reader {
	r := &reader{b: b, key: key}
	r.client = r.connect()
	return r
}

func (r *reader) connect() *goredis.Client {
	b, o := r.b, r.b.options(1)
	if b.cfg.Cluster {
		o.Dialer = r.dialNode
	}
	o.ReadTimeout = maxBlock + b.cfg.Timeout
	o.OnConnect = func(ctx context.Context, cn *goredis.Conn) error {
		id, err := cn.ClientID(ctx).Result()
		if err != nil && offline(err) {
			return err
		}
		r.id.Store(id) // 0 where the login may not ask: then a read ends by its own time
		return nil
	}
	return b.dial(o)
}

// wait is XREADGROUP that blocks. It takes the raw answer, whose fields are in order.
func (r *reader) wait(group, name string, count int, block time.Duration, streams ...string) (any, error) {
	args := []any{"XREADGROUP", "GROUP", group, name, "COUNT", count, "BLOCK", max(1, block.Milliseconds()), "STREAMS"}
	for _, s := range streams {
		args = append(args, s)
	}
	for range streams {
		args = append(args, ">")
	}
	return r.do(block, args)
}

// peek is XREAD that blocks until one of the streams has an entry after its id; block 0 =
// it looks and does not wait. It takes nothing out of any group. One entry a stream is the
// least that can be asked for.
func (r *reader) peek(block time.Duration, streams, after []string) (any, error) {
	args := []any{"XREAD", "COUNT", 1}
	if block > 0 {
		args = append(args, "BLOCK", max(1, block.Milliseconds()))
	}
	args = append(args, "STREAMS")
	for _, s := range streams {
		args = append(args, s)
	}
	for _, id := range after {
		args = append(args, id)
	}
	return r.do(block, args)
}

func (r *reader) do(block time.Duration, args []any) (any, error) {
	// A black hole would otherwise hold the call for as long as go-redis likes.
	ctx, cancel := context.WithTimeout(context.Background(), block+r.b.cfg.Timeout)
	defer cancel()
	r.mu.Lock()
	cl := r.client
	r.mu.Unlock()
	res, err := cl.Do(ctx, args...).Result()
	if err != nil && r.b.cfg.Cluster {
		err = r.astray(ctx, cl, err)
	}
	return res, err
}

// unblock makes the server end a blocked read now. It is asked again until the read has
// ended: the first word may come before the read does.
func (r *reader) unblock() {
	if id := r.id.Load(); id != 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if cl := r.beside(ctx); cl != nil {
			_ = cl.ClientUnblock(ctx, id).Err() // it fails where the read has ended, or with the connection
		}
	}
}

// unblockWhen ends the read that follows after d (negative = never) or with the first word
// on wake, which may have come before. Its own time would be too late: see lateBlock. The
// caller calls stop when the read is over.
func (r *reader) unblockWhen(d time.Duration, wake <-chan struct{}) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTimer(max(d, 0))
		defer t.Stop()
		if d < 0 {
			t.Stop()
		}
		select {
		case <-t.C:
		case <-wake:
		case <-over:
			return
		}
		for {
			r.unblock()
			t.Reset(5 * time.Millisecond) // it may have come before the read did
			select {
			case <-t.C:
			case <-over:
				return
			}
		}
	}()
	return func() { close(over); <-done } // one that came later would end the next read
}

func (r *reader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	_ = r.client.Close()
}
