package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// waiter waits until one of several streams has an entry after its id: see reader.peek.
type waiter interface {
	peek(block time.Duration, streams, after []string) (any, error)
	unblock()
	close()
}

var (
	_ waiter = (*reader)(nil)
	_ waiter = (*readers)(nil)
)

// waiter returns the one of a keyed consumer.
func (b *broker) waiter() waiter {
	if b.cfg.Cluster {
		return &readers{b: b, by: map[string]*reader{}}
	}
	return newReader(b, "")
}

const (
	// mostBlocked is how many connections a keyed consumer of a Cluster waits on at most.
	mostBlocked = 8
	// turnBlock bounds their wait where there are more streams than connections: then they
	// take turns.
	turnBlock = 100 * time.Millisecond
)

// readers wait in a Cluster, where one command reads within one slot: each shard is in
// another one, so each has a connection of its own. Beyond mostBlocked shards that many of
// them are waited on for turnBlock, after a look at all in one pipeline for each node.
type readers struct {
	b *broker

	mu     sync.Mutex
	by     map[string]*reader // by stream
	turn   int
	closed bool
}

func (rs *readers) peek(block time.Duration, streams, after []string) (any, error) {
	if block == 0 {
		return rs.glance(streams, after)
	}
	if len(streams) > mostBlocked {
		if found, err := rs.glance(streams, after); err != nil || len(found) > 0 {
			return found, err
		}
		block = min(block, turnBlock)
	}
	chosen := rs.choose(streams, after)
	if len(chosen) == 0 {
		return nil, goredis.ErrClosed
	}
	return gather(chosen, block)
}

// glance looks at all streams and does not wait.
func (rs *readers) glance(streams, after []string) ([]any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), rs.b.cfg.ConnectTimeout+rs.b.cfg.Timeout)
	defer cancel()
	pipe := rs.b.ctl.Pipeline()
	cmds := make([]*goredis.Cmd, len(streams))
	for i, s := range streams {
		cmds[i] = goredis.NewCmd(ctx, "xread", "count", 1, "streams", s, after[i])
		cmds[i].SetFirstKeyPos(4)
		_ = pipe.Process(ctx, cmds[i]) // it is sent by Exec
	}
	_, _ = pipe.Exec(ctx) // the result is in each
	var found []any
	var failed error
	for _, cmd := range cmds {
		switch err := cmd.Err(); {
		case err == nil:
			list, _ := cmd.Val().([]any)
			found = append(found, list...)
		case !errors.Is(err, goredis.Nil):
			failed = err
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	return nil, failed
}

// wait is one stream, its reader and the id to read after.
type wait struct {
	r             *reader
	stream, after string
}

// choose picks the streams whose turn it is, and closes the connections for those that are
// not ours any more.
func (rs *readers) choose(streams, after []string) []wait {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.closed {
		return nil
	}
	n := min(len(streams), mostBlocked)
	out := make([]wait, n)
	keep := make(map[string]*reader, n)
	for i := range out {
		at := (rs.turn + i) % len(streams)
		s := streams[at]
		if keep[s] = rs.by[s]; keep[s] == nil {
			keep[s] = newReader(rs.b, s)
		}
		out[i] = wait{r: keep[s], stream: s, after: after[at]}
	}
	if rs.turn += n; len(streams) <= mostBlocked {
		rs.turn = 0
	}
	for s, r := range rs.by {
		if keep[s] == nil {
			r.close()
		}
	}
	rs.by = keep
	return out
}

// gather waits on all until one has something, ends the others, and returns what they have.
func gather(waits []wait, block time.Duration) (any, error) {
	type result struct {
		found any
		err   error
	}
	results := make(chan result, len(waits))
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, w := range waits {
		wg.Go(func() {
			found, err := w.r.peek(block, []string{w.stream}, []string{w.after})
			results <- result{found, err}
		})
	}
	var found []any
	var failed error
	for left, over := len(waits), false; left > 0; {
		var again <-chan time.Time
		if over { // asked again until it has ended: the first word may come before the read does
			unblockAll(waits)
			again = time.After(10 * time.Millisecond)
		}
		select {
		case r := <-results:
			left--
			switch list, ok := r.found.([]any); {
			case r.err == nil && ok:
				found, over = append(found, list...), true
			case !errors.Is(r.err, goredis.Nil):
				failed, over = r.err, true
			}
		case <-again:
		}
	}
	switch {
	case len(found) > 0:
		return found, nil
	case failed != nil:
		return nil, failed
	}
	return nil, goredis.Nil
}

func unblockAll(waits []wait) {
	var wg sync.WaitGroup
	for _, w := range waits {
		wg.Go(w.r.unblock)
	}
	wg.Wait()
}

func (rs *readers) unblock() {
	rs.mu.Lock()
	var waits []wait
	for _, r := range rs.by {
		waits = append(waits, wait{r: r})
	}
	rs.mu.Unlock()
	unblockAll(waits)
}

func (rs *readers) close() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.closed = true
	for _, r := range rs.by {
		r.close()
	}
}
