package sendlane

// node is the place of one T in a chain. It is part of the T, so that leaving from the
// middle is one step and costs no allocation.
type node[T any] struct {
	prev, next *node[T]
	of         *T
}

// chain is a list of nodes, oldest first.
type chain[T any] struct{ head, tail *node[T] }

func (c *chain[T]) add(n *node[T], of *T) {
	n.of, n.prev, n.next = of, c.tail, nil
	if c.tail == nil {
		c.head = n
	} else {
		c.tail.next = n
	}
	c.tail = n
}

// remove takes n out, unless it is in no chain.
func (c *chain[T]) remove(n *node[T]) {
	if n.of == nil {
		return
	}
	if n.prev == nil {
		c.head = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		c.tail = n.prev
	} else {
		n.next.prev = n.prev
	}
	*n = node[T]{}
}
