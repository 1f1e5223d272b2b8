package memory

import "container/heap"

// lane holds the ready messages of one partition (or one priority) in order. What
// came back after a hand-out was ahead of everything in fresh, so back goes first.
// Items whose time ran out stay where they are, marked gone, until they are met
// or until they are the greater part.
type lane struct {
	fresh ring[item]
	back  seqHeap
	seq   int64
	dead  int
}

func (l *lane) add(it *item) {
	it.state = ready
	if it.seq > 0 {
		heap.Push(&l.back, it)
		return
	}
	l.seq++
	it.seq = l.seq
	l.fresh.push(it)
}

// peek returns the first ready item, nil if there is none.
func (l *lane) peek() *item {
	for len(l.back) > 0 {
		if l.back[0].state == ready {
			return l.back[0]
		}
		heap.Pop(&l.back)
		l.dead--
	}
	for l.fresh.len() > 0 {
		if it := l.fresh.at(0); it.state == ready {
			return it
		}
		l.fresh.pop()
		l.dead--
	}
	return nil
}

// pop removes what peek returned.
func (l *lane) pop() {
	if len(l.back) > 0 {
		heap.Pop(&l.back)
		return
	}
	l.fresh.pop()
}

// bury notes that an item of this lane is gone.
func (l *lane) bury() {
	l.dead++
	if l.dead < 64 || 2*l.dead < l.fresh.len()+len(l.back) {
		return
	}
	alive := func(it *item) bool { return it.state == ready }
	l.fresh.keep(alive)
	back := l.back[:0]
	for _, it := range l.back {
		if alive(it) {
			back = append(back, it)
		}
	}
	clear(l.back[len(back):])
	l.back = back
	heap.Init(&l.back)
	l.dead = 0
}
