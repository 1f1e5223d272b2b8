package core

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/core/internal/sendlane"
)

type laneItem = sendlane.Item[orderKey, *orderedEntry]

// orderedLane sends what its sendlane.Lane lets go, one call of the Publisher at a time.
// Its mu is taken before OrderedPublisher.mu and no other; under it nothing is sent.
type orderedLane struct {
	p *OrderedPublisher

	mu      sync.Mutex
	state   *sendlane.Lane[orderKey, *orderedEntry] // guarded by mu
	running bool                                    // a goroutine is at work; guarded by mu
	cancel  context.CancelFunc                      // of the call under way; guarded by mu
	over    bool                                    // nothing is sent any more; guarded by mu
	room    chan struct{}                           // closed at the next change, nil while nobody waits; guarded by mu
	ended   []*laneItem                             // empty, for its room; guarded by mu
}

func newOrderedLane(p *OrderedPublisher, limits sendlane.Limits) *orderedLane {
	return &orderedLane{p: p, state: sendlane.New[orderKey, *orderedEntry](limits)}
}

// start sees to it that somebody sends what is ready. mu is held.
func (l *orderedLane) start() {
	if l.running || l.over {
		return
	}
	l.running = true
	l.p.beginLane()
	go l.run()
}

// changed lets those look again who found no room. mu is held.
func (l *orderedLane) changed() {
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
}

// waitRoom returns what is closed when there may be room. mu is held.
func (l *orderedLane) waitRoom() <-chan struct{} {
	if l.room == nil {
		l.room = make(chan struct{})
	}
	return l.room
}

// run sends until there is nothing more. That it looks and stops under one lock, as start
// looks whether it runs, is what makes no message wait for ever.
func (l *orderedLane) run() {
	defer l.p.end()
	var batch []*laneItem
	for {
		l.mu.Lock()
		batch = batch[:0]
		if !l.over {
			batch = l.state.Take(batch, l.p.o.Batch, sameDestination)
		}
		if len(batch) == 0 {
			l.running = false
			l.mu.Unlock()
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		l.cancel = cancel
		l.changed()
		l.mu.Unlock()
		err := l.send(ctx, batch)
		cancel()
		l.record(batch, err)
		clear(batch) // it keeps no message alive while the lane goes on with others
	}
}

func sameDestination(a, b *laneItem) bool { return a.Value.call.to == b.Value.call.to }

// send makes one call of the Publisher. Its slice is made anew: who reports an unknown
// outcome may go on reading it.
func (l *orderedLane) send(ctx context.Context, batch []*laneItem) (err error) {
	bounded := withDeadline(ctx, time.Now().Add(l.p.o.SendTimeout))
	defer bounded.release()
	to := batch[0].Value.call.to
	msgs := make([]*Message, len(batch))
	for i, it := range batch {
		msgs[i] = l.p.stamped(it)
	}
	// A panic in a goroutine of ours would end the process, where in the caller's own it
	// could be recovered.
	defer func() {
		if r := recover(); r != nil {
			err = driver.Errorf(publishOp(to), driver.Ambiguous, "the publisher panicked: %.200q", fmt.Sprint(r))
		}
	}()
	return l.p.below.Publish(bounded, to, msgs...)
}

// record ends what was sent, by its outcome, and what that decided for others.
func (l *orderedLane) record(batch []*laneItem, result error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel = nil
	for i, it := range batch {
		e, err := it.Value, driver.ResultAt(result, i)
		if err == nil {
			e.settle(nil)
			l.end(l.state.Done(it, true, nil, l.ended), nil)
			continue
		}
		if driver.ClassOf(err) == 0 { // who does not know says so by saying nothing
			err = &Error{Op: publishOp(e.call.to), Class: driver.Ambiguous, Err: err}
		}
		note := l.note(it, err, now)
		e.settle(err)
		l.end(l.state.Done(it, false, note, l.ended), note)
	}
	l.changed()
}

// end settles those whose fate another message decided: it was stored (by is nil) and they
// are the same, or it failed and they waited behind it. mu is held.
func (l *orderedLane) end(items []*laneItem, by *BlockedKey) {
	for _, it := range items {
		if by == nil {
			it.Value.settle(nil)
		} else {
			it.Value.settle(errBlocked(it.Value.call.to, by))
		}
	}
	clear(items)
	l.ended = items[:0]
}

// note is what Blocked tells of the key of it. mu is held.
func (l *orderedLane) note(it *laneItem, err error, now time.Time) *BlockedKey {
	n := &BlockedKey{To: it.Value.call.to, Key: it.Key.key, ID: it.ID, Since: now, Err: err}
	if it.Keyed {
		if b := l.state.BlockOf(it.Key); b != nil {
			n.Since = b.Note.(*BlockedKey).Since
		}
	}
	return n
}

func errBlocked(to Destination, by *BlockedKey) error {
	return driver.Errorf(publishOp(to), driver.Transient,
		"not sent: key %.80q is blocked by message %.80q: publish that one again, or ResumeKey: %w", by.Key, by.ID, ErrKeyBlocked)
}

// admitOf admits the messages of c that belong here, in order. It returns nil when those
// were all; else what is closed when there may be room for the next.
func (l *orderedLane) admitOf(c *orderedCall) (room <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range c.entries {
		e := &c.entries[i]
		if e.lane != l || e.tried {
			continue
		}
		if !l.admit(e) { // nor may a later one of its key go ahead
			room = l.waitRoom()
			break
		}
		e.tried = true
	}
	l.start()
	return room
}

// admit lets e wait, or refuses it. It returns false where that cannot be told yet. mu is
// held.
func (l *orderedLane) admit(e *orderedEntry) bool {
	if e.late = l.isLate(e); e.late && !l.blocks(e) {
		// The key may have been resumed since: sent now, this one would overtake a message
		// that stands before it in the same call.
		e.settle(driver.Errorf(publishOp(e.call.to), driver.Transient,
			"not sent: a message of key %.80q before it in the call failed: %w", e.Key.key, ErrKeyBlocked))
		return true
	}
	switch l.state.Admit(&e.laneItem) {
	case sendlane.Full:
		return false
	case sendlane.Blocked:
		if e.before != nil && !e.before.settled { // it is the retry, which may unblock the key
			return false
		}
		e.settle(errBlocked(e.call.to, l.state.BlockOf(e.Key).Note.(*BlockedKey)))
	case sendlane.Crowded:
		e.settle(driver.Errorf(publishOp(e.call.to), driver.Transient,
			"not sent: too many keys are blocked (OrderedOptions.MaxBlocked %d, shared by %d lanes): publish again what blocks them, or ResumeKey", l.p.o.MaxBlocked, l.p.o.Lanes))
	}
	return true
}

// leave ends e because nobody waits for it any more.
func (l *orderedLane) leave(e *orderedEntry, cause error, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.settled {
		return
	}
	op := publishOp(e.call.to)
	lost := driver.Errorf(op, driver.Ambiguous, "in flight when the call ended: %w", cause)
	note := l.note(&e.laneItem, lost, now)
	unsent, behind := l.state.Leave(&e.laneItem, note, l.ended)
	l.end(behind, note)
	if !unsent {
		e.settle(lost)
		return
	}
	class := driver.Transient
	if cause == errStopped { //nolint:errorlint // the very value
		class = driver.Closed
	}
	e.settle(driver.Errorf(op, class, "not sent: %w", cause))
	l.changed()
}

// isLate reports whether a message of the key failed that stands before e in its call. mu is
// held.
func (l *orderedLane) isLate(e *orderedEntry) bool {
	b := e.before
	return b != nil && (b.late || b.settled && b.err != nil)
}

// blocks reports whether e is the message that blocks its key, published again. mu is held.
func (l *orderedLane) blocks(e *orderedEntry) bool {
	b := l.state.BlockOf(e.Key)
	return b != nil && b.ID == e.ID
}

func (l *orderedLane) resume(k orderKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ok := l.state.Resume(k)
	if ok {
		l.changed()
	}
	return ok
}

func (l *orderedLane) blocked(out []BlockedKey) []BlockedKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.state.Blocks {
		out = append(out, *b.Note.(*BlockedKey))
	}
	return out
}

// abort cancels the call under way and makes no other.
func (l *orderedLane) abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.cancel != nil {
		l.cancel()
	}
}

// stamped is the copy of a message that goes out, with its number where it has one.
func (p *OrderedPublisher) stamped(it *laneItem) *Message {
	m := &it.Value.msg
	if it.Number.N == 0 {
		return m
	}
	s := Sequence{Publisher: p.publisher, Generation: it.Number.Generation, N: it.Number.N}
	if _, ok := m.Header(driver.HeaderSeq); ok { // of the publisher it was received from
		m.Headers = without(m.Headers, 1, func(k string) bool { return k == driver.HeaderSeq })
	}
	m.Headers = append(slices.Clip(m.Headers), Header{Key: driver.HeaderSeq, Value: s.String()})
	return m
}
