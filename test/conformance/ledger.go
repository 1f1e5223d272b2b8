package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/varal-go/varal/core"
)

// state of a publish.
type state uint8

const (
	unknown   state = iota // not confirmed, perhaps stored
	confirmed              // nil
	failed                 // provably not stored
)

// sent is one message the test has published, or tried to.
type sent struct {
	key   string
	seq   int // within key, from 0
	state state
	done  bool // handled to the end
}

// visit is one run of a handler. The ledger keeps them as they came: nothing is ever
// de-duplicated before it is counted.
type visit struct {
	id, key, part, by string
	seq, attempt      int
	offset            int64
	native            string
	start, end        time.Time
	running           bool
	failed            bool // the handler returned an error
	msg               core.Message
	src               core.Destination
}

// ledger records what was published and what was handled.
type ledger struct {
	mu     sync.Mutex
	sent   map[string]*sent
	order  []string
	seqs   map[string]int
	visits []*visit
	// Counted as they change: tests poll them while thousands of messages pass.
	lost, ran int
	byWho     map[string]int
}

func newLedger() *ledger {
	return &ledger{sent: map[string]*sent{}, seqs: map[string]int{}, byWho: map[string]int{}}
}

// expect notes a message before it is published.
func (l *ledger) expect(m *core.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent[m.ID] != nil {
		return
	}
	s := &sent{key: m.Key, seq: l.seqs[m.Key]}
	l.sent[m.ID] = s
	l.seqs[m.Key]++
	l.order = append(l.order, m.ID)
	// A dead-letter copy may have come before the case said that it expects one: a
	// publish returns when the source has the message, and its failure may be quicker.
	for _, v := range l.visits {
		if v.id == m.ID {
			v.seq = s.seq
			s.done = s.done || !v.running && !v.failed
		}
	}
}

func (l *ledger) outcome(id string, s state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(l.sent[id], -1)
	l.sent[id].state = s
	l.count(l.sent[id], 1)
}

// handler wraps f so that its runs are recorded; nil f = ack.
func (l *ledger) handler(by string, f core.Handler) core.Handler {
	return func(ctx context.Context, d *core.Delivery) (err error) {
		v := l.begin(by, d)
		defer func() { l.finish(v, err) }()
		if f == nil {
			return nil
		}
		return f(ctx, d)
	}
}

func (l *ledger) begin(by string, d *core.Delivery) *visit {
	v := &visit{
		id: d.ID, key: d.Key, part: d.Partition, by: by, attempt: d.Attempt, offset: d.Offset, native: d.NativeID,
		msg: d.Message, src: d.Source, seq: -1, start: time.Now(), running: true,
	}
	v.msg.Body, v.msg.Headers = slices.Clone(d.Body), slices.Clone(d.Headers)
	l.add(v)
	return v
}

func (l *ledger) add(v *visit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sent[v.id]; s != nil {
		v.seq = s.seq
	}
	l.visits = append(l.visits, v)
	l.byWho[v.by]++
	switch {
	case v.running:
		l.ran++
	case !v.failed:
		l.handled(v.id)
	}
}

// count adds d for a message that is confirmed and was not handled. Callers hold mu.
func (l *ledger) count(s *sent, d int) {
	if s.state == confirmed && !s.done {
		l.lost += d
	}
}

func (l *ledger) handled(id string) {
	if s := l.sent[id]; s != nil {
		l.count(s, -1)
		s.done = true
	}
}

func (l *ledger) finish(v *visit, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.end, v.running, v.failed = time.Now(), false, err != nil
	l.ran--
	if err == nil {
		l.handled(v.id)
	}
}

// all returns a copy of the visits in the order they began.
func (l *ledger) all() []visit {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]visit, len(l.visits))
	for i, v := range l.visits {
		out[i] = *v
	}
	return out
}

// of returns the visits of one message.
func (l *ledger) of(id string) (out []visit) {
	for _, v := range l.all() {
		if v.id == id {
			out = append(out, v)
		}
	}
	return out
}

// by returns the visits of one consumer.
func (l *ledger) by(who string) (out []visit) {
	for _, v := range l.all() {
		if v.by == who {
			out = append(out, v)
		}
	}
	return out
}

func (l *ledger) n() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.visits)
}

// running counts handlers that run now.
func (l *ledger) running() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ran
}

// waiting counts confirmed messages that were not yet handled to the end.
func (l *ledger) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// seen counts the visits of one consumer.
func (l *ledger) seen(who string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byWho[who]
}

// missing lists confirmed messages that were never handled to the end.
func (l *ledger) missing() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.order {
		if s := l.sent[id]; s.state == confirmed && !s.done {
			out = append(out, fmt.Sprintf("%s (key %q, seq %d)", id, s.key, s.seq))
		}
	}
	return out
}

// extra lists messages that were handled more than once, that were handled although
// their publish failed, and that nobody published.
func (l *ledger) extra() (twice, refused, strange []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := map[string]int{}
	for _, v := range l.visits {
		n[v.id]++
		s := l.sent[v.id]
		switch {
		case s == nil:
			strange = append(strange, v.id)
		case s.state == failed:
			refused = append(refused, v.id)
		case n[v.id] > 1:
			twice = append(twice, fmt.Sprintf("%s (key %q, seq %d, by %s)", v.id, v.key, v.seq, v.by))
		}
	}
	return twice, refused, strange
}

// inversions lists, per key, runs of a message that began while an earlier message of
// the key had not yet been handled to the end. A message that runs again after that
// is a duplicate and not an inversion.
func (l *ledger) inversions() (out []string) {
	done, next := map[string]map[int]bool{}, map[string]int{}
	type point struct {
		at    time.Time
		v     visit
		start bool
	}
	var points []point
	for _, v := range l.all() {
		points = append(points, point{v.start, v, true})
		if !v.running && !v.failed {
			points = append(points, point{v.end, v, false})
		}
	}
	slices.SortStableFunc(points, func(a, b point) int { return a.at.Compare(b.at) })
	for _, p := range points {
		k := p.v.key
		if k == "" || p.v.seq < 0 {
			continue
		}
		if done[k] == nil {
			done[k] = map[int]bool{}
		}
		if !p.start {
			done[k][p.v.seq] = true
			for done[k][next[k]] {
				next[k]++
			}
			continue
		}
		if p.v.seq > next[k] {
			out = append(out, fmt.Sprintf("key %s: %d began at %s while %d was not done", k, p.v.seq, p.v.by, next[k]))
		}
	}
	return out
}

// overlaps lists pairs of runs of one key at the same time.
func (l *ledger) overlaps() (out []string) {
	last := map[string]visit{}
	vs := l.all()
	slices.SortStableFunc(vs, func(a, b visit) int { return a.start.Compare(b.start) })
	for _, v := range vs {
		if v.key == "" {
			continue
		}
		if o, ok := last[v.key]; ok && (o.running || v.start.Before(o.end)) {
			out = append(out, fmt.Sprintf("key %s: %d at %s while %d ran at %s", v.key, v.seq, v.by, o.seq, o.by))
		}
		if o, ok := last[v.key]; !ok || v.running || v.end.After(o.end) {
			last[v.key] = v
		}
	}
	return out
}

// peak is the most runs at the same time, of one consumer or ("") of all.
func (l *ledger) peak(by string) (most int) {
	type edge struct {
		at time.Time
		d  int
	}
	var edges []edge
	now := time.Now()
	for _, v := range l.all() {
		if by != "" && v.by != by {
			continue
		}
		end := v.end
		if v.running {
			end = now
		}
		edges = append(edges, edge{v.start, 1}, edge{end, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.d - b.d // an end at the same instant comes first
	})
	n := 0
	for _, e := range edges {
		n += e.d
		most = max(most, n)
	}
	return most
}
