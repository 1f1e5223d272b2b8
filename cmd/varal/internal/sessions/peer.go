package sessions

import (
	"context"
	"sync"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
	"github.com/varal-go/varal/core/driver"
)

// peer is the shape of the published session-ordering system, in memory: partitions with
// offsets, for each session a goroutine behind a channel as deep as the mailbox, retries
// that sleep in that goroutine, and a commit that follows the highest contiguously
// completed offset. Its feeders, bodies, handler and failures are those of our side.
type peer struct {
	r     *round
	parts []peerPartition
	of    []int // partition of each session
	mail  []chan peerRecord
	end   context.Context //nolint:containedctx // ends the sleeps of its goroutines
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

type peerRecord struct {
	body   []byte
	offset int64
}

// peerPartition tracks what of it is completed.
type peerPartition struct {
	mu        sync.Mutex
	next      int64              // offset of the next record; guarded by mu
	committed int64              // everything before it is completed; guarded by mu
	completed map[int64]struct{} // beyond committed; guarded by mu
}

func openPeer(_ context.Context, r *round) (system, error) {
	r.side = "peer"
	p := &peer{r: r, parts: make([]peerPartition, r.o.Partitions), mail: make([]chan peerRecord, r.o.Sessions)}
	for i := range p.parts {
		p.parts[i].completed = map[int64]struct{}{}
	}
	for _, k := range keyNames(r.o.Sessions) {
		p.of = append(p.of, driver.PartitionOf(k, r.o.Partitions))
	}
	p.end, p.stop = context.WithCancel(context.Background())
	return p, nil
}

func (p *peer) hand(ctx context.Context, batch []ticket.Ticket) error {
	for _, t := range batch {
		if p.mail[t.Session] == nil { // the first message makes the session
			mail := make(chan peerRecord, p.r.o.Mailbox)
			p.mail[t.Session] = mail
			p.wg.Go(func() { p.session(mail, &p.parts[p.of[t.Session]]) })
		}
		part := &p.parts[p.of[t.Session]]
		rec := peerRecord{body: t.Append(make([]byte, 0, p.r.o.Payload), p.r.id, p.r.o.Payload), offset: part.append()}
		select {
		case p.mail[t.Session] <- rec:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// session works one session's messages off, one after the other.
func (p *peer) session(mail <-chan peerRecord, part *peerPartition) {
	for rec := range mail {
		t, ok := ticket.Decode(rec.body, p.r.id, p.r.o.Payload)
		if !ok || !p.r.check.knows(t) {
			continue
		}
		for failures := 1; p.r.attempt(t) != nil; failures++ {
			if !pause(p.end, p.r.o.wait(failures)) {
				return
			}
		}
		part.done(rec.offset)
	}
}

func (p *peerPartition) append() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return p.next - 1
}

// done moves the commit over everything that is completed without a gap.
func (p *peerPartition) done(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.completed[offset] = struct{}{}
	for {
		if _, ok := p.completed[p.committed]; !ok {
			return
		}
		delete(p.completed, p.committed)
		p.committed++
	}
}

func (p *peer) done() <-chan struct{} { return nil }

func (p *peer) close() error {
	p.stop()
	for _, mail := range p.mail {
		if mail != nil {
			close(mail)
		}
	}
	p.wg.Wait()
	return nil
}
