package core

import (
	"container/heap"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// DedupStore remembers which messages have had their effect. A mark has two states,
// claimed and done, so that a failed handler is not taken for a duplicate. scope keeps
// consumers with different effects apart; id is the SHA-256 of what names a message. The
// store's own clock ends leases and marks. Methods may be called concurrently. An error but
// for ErrLeaseLost means "unknown" and is never treated as a duplicate.
type DedupStore interface {
	// Claim takes id for the length of the lease. A token: it is ours. held > 0: somebody
	// has claimed it, and so long is left of that lease. Neither: it was done before.
	Claim(ctx context.Context, scope string, id [32]byte, lease time.Duration) (token string, held time.Duration, err error)
	// Extend gives a claim a new lease, from now on. ErrLeaseLost, here and below: the token
	// is not the current one.
	Extend(ctx context.Context, scope string, id [32]byte, token string, lease time.Duration) error
	// Done marks a claimed id as handled, to be remembered for so long.
	Done(ctx context.Context, scope string, id [32]byte, token string, keep time.Duration) error
	// Release gives a claim up after an attempt without an effect.
	Release(ctx context.Context, scope string, id [32]byte, token string) error
}

var errDedupFull = errors.New("the dedup store is full of claims that others still hold")

// MemoryDedup is a DedupStore in this process, for tests and single-process services. It
// holds at most limit ids and forgets the one whose window ends first, never a claim that
// still runs. Use NewMemoryDedup.
type MemoryDedup struct {
	mu    sync.Mutex
	limit int
	marks map[dedupKey]*dedupMark

	claims, done dedupHeap // each with the mark on top that ends first
}

type dedupKey struct {
	scope string
	id    [32]byte
}

type dedupMark struct {
	key   dedupKey
	token string // "" = done
	until time.Time
	index int // in claims or done
}

// NewMemoryDedup returns an empty store of at most limit ids; limit < 1 = 100,000.
func NewMemoryDedup(limit int) *MemoryDedup {
	if limit < 1 {
		limit = 100_000
	}
	return &MemoryDedup{limit: limit, marks: map[dedupKey]*dedupMark{}}
}

// Claim implements DedupStore.
func (m *MemoryDedup) Claim(_ context.Context, scope string, id [32]byte, lease time.Duration) (string, time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.expire(now)
	key := dedupKey{scope, id}
	switch mark := m.marks[key]; {
	case mark != nil && mark.token == "":
		return "", 0, nil
	case mark != nil:
		return "", mark.until.Sub(now), nil
	case len(m.marks) >= m.limit && !m.forget():
		return "", 0, driver.Errorf("dedup claim", driver.Transient, "%w: its limit is %d", errDedupFull, m.limit)
	}
	mark := &dedupMark{key: key, token: rand.Text(), until: now.Add(lease)}
	m.marks[key] = mark
	heap.Push(&m.claims, mark)
	return mark.token, 0, nil
}

// Extend implements DedupStore.
func (m *MemoryDedup) Extend(_ context.Context, scope string, id [32]byte, token string, lease time.Duration) error {
	return m.change(scope, id, token, func(mark *dedupMark, now time.Time) {
		mark.until = now.Add(lease)
		heap.Fix(&m.claims, mark.index)
	})
}

// Done implements DedupStore.
func (m *MemoryDedup) Done(_ context.Context, scope string, id [32]byte, token string, keep time.Duration) error {
	return m.change(scope, id, token, func(mark *dedupMark, now time.Time) {
		heap.Remove(&m.claims, mark.index)
		mark.token, mark.until = "", now.Add(keep)
		heap.Push(&m.done, mark)
	})
}

// Release implements DedupStore.
func (m *MemoryDedup) Release(_ context.Context, scope string, id [32]byte, token string) error {
	return m.change(scope, id, token, func(mark *dedupMark, _ time.Time) { m.drop(&m.claims, mark) })
}

// change edits a claim whose token is still the current one.
func (m *MemoryDedup) change(scope string, id [32]byte, token string, edit func(*dedupMark, time.Time)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.expire(now)
	mark := m.marks[dedupKey{scope, id}]
	if mark == nil || token == "" || mark.token != token {
		return ErrLeaseLost
	}
	edit(mark, now)
	return nil
}

// expire drops what has ended. m.mu is held.
func (m *MemoryDedup) expire(now time.Time) {
	for _, h := range []*dedupHeap{&m.claims, &m.done} {
		for len(*h) > 0 && !(*h)[0].until.After(now) {
			m.drop(h, (*h)[0])
		}
	}
}

// forget drops the done mark that ends first, and reports false if there are claims only.
// m.mu is held.
func (m *MemoryDedup) forget() bool {
	if len(m.done) == 0 {
		return false
	}
	m.drop(&m.done, m.done[0])
	return true
}

func (m *MemoryDedup) drop(h *dedupHeap, mark *dedupMark) {
	delete(m.marks, mark.key)
	heap.Remove(h, mark.index)
}

// dedupHeap orders marks by their end.
type dedupHeap []*dedupMark

func (h dedupHeap) Len() int           { return len(h) }
func (h dedupHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h dedupHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *dedupHeap) Push(x any) {
	mark := x.(*dedupMark) //nolint:forcetypeassert // nothing else is pushed
	mark.index = len(*h)
	*h = append(*h, mark)
}

// Pop implements heap.Interface.
func (h *dedupHeap) Pop() any {
	old := *h
	mark := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return mark
}
