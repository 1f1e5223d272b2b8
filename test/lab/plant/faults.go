package plant

import (
	"strconv"

	"github.com/varal-go/varal/test/lab/history"
)

func (t *toy) assign(p *partition, owner int) {
	p.owner = owner
	p.fence++
	p.cursor, p.acked = p.committed, p.committed
	p.lanes = map[string][]*task{}
	t.emit(t.workers[owner], history.Event{Op: history.OpAssign, Group: Group, Dest: Dest, Partition: p.name, Fence: p.fence})
}

// commit moves a partition's position over what is terminal and reports those as
// settled. past: over one that still runs as well.
func (t *toy) commit(p *partition, past bool) {
	w := t.workers[p.owner]
	if w.frozen {
		return
	}
	to := p.committed
	for to < p.cursor && (p.log[to].done || p.log[to].gone || p.log[to].settled && t.o.Bug == EarlyAck) {
		to++
	}
	if past && to < p.cursor && !p.log[to].done && p.log[to].attempts > 0 && t.r.IntN(4) == 0 {
		t.planted++
		t.commitLine(w, p, to+1)
		return // the broker of this toy did not mean it: the message runs on
	}
	if to == p.committed {
		return
	}
	t.commitLine(w, p, to)
	for ; p.committed < to; p.committed++ {
		t.settleCommitted(w, p, p.log[p.committed])
	}
}

func (t *toy) commitLine(w *worker, p *partition, to int) {
	t.emit(w, history.Event{Op: history.OpCommit, Group: Group, Dest: Dest, Partition: p.name, Position: strconv.Itoa(to)})
}

func (t *toy) settleCommitted(w *worker, p *partition, m *message) {
	w.held--
	switch {
	case m.settled && t.o.Bug == EarlyAck:
		return
	case m.dead:
		t.settle(w, p, m, history.Reject, "")
	default:
		t.settle(w, p, m, history.Ack, "")
	}
	m.settled = true
	if t.bug(DoubleSettle, 0.03) {
		t.planted++
		t.settle(w, p, m, history.Ack, "")
	}
	if t.bug(Repeated, 0.02) && !m.dead {
		t.planted++
		e := about(history.OpStart, m, p)
		m.attempts++
		e.Attempt = m.attempts
		e.Key, e.N = "", 0 // keyless, so that it is a duplicate and nothing else
		t.now += 1e6
		t.emit(w, e)
		e = about(history.OpEnd, m, p)
		e.Outcome = history.OK
		t.emit(w, e)
	}
}

// kill ends a worker in the middle of whatever it does; others take over from the
// committed positions, and it starts again.
func (t *toy) kill(i int) {
	w := t.workers[i]
	if w.frozen {
		return
	}
	t.labEvent(history.Event{Op: history.OpFault, Outcome: history.FaultKill, Dest: w.name, N: w.gen})
	t.now += 2e6
	w.gen++
	w.seq, w.held, w.lostBefore = 0, 0, nil
	t.hello(w)
	for _, p := range t.parts {
		if p.owner == i {
			t.takeOver(p, i)
		}
	}
}

// takeOver gives a partition to another worker, who begins at what is committed.
func (t *toy) takeOver(p *partition, from int) {
	if t.o.Bug == RewindScrambled {
		defer t.scramble(p, from, p.log[p.committed:p.cursor], doneOf(p.log[p.committed:p.cursor]))
	}
	for _, m := range p.log[p.committed:p.cursor] {
		switch {
		case t.o.Bug == EarlyAck && m.settled:
			if !m.done {
				m.gone, m.done = true, true
				t.planted++
			}
		case !m.dead && m.attempts < MaxAttempts:
			m.done = false
		case m.done && !m.dead: // will run again
			m.done = false
		case m.dead: // the copy is there, the settle is not: it is seen again
			m.done, m.dead = false, false
		}
		if m.attempts >= MaxAttempts && !m.gone {
			m.attempts-- // the last attempt is repeated under its number
		}
	}
	to := (from + 1 + t.r.IntN(2)) % 3
	if t.workers[to].frozen {
		to = from
	}
	t.assign(p, to)
}

func doneOf(log []*message) []bool {
	out := make([]bool, len(log))
	for i, m := range log {
		out[i] = m.done && !m.dead && !m.copies
	}
	return out
}

// scramble lets the new owner repeat two completed messages of a key, the later
// one first.
func (t *toy) scramble(p *partition, from int, log []*message, done []bool) {
	if p.owner == from {
		return
	}
	for j, later := range log {
		for i, earlier := range log[:j] {
			if done[i] && done[j] && earlier.key == later.key {
				t.again(t.workers[p.owner], later, p)
				t.again(t.workers[p.owner], earlier, p)
				later.done, earlier.done = true, true
				return
			}
		}
	}
}

// rebalance moves a partition in good order: nothing runs, the last commit is done.
func (t *toy) rebalance(p *partition) {
	w := t.workers[p.owner]
	to := (p.owner + 1) % 3
	if w.frozen || t.workers[to].frozen {
		return
	}
	for _, lane := range p.lanes {
		if lane[0].running {
			return
		}
	}
	if t.o.Bug != RevokeNoCommit {
		t.commit(p, false)
	}
	for _, m := range p.log[p.committed:p.cursor] {
		w.held--
		if t.o.Bug == EarlyAck && m.settled && !m.done {
			m.gone, m.done = true, true
			t.planted++
			continue
		}
		if m.done && !m.dead { // completed behind a gap: the commit state tells the next owner
			if t.o.Bug == RevokeNoCommit {
				m.done = false
				t.planted++
			}
		}
	}
	t.emit(w, history.Event{Op: history.OpRevoke, Group: Group, Dest: Dest, Partition: p.name})
	t.assign(p, to)
	if t.bug(LateCommit, 0.5) {
		t.planted++
		t.commitLine(w, p, p.committed)
	}
}

// freeze stops a worker until its partitions belong to others.
func (t *toy) freeze(w *worker) {
	for _, x := range t.workers {
		if x.frozen {
			return
		}
	}
	t.labEvent(history.Event{Op: history.OpFault, Outcome: history.FaultFreeze, Dest: w.name, N: w.gen})
	t.now += 5e6
	w.frozen = true
	for i, x := range t.workers {
		if x != w {
			continue
		}
		for _, p := range t.parts {
			if p.owner != i {
				continue
			}
			for _, lane := range p.lanes {
				if lane[0].running {
					w.lostBefore = append(w.lostBefore, lane[0])
				}
			}
			w.lostParts = append(w.lostParts, p.name)
			t.takeOver(p, i)
		}
	}
	w.held = 0
}

// thaw lets it go on: it ends what it ran, and is told that it lost it.
func (t *toy) thaw() {
	for _, w := range t.workers {
		if !w.frozen {
			continue
		}
		t.labEvent(history.Event{Op: history.OpHeal, Outcome: history.FaultFreeze, Dest: w.name, N: w.gen})
		t.now += 1e6
		w.frozen, w.ticked = false, t.now
		for _, x := range w.lostBefore {
			e := about(history.OpEnd, x.m, x.part)
			e.Outcome = history.OK
			t.emit(w, e)
			class := history.LeaseLost
			if t.o.Bug == StaleSettle && x.m.by != w && !x.m.copies {
				class = ""
				t.planted++
			}
			t.settle(w, x.part, x.m, history.Ack, class)
		}
		w.lostBefore = nil
		for _, name := range w.lostParts {
			t.emit(w, history.Event{Op: history.OpLost, Group: Group, Partition: name})
		}
		w.lostParts = nil
	}
}

// call is a public call with a deadline.
func (t *toy) call() {
	w := t.workers[t.r.IntN(len(t.workers))]
	if w.frozen {
		return
	}
	t.calls++
	id := "call-" + strconv.Itoa(t.calls)
	t.emit(w, history.Event{Op: history.OpCall, ID: id, N: 50e6})
	took := int64(t.r.IntN(540e6))
	if t.bug(SlowCall, 0.3) {
		t.planted++
		took = 560e6
	}
	for end := t.now + took; t.now < end; {
		t.now += min(10e6, end-t.now)
		t.tick()
	}
	t.emit(w, history.Event{Op: history.OpRet, ID: id})
}
