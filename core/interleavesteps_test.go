package core_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/state"
)

// step is one thing that may happen next.
type step struct {
	name     string
	disrupts bool
	fails    bool
	delays   bool // it is not what would come first
	do       func()
}

// steps lists what may happen next, always in the same order. The world stands still.
func (w *ilWorld) steps() (out []step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, s := range w.allSteps() {
		if s.delays = i > 0 && !s.disrupts && !s.fails && w.delays != anyOrder; !s.delays || w.delays > 0 {
			out = append(out, s)
		}
	}
	return out
}

func (w *ilWorld) allSteps() (out []step) {
	for _, m := range w.members {
		out = append(out, w.memberSteps(m)...)
	}
	out = append(out, step{name: "tick", do: w.tick})
	if w.left == 0 {
		return out
	}
	for _, p := range w.parts {
		o := p.own
		if o.revoking {
			continue
		}
		out = append(out,
			step{name: "revoke " + p.name, disrupts: true, do: func() { w.revoke(o, false) }},
			step{name: "lose " + p.name, disrupts: true, do: func() { w.lose(o) }})
	}
	for _, m := range w.members {
		if m.owns() {
			out = append(out, step{name: fmt.Sprint("crash ", m.name), disrupts: true, do: func() { w.crash(m) }})
		}
	}
	return out
}

// memberSteps are those of one member.
func (w *ilWorld) memberSteps(m *ilMember) (out []step) {
	add := func(disrupts bool, do func(), format string, args ...any) {
		out = append(out, step{name: fmt.Sprintf("%d: ", m.name) + fmt.Sprintf(format, args...), disrupts: disrupts, do: do})
	}
	for _, p := range w.parts {
		if i := p.own.next(w.bug); p.own.member == m && m.receiving && i >= 0 {
			add(false, func() { w.deliver(p.own, i) }, "deliver %s", p.id(i))
		}
	}
	for _, r := range m.runs {
		add(false, func() { w.endRun(m, r, nil) }, "ok %s", r.o.part.id(r.i))
		if w.fails > 0 && r.o.part.failures[r.i] == 0 {
			add(false, func() { w.endRun(m, r, errors.New("no")) }, "fail %s", r.o.part.id(r.i))
			out[len(out)-1].fails = true
		}
	}
	if m.settling != nil {
		add(false, func() { w.settled(m, true, nil) }, "commit")
		if w.left > 0 {
			add(true, func() { w.settled(m, true, driver.Errorf("settle", driver.Ambiguous, "cut off")) }, "commit, answer lost")
			add(true, func() { w.settled(m, false, driver.Errorf("settle", driver.Transient, "busy")) }, "commit refused")
		}
	}
	if o := m.due(); o != nil {
		add(false, func() { w.notice(o) }, "hears of the loss of %s", o.part.name)
	}
	return out
}

// due is a loss that the member does not know of.
func (m *ilMember) due() *ownership {
	var first *ownership
	for _, o := range m.owned {
		if o.noticeDue && (first == nil || o.epoch < first.epoch) {
			first = o
		}
	}
	return first
}

func (m *ilMember) owns() bool {
	for _, p := range m.w.parts {
		if p.own.member == m {
			return true
		}
	}
	return false
}

// next is the message to hand out, -1 = none.
func (o *ownership) next(bug string) int {
	for i, given := range o.given {
		if given {
			continue
		}
		if bug == "order swapped" && i == 0 && len(o.given) > 2 && !o.given[2] {
			return 2
		}
		return i
	}
	return -1
}

func (w *ilWorld) deliver(o *ownership, i int) {
	w.mu.Lock()
	o.given[i], o.admitted[i] = true, !o.revoking
	p := o.part
	w.mu.Unlock()
	o.member.give <- driver.Received{
		Message: driver.Message{ID: p.id(i), Key: p.keys[i], Time: time.Unix(1, 0)}, Offset: int64(i),
		Receipt: driver.Receipt{Partition: p.name, Epoch: o.epoch, Seq: int64(i), Aux: int64(i)},
	}
}

func (w *ilWorld) endRun(m *ilMember, r *ilRun, err error) {
	w.mu.Lock()
	w.outcome(m, r, err == nil)
	if err != nil {
		w.fails--
	}
	w.mu.Unlock()
	r.end <- err
}

// settled answers a Settle, carried out or not.
func (w *ilWorld) settled(m *ilMember, carried bool, answer error) {
	w.mu.Lock()
	batch := m.settling
	m.settling, m.ticked = nil, false
	errs := make([]error, len(batch))
	for i := range batch {
		if carried {
			errs[i] = w.carry(m, &batch[i])
		}
		if answer != nil {
			errs[i] = answer
		}
	}
	w.mu.Unlock()
	m.answer <- driver.Batch(errs)
}

// lose takes a partition away; the member hears of it later, or never.
func (w *ilWorld) lose(o *ownership) {
	w.mu.Lock()
	o.lost, o.noticeDue, w.unclean = true, true, true
	w.mu.Unlock()
	w.assign(o.part, 1-o.part.owner)
}

func (w *ilWorld) notice(o *ownership) {
	w.mu.Lock()
	o.noticeDue = false
	w.mu.Unlock()
	w.revoke(o, true)
}

// crash ends a member, and another process takes its place. Its partitions go to the
// other member.
func (w *ilWorld) crash(m *ilMember) {
	w.stop(m)
	w.mu.Lock()
	w.unclean = true
	w.ended = append(w.ended, m)
	w.members[m.name] = w.newMember(m.name)
	var orphans []*ilPart
	for _, p := range w.parts {
		if p.own.member == m {
			orphans = append(orphans, p)
			p.own.lost = true
		}
	}
	w.mu.Unlock()
	for _, p := range orphans {
		w.assign(p, 1-m.name)
	}
}

// tick lets every timer of the engine end.
func (w *ilWorld) tick() {
	w.mu.Lock()
	for _, m := range w.members {
		m.ticked = true
		for _, r := range m.runs {
			r.ticked = true
		}
		for _, o := range m.owned {
			o.ticked = true
		}
	}
	w.mu.Unlock()
	time.Sleep(ilTick)
}

// take carries out a step and waits until the world stands still again.
func (w *ilWorld) take(s *step) {
	if s.disrupts {
		w.left--
	}
	if s.delays {
		w.delays--
	}
	s.do()
	synctest.Wait()
	if w.idle++; s.name != "tick" {
		w.idle = 0
	}
	for {
		o := w.returned()
		if o == nil {
			return
		}
		w.handOver(o)
		synctest.Wait()
	}
}

// returned is an ownership whose clean revoke has returned.
func (w *ilWorld) returned() *ownership {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.parts {
		if o := p.own; o.returned && !o.lost {
			return o
		}
	}
	return nil
}

// fingerprint names the state that the world is in. It holds all of the broker, of the
// runs and of the checks, and of the two engines what they show: two schedules with the
// same fingerprint go on alike, but for what an engine keeps to itself beyond that.
func (w *ilWorld) fingerprint() uint64 {
	w.mu.Lock()
	var b strings.Builder
	fmt.Fprintln(&b, w.left, w.fails, w.delays, w.idle, w.unclean)
	for _, p := range w.parts {
		fmt.Fprintf(&b, "%s %d %d %s %v %v %v\n", p.name, p.owner, p.committed, w.says(p, p.committed, p.state), p.acked, p.success, p.failures)
		p.own.print(&b)
	}
	var stats []func() string
	for _, m := range w.members {
		for _, r := range m.runs {
			fmt.Fprintln(&b, m.name, r.o.part.id(r.i), r.attempt, r.ticked, r.o.lost, r.o.closed)
		}
		for _, st := range m.settling {
			o := m.owned[st.Receipt.Epoch]
			fmt.Fprintf(&b, "%d settles %s %d %v %s %v\n", m.name, o.part.name, st.Receipt.Aux, st.Disposition, w.says(o.part, position(&st), st.State), o.part.own == o)
		}
		for _, p := range w.parts { // former ownerships that may still speak
			for e := p.own.epoch; e > 0; e-- {
				if o := m.owned[e]; o != nil && o != p.own && o.part == p && !o.closed {
					o.print(&b)
				}
			}
		}
		if s := m.s; s != nil {
			stats = append(stats, func() string {
				st := s.Status()
				return fmt.Sprint(m.name, st.InFlight, st.Running, st.Waiting, st.Queued, st.Keys, m.receiving, m.ticked)
			})
		}
	}
	w.mu.Unlock()
	for _, f := range stats {
		b.WriteString(f())
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(b.String()))
	return h.Sum64()
}

func (o *ownership) print(b *strings.Builder) {
	fmt.Fprintln(b, o.member.name, o.given, o.admitted, o.known, o.done, o.lost, o.closed, o.revoking, o.noticeDue, o.ticked)
}

// says is what a commit says, without times that are over. Callers hold mu.
func (w *ilWorld) says(p *ilPart, position int, raw []byte) string {
	known, err := state.Decode(raw, "queue in", p.name, int64(position), int64(len(p.keys)), 1)
	if w.mode == driver.Each || err != nil {
		return ""
	}
	var b strings.Builder
	for i, key := range p.keys {
		attempts, due := known.Attempts(int64(i))
		fmt.Fprint(&b, known.Done(int64(i), key, true), attempts, time.Unix(due, 0).After(time.Now()), " ")
	}
	return b.String()
}
