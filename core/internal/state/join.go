package state

import (
	"cmp"
	"slices"
)

// maxHoles bounds the unfinished records that are taken over one by one from an earlier
// state: a forged run may claim any number of them.
const maxHoles = 1 << 17

// join adds what an earlier state tells of positions above High, which its owner has not
// read yet. Both agree on all below: what is not pending there is completed.
//
// A key vector and positions cannot be made one: of a vector the positions behind a first
// record are not known, of positions the keys are not. So up to where the owner has read
// every body may be used, and beyond it only one of the kind the earlier state had. An
// owner that does not keep the order of keys writes no vector, and forgets an earlier one.
func (e *encoder) join(c *Completed) {
	if c == nil || c.Last() <= e.High || len(c.keys) > 0 && !e.Ordered {
		return
	}
	e.seen, e.joined, e.vector = e.High, true, len(c.keys) > 0
	old := e.Pending
	e.Pending = slices.Clip(old)
	loose, high := c.holesAfter(e.seen)
	e.High = max(e.seen, high)
	told := map[int64]bool{}
	add := func(position int64) {
		if !told[position] {
			told[position] = true
			f, _ := c.failure(position)
			e.Pending = append(e.Pending, Pending{Position: position, Attempts: int(f.attempts), Due: f.due})
		}
	}
	for _, position := range loose {
		add(position)
	}
	for _, f := range c.failed {
		if f.position > e.seen {
			add(f.position)
		}
	}
	if e.High < e.Base { // only failed ones are known, further up: the next to read is unfinished for all we know
		e.High = e.Base
		add(e.Base)
	}
	slices.SortFunc(e.Pending[len(old):], func(a, b Pending) int { return cmp.Compare(a.Position, b.Position) })
	e.index(loose, e.firstsAfter(c))
}

// holesAfter returns the unfinished records above position that c names one by one, and
// the last position that is told about with them.
func (c *Completed) holesAfter(position int64) (holes []int64, high int64) {
	high = c.High()
	if c.bits != nil {
		for at := max(position+1, c.base); at <= high; at++ {
			if i := at - c.base; c.bits[i/8]>>(i%8)&1 == 1 {
				holes = append(holes, at)
			}
		}
		return holes, high
	}
	for _, r := range c.holes {
		for at := max(position+1, r.from); at <= r.to; at++ {
			if len(holes) == maxHoles {
				return holes, at - 1
			}
			holes = append(holes, at)
		}
	}
	return holes, high
}

// firstsAfter returns where the keys of an earlier vector begin in the new one: the keys
// that are pending already begin there. One that had its first below what was read has
// completed it since, and is not known to have completed anything beyond.
func (e *encoder) firstsAfter(c *Completed) (heads []head) {
	if c.High() <= e.seen {
		return nil
	}
	own := make(map[uint64]bool, len(e.heads))
	for _, h := range e.heads {
		own[h.hash] = true
	}
	for _, k := range c.keys {
		if !own[k.hash] {
			heads = append(heads, head{first: max(k.first, e.seen+1), hash: k.hash, index: -1})
		}
	}
	return heads
}

// index takes what was joined into the tables of the bodies: loose are the records without
// a key, heads the first ones of keys. A first one that has failed is told with its key.
func (e *encoder) index(loose []int64, heads []head) {
	at := make(map[int64]int, len(e.Pending))
	for i, p := range e.Pending[len(e.all):] {
		at[p.Position] = len(e.all) + i
	}
	for _, p := range e.Pending[len(e.all):] {
		e.all = append(e.all, p.Position)
	}
	if !e.vector {
		return
	}
	e.loose = append(e.loose, loose...)
	for _, h := range heads {
		if i, ok := at[h.first]; ok {
			h.index = i
			delete(at, h.first) // of several keys that begin at one position, one tells of it
		}
		e.heads = append(e.heads, h)
	}
	slices.SortStableFunc(e.heads, func(a, b head) int { return cmp.Compare(a.first, b.first) })
}

// fits reports whether an encoding can tell of everything up to high; see join.
func (e *encoder) fits(enc byte, high int64, heads int) bool {
	switch {
	case !e.joined || high <= e.seen:
		return true
	case e.vector:
		return enc == encVector || heads == 0
	}
	return enc != encVector
}
