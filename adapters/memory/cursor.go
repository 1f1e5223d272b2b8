package memory

import (
	"slices"

	"github.com/varal-go/varal/core/driver"
)

// cursor is the source of streams: where one group is in each partition. Guarded by the
// group's lock; the logs by the destination's, taken after it.
type cursor struct {
	g         *group
	committed []int64
	state     [][]byte
}

func newCursor(g *group) *cursor {
	n := g.d.partitions
	return &cursor{g: g, committed: make([]int64, n), state: make([][]byte, n)}
}

// seek moves the group and forgets its State. The destination's lock is held.
func (c *cursor) seek(op string, to driver.Position) error {
	if to.Partition != "" && !slices.Contains(c.g.d.names, to.Partition) {
		return driver.Errorf(op, driver.NotFound, "Position.Partition %q: the stream has %q to %q", to.Partition, "0", c.g.d.names[len(c.g.d.names)-1])
	}
	if to.Kind > driver.Since || to.Offset < 0 {
		return driver.Errorf(op, driver.Permanent, "Position has Kind %d and Offset %d, which is not a place in a stream", to.Kind, to.Offset)
	}
	if to.ID != "" {
		return driver.Errorf(op, driver.Unsupported, "position: Position.ID has no meaning here, use Offset")
	}
	now := c.g.d.broker.now()
	for i, l := range c.g.d.logs {
		if to.Partition == "" || to.Partition == c.g.d.names[i] {
			l.trim(now)
			c.committed[i], c.state[i] = l.resolve(to), nil
		}
	}
	return nil
}

// advance implements source: nothing of a stream waits for a time.
func (c *cursor) advance(int64) int64 { return never }

func (c *cursor) take(m *consumer, w *want) {
	d := c.g.d
	c.trim(w.now)
	d.mu.RLock()
	defer d.mu.RUnlock()
	m.eachTenure(w, func(t *tenure) { c.takePart(m, t, w) })
}

// trim applies the limit of age, which nobody else does while nothing is published.
func (c *cursor) trim(now int64) {
	d := c.g.d
	d.mu.RLock()
	stale := slices.ContainsFunc(d.logs, func(l *log) bool { return l.stale(now) })
	d.mu.RUnlock()
	if !stale {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.logs {
		l.trim(now)
	}
}

func (c *cursor) takePart(m *consumer, t *tenure, w *want) {
	l := c.g.d.logs[t.part]
	if t.stopped || !c.inRange(m, t, l) {
		return
	}
	for w.quota > 0 && !w.full && t.next < l.next() {
		s := l.ring.at(int(t.next - l.first))
		if !w.admit(s.size, len(m.buf)) {
			return
		}
		r := m.slot()
		r.Message = s.Message
		r.Receipt = driver.Receipt{Partition: t.name, Epoch: t.epoch, Seq: t.next}
		r.Offset = t.next
		t.next++
	}
}

// inRange applies Reset to a position that the log does not have (any more).
func (c *cursor) inRange(m *consumer, t *tenure, l *log) bool {
	if t.next >= l.first && t.next <= l.next() {
		return true
	}
	m.events = append(m.events, driver.Event{
		Kind: driver.OutOfRange, Partition: t.name,
		Err: driver.Errorf(m.op("receive"), driver.NotFound, "partition %s has offsets %d to %d, the group is at %d; Reset is %s",
			t.name, l.first, l.next(), t.next, m.sub.Reset),
	})
	switch m.sub.Reset {
	case driver.Earliest:
		t.next = l.first
	case driver.Latest:
		t.next = l.next()
	default:
		t.stopped = true
		return false
	}
	// Were the old position kept, commits below it would count as older than it.
	c.committed[t.part], c.state[t.part] = t.next, nil
	return true
}

// settle commits: an Ack covers everything up to and including its receipt.
func (c *cursor) settle(m *consumer, s *driver.Settlement, _ int64) error {
	i := slices.IndexFunc(m.tenures, func(t *tenure) bool {
		return t.epoch == s.Receipt.Epoch && t.name == s.Receipt.Partition && (t.state == open || t.state == revoking)
	})
	if i < 0 {
		return driver.Errorf(m.op("settle"), driver.LeaseLost, "partition %q is no longer owned under epoch %d", s.Receipt.Partition, s.Receipt.Epoch)
	}
	t := m.tenures[i]
	switch s.Disposition {
	case driver.Return: // not committed, so the next owner gets it
		return nil
	case driver.Nack:
		return driver.Errorf(m.op("settle"), driver.Unsupported, "delay-nack: a stream takes nothing back; hold the message, or publish a copy")
	case driver.Extend:
		return driver.Errorf(m.op("settle"), driver.Unsupported, "lease: messages of a stream have none")
	case driver.Ack, driver.Reject, driver.Hold:
	default:
		return driver.Errorf(m.op("settle"), driver.Permanent, "Disposition %d is invalid", s.Disposition)
	}
	if len(s.State) > maxState {
		return driver.Errorf(m.op("settle"), driver.TooLarge, "State has %d bytes, at most %d", len(s.State), maxState)
	}
	if s.Receipt.Seq < 0 || s.Receipt.Seq >= t.next {
		return driver.Errorf(m.op("settle"), driver.Permanent, "offset %d was not handed out", s.Receipt.Seq)
	}
	next := s.Receipt.Seq + 1
	if s.Disposition == driver.Hold {
		next--
	}
	if c.g.hidden || next < c.committed[t.part] {
		return nil // nothing to keep, or older than what is committed
	}
	c.committed[t.part], c.state[t.part] = next, slices.Clone(s.State)
	return nil
}

// release implements source: what was not committed is read again by the next owner.
func (c *cursor) release(*tenure) {}

func (c *cursor) describe(t *tenure) driver.Assignment {
	d := c.g.d
	d.mu.RLock()
	high := d.logs[t.part].next()
	d.mu.RUnlock()
	t.next = c.committed[t.part]
	return driver.Assignment{
		Partition: t.name, Epoch: t.epoch, Fence: t.fence,
		Committed: driver.Position{Kind: driver.At, Partition: t.name, Offset: t.next},
		High:      driver.Position{Kind: driver.At, Partition: t.name, Offset: high},
		State:     slices.Clone(c.state[t.part]),
	}
}
