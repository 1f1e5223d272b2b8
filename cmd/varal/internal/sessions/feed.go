package sessions

import (
	"context"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
)

// share is how many of the messages of a round session s gets.
func (r *round) share(s int) int {
	n := r.o.Messages / r.o.Sessions
	if s < r.o.Messages%r.o.Sessions {
		n++
	}
	return n
}

// closedFeed is one feeder for each session.
func (r *round) closedFeed(warm bool) (f feed) {
	for s := range r.o.Sessions {
		n := r.share(s)
		if warm {
			n = max(1, min(200, n/5))
		}
		f.messages += int64(n)
		f.feeders = append(f.feeders, func(ctx context.Context) error { return r.feed(ctx, uint32(s), n) }) //nolint:gosec // within maxSessions
	}
	return f
}

// feed hands n messages of a session over: as many at once as its mailbox has room for,
// stamped when they are handed over.
func (r *round) feed(ctx context.Context, session uint32, n int) error {
	l := &r.check.lines[session]
	batch := make([]ticket.Ticket, 0, r.o.Mailbox)
	for n > 0 {
		k := r.takePlaces(ctx, session, min(n, r.o.Mailbox))
		if k == 0 {
			return nil // whoever ended ctx knows why
		}
		stamp := r.now()
		batch = batch[:0]
		for i := range k {
			batch = append(batch, ticket.Ticket{Session: session, N: l.handed + uint32(i) + 1, Stamp: stamp}) //nolint:gosec // within the mailbox
		}
		if err := r.sys.hand(ctx, batch); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		l.handed += uint32(k) //nolint:gosec // within the mailbox
		n -= k
	}
	return nil
}

// takePlaces waits for one place in the mailbox and takes those that are free beside it;
// 0 = ctx has ended.
func (r *round) takePlaces(ctx context.Context, session uint32, most int) (n int) {
	gate := r.gates[session]
	select {
	case gate <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for n = 1; n < most; n++ {
		select {
		case gate <- struct{}{}:
		default:
			return n
		}
	}
	return n
}

const (
	openLanes = 8   // publishers of the open loop; a session belongs to one
	openBatch = 512 // messages of one call at the most
)

// openFeed hands messages over when they are due, one every 1/Rate seconds, to the
// sessions in turn.
func (r *round) openFeed(warm bool) (f feed) {
	f.messages = r.o.total()
	if warm {
		f.messages = max(1, min(int64(2*r.o.Rate), f.messages/5))
	}
	lanes := min(openLanes, r.o.Sessions)
	start := int64(-1) // set by the first feeder; all are started together
	begin := make(chan struct{}, 1)
	ready := make(chan struct{})
	begin <- struct{}{}
	for lane := range lanes {
		f.feeders = append(f.feeders, func(ctx context.Context) error {
			select {
			case <-begin:
				start = r.now()
				close(ready)
			case <-ready:
			}
			return r.openLane(ctx, lane, lanes, f.messages, start)
		})
	}
	return f
}

// openLane hands over messages lane, lane+lanes, lane+2·lanes … of all. A message's stamp
// is when it was due, so that a system that falls behind can not hide it.
func (r *round) openLane(ctx context.Context, lane, lanes int, all, start int64) error {
	mine := (r.o.Sessions - lane + lanes - 1) / lanes // sessions of this lane
	due := func(i int64) int64 { return start + int64(float64(i)*1e9/float64(r.o.Rate)) }
	batch := make([]ticket.Ticket, 0, openBatch)
	for k, i := 0, int64(lane); i < all; {
		if wait := due(i) - r.now(); wait > 0 {
			if !pause(ctx, time.Duration(wait)) {
				return nil
			}
			continue
		}
		batch = batch[:0]
		for now := r.now(); i < all && len(batch) < openBatch && due(i) <= now; i += int64(lanes) {
			l := &r.check.lines[lane+lanes*(k%mine)]
			l.handed++                                                                                               // nobody else's while feeders run
			batch = append(batch, ticket.Ticket{Session: uint32(lane + lanes*(k%mine)), N: l.handed, Stamp: due(i)}) //nolint:gosec // within maxSessions
			k++
		}
		if err := r.sys.hand(ctx, batch); err != nil {
			for _, t := range batch { // not confirmed: it is not lost if it does not come
				r.check.lines[t.Session].handed--
			}
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	return nil
}

// pause waits for d or until ctx ends, and reports whether it slept to the end.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
