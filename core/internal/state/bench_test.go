package state_test

import (
	"testing"

	"github.com/varal-go/varal/core/internal/state"
)

func snapshots() map[string]state.Snapshot {
	unordered := scattered(65_536, 5000)
	unordered.Ordered = false
	return map[string]state.Snapshot{
		"stuck head, 50 k done":           holes(50_000, func(i int64) (string, bool) { return "key", i == 0 }),
		"10 keys, 1 blocked, 65 k":        blocked(65_536, 10, 1),
		"1,000 keys, 100 blocked, 65 k":   blocked(65_536, 1000, 100),
		"unordered, 5,000 random in 65 k": unordered,
	}
}

func BenchmarkEncode(b *testing.B) {
	for name, s := range snapshots() {
		for what, limit := range map[string]int{"": 7680, ", cut to 1 KiB": 1024} {
			b.Run(name+what, func(b *testing.B) {
				b.ReportAllocs()
				var out []byte
				for b.Loop() {
					out = state.Encode(s, limit)
				}
				b.ReportMetric(float64(len(out)), "bytes")
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, s := range snapshots() {
		in := state.Encode(s, 7680)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := state.Decode(in, source, partition, s.Base, s.High+1, keyFn); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDone(b *testing.B) {
	for name, s := range snapshots() {
		c, err := state.Decode(state.Encode(s, 7680), source, partition, s.Base, s.High+1, keyFn)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := int64(0); b.Loop(); i++ {
				c.Done(s.Base+i%(s.High-s.Base), "key-of-a-customer", true)
			}
		})
	}
}
