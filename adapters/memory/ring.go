package memory

// ring is a queue of pointers that reuses its space.
type ring[T any] struct {
	buf  []*T // length is 0 or a power of two
	head int
	n    int
}

func (r *ring[T]) len() int { return r.n }

func (r *ring[T]) push(v *T) {
	if r.n == len(r.buf) {
		r.resize(max(16, 2*r.n))
	}
	r.buf[(r.head+r.n)&(len(r.buf)-1)] = v
	r.n++
}

// at returns the i-th element, 0 being the oldest.
func (r *ring[T]) at(i int) *T { return r.buf[(r.head+i)&(len(r.buf)-1)] }

func (r *ring[T]) pop() *T {
	v := r.buf[r.head]
	r.buf[r.head] = nil
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
	// A backlog that was worked off gives its space back, but for a block that a steady
	// flow would allocate again at once.
	if r.n == 0 && len(r.buf) > 4096 {
		r.buf, r.head = nil, 0
	}
	return v
}

func (r *ring[T]) resize(size int) {
	buf := make([]*T, size)
	for i := range r.n {
		buf[i] = r.at(i)
	}
	r.buf, r.head = buf, 0
}

// keep drops the elements for which f is false.
func (r *ring[T]) keep(f func(*T) bool) {
	n := 0
	for i := range r.n {
		v := r.at(i)
		if f(v) {
			r.buf[(r.head+n)&(len(r.buf)-1)] = v
			n++
		}
	}
	for i := n; i < r.n; i++ {
		r.buf[(r.head+i)&(len(r.buf)-1)] = nil
	}
	r.n = n
}
