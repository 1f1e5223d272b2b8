package plant

import (
	"slices"
	"strconv"

	"github.com/varal-go/varal/test/lab/history"
)

// publish goes one step with a publisher: begin a message, or end the one begun.
func (t *toy) publish(p *publisher) {
	switch {
	case p.pending != nil:
		t.publishEnds(p)
	case p.resend != nil:
		m := p.resend
		p.resend = nil
		t.publishBegins(p, m)
	case t.left > 0:
		t.left--
		// Each publisher has its own keys, and one message on its way: that is
		// what gives N a meaning.
		mine := t.r.IntN(len(t.keys)/len(t.pubs))*len(t.pubs) + slices.Index(t.pubs, p)
		key := t.keys[mine]
		t.next[key]++
		p.counter++
		t.publishBegins(p, &message{
			id: p.name + "." + strconv.Itoa(p.counter), key: key, n: t.next[key], poison: t.r.IntN(12) == 0,
		})
	}
}

func (t *toy) publishBegins(p *publisher, m *message) {
	t.pubEvent(p, history.Event{Op: history.OpPub, ID: m.id, Key: m.key, N: m.n, Dest: Dest})
	p.pending, p.result = m, history.OK
	stored := true
	if t.faults {
		switch k := t.r.IntN(100); {
		case k < 4:
			p.result, stored = history.Unknown, t.r.IntN(2) == 0
		case k < 8:
			p.result, stored = history.Rejected, false
		}
	}
	ok := p.result == history.OK
	m.copies = m.copies || p.result == history.Unknown
	switch {
	case ok && t.bug(Lost, 0.03), ok && t.bug(UnknownAsOK, 0.03), ok && t.bug(DrainShort, 0.03):
		t.planted++
		stored = false
	case ok && t.bug(RejectedStored, 0.03):
		t.planted++
		p.result = history.Rejected
	}
	if stored {
		t.store(m, ok)
	}
}

// store appends to the log; delivery may come before the publisher's confirm.
func (t *toy) store(m *message, ok bool) {
	if back := t.delayed[m.key]; back != nil {
		delete(t.delayed, m.key)
		t.append(m)
		t.append(back)
		t.planted++
		return
	}
	if ok && t.bug(Swapped, 0.05) && t.left > t.o.Messages/4 {
		t.delayed[m.key] = m
		return
	}
	t.append(m)
}

func (t *toy) append(m *message) {
	p := t.parts[slices.Index(t.keys, m.key)%len(t.parts)]
	m.offset = len(p.log)
	p.log = append(p.log, m)
}

func (t *toy) publishEnds(p *publisher) {
	m := p.pending
	p.pending = nil
	t.pubEvent(p, history.Event{Op: history.OpPubd, ID: m.id, Dest: Dest, Outcome: p.result})
	if p.result == history.Unknown && t.r.IntN(2) == 0 {
		p.resend = &message{id: m.id, key: m.key, n: m.n, poison: m.poison, copies: true} // a copy of its own at the broker
	}
	if t.left == 0 { // nothing follows that would swap with it
		for k, back := range t.delayed {
			delete(t.delayed, k)
			t.append(back)
		}
	}
}

// receive hands the owner its next message.
func (t *toy) receive(p *partition) {
	w := t.workers[p.owner]
	limit := InFlight
	if t.o.Bug == OverLimit {
		limit = InFlight + 1
	}
	if w.frozen || p.cursor >= len(p.log) || w.held >= limit {
		return
	}
	m := p.log[p.cursor]
	p.cursor++
	if m.gone {
		return
	}
	w.held++
	if w.held > InFlight {
		t.planted++
	}
	e := about(history.OpRecv, m, p)
	if t.bug(Corrupted, 0.02) {
		t.planted++
		e.Outcome = history.Corrupt
	}
	t.emit(w, e)
	if t.bug(Phantom, 0.02) {
		t.planted++
		ghost := history.Event{Op: history.OpStart, ID: "ghost." + strconv.Itoa(t.planted), Group: Group, Attempt: 1}
		t.emit(w, ghost)
		ghost.Op, ghost.Outcome, ghost.Attempt = history.OpEnd, history.OK, 0
		t.emit(w, ghost)
	}
	if m.done { // completed behind a gap: the commit state said so
		return
	}
	p.lanes[m.key] = append(p.lanes[m.key], &task{m: m, part: p})
	if t.bug(EarlyAck, 0.2) && m.attempts == 0 && !m.settled {
		m.settled = true
		t.settle(w, p, m, history.Ack, "")
		t.emit(w, history.Event{Op: history.OpCommit, Group: Group, Dest: Dest, Partition: p.name, Position: strconv.Itoa(m.offset + 1)})
	}
}

func (t *toy) settle(w *worker, p *partition, m *message, how, class string) {
	e := about(history.OpSettled, m, p)
	e.Outcome, e.Class = how, class
	t.emit(w, e)
}

// work goes one step with one lane of a partition: start its head, or end it.
func (t *toy) work(p *partition) {
	w := t.workers[p.owner]
	if w.frozen || len(p.lanes) == 0 {
		return
	}
	keys := make([]string, 0, len(p.lanes))
	for k := range p.lanes {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	lane := p.lanes[keys[t.r.IntN(len(keys))]]
	head := lane[0]
	if !head.running {
		t.start(w, head)
		if t.bug(Stolen, 0.05) && !head.m.copies && !head.m.poison && !head.m.spoilt {
			head.m.spoilt = true
			t.again(t.workers[(p.owner+1)%3], head.m, p)
		}
		if t.bug(Overlapped, 0.1) && len(lane) > 1 && !lane[1].m.spoilt {
			t.beside(head, lane[1], (p.owner+1)%3)
		}
		return
	}
	t.end(w, head)
	if t.bug(Overtaken, 0.5) && len(lane) > 1 && !head.m.done && !lane[1].m.spoilt {
		t.beside(head, lane[1], p.owner)
	}
}

// beside runs a later message of a lane before its head is terminal.
func (t *toy) beside(head, next *task, at int) {
	if t.workers[at].frozen || next.m.attempts > 0 {
		return
	}
	w := t.workers[at]
	next.m.spoilt = true
	t.planted++
	next.m.attempts++
	e := about(history.OpStart, next.m, next.part)
	e.Attempt = next.m.attempts
	t.now += 100_000
	t.emit(w, e)
	t.now += 100_000
	e = about(history.OpEnd, next.m, next.part)
	e.Outcome = history.OK
	t.emit(w, e)
	t.now += 100_000
	next.m.done = true
	lane := next.part.lanes[next.m.key]
	next.part.lanes[next.m.key] = slices.DeleteFunc(lane, func(x *task) bool { return x == next })
	_ = head
}

// again starts and completes a message at w, whatever else is going on.
func (t *toy) again(w *worker, m *message, p *partition) {
	if w.frozen {
		return
	}
	t.planted++
	t.now += 100_000
	e := about(history.OpStart, m, p)
	m.attempts++
	e.Attempt = m.attempts
	t.emit(w, e)
	t.now += 100_000
	e = about(history.OpEnd, m, p)
	e.Outcome = history.OK
	t.emit(w, e)
	t.now += 100_000
}

func (t *toy) start(w *worker, x *task) {
	x.running = true
	x.m.by = w
	x.m.attempts++
	e := about(history.OpStart, x.m, x.part)
	e.Attempt = x.m.attempts
	if t.o.Bug == AttemptsReset && e.Attempt > 1 {
		e.Attempt = 1
		t.planted++
	}
	if t.bug(OtherKey, 0.02) {
		t.planted++
		e.Key, e.N = "", x.m.n+1
	}
	t.emit(w, e)
}

func (t *toy) end(w *worker, x *task) {
	x.running = false
	m := x.m
	e := about(history.OpEnd, m, x.part)
	switch {
	case m.poison || t.r.IntN(10) == 0:
		e.Outcome = history.Fail
	case t.faults && t.r.IntN(30) == 0:
		e.Outcome = history.Cancelled
	default:
		e.Outcome = history.OK
	}
	t.emit(w, e)
	switch e.Outcome {
	case history.Cancelled:
		m.attempts-- // not counted
	case history.OK:
		t.terminal(x)
		if t.bug(DoneAndDead, 0.03) && !m.spoilt {
			m.spoilt = true
			t.planted++
			t.bury(m)
		}
	default:
		t.failed(x)
	}
}

func (t *toy) failed(x *task) {
	m := x.m
	m.fails++
	limit := MaxAttempts
	switch t.o.Bug {
	case DeadEarly:
		limit = 1
	case AttemptsBeyond:
		limit = MaxAttempts + 1
	}
	if m.attempts < limit {
		return
	}
	if limit != MaxAttempts {
		t.planted++
	}
	m.dead = true
	t.bury(m)
	if t.bug(DeadTwice, 0.5) {
		t.planted++
		t.bury(m)
	}
	t.terminal(x)
}

// bury writes a dead letter.
func (t *toy) bury(m *message) {
	c := *m
	t.letters = append(t.letters, &c)
	i := len(t.letters) - 1
	if t.o.Bug != DeadSwapped {
		return
	}
	for j := i - 1; j >= t.read; j-- {
		if t.letters[j].key == m.key && t.letters[j].n < m.n {
			t.letters[i], t.letters[j] = t.letters[j], t.letters[i]
			t.planted++
			return
		}
	}
}

func (t *toy) readLetters() {
	if t.o.Bug == DeadSwapped && t.left > 0 { // let them gather
		return
	}
	for ; t.read < len(t.letters); t.read++ {
		m := t.letters[t.read]
		t.now += 10
		t.reader++
		t.out = append(t.out, history.Event{
			Proc: "dlq", Gen: 1, Seq: t.reader, T: t.now, Op: history.OpDead,
			ID: m.id, Key: m.key, N: m.n, Dest: DeadDest, Group: Group,
		})
	}
}

// terminal takes a message off its lane.
func (t *toy) terminal(x *task) {
	x.m.done = true
	p := x.part
	if p.lanes[x.m.key] = p.lanes[x.m.key][1:]; len(p.lanes[x.m.key]) == 0 {
		delete(p.lanes, x.m.key)
	}
}
