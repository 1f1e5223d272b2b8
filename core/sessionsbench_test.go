package core_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// BenchmarkSessions compares the engine, in order per key, with the shape of the published
// system: a goroutine and a channel of 16 for each session, and a commit that follows the
// highest offset completed without a gap. Both take what the same source hands out, at the
// same point, and no broker stands before either. A session of ours has nothing while it
// has no message; one of theirs keeps its goroutine.
func BenchmarkSessions(b *testing.B) {
	for _, keys := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d/varal", keys), func(b *testing.B) {
			b.ReportAllocs()
			consumeKeys(b, driver.UpTo, b.N, keys, core.ByKey, nil)
		})
		b.Run(fmt.Sprintf("keys=%d/published-shape", keys), func(b *testing.B) {
			b.ReportAllocs()
			publishedShape(b, b.N, keys)
		})
	}
}

// publishedShape works n messages of so many sessions off.
func publishedShape(b *testing.B, n, keys int) {
	f := newFountain(driver.UpTo, n, keys)
	var (
		done     completion
		handled  atomic.Int64
		wg       sync.WaitGroup
		sessions = map[string]chan driver.Received{}
	)
	done.beyond = map[int64]struct{}{}
	for left := n; left > 0; {
		batch, err := f.Receive(context.Background(), driver.Demand{Records: 4096})
		if err != nil {
			b.Fatal(err)
		}
		left -= len(batch)
		for _, r := range batch {
			mail := sessions[r.Key]
			if mail == nil {
				mail = make(chan driver.Received, 16)
				sessions[r.Key] = mail
				wg.Go(func() {
					for r := range mail {
						handled.Add(1)
						done.mark(r.Receipt.Seq)
					}
				})
			}
			mail <- r
		}
	}
	for _, mail := range sessions {
		close(mail)
	}
	wg.Wait()
	if handled.Load() != int64(n) || done.upTo != int64(n) {
		b.Fatalf("%d of %d handled, completed up to %d", handled.Load(), n, done.upTo)
	}
}

// completion is what a partition has completed: everything up to upTo, and some beyond.
type completion struct {
	mu     sync.Mutex
	upTo   int64
	beyond map[int64]struct{}
}

func (c *completion) mark(seq int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beyond[seq] = struct{}{}
	for {
		if _, ok := c.beyond[c.upTo+1]; !ok {
			return
		}
		delete(c.beyond, c.upTo+1)
		c.upTo++
	}
}
