// Package watermark tracks which deliveries of one assignment are done, and up to
// where all of them are: the only position that may be committed.
package watermark

import "math/bits"

// Ring is indexed by delivery sequence, not by offset, so that gaps in the log
// (compaction, transaction markers) cost nothing and memory follows what is
// unfinished. Every operation is O(1) amortised and none allocates once the ring has
// grown. Not safe for concurrent use. The zero Ring is ready.
type Ring[R any] struct {
	pos        []R      // receipt by seq & mask
	done       []uint64 // bit by seq & mask
	head, tail uint64   // the unfinished span is [head, tail)
	last       R        // receipt of head-1
	behind     int      // done within the span
}

const minRing = 64 // one word of done bits

// Add appends a delivery and returns its sequence number.
func (r *Ring[R]) Add(p R) uint64 {
	if r.tail-r.head == uint64(len(r.pos)) {
		r.grow()
	}
	seq := r.tail
	i := seq & uint64(len(r.pos)-1)
	r.pos[i] = p
	r.done[i>>6] &^= 1 << (i & 63)
	r.tail++
	return seq
}

func (r *Ring[R]) grow() {
	old, n := *r, max(minRing, 2*len(r.pos))
	r.pos, r.done = make([]R, n), make([]uint64, n/64)
	for seq := old.head; seq < old.tail; seq++ {
		from, to := seq&uint64(len(old.pos)-1), seq&uint64(n-1)
		r.pos[to] = old.pos[from]
		r.done[to>>6] |= (old.done[from>>6] >> (from & 63) & 1) << (to & 63)
	}
}

// Done marks a delivery as done and reports whether the watermark moved. A sequence
// outside the unfinished span is ignored.
func (r *Ring[R]) Done(seq uint64) bool {
	if seq < r.head || seq >= r.tail {
		return false
	}
	i := seq & uint64(len(r.pos)-1)
	if r.done[i>>6]>>(i&63)&1 == 0 {
		r.behind++
	}
	r.done[i>>6] |= 1 << (i & 63)
	if seq != r.head {
		return false
	}
	r.advance()
	return true
}

// advance moves head over all done deliveries, a word of bits at a time.
func (r *Ring[R]) advance() {
	mask := uint64(len(r.pos) - 1)
	start := r.head
	for r.head < r.tail {
		i := r.head & mask
		run := uint64(bits.TrailingZeros64(^(r.done[i>>6] >> (i & 63))))
		// The shift brought in zeros at the top, so run never passes the word; what
		// lies beyond tail is stale and must not count.
		run = min(run, 64-i&63, r.tail-r.head)
		if run == 0 {
			break
		}
		r.head += run
	}
	if r.head == start {
		return
	}
	r.behind -= int(r.head - start)
	var zero R
	r.last = r.pos[(r.head-1)&mask]
	for seq := start; seq < r.head; seq++ {
		r.pos[seq&mask] = zero // let go of pointers
	}
}

// Watermark returns the last receipt up to which everything is done; ok is false
// when nothing is.
func (r *Ring[R]) Watermark() (receipt R, ok bool) { return r.last, r.head > 0 }

// Span is the number of deliveries from the first unfinished one to the last added.
func (r *Ring[R]) Span() int { return int(r.tail - r.head) }

// Set replaces what was added under a sequence within the span.
func (r *Ring[R]) Set(seq uint64, p R) {
	if seq >= r.head && seq < r.tail {
		r.pos[seq&uint64(len(r.pos)-1)] = p
	}
}

// Behind is the number of deliveries that are done and yet behind an unfinished one.
func (r *Ring[R]) Behind() int { return r.behind }

// Unfinished calls yield for each unfinished delivery, in order, until it returns false.
func (r *Ring[R]) Unfinished(yield func(p R) bool) {
	if len(r.pos) == 0 {
		return
	}
	mask := uint64(len(r.pos) - 1)
	for seq := r.head; seq < r.tail; {
		i := seq & mask
		word := r.done[i>>6] >> (i & 63)
		if done := uint64(bits.TrailingZeros64(^word)); done > 0 { // a run of done ones
			seq += min(done, 64-i&63)
			continue
		}
		if !yield(r.pos[i]) {
			return
		}
		seq++
	}
}

// Last is the delivery added last; ok is false when the span is empty.
func (r *Ring[R]) Last() (p R, ok bool) {
	if r.tail == r.head {
		return p, false
	}
	return r.pos[(r.tail-1)&uint64(len(r.pos)-1)], true
}
