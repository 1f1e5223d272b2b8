package core_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
)

// BenchmarkOrdered has 64 callers publish one message at a time over memory, each to a key
// of its own: directly and through an OrderedPublisher. The last line holds the ratio.
func BenchmarkOrdered(b *testing.B) {
	per := map[string]float64{}
	for _, way := range []string{"direct", "ordered", "numbered"} {
		b.Run(way, func(b *testing.B) {
			b.ReportAllocs()
			c := memoryClient(b.Context())
			defer c.Close(context.Background())
			var p core.Publisher = c
			if way != "direct" {
				o := core.NewOrderedPublisher(c, core.OrderedOptions{Sequence: way == "numbered"})
				defer o.Close(context.Background())
				p = o
			}
			begin := time.Now()
			rushOf(b, p, 64, b.N)
			per[way] = float64(time.Since(begin)) / float64(b.N)
			if way != "direct" && per["direct"] > 0 {
				b.ReportMetric(per[way]/per["direct"], "times-direct")
			}
		})
	}
}

// rushOf publishes n messages by so many callers, to a stream that keeps few of them.
func rushOf(b *testing.B, p core.Publisher, callers, n int) {
	to := core.Stream("s").Keyed(8)
	var next atomic.Int64
	var wg sync.WaitGroup
	body := make([]byte, 100)
	for k := range callers {
		key := fmt.Sprint("key-", k)
		wg.Go(func() {
			for next.Add(1) <= int64(n) {
				if err := p.Publish(b.Context(), to, &core.Message{Key: key, Body: body}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
