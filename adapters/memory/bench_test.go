package memory_test

import (
	"fmt"
	"testing"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

// BenchmarkBatch100 is publish + receive + settle; ns/msg is for all three together.
func BenchmarkBatch100(b *testing.B) {
	for name, to := range map[string]driver.Destination{
		"queue": queue("q"), "shards": queue("q").Keyed(8), "topic": topic("q"), "stream": stream("q").Keyed(8),
	} {
		b.Run(name, func(b *testing.B) {
			d := open(b, memory.Config{}, to)
			c, _ := subscribe(b, d, driver.Subscription{From: to, Group: "g"})
			batch := make([]*driver.Message, 100)
			for i := range batch {
				batch[i] = &driver.Message{ID: fmt.Sprint(i), Key: fmt.Sprint(i % 20), Body: make([]byte, 100)}
			}
			var settlements []driver.Settlement
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Publish(b.Context(), to, batch); err != nil {
					b.Fatal(err)
				}
				for n := 0; n < len(batch); {
					got, err := c.Receive(b.Context(), demand(256))
					if err != nil {
						b.Fatal(err)
					}
					n += len(got)
					settlements = settlements[:0]
					for i := range got {
						settlements = append(settlements, driver.Settlement{Receipt: got[i].Receipt, Disposition: driver.Ack})
					}
					if err := c.Settle(b.Context(), settlements); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/msg")
		})
	}
}
