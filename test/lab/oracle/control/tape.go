package control

import (
	"slices"
	"strconv"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
)

// tape is a log whose broker takes any commit from anybody: no adapter of ours would let
// a late one through.
type tape struct {
	log       []*driver.Message
	committed int
}

// read hands a member everything from the committed position to end.
func (t *tape) read(m *member, end int) []*driver.Received {
	m.emit(history.Event{Op: history.OpAssign, Group: Group, Dest: Dest, Partition: "0"})
	var out []*driver.Received
	for i := t.committed; i < end; i++ {
		r := &driver.Received{Message: *t.log[i], Offset: int64(i), Receipt: driver.Receipt{Partition: "0"}}
		m.emit(about(history.OpRecv, r))
		out = append(out, r)
	}
	return out
}

// commit sets the position to next.
func (t *tape) commit(m *member, next int) {
	for i := t.committed; i < next; i++ {
		r := &driver.Received{Message: *t.log[i], Offset: int64(i), Receipt: driver.Receipt{Partition: "0"}}
		e := about(history.OpSettled, r)
		e.Outcome = history.Ack
		m.emit(e)
	}
	t.committed = next
	m.emit(history.Event{Op: history.OpCommit, Group: Group, Dest: Dest, Partition: "0", Position: strconv.Itoa(next)})
}

func (t *tape) revoke(m *member) error {
	m.emit(history.Event{Op: history.OpRevoke, Group: Group, Dest: Dest, Partition: "0"})
	return m.rec.Err()
}

// work handles what was read, and commits.
func (t *tape) work(m *member, end int) {
	for _, r := range t.read(m, end) {
		m.start(r)
		m.end(r, history.OK, "")
	}
	t.commit(m, end)
}

// lateAck: a mark of m1 lies in a buffer, and is flushed when m2 has committed more. The
// position goes back, and after the next hand-over everything from there is done again.
func lateAck(s *stage) error {
	t := &tape{}
	all := s.make(20+s.rng.IntN(20), 4)
	store := func(m *driver.Message) error { t.log = append(t.log, m); return nil }
	if err := s.publish(store, all); err != nil {
		return err
	}
	var m [3]*member
	for i := range m {
		var err error
		if m[i], err = s.member("m" + strconv.Itoa(i+1)); err != nil {
			return err
		}
	}
	mine := 3 + s.rng.IntN(len(all)-6)
	t.work(m[0], mine)
	if err := t.revoke(m[0]); err != nil {
		return err
	}
	t.work(m[1], len(all))
	t.commit(m[0], 1+s.rng.IntN(mine))
	if err := t.revoke(m[1]); err != nil {
		return err
	}
	t.work(m[2], len(all))
	if err := t.revoke(m[2]); err != nil {
		return err
	}
	if err := s.drained(); err != nil {
		return err
	}
	for i := range m {
		if err := m[i].rec.Close(); err != nil {
			return err
		}
	}
	return nil
}

var letters = driver.Destination{Shape: driver.Queue, Name: Letters, Partitions: 1}

// scrambledLetters fails the first two messages of k0 for good. Two writers of the pool
// copy them to the dead letters, the second first.
func scrambledLetters(s *stage) error {
	d, err := s.client()
	if err != nil {
		return err
	}
	if err := s.create(d, letters); err != nil {
		return err
	}
	all := s.make(20+s.rng.IntN(20), 4)
	m, err := s.filled(queue, lease, all)
	if err != nil {
		return err
	}
	got, err := m.receive(len(all))
	if err != nil {
		return err
	}
	for _, r := range got[:2] {
		m.start(r)
		m.end(r, history.Fail, history.Permanent)
	}
	for _, r := range []*driver.Received{got[1], got[0]} {
		if err := d.Publish(s.ctx, letters, []*driver.Message{&r.Message}); err != nil {
			return err
		}
		if err := m.settle(driver.Reject, r); err != nil {
			return err
		}
	}
	for _, r := range got[2:] {
		if err := m.done(r); err != nil {
			return err
		}
	}
	if err := s.readLetters(d); err != nil {
		return err
	}
	return s.finish(m)
}

// readLetters records the dead letters in the order in which they lie there.
func (s *stage) readLetters(d driver.Driver) error {
	con, err := d.Subscribe(s.ctx, driver.Subscription{
		From: letters, Group: Group, Assigned: func(driver.Assignment) {}, Revoke: noRevoke,
	})
	if err != nil {
		return err
	}
	reader := &member{s: s, con: con}
	for {
		n, err := s.lag(d, letters)
		if err != nil {
			return err
		}
		if n == 0 {
			return con.Close(s.ctx)
		}
		got, err := reader.some(1)
		if err != nil {
			return err
		}
		for _, r := range got {
			s.lab.Emit(history.Event{
				Op: history.OpDead, ID: r.ID, Key: r.Key, N: number(&r.Message), Group: Group, Dest: Letters,
			})
		}
		if err := reader.settle(driver.Ack, got...); err != nil {
			return err
		}
	}
}

// lanesKept is right about messages, and keeps a lane for each key that it ever saw.
func lanesKept(s *stage) error {
	all := s.make(30+s.rng.IntN(30), 20)
	m, err := s.filled(queue, lease, all)
	if err != nil {
		return err
	}
	lanes := map[string][]*driver.Received{}
	m.rec.Resource("lanes", len(lanes))
	got, err := m.receive(len(all))
	if err != nil {
		return err
	}
	for _, r := range got {
		lanes[r.Key] = append(lanes[r.Key], r)
		if err := m.done(r); err != nil {
			return err
		}
		lanes[r.Key] = slices.Delete(lanes[r.Key], 0, 1)
	}
	m.rec.Resource("lanes", len(lanes))
	return s.finish(m)
}
