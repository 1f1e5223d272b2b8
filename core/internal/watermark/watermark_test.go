package watermark_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/varal-go/varal/core/internal/watermark"
)

// naive is the same by a set: the oracle.
type naive struct {
	head int
	done map[int]bool
	n    int
}

func (o *naive) finish(seq int) {
	if seq >= o.head && seq < o.n {
		o.done[seq] = true
	}
	for o.done[o.head] {
		delete(o.done, o.head)
		o.head++
	}
}

// compare looks at what is behind the head.
func (o *naive) compare(t *testing.T, round int, r *watermark.Ring[int]) {
	t.Helper()
	behind := 0
	var open, got []int
	for n := o.head; n < o.n; n++ {
		if o.done[n] {
			behind++
		} else {
			open = append(open, n*10)
		}
	}
	r.Unfinished(func(p int) bool { got = append(got, p); return true })
	if r.Behind() != behind || !slices.Equal(got, open) {
		t.Fatalf("seed %d: behind %d, want %d; unfinished %v, want %v", round, r.Behind(), behind, got, open)
	}
	if last, ok := r.Last(); ok != (o.n > o.head) || ok && last != (o.n-1)*10 {
		t.Fatalf("seed %d: last %d %v, want %d", round, last, ok, (o.n-1)*10)
	}
}

func TestRingAgreesWithASet(t *testing.T) {
	t.Parallel()
	for round := range 3000 {
		rnd := rand.New(rand.NewPCG(uint64(round), 1))
		var r watermark.Ring[int]
		o := naive{done: map[int]bool{}}
		for range 500 {
			if rnd.IntN(5) < 2 || o.n == o.head {
				if seq := r.Add(o.n * 10); seq != uint64(o.n) {
					t.Fatalf("seed %d: Add returned %d, want %d", round, seq, o.n)
				}
				o.n++
			} else {
				seq := o.head - 2 + rnd.IntN(o.n-o.head+4) // at times outside the span
				before := o.head
				o.finish(seq)
				if moved := r.Done(uint64(seq)); moved != (o.head != before) {
					t.Fatalf("seed %d: Done(%d) moved=%v, head %d to %d", round, seq, moved, before, o.head)
				}
			}
			got, ok := r.Watermark()
			if ok != (o.head > 0) || ok && got != (o.head-1)*10 {
				t.Fatalf("seed %d: watermark %d %v, want %d", round, got, ok, (o.head-1)*10)
			}
			o.compare(t, round, &r)
			if r.Span() != o.n-o.head {
				t.Fatalf("seed %d: span %d, want %d", round, r.Span(), o.n-o.head)
			}
		}
	}
}

func BenchmarkRing(b *testing.B) {
	var r watermark.Ring[int]
	const window = 1024
	for i := range window {
		r.Add(i)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		r.Done(uint64(i) ^ 7) // out of order within eights
		r.Add(i)
	}
}
