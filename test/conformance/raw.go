package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// rawLimit leaves each of a few partitions a share of the broker's count that is large
// enough for everything a test sends.
const rawLimit = 1000

// raw is a consumer without the engine: it asks the adapter itself.
type raw struct {
	e   *env
	d   driver.Driver
	c   driver.Consumer
	mu  sync.Mutex
	own map[string]uint64
	let []string // partitions let go
}

func newRaw(e *env, from driver.Destination) *raw {
	r := &raw{e: e, d: e.h.Open(e), own: map[string]uint64{}}
	s := e.sub(from, "g")
	c, err := r.d.Subscribe(e.within(e.h.Patience), driver.Subscription{
		From: from, Group: s.Group, Start: s.Start, Notify: func(driver.Event) {},
		Assigned: func(a driver.Assignment) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.own[a.Partition] = a.Epoch
		},
		Revoke: func(_ context.Context, parts []string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, p := range parts {
				delete(r.own, p)
				r.let = append(r.let, p)
			}
		},
	})
	if err != nil {
		e.Fatalf("Subscribe: %v", err)
	}
	r.c = c
	e.Cleanup(r.close)
	return r
}

func (r *raw) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.c.Close(ctx); err != nil && ctx.Err() != nil {
		r.e.Errorf("Consumer.Close: %v", err)
	}
}

// receive collects n messages.
func (r *raw) receive(n int) (out []driver.Received) {
	ctx, cancel := context.WithTimeout(context.Background(), r.e.h.Patience)
	defer cancel()
	for len(out) < n {
		got, err := r.c.Receive(ctx, driver.Demand{Records: n - len(out), Bytes: 1 << 20, Limit: rawLimit})
		if err != nil && driver.ClassOf(err) != driver.Transient && driver.ClassOf(err) != driver.Ambiguous {
			r.e.Fatalf("Receive: %v, with %d of %d messages", err, len(out), n)
		}
		out = append(out, got...)
	}
	return out
}

// poll calls Receive once, for at most d.
func (r *raw) poll(n int, d time.Duration) ([]driver.Received, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	got, err := r.c.Receive(ctx, driver.Demand{Records: n, Bytes: 1 << 20, Limit: rawLimit})
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return got, err
}

func (r *raw) settle(m driver.Received, d driver.Disposition) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.e.h.Patience)
	defer cancel()
	return driver.ResultAt(r.c.Settle(ctx, []driver.Settlement{{Receipt: m.Receipt, Disposition: d}}), 0)
}

// owned returns what is assigned now, and how many partitions were let go.
func (r *raw) owned() (own, let int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.own), len(r.let)
}
