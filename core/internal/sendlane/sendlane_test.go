package sendlane_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/varal-go/varal/core/internal/sendlane"
)

type item = sendlane.Item[string, *probe]

// probe is the model's view of an item.
type probe struct {
	item
	dest  int
	gone  bool // nobody waits for it
	given bool // its key was resumed while it was in flight
}

// naive is the same by lists that are searched from end to end.
type naive struct {
	limits  sendlane.Limits
	waiting []*probe
	flights []*probe
	blocks  map[string]*probe // the first that failed, by key
	log     []*probe          // what was stored, in order
}

func (n *naive) flight(key string) *probe {
	for _, p := range n.flights {
		if p.Keyed && p.Key == key {
			return p
		}
	}
	return nil
}

func (n *naive) active() map[string]bool {
	keys := map[string]bool{}
	for _, p := range append(slices.Clone(n.waiting), n.flights...) {
		if p.Keyed {
			keys[p.Key] = true
		}
	}
	for k := range n.blocks {
		keys[k] = true
	}
	return keys
}

func (n *naive) admit(p *probe) sendlane.Verdict {
	active := n.active()
	fresh := p.Keyed && !active[p.Key]
	switch b := n.blocks[p.Key]; {
	case p.Keyed && b != nil && b.ID != p.ID:
		return sendlane.Blocked
	case fresh && len(n.blocks) == n.limits.Keys:
		return sendlane.Crowded
	case len(n.waiting) == n.limits.Queue, fresh && len(active) == n.limits.Keys:
		return sendlane.Full
	}
	n.waiting = append(n.waiting, p)
	return sendlane.Admitted
}

// may are those of which a Take may choose: the first of each key with nothing in flight.
func (n *naive) may() (out []*probe) {
	seen := map[string]bool{}
	for _, p := range n.waiting {
		if p.Keyed && (seen[p.Key] || n.flight(p.Key) != nil) {
			continue
		}
		seen[p.Key] = p.Keyed
		out = append(out, p)
	}
	return out
}

func (n *naive) drop(which func(p *probe) bool) (out []*probe) {
	n.waiting = slices.DeleteFunc(n.waiting, func(p *probe) bool {
		if which(p) {
			out = append(out, p)
			return true
		}
		return false
	})
	return out
}

func (n *naive) block(p *probe) []*probe {
	if n.blocks[p.Key] == nil {
		n.blocks[p.Key] = p
	}
	return n.drop(func(q *probe) bool { return q.Keyed && q.Key == p.Key && q.ID != p.ID })
}

func (n *naive) done(p *probe, ok, stored bool) []*probe {
	n.flights = slices.DeleteFunc(n.flights, func(q *probe) bool { return q == p })
	if stored {
		n.log = append(n.log, p)
	}
	switch {
	case !p.Keyed, !ok && p.given:
		return nil
	case !ok:
		return n.block(p)
	}
	repeated := n.blocks[p.Key] != nil || p.given
	delete(n.blocks, p.Key)
	if !repeated {
		return nil
	}
	return n.drop(func(q *probe) bool { return q.Keyed && q.Key == p.Key && q.ID == p.ID })
}

func (n *naive) leave(p *probe) (unsent bool, out []*probe) {
	if i := slices.Index(n.waiting, p); i >= 0 {
		n.waiting = slices.Delete(n.waiting, i, i+1)
		return true, nil
	}
	if p.Keyed && !p.given {
		out = n.block(p)
	}
	return false, out
}

// run is one random history, on the lane and on the model.
type run struct {
	t      *testing.T
	rnd    *rand.Rand
	lane   *sendlane.Lane[string, *probe]
	model  naive
	serial int
	old    []*probe // of which one is published again at times
}

func sameSet(got []*item, want []*probe) bool {
	if len(got) != len(want) {
		return false
	}
	for _, it := range got {
		if !slices.Contains(want, it.Value) {
			return false
		}
	}
	return true
}

func (r *run) admit() {
	p := &probe{dest: r.rnd.IntN(2)}
	if p.Keyed = r.rnd.IntN(6) > 0; p.Keyed {
		p.Key = string(rune('a' + r.rnd.IntN(6)))
	}
	r.serial++
	p.ID = fmt.Sprint(r.serial)
	if b := r.model.blocks[p.Key]; p.Keyed && b != nil && r.rnd.IntN(2) == 0 {
		p.ID = b.ID // the retry
	} else if len(r.old) > 0 && r.rnd.IntN(20) == 0 {
		o := r.old[r.rnd.IntN(len(r.old))]
		p.ID, p.Key, p.Keyed = o.ID, o.Key, o.Keyed
	}
	p.Value = p
	want := r.model.admit(p)
	if got := r.lane.Admit(&p.item); got != want {
		r.t.Fatalf("admit %s of %q: verdict %d, want %d", p.ID, p.Key, got, want)
	}
	if want == sendlane.Admitted {
		r.old = append(r.old, p)
	}
}

func (r *run) take() {
	most := 1 + r.rnd.IntN(4)
	may := r.model.may()
	got := r.lane.Take(nil, most, func(a, b *item) bool { return a.Value.dest == b.Value.dest })
	alike := 0
	for _, it := range got {
		if !slices.Contains(may, it.Value) {
			r.t.Fatalf("took %s of %q, which may not leave", it.ID, it.Key)
		}
		if it.Value.dest != got[0].Value.dest {
			r.t.Fatalf("took messages for two destinations")
		}
	}
	for _, p := range may {
		if len(got) > 0 && p.dest == got[0].Value.dest {
			alike++
		}
	}
	if len(may) > 0 && len(got) != min(most, alike) || len(may) == 0 && len(got) > 0 {
		r.t.Fatalf("took %d, want %d of %d", len(got), min(most, alike), len(may))
	}
	for _, it := range got {
		r.model.flights = append(r.model.flights, it.Value)
		r.model.waiting = slices.DeleteFunc(r.model.waiting, func(p *probe) bool { return p == it.Value })
	}
}

func (r *run) done(p *probe) {
	ok := r.rnd.IntN(3) > 0
	stored := ok || r.rnd.IntN(2) == 0
	want := r.model.done(p, ok, stored)
	got := r.lane.Done(&p.item, ok, nil, nil)
	if ok { // it may know of more places where the same message waits; it must where the key was blocked
		want = append(want, r.model.drop(func(q *probe) bool {
			return p.Keyed && q.Keyed && q.Key == p.Key && q.ID == p.ID && slices.Contains(got, &q.item)
		})...)
	}
	if !sameSet(got, want) {
		r.t.Fatalf("done %s of %q, %v: %d others ended, want %d", p.ID, p.Key, ok, len(got), len(want))
	}
}

func (r *run) leave(p *probe) {
	p.gone = true
	unsent, want := r.model.leave(p)
	if got, others := r.lane.Leave(&p.item, nil, nil); got != unsent || !sameSet(others, want) {
		r.t.Fatalf("leave %s of %q: unsent %v and %d others, want %v and %d", p.ID, p.Key, got, len(others), unsent, len(want))
	}
}

func (r *run) resume() {
	key := string(rune('a' + r.rnd.IntN(6)))
	want := r.model.blocks[key] != nil
	delete(r.model.blocks, key)
	if f := r.model.flight(key); f != nil && want {
		f.given = true
	}
	if got := r.lane.Resume(key); got != want {
		r.t.Fatalf("resume %q: %v, want %v", key, got, want)
	}
}

func (r *run) step() {
	switch n := r.rnd.IntN(20); {
	case n < 8:
		r.admit()
	case n < 12:
		r.take()
	case n < 17 && len(r.model.flights) > 0:
		r.done(r.model.flights[r.rnd.IntN(len(r.model.flights))])
	case n < 19:
		all := append(slices.Clone(r.model.waiting), r.model.flights...)
		all = slices.DeleteFunc(all, func(p *probe) bool { return p.gone })
		if len(all) > 0 {
			r.leave(all[r.rnd.IntN(len(all))])
		}
	default:
		r.resume()
	}
	blocked := map[string]string{}
	for key, b := range r.lane.Blocks {
		blocked[key] = b.ID
	}
	if len(blocked) != len(r.model.blocks) || len(blocked) > r.model.limits.Keys {
		r.t.Fatalf("%d keys blocked, want %d, at most %d", len(blocked), len(r.model.blocks), r.model.limits.Keys)
	}
	for key, p := range r.model.blocks {
		if blocked[key] != p.ID || r.lane.BlockOf(key).ID != p.ID {
			r.t.Fatalf("key %q blocked by %q, want %q", key, blocked[key], p.ID)
		}
	}
}

func less(a, b sendlane.Number) bool {
	return a.Generation < b.Generation || a.Generation == b.Generation && a.N < b.N
}

// judge looks at what was stored: the numbers of a key never go down, and a number is that
// of one message only.
func (r *run) judge() {
	last := map[string]*probe{}
	owner := map[string]string{}
	for _, p := range r.model.log {
		if !p.Keyed {
			if p.Number != (sendlane.Number{}) {
				r.t.Fatalf("a message without a key has number %v", p.Number)
			}
			continue
		}
		if p.Number.N == 0 {
			r.t.Fatalf("message %s of %q has no number", p.ID, p.Key)
		}
		if before := last[p.Key]; before != nil && less(p.Number, before.Number) {
			r.t.Fatalf("key %q: %v stored after %v", p.Key, p.Number, before.Number)
		}
		last[p.Key] = p
		name := fmt.Sprint(p.Key, p.Number)
		if id, ok := owner[name]; ok && id != p.ID {
			r.t.Fatalf("key %q: number %v given to %s and to %s", p.Key, p.Number, id, p.ID)
		}
		owner[name] = p.ID
	}
}

func TestLaneAgreesWithLists(t *testing.T) {
	t.Parallel()
	for seed := range 5000 {
		rnd := rand.New(rand.NewPCG(uint64(seed), 7))
		limits := sendlane.Limits{Queue: 1 + rnd.IntN(8), Keys: 1 + rnd.IntN(6), Numbered: 1 + rnd.IntN(3)}
		r := &run{t: t, rnd: rnd, lane: sendlane.New[string, *probe](limits)}
		r.model = naive{limits: limits, blocks: map[string]*probe{}}
		for range 200 {
			r.step()
		}
		r.judge()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A retry has the number of the message it repeats, also when other keys were forgotten in
// between; a message that was never sent has used none up.
func TestNumbers(t *testing.T) {
	t.Parallel()
	l := sendlane.New[string, int](sendlane.Limits{Queue: 9, Keys: 9, Numbered: 1})
	send := func(key, id string, ok bool) sendlane.Number {
		it := &sendlane.Item[string, int]{Key: key, Keyed: true, ID: id}
		if v := l.Admit(it); v != sendlane.Admitted {
			t.Fatalf("%s of %s: verdict %d", id, key, v)
		}
		l.Take(nil, 9, func(_, _ *sendlane.Item[string, int]) bool { return true })
		l.Done(it, ok, nil, nil)
		return it.Number
	}
	for i, c := range []struct {
		key, id string
		ok      bool
		want    sendlane.Number
	}{
		{"a", "1", true, sendlane.Number{Generation: 0, N: 1}},
		{"a", "2", false, sendlane.Number{Generation: 0, N: 2}},
		{"b", "3", true, sendlane.Number{Generation: 0, N: 1}},
		{"c", "4", true, sendlane.Number{Generation: 0, N: 1}}, // the second idle key: b and c are forgotten
		{"b", "5", true, sendlane.Number{Generation: 1, N: 1}},
		{"a", "2", true, sendlane.Number{Generation: 0, N: 2}},
		{"d", "6", true, sendlane.Number{Generation: 1 + 1, N: 1}},
	} {
		if got := send(c.key, c.id, c.ok); got != c.want {
			t.Errorf("%d: message %s of %s has number %v, want %v", i, c.id, c.key, got, c.want)
		}
	}
}

// One message costs the lane no more than its key.
func BenchmarkLane(b *testing.B) {
	l := sendlane.New[int, int](sendlane.Limits{Queue: 64, Keys: 64, Numbered: 1 << 10})
	items := make([]sendlane.Item[int, int], 64)
	var dst []*sendlane.Item[int, int]
	b.ReportAllocs()
	for range b.N / len(items) {
		for i := range items {
			items[i] = sendlane.Item[int, int]{Key: i, Keyed: true, ID: "x"}
			l.Admit(&items[i])
		}
		dst = l.Take(dst[:0], len(items), func(_, _ *sendlane.Item[int, int]) bool { return true })
		for _, it := range dst {
			l.Done(it, true, nil, nil)
		}
	}
}
