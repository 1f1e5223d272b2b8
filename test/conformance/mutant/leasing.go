package mutant

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// leasing are the mutants of leases and of what is given back.
func leasing() []Mutant {
	return []Mutant{
		{"early-reclaim", "gives a message to others after three quarters of its lease", []string{"C23"}, mutate(hasty)},
		{"none-while-buffered", "extends the four oldest messages it has out, and reports the others as extended", []string{"C27"}, mutate(oldestOnly)},
		{"nack-to-every-group", "gives a message that one group returned to the other groups, too", []string{"C20", "C21"}, mutate(toEveryGroup)},
		{"stale-settle-removes", "refuses the ack of a lost lease and removes the message all the same", []string{"C23"}, removing()},
	}
}

// lease is one message that is out.
type lease struct {
	receipt driver.Receipt
	early   time.Duration // when the broker takes it back, and with what; both may be zero
	timer   *time.Timer
}

// leases is what a consumer has out, the oldest first.
type leases struct {
	mu   sync.Mutex
	list []*lease
}

func (l *leases) add(r driver.Received) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := &lease{receipt: r.Receipt}
	l.list = append(l.list, x)
	return x
}

// find returns a message that is out and its place, or nil.
func (l *leases) find(r driver.Receipt) (*lease, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, x := range l.list {
		if x.receipt == r {
			return x, i
		}
	}
	return nil, -1
}

func (l *leases) drop(r driver.Receipt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, x := range l.list {
		if x.receipt == r {
			if x.timer != nil {
				x.timer.Stop()
			}
			l.list = append(l.list[:i], l.list[i+1:]...)
			return
		}
	}
}

// hasty returns a message behind the back of its consumer, a quarter of the lease before
// its end. An extension starts the time anew: who extends at half of the lease sees
// nothing of it.
func hasty() hooks {
	var out leases
	h := onReceive(func(c *consumer, got []driver.Received) []driver.Received {
		for _, r := range got {
			if r.Deadline.IsZero() {
				continue
			}
			x := out.add(r)
			x.early = time.Until(r.Deadline) * 3 / 4
			x.timer = time.AfterFunc(x.early, func() {
				back := []driver.Settlement{{Receipt: r.Receipt, Disposition: driver.Return}}
				_ = c.Consumer.Settle(context.Background(), back)
			})
		}
		return got
	})()
	h.settle = func(ctx context.Context, c *consumer, batch []driver.Settlement) error {
		for i := range batch {
			if batch[i].Disposition != driver.Extend {
				out.drop(batch[i].Receipt)
			} else if x, _ := out.find(batch[i].Receipt); x != nil {
				x.timer.Reset(x.early)
			}
		}
		return c.Consumer.Settle(ctx, batch)
	}
	return h
}

// oldestOnly takes the four oldest for those that have a running handler.
func oldestOnly() hooks {
	var out leases
	h := onReceive(func(_ *consumer, got []driver.Received) []driver.Received {
		for _, r := range got {
			out.add(r)
		}
		return got
	})()
	h.settle = onSettle(func(_ *consumer, s *driver.Settlement) bool {
		if s.Disposition == driver.Extend {
			_, at := out.find(s.Receipt)
			return at < 4
		}
		out.drop(s.Receipt)
		return true
	})().settle
	return h
}

// returnedBy marks the copy that the other groups get, so that the group which returned
// the message sees nothing of it: its own comes as it should.
const returnedBy = "mutant-returned-by"

// toEveryGroup publishes a message of a topic once more when a group gives it back.
func toEveryGroup() hooks {
	var mu sync.Mutex
	out := map[driver.Receipt]driver.Message{}
	h := onReceive(func(c *consumer, got []driver.Received) (kept []driver.Received) {
		mu.Lock()
		defer mu.Unlock()
		for i, r := range got {
			if by, marked := r.Header(returnedBy); marked && by == c.sub.Group {
				ackAll(c, got[i:i+1])
				continue
			}
			if c.sub.From.Shape == driver.Topic {
				out[r.Receipt] = r.Message
			}
			kept = append(kept, r)
		}
		return kept
	})()
	h.settle = onSettle(func(c *consumer, s *driver.Settlement) bool {
		mu.Lock()
		m, ok := out[s.Receipt]
		mu.Unlock()
		if ok && (s.Disposition == driver.Nack || s.Disposition == driver.Return) {
			m.Headers = append(slices.Clone(m.Headers), driver.Header{Key: returnedBy, Value: c.sub.Group})
			to := c.sub.From
			to.Group = ""
			_ = c.w.Driver.Publish(context.Background(), to, []*driver.Message{&m})
		}
		return true
	})().settle
	return h
}

// holders knows who has a message now, over all drivers of a broker.
type holders struct {
	mu      sync.Mutex
	by      map[string]held
	name    map[held]string
	removed map[string]bool
}

type held struct {
	c *consumer
	r driver.Receipt
}

// removing returns a Wrap whose drivers know of each other, as those of one broker do.
func removing() func(driver.Driver) driver.Driver {
	all := &holders{by: map[string]held{}, name: map[held]string{}, removed: map[string]bool{}}
	return mutate(func() hooks {
		h := onReceive(all.note)()
		h.settle = all.settle
		return h
	})
}

// note keeps who has what, and takes away what a late ack has removed meanwhile.
func (a *holders) note(c *consumer, got []driver.Received) (kept []driver.Received) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range got {
		name := c.sub.From.String() + "\x00" + c.sub.Group + "\x00" + got[i].ID
		if a.removed[name] {
			ackAll(c, got[i:i+1])
			continue
		}
		h := held{c, got[i].Receipt}
		a.by[name], a.name[h] = h, name
		kept = append(kept, got[i])
	}
	return kept
}

func (a *holders) settle(ctx context.Context, c *consumer, batch []driver.Settlement) error {
	err := c.Consumer.Settle(ctx, batch)
	for i := range batch {
		if batch[i].Disposition == driver.Ack && driver.ClassOf(driver.ResultAt(err, i)) == driver.LeaseLost {
			a.remove(ctx, held{c, batch[i].Receipt})
		}
	}
	return err
}

// remove acks for whoever has the message by now.
func (a *holders) remove(ctx context.Context, late held) {
	a.mu.Lock()
	name, ok := a.name[late]
	now := a.by[name]
	a.removed[name] = ok
	a.mu.Unlock()
	if ok && now != late {
		_ = now.c.Consumer.Settle(ctx, []driver.Settlement{{Receipt: now.r, Disposition: driver.Ack}})
	}
}
