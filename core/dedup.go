package core

import (
	"context"
	"crypto/rand"
	"sync"
	"time"
)

// ClaimState is what a DedupStore knows of an id.
type ClaimState uint8

// The states.
const (
	Claimed ClaimState = iota + 1 // ours now: handle it, then call Done or Release
	Busy                          // claimed by somebody whose lease still runs
	Handled                       // done before
)

// DedupStore remembers which messages have had their effect. A mark has two states,
// claimed and done, so that a failed handler is not taken for a duplicate. Its methods
// may be called concurrently. An error means "unknown" and must never be treated as a
// duplicate.
type DedupStore interface {
	// Claim takes id for the length of the lease and returns a token for it. An
	// expired claim may be taken over.
	Claim(ctx context.Context, id string, lease time.Duration) (token string, state ClaimState, err error)
	// Done marks a claimed id as handled for so long. ErrLeaseLost: the token is not
	// the current one.
	Done(ctx context.Context, id, token string, keep time.Duration) error
	// Release gives a claim up after a failed attempt. ErrLeaseLost as for Done.
	Release(ctx context.Context, id, token string) error
}

// MemoryDedup is a DedupStore in this process, for tests and single-process services.
// It holds at most max ids and drops the ones that expire first. Use NewMemoryDedup.
type MemoryDedup struct {
	mu    sync.Mutex
	max   int
	marks map[string]dedupMark
}

type dedupMark struct {
	token string
	done  bool
	until time.Time
}

// NewMemoryDedup returns an empty store of at most limit ids; limit < 1 = 100,000.
func NewMemoryDedup(limit int) *MemoryDedup {
	if limit < 1 {
		limit = 100_000
	}
	return &MemoryDedup{max: limit, marks: map[string]dedupMark{}}
}

// Claim implements DedupStore.
func (m *MemoryDedup) Claim(_ context.Context, id string, lease time.Duration) (string, ClaimState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if mark, ok := m.marks[id]; ok && mark.until.After(now) {
		if mark.done {
			return "", Handled, nil
		}
		return "", Busy, nil
	}
	m.evict(now)
	token := rand.Text()
	m.marks[id] = dedupMark{token: token, until: now.Add(lease)}
	return token, Claimed, nil
}

// Done implements DedupStore.
func (m *MemoryDedup) Done(_ context.Context, id, token string, keep time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mark, ok := m.marks[id]; !ok || mark.token != token || mark.done {
		return ErrLeaseLost
	}
	m.marks[id] = dedupMark{done: true, until: time.Now().Add(keep)}
	return nil
}

// Release implements DedupStore.
func (m *MemoryDedup) Release(_ context.Context, id, token string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mark, ok := m.marks[id]; !ok || mark.token != token || mark.done {
		return ErrLeaseLost
	}
	delete(m.marks, id)
	return nil
}

// evict makes room for one more: expired marks first, then the one that expires next.
func (m *MemoryDedup) evict(now time.Time) {
	if len(m.marks) < m.max {
		return
	}
	var oldest string
	for id, mark := range m.marks {
		if !mark.until.After(now) {
			delete(m.marks, id)
		} else if oldest == "" || mark.until.Before(m.marks[oldest].until) {
			oldest = id
		}
	}
	if len(m.marks) >= m.max {
		delete(m.marks, oldest)
	}
}
