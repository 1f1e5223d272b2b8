package memory

import (
	"container/heap"

	"github.com/varal-go/varal/core/driver"
)

// stored is one published message. It never changes: all groups share it.
type stored struct {
	driver.Message
	at      int64 // when it was published
	due     int64 // not before; 0 = at once
	expires int64 // not later; 0 = never
	size    int64
	part    int
	index   int // in its batch
}

type itemState uint8

const (
	ready itemState = iota
	delayed
	out
	gone
)

// item is one group's copy of a message in a backlog.
type item struct {
	m      *stored
	of     *backlog
	holder *tenure // who has it out
	seq    int64   // place in its lane, given when it first becomes ready; 0 = not yet
	token  int64   // the hand-out a receipt must name
	handed int64   // when
	at     int64   // key in the heap of times, and the end of the lease while out
	heap   int     // position in the heap of times, counted from 1; 0 = not in it
	count  int32
	state  itemState

	list       *itemList // which of its holder's lists it is in
	prev, next *item
}

// itemList is a doubly linked list through the items themselves, so that handing out
// and settling allocate nothing.
type itemList struct{ head, tail *item }

func (l *itemList) push(it *item) {
	it.list, it.prev, it.next = l, l.tail, nil
	if l.tail == nil {
		l.head = it
	} else {
		l.tail.next = it
	}
	l.tail = it
}

func (l *itemList) remove(it *item) {
	if it.prev == nil {
		l.head = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.tail = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.list, it.prev, it.next = nil, nil, nil
}

// timeHeap orders items by at. Each knows its place, so any can be taken out.
type timeHeap []*item

func (h timeHeap) Len() int           { return len(h) }
func (h timeHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i+1, j+1
}

// Push is for container/heap.
func (h *timeHeap) Push(x any) {
	it := x.(*item)
	*h = append(*h, it)
	it.heap = len(*h)
}

// Pop is for container/heap.
func (h *timeHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	it.heap = 0
	return it
}

func (h *timeHeap) add(it *item, at int64) {
	it.at = at
	heap.Push(h, it)
}

func (h *timeHeap) remove(it *item) {
	if it.heap > 0 {
		heap.Remove(h, it.heap-1)
	}
}

// seqHeap orders items by seq.
type seqHeap []*item

func (h seqHeap) Len() int           { return len(h) }
func (h seqHeap) Less(i, j int) bool { return h[i].seq < h[j].seq }
func (h seqHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is for container/heap.
func (h *seqHeap) Push(x any) { *h = append(*h, x.(*item)) }

// Pop is for container/heap.
func (h *seqHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return it
}
