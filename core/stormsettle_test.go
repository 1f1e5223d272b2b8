package core_test

import (
	"context"
	"slices"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Settle judges every settlement, and answers as it likes.
func (b *storm) Settle(_ context.Context, batch []driver.Settlement) error {
	b.mu.Lock()
	pause := time.Duration(0)
	if b.chance(30) {
		pause = time.Duration(b.r.IntN(100)) * time.Millisecond
	}
	for i := range batch {
		b.judge(&batch[i])
	}
	b.mu.Unlock()
	time.Sleep(pause)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.chance(4) {
		return driver.Errorf("settle", driver.Transient, "down")
	}
	errs := make([]error, len(batch))
	for i := range batch {
		errs[i] = b.answer(&batch[i])
	}
	b.poke()
	return driver.Batch(errs)
}

func (b *storm) part(name string) *stormPart {
	for _, p := range b.parts {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (p *stormPart) find(seq int64) *outMsg {
	for _, o := range p.out {
		if o.receipt.Seq == seq {
			return o
		}
	}
	return nil
}

// position is where a commit puts the group.
func position(s *driver.Settlement) int {
	if s.Disposition == driver.Hold {
		return int(s.Receipt.Aux)
	}
	return int(s.Receipt.Aux) + 1
}

// ended: the message may be committed.
func (b *storm) ended(epoch uint64, id string) bool {
	return b.confirmed["dlq/"+id] || b.effects.succeeded(epoch, id, b.confirmed) ||
		b.stateBytes > 0 && b.effects.succeededEver(id, b.confirmed)
}

// handedOver: what a clean revoke leaves done is not done again by the next owner. Not
// so with the ladder: a revoke does not wait for a run that was abandoned, which may
// succeed between the state of the last commit and the end of the revoke.
func (b *storm) handedOver(p *stormPart) {
	if b.stateBytes < 4096 || b.ladder {
		return
	}
	p.finished = map[string]bool{}
	for i := range p.msgs {
		if id := p.msgs[i].ID; b.effects.succeeded(p.epoch, id, b.confirmed) {
			p.finished[id] = true
		}
	}
}

// judge checks a settlement when it is sent.
func (b *storm) judge(s *driver.Settlement) {
	p := b.part(s.Receipt.Partition)
	// In the same instant (time is fake) a batch may have been put together before a
	// partition was lost, and sent after.
	if at, ok := p.fenced[s.Receipt.Epoch]; ok && time.Now().After(at) {
		b.violation("%s of %s/%d after its revoke had returned", s.Disposition, p.name, s.Receipt.Aux)
		return
	}
	i := int(s.Receipt.Aux)
	id := p.msgs[i].ID
	if b.mode == driver.UpTo {
		if s.Disposition != driver.Ack && (s.Disposition != driver.Hold || b.stateBytes == 0) || len(s.State) > b.stateBytes {
			b.violation("%s on a log, with %d bytes of state", s.Disposition, len(s.State))
		}
		for k := p.committed; k < position(s) && p.epoch == s.Receipt.Epoch; k++ {
			if !b.ended(s.Receipt.Epoch, p.msgs[k].ID) {
				b.violation("commit of %s/%d passes %d, which has not ended", p.name, i, k)
			}
		}
		return
	}
	if b.effects.ended[s.Receipt.Seq] {
		b.violation("%s of %s, which was settled or lost before", s.Disposition, id)
	}
	switch s.Disposition {
	case driver.Ack:
		if !b.effects.succeeded(s.Receipt.Epoch, id, b.confirmed) {
			b.violation("ack of %s, whose handler did not succeed", id)
		}
	case driver.Reject:
		if !b.confirmed["dlq/"+id] {
			b.violation("reject of %s without a confirmed copy", id)
		}
	case driver.Nack, driver.Return:
		if b.effects.byKey {
			b.violation("%s of %s under order by key", s.Disposition, id)
		}
		if s.Disposition == driver.Nack && b.effects.failures[id] == 0 {
			b.violation("nack of %s, which has not failed", id)
		}
	}
}

// answer carries a settlement out, or not.
func (b *storm) answer(s *driver.Settlement) error {
	p := b.part(s.Receipt.Partition)
	lost := driver.Errorf("settle", driver.LeaseLost, "not yours")
	if !p.settles || p.epoch != s.Receipt.Epoch {
		b.effects.ended[s.Receipt.Seq] = b.mode == driver.Each
		return lost
	}
	if b.chance(5) {
		return driver.Errorf("settle", driver.Transient, "busy")
	}
	cut := b.chance(4) // the answer is cut off, before or after it was carried out
	if cut && b.chance(50) {
		return driver.Errorf("settle", driver.Ambiguous, "cut off")
	}
	err := b.carryOut(p, s, lost)
	if cut {
		return driver.Errorf("settle", driver.Ambiguous, "cut off")
	}
	if b.mode == driver.Each && (s.Disposition != driver.Extend || err != nil) {
		b.effects.ended[s.Receipt.Seq] = true
	}
	return err
}

func (b *storm) carryOut(p *stormPart, s *driver.Settlement, lost error) error {
	b.note("carry", p.name, s.Disposition, s.Receipt.Epoch, s.Receipt.Aux, len(s.State))
	if b.mode == driver.UpTo {
		if next := position(s); next >= p.committed {
			p.committed, p.state = next, slices.Clone(s.State)
		}
		return nil
	}
	b.expire(p, time.Now())
	o := p.find(s.Receipt.Seq)
	if o != nil && o.state == s.Disposition {
		return nil // sent again after an answer that was cut off
	}
	if o == nil || o.state != 0 {
		return lost
	}
	if b.lease > 0 && b.chance(8) { // taken away
		o.until = time.Now().Add(-1)
		b.expire(p, time.Now())
		return lost
	}
	switch s.Disposition {
	case driver.Extend:
		o.until = time.Now().Add(b.lease)
		return nil
	case driver.Ack, driver.Reject:
		p.done[o.i] = true
	case driver.Nack:
		o.redo = time.Now().Add(s.Delay)
	}
	o.state = s.Disposition
	return nil
}

// unsettled: a revoke in time settles all that has succeeded.
func (b *storm) unsettled(p *stormPart) {
	if b.mode == driver.UpTo {
		if i := p.committed; i < len(p.msgs) && b.effects.succeeded(p.epoch, p.msgs[i].ID, b.confirmed) {
			b.violation("%s is not committed at the end of the revoke", p.msgs[i].ID)
		}
		return
	}
	b.expire(p, time.Now())
	for _, o := range p.out {
		if o.state == 0 && b.effects.succeeded(p.epoch, p.msgs[o.i].ID, b.confirmed) && b.lease == 0 {
			b.violation("%s is not settled at the end of the revoke", p.msgs[o.i].ID)
		}
	}
}
