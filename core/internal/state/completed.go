package state

import (
	"cmp"
	"slices"
)

// Completed is what a state says was completed behind the committed position. It is not
// changed after Decode, so any number of goroutines may ask it. The zero Completed
// knows nothing.
type Completed struct {
	base, next int64     // it speaks about [base, next)
	keys       []keyFrom // ascending by hash; key vector only
	holes      []run     // unfinished, ascending; of a key vector: without a key
	bits       []byte    // or as a bitmap from base
	failed     []failure // ascending
}

type keyFrom struct {
	hash  uint64
	first int64
}

type run struct{ from, to int64 } // both are in it

type failure struct {
	position int64
	due      int64
	attempts int32
}

// Done reports whether the record was completed before, so that it may be skipped. key
// and hasKey must be what Encode was given for it. False for everything the state does
// not speak about.
func (c *Completed) Done(position int64, key string, hasKey bool) bool {
	if position < c.base || position >= c.next {
		return false
	}
	if _, found := c.failure(position); found {
		return false // unfinished, even should its key have changed since
	}
	if c.bits != nil {
		i := position - c.base
		return c.bits[i/8]>>(i%8)&1 == 0
	}
	if c.keys != nil && hasKey {
		i, found := slices.BinarySearchFunc(c.keys, hash40(key), func(k keyFrom, h uint64) int { return cmp.Compare(k.hash, h) })
		return !found || position < c.keys[i].first
	}
	i, found := slices.BinarySearchFunc(c.holes, position, func(r run, p int64) int { return cmp.Compare(r.to, p) })
	return !found && (i == len(c.holes) || position < c.holes[i].from)
}

// Attempts returns how often an unfinished record was tried, and when it is due again
// in unix seconds (0 = not waiting). 0, 0 for one that has not failed or is not known.
func (c *Completed) Attempts(position int64) (attempts int, due int64) {
	f, _ := c.failure(position)
	return int(f.attempts), f.due
}

func (c *Completed) failure(position int64) (f failure, found bool) {
	i, found := slices.BinarySearchFunc(c.failed, position, func(f failure, p int64) int { return cmp.Compare(f.position, p) })
	if found {
		f = c.failed[i]
	}
	return f, found
}

// High is the last position Done can be true for; less than the committed position
// when there is none. Attempts may know about later ones.
func (c *Completed) High() int64 { return c.next - 1 }

// Last is the last position that is known about: by Done, or by Attempts.
func (c *Completed) Last() int64 {
	last := c.High()
	if n := len(c.failed); n > 0 {
		last = max(last, c.failed[n-1].position)
	}
	return last
}
