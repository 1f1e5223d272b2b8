// Package schedule decides which delivery may start now.
package schedule

// Queue is a run queue of deliveries and of key lanes. A lane lives while its key has
// deliveries that have not ended; a few of those that have none are kept for the next,
// since to enter and to delete a key costs more than all the rest. Not safe for
// concurrent use; it starts no goroutine and reads no clock. Use New.
type Queue[T any] struct {
	ready  deque[entry[T]]
	lanes  map[string]*Lane[T]
	active int            // lanes with deliveries that have not ended
	idle   deque[idle[T]] // the others, in the order in which they emptied, but for up to maxIdle
	peak   int            // the most lanes since lanes was made
	free   *Lane[T]       // lanes to use again
	frees  int
	n      int // deliveries added and not yet returned by Next
}

// idle is a lane at the time it emptied; it has been used since if its count differs.
type idle[T any] struct {
	lane   *Lane[T]
	filled uint64
}

// entry is one thing that may start: the head of a lane, or a delivery by itself.
type entry[T any] struct {
	v    T
	lane *Lane[T]
	head bool // take v from the front of lane
}

// Lane is the queue of one key: at most one of its deliveries has started and not
// ended.
type Lane[T any] struct {
	key    string
	first  T        // of those that wait, if any does: most lanes never need more room
	any    bool     // first is one that waits
	busy   bool     // a delivery has started, or its head is in ready
	more   int      // deliveries that started together with the one that has
	filled uint64   // how often it was empty and got a delivery
	wait   deque[T] // those behind first
	spare  *Lane[T] // link of the free list
}

// Waiting is the number of deliveries that have not started.
func (l *Lane[T]) Waiting() int {
	if !l.any {
		return 0
	}
	return 1 + l.wait.len()
}

func (l *Lane[T]) push(v T) {
	if l.any {
		l.wait.push(v)
		return
	}
	l.first, l.any = v, true
}

func (l *Lane[T]) unshift(v T) {
	if l.any {
		l.wait.unshift(l.first)
	}
	l.first, l.any = v, true
}

// pop takes the first of those that wait; there must be one.
func (l *Lane[T]) pop() (v T) {
	v = l.first
	l.first, l.any = l.wait.pop()
	return v
}

// maxFree bounds the lanes kept for use again, without a key; maxIdle those with one.
const (
	maxFree = 1024
	maxIdle = 1024

	// maxEmpty is how large a queue may stay when nothing is in it, and shrinkBy by how much
	// the lanes must have become fewer for their map to be made anew: a Go map keeps the
	// room it once had, and after a burst of a million keys that is as much as they took.
	maxEmpty = 1 << 15
	shrinkBy = 8
)

// New returns an empty queue.
func New[T any]() *Queue[T] { return &Queue[T]{lanes: map[string]*Lane[T]{}} }

// Add appends a delivery that may run beside any other.
func (q *Queue[T]) Add(v T) {
	q.n++
	q.ready.push(entry[T]{v: v})
}

// AddKeyed appends a delivery behind the others of its key and returns their lane.
func (q *Queue[T]) AddKeyed(key string, v T) *Lane[T] {
	l := q.lanes[key]
	if l == nil {
		l = q.newLane(key)
	}
	q.n++
	l.push(v)
	if !l.busy {
		l.busy = true
		l.filled++
		q.active++
		q.ready.push(entry[T]{lane: l, head: true})
	}
	return l
}

// Next returns the next delivery to start and its lane (nil = none); ok is false
// when nothing may start now.
func (q *Queue[T]) Next() (v T, lane *Lane[T], ok bool) {
	e, ok := q.ready.pop()
	if !ok {
		return v, nil, false
	}
	q.n--
	if e.head {
		e.v = e.lane.pop()
	}
	return e.v, e.lane, true
}

// Again queues a delivery that has started before, for its next attempt. Its lane
// stays busy.
func (q *Queue[T]) Again(v T, lane *Lane[T]) {
	q.n++
	q.ready.push(entry[T]{v: v, lane: lane})
}

// Release tells that the started delivery of a lane has ended, so that the next of
// its key may start. A nil lane is ignored.
func (q *Queue[T]) Release(l *Lane[T]) {
	if l == nil {
		return
	}
	if l.more > 0 {
		l.more--
		return
	}
	if l.any {
		q.ready.push(entry[T]{lane: l, head: true})
		return
	}
	l.busy = false
	q.active--
	if len(q.lanes) <= maxIdle {
		return // to note down what is never forgotten costs a message as much as its look-up
	}
	q.idle.push(idle[T]{l, l.filled})
	for q.idle.len() > maxIdle {
		q.forget()
	}
}

// forget deletes the lane that has been empty for longest, unless it has been used since.
func (q *Queue[T]) forget() {
	e, _ := q.idle.pop()
	l := e.lane
	if l.busy || l.filled != e.filled {
		return
	}
	delete(q.lanes, l.key)
	q.shrink()
	l.filled++ // whoever still has it in idle has an old one
	if q.frees < maxFree {
		l.key, l.spare = "", q.free
		q.free = l
		q.frees++
	}
}

// shrink gives back the room of lanes that are gone.
func (q *Queue[T]) shrink() {
	if q.peak < 4*maxIdle || len(q.lanes) > q.peak/shrinkBy {
		return
	}
	lanes := make(map[string]*Lane[T], len(q.lanes))
	for key, l := range q.lanes {
		lanes[key] = l
	}
	q.lanes, q.peak = lanes, len(lanes)
}

// Together starts more deliveries behind one that Next has returned with this lane: those
// that wait in it, else others without a lane, in order, as long as take accepts them and
// at most n. Those of a lane have all ended when Release was called for each.
func (q *Queue[T]) Together(l *Lane[T], n int, take func(T) bool) (out []T) {
	for len(out) < n {
		var v T
		if l != nil {
			if !l.any || !take(l.first) {
				break
			}
			v = l.pop()
			l.more++
		} else {
			if q.ready.len() == 0 || q.ready.front().lane != nil || !take(q.ready.front().v) {
				break
			}
			e, _ := q.ready.pop()
			v = e.v
		}
		q.n--
		out = append(out, v)
	}
	return out
}

// PutBack returns deliveries that Together has started to the front of their lane (nil:
// to the end of the queue), in order: they have not ended, nor run.
func (q *Queue[T]) PutBack(l *Lane[T], vs []T) {
	q.n += len(vs)
	if l == nil {
		for _, v := range vs {
			q.ready.push(entry[T]{v: v})
		}
		return
	}
	l.more -= len(vs)
	for i := len(vs) - 1; i >= 0; i-- {
		l.unshift(vs[i])
	}
}

// Ready is the number of deliveries that may start now.
func (q *Queue[T]) Ready() int { return q.ready.len() }

// Len is the number of deliveries added (or added again) that Next has not returned.
func (q *Queue[T]) Len() int { return q.n }

// Lanes is the number of keys with deliveries that have not ended.
func (q *Queue[T]) Lanes() int { return q.active }

func (q *Queue[T]) newLane(key string) *Lane[T] {
	l := q.free
	if l == nil {
		l = &Lane[T]{}
	} else {
		q.free, l.spare = l.spare, nil
		q.frees--
	}
	l.key = key
	q.lanes[key] = l
	q.peak = max(q.peak, len(q.lanes))
	return l
}

// deque is a FIFO in a ring that grows by doubling and keeps its memory, unless that is
// much.
type deque[T any] struct {
	buf  []T
	head int
	n    int
}

func (d *deque[T]) len() int { return d.n }

// front is the next to be popped; the deque must not be empty.
func (d *deque[T]) front() *T { return &d.buf[d.head] }

func (d *deque[T]) unshift(v T) {
	d.grow()
	d.head = (d.head - 1) & (len(d.buf) - 1)
	d.buf[d.head] = v
	d.n++
}

// grow makes room for one more.
func (d *deque[T]) grow() {
	if d.n < len(d.buf) {
		return
	}
	buf := make([]T, max(4, 2*len(d.buf)))
	for i := range d.n {
		buf[i] = d.buf[(d.head+i)&(len(d.buf)-1)]
	}
	d.buf, d.head = buf, 0
}

func (d *deque[T]) push(v T) {
	d.grow()
	d.buf[(d.head+d.n)&(len(d.buf)-1)] = v
	d.n++
}

func (d *deque[T]) pop() (v T, ok bool) {
	if d.n == 0 {
		return v, false
	}
	var zero T
	v, d.buf[d.head] = d.buf[d.head], zero
	d.head = (d.head + 1) & (len(d.buf) - 1)
	if d.n--; d.n == 0 && len(d.buf) > maxEmpty {
		d.buf, d.head = nil, 0
	}
	return v, true
}
