package state_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/varal-go/varal/core/internal/state"
)

// holes makes an ordered snapshot of span positions in which those are unfinished that
// the function names, each with its key.
func holes(span int64, key func(i int64) (key string, pending bool)) state.Snapshot {
	s := state.Snapshot{Source: source, Partition: partition, Base: 1 << 40, High: 1<<40 + span - 1, KeyFn: keyFn, Ordered: true}
	for i := range span {
		if k, pending := key(i); pending {
			s.Pending = append(s.Pending, state.Pending{Position: s.Base + i, Key: k, HasKey: true})
		}
	}
	return s
}

func scattered(span int64, n int) state.Snapshot {
	rnd := rand.New(rand.NewPCG(uint64(n), 11))
	at := map[int64]bool{}
	for len(at) < n {
		at[rnd.Int64N(span-1)] = true
	}
	return holes(span, func(i int64) (string, bool) { return fmt.Sprint("key", i), at[i] })
}

// blocked: records of keys drawn at random, all of the first n keys unfinished.
func blocked(span int64, keys, n int) state.Snapshot {
	rnd := rand.New(rand.NewPCG(uint64(keys), 12))
	return holes(span, func(i int64) (string, bool) {
		k := rnd.IntN(keys)
		return fmt.Sprint("key", k), k < n
	})
}

// The sizes the encodings were chosen for. A body of more is a regression.
func TestSizesOfTheBodies(t *testing.T) {
	t.Parallel()
	const kb = 1024
	t.Logf("%-30s %8s | %7s %7s %7s %9s %9s | %8s", "bytes of the body", "span", "vector", "runs", "bitmap", "runs+fl.", "bits+fl.", "Encode")
	for _, row := range []struct {
		name               string
		s                  state.Snapshot
		vector, runs, bits int // at most; 0 = not told
	}{
		{"stuck head, 50 k done", holes(50_000, func(i int64) (string, bool) { return "key", i == 0 }), 10, 4, 0},
		{"100 random", scattered(10_000, 100), 8 * kb / 10, 229, 241},
		{"1,000 random", scattered(65_536, 1000), 8 * kb, 2087, 1800},
		{"10 keys, 1 blocked", blocked(20_000, 10, 1), 10, 3637, 1500},
		{"10 keys, 1 blocked", blocked(65_536, 10, 1), 10, 12_026, 4700},
		{"1,000 keys, 100 blocked", blocked(65_536, 1000, 100), 8 * kb / 10, 0, 4700},
		{"5,000 random", scattered(65_536, 5000), 0, 8953, 4000},
	} {
		span := row.s.High - row.s.Base + 1
		size := func(enc byte) int { return bodySize(t, row.s, state.Build(row.s, enc, noLimit)) }
		v, r, z := size(state.Vector), size(state.Runs), size(state.BitmapDeflated)
		whole := state.Encode(row.s, 7680) // what 4,096 characters of 15 bits carry
		t.Logf("%-30s %8d | %7d %7d %7d %9d %9d | %8d in encoding %d", row.name, span, v, r, size(state.Bitmap), size(state.RunsDeflated), z, len(whole), whole[2])
		if row.vector > 0 && v > row.vector || row.runs > 0 && r > row.runs || row.bits > 0 && z > row.bits {
			t.Errorf("%s: vector %d, runs %d, bitmap %d; want at most %d, %d, %d", row.name, v, r, z, row.vector, row.runs, row.bits)
		}
		c, err := state.Decode(whole, source, partition, row.s.Base, row.s.High+1, keyFn)
		if err != nil || c.High() < row.s.High-200 { // what is unfinished at the end is not told
			t.Errorf("%s: up to %d of %d, %v", row.name, c.High(), row.s.High, err)
		}
	}
}

// bodySize is the state without head, list of failed records (empty) and checksum.
func bodySize(t *testing.T, s state.Snapshot, b []byte) int {
	if b == nil {
		return 0
	}
	span, n := binary.Uvarint(b[4:])
	if n <= 0 || span > uint64(s.High-s.Base) {
		t.Errorf("span %d", span)
	}
	return len(b) - 4 - n - 1 - 4
}
