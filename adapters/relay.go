package adapters

import (
	"sync"

	"github.com/varal-go/varal/core"
)

// relay passes a driver's events to its client, which is made after it.
type relay struct {
	also func(core.Event)

	mu     sync.Mutex
	client func(core.Event)
	early  []core.Event // before attach; what matters is the last state, so few are kept
}

const maxEarly = 16

func (r *relay) notify(e core.Event) {
	if r.also != nil {
		r.also(e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		r.client(e)
		return
	}
	if len(r.early) == maxEarly {
		r.early = append(r.early[:0], r.early[1:]...)
	}
	r.early = append(r.early, e)
}

// attach hands over what has come so far. The lock is held meanwhile: an event that
// overtook an early one would leave the client with the older state.
func (r *relay) attach(client func(core.Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.early {
		client(e)
	}
	r.client, r.early = client, nil
}
