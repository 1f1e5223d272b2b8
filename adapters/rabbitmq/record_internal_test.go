package rabbitmq

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSight: of all records seen, the one or two that say the most stay unacked, and
// every other one is given up once.
func TestSight(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var s sight
		out := map[uint64]record{}
		var fence uint64
		var best record
		for tag := uint64(1); tag < 60; tag++ {
			rec := record{Fence: r.Uint64N(5)} // 0: a seed
			if rec.Fence > 0 && r.IntN(2) == 0 {
				rec.PosFence, rec.PosSeq, rec.Kind, rec.Offset = r.Uint64N(rec.Fence+1), r.Uint64N(5), "at", int64(tag)
			}
			fence = max(fence, rec.Fence)
			if rec.later(best) {
				best = rec
			}
			out[tag] = rec
			for _, spent := range s.see(rec, tag) {
				if _, ok := out[spent]; !ok {
					t.Fatalf("seed %d: %d is given up twice", seed, spent)
				}
				delete(out, spent)
			}
			if s.best.Fence != fence || s.best.Offset != best.Offset || out[s.fenced].Fence != fence || best.Kind != "" && out[s.placed].Offset != best.Offset {
				t.Fatalf("seed %d, after %d: %+v, want fence %d and offset %d; unacked %v", seed, tag, s, fence, best.Offset, out)
			}
			if tags := slices.Sorted(maps.Keys(out)); len(tags) > 2 || len(tags) == 0 {
				t.Fatalf("seed %d, after %d: %v stay unacked, %+v", seed, tag, tags, s)
			}
		}
	}
}
