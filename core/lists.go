package core

// flightList is the intrusive list of all flights, oldest first. Guarded by
// Consumer.mu.
type flightList struct {
	head, tail *flight
	n          int
}

func (l *flightList) add(f *flight) {
	f.prev, f.next = l.tail, nil
	if l.tail == nil {
		l.head = f
	} else {
		l.tail.next = f
	}
	l.tail = f
	l.n++
}

func (l *flightList) remove(f *flight) {
	if f.prev == nil {
		l.head = f.next
	} else {
		f.prev.next = f.next
	}
	if f.next == nil {
		l.tail = f.prev
	} else {
		f.next.prev = f.prev
	}
	f.prev, f.next = nil, nil
	l.n--
}

// waitHeap orders flights in back-off by due time, which their trouble holds. Guarded by
// Consumer.mu.
type waitHeap []*flight

func (h *waitHeap) push(f *flight) {
	f.heap = len(*h)
	*h = append(*h, f)
	h.up(f.heap)
}

func (h *waitHeap) pop() *flight {
	f := (*h)[0]
	h.remove(f)
	return f
}

func (h *waitHeap) remove(f *flight) {
	i, last := f.heap, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	if i < last {
		h.down(i)
		h.up(i)
	}
	f.heap = -1
}

func (h waitHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}

func (h waitHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h[i].bad.due.Before(h[parent].bad.due) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h waitHeap) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].bad.due.Before(h[least].bad.due) {
				least = child
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}
