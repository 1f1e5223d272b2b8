package core_test

import (
	"slices"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/state"
)

// stored is what the broker's own records say is done. Callers hold mu.
func (w *ilWorld) stored(p *ilPart) []bool {
	if w.mode == driver.Each {
		return slices.Clone(p.acked)
	}
	return p.claimed(p.committed, p.state)
}

// claimed is what a commit says is done.
func (p *ilPart) claimed(position int, raw []byte) []bool {
	out := make([]bool, len(p.keys))
	known, err := state.Decode(raw, "queue in", p.name, int64(position), int64(len(p.keys)), 1)
	for i := range out {
		out[i] = i < position || err == nil && known.Done(int64(i), p.keys[i], true)
	}
	return out
}

// begin judges the start of a run: O1 and O2, that what is done is not run again, and that
// attempts are counted. Callers hold mu.
func (w *ilWorld) begin(m *ilMember, r *ilRun) {
	o, p := r.o, r.o.part
	id, key := p.id(r.i), p.keys[r.i]
	if o.closed {
		w.violation("%s started under an epoch whose revoke had returned", id)
	}
	if o.known[r.i] {
		w.violation("%s started although the commit said it was done", id)
	}
	for _, other := range w.members {
		for _, x := range other.runs {
			switch {
			case x.o.part.keys[x.i] != key:
			case other == m:
				w.violation("O1: %s started while %s ran in the same member", id, x.o.part.id(x.i))
			case !x.o.lost && !o.lost:
				w.violation("O1: %s started while %s ran in the other member, and nothing was lost", id, x.o.part.id(x.i))
			default:
				w.overlaps++
			}
		}
	}
	for i := range p.keys {
		switch {
		case p.keys[i] != key:
		case i < r.i && !o.done[i]:
			w.violation("O2: %s started before %s had ended", id, p.id(i))
		case i > r.i && o.done[i] && !o.known[i]:
			w.violation("O2: %s started after %s", id, p.id(i))
		}
	}
	w.attempts(r)
}

// handedOver: the records say all that was done when a clean revoke has returned, also of
// what an earlier state told and has not come again since. Callers hold mu.
func (w *ilWorld) handedOver(o *ownership) {
	for i, stored := range w.stored(o.part) {
		if o.done[i] && !stored && w.keepsAll() {
			w.violation("%s was done, and a clean hand-over does not say so", o.part.id(i))
		}
	}
}

// attempts: no failure is invented, and none is forgotten by a clean hand-over.
func (w *ilWorld) attempts(r *ilRun) {
	p := r.o.part
	got, want := r.attempt-1, p.failures[r.i]
	exact := !w.unclean && w.mode == driver.UpTo && w.stateBytes > 0
	if got > want || exact && got != want {
		w.violation("%s is at attempt %d after %d failures", p.id(r.i), r.attempt, want)
	}
}

// outcome takes the end of a run. Callers hold mu.
func (w *ilWorld) outcome(m *ilMember, r *ilRun, ok bool) {
	m.runs = slices.DeleteFunc(m.runs, func(x *ilRun) bool { return x == r })
	p := r.o.part
	if !ok {
		p.failures[r.i]++
		return
	}
	r.o.done[r.i] = true
	p.success[r.i]++
}

// judge looks at a settlement when it is sent: W1, W3, and that a state claims nothing
// that is not so. Callers hold mu.
func (w *ilWorld) judge(m *ilMember, st *driver.Settlement) {
	o := m.owned[st.Receipt.Epoch]
	p := o.part
	if o.closed {
		w.violation("W3: %s of %s after its revoke had returned", st.Disposition, p.id(int(st.Receipt.Aux)))
	}
	if w.mode == driver.Each {
		if i := int(st.Receipt.Aux); st.Disposition != driver.Ack || !o.done[i] {
			w.violation("W2: %s of %s, done %v", st.Disposition, p.id(i), o.done[i])
		}
		return
	}
	for i, claimed := range p.claimed(position(st), st.State) {
		switch {
		case !claimed || o.done[i]:
		case i < position(st):
			w.violation("W1: commit of %d passes %s, which has not ended", position(st), p.id(i))
		default:
			w.violation("the state beside %d claims %s, which has not ended", position(st), p.id(i))
		}
	}
}

// carry has the broker do what a settlement asks for. Callers hold mu.
func (w *ilWorld) carry(m *ilMember, st *driver.Settlement) error {
	o := m.owned[st.Receipt.Epoch]
	p := o.part
	if p.own != o && w.bug != "no fence" {
		return driver.Errorf("settle", driver.LeaseLost, "not yours")
	}
	if p.own != o {
		w.violation("W3: %s of %s for an owner that has lost it", st.Disposition, p.id(int(st.Receipt.Aux)))
	}
	if w.mode == driver.Each {
		p.acked[st.Receipt.Aux] = true
		return nil
	}
	if position(st) < p.committed {
		w.violation("commit goes back from %d to %d", p.committed, position(st))
	}
	p.committed, p.state = position(st), slices.Clone(st.State)
	return nil
}

// complete: all has ended, in fact and at the broker, and nothing is under way.
func (w *ilWorld) complete() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.parts {
		if w.mode == driver.UpTo && p.committed < len(p.keys) || w.mode == driver.Each && slices.Contains(p.acked, false) || p.own.revoking {
			return false
		}
	}
	for _, m := range w.members {
		if len(m.runs) > 0 || m.settling != nil || m.due() != nil || m.s != nil && m.s.Status().InFlight > 0 {
			return false
		}
	}
	w.total()
	return true
}

// total: nothing is lost, and nothing is done twice as long as no ownership was lost.
func (w *ilWorld) total() {
	for _, p := range w.parts {
		for i, n := range p.success {
			if n == 0 {
				w.violation("%s was never handled", p.id(i))
			} else if n > 1 && !w.unclean && w.keepsAll() {
				w.violation("%s was handled %d times, and nothing was lost", p.id(i), n)
			}
		}
	}
}

// falsify plants a bug in what a member says to its broker. Callers hold mu.
func (w *ilWorld) falsify(st *driver.Settlement) {
	p := w.part(st.Receipt.Partition)
	o := p.own
	switch {
	case w.mode == driver.Each || st.Receipt.Epoch != o.epoch:
	case w.bug == "commit the highest":
		for i, done := range o.done {
			if done && i > int(st.Receipt.Aux) {
				st.Receipt.Aux, st.Disposition, st.State = int64(i), driver.Ack, nil
			}
		}
	case w.bug == "state claims too much" && len(st.State) > 0:
		high := int64(-1)
		for i, given := range o.given {
			if given {
				high = int64(i)
			}
		}
		base := int64(position(st))
		st.State = state.Encode(state.Snapshot{Source: "queue in", Partition: p.name, Base: base, High: high, KeyFn: 1, Ordered: true}, w.stateBytes)
	}
}
