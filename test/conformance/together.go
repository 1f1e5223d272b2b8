package conformance

import "sync"

// together lets a case meet one fault on all its shapes at once: a broker restarts
// once and not once for each.
type together struct {
	mu      sync.Mutex
	members int
	arrived int
	next    chan struct{} // closed when this meeting is over
	pending func()        // what the first to arrive wants done
	heal    func()        // what ends the fault under way; written inside do
}

func newTogether(members int) *together {
	return &together{members: members, next: make(chan struct{})}
}

// do waits until every member that is left has called it; the last one runs f.
func (m *together) do(f func()) {
	m.mu.Lock()
	m.arrived++
	if m.pending == nil {
		m.pending = f
	}
	if m.arrived < m.members {
		next := m.next
		m.mu.Unlock()
		<-next
		return
	}
	m.mu.Unlock()
	defer m.over() // also when f ends the goroutine
	f()
}

// over ends a meeting.
func (m *together) over() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrived, m.pending = 0, nil
	close(m.next)
	m.next = make(chan struct{})
}

// leave takes a member out: it is through, has failed, or is refused on its shape. If all
// the others wait for it, it does what they wait for.
func (m *together) leave() {
	m.mu.Lock()
	m.members--
	meet, f := m.members > 0 && m.arrived == m.members, m.pending
	m.mu.Unlock()
	if meet {
		defer m.over()
		f()
	}
}
