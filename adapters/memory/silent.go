package memory

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// unheard is how long a broker may be silent before a consumer takes the connection for
// dead: what a heartbeat is to a broker elsewhere.
const unheard = 500 * time.Millisecond

// silence is a time during which the broker answers nobody.
type silence struct {
	since int64         // Broker.now
	over  chan struct{} // closed at its end
	calls atomic.Uint64
}

var errSilent = errors.New("the memory broker does not answer (SetSilent)")

// SetSilent makes the broker take calls and answer none (true), or answer again (false),
// for tests: a connection that only one side believes in. Meanwhile Publish, Settle,
// Subscribe and the calls of Admin hang until their ctx ends, their driver is closed or the
// broker answers again, and then are Ambiguous: of publishes and settlements every
// other one took effect, of the rest none. Receive hands out nothing; after half a second
// it takes the broker for gone and answers Transient, with the Event Disconnected.
// Leases run on.
func (b *Broker) SetSilent(silent bool) {
	if silent {
		if !b.silent.CompareAndSwap(nil, &silence{since: b.now(), over: make(chan struct{})}) {
			return
		}
	} else {
		s := b.silent.Swap(nil)
		if s == nil {
			return
		}
		close(s.over)
	}
	b.pokeAll()
}

// lost reports whether a consumer must take the broker for gone.
func (b *Broker) lost() bool {
	if b.down.Load() {
		return true
	}
	s := b.silent.Load()
	return s != nil && b.now()-s.since >= int64(unheard)
}

func (b *Broker) errLost(op string) error {
	if b.down.Load() {
		return errDown(op)
	}
	return driver.Errorf(op, driver.Transient, "%w for %v; try again", errSilent, unheard)
}

// swallow lets every other call through to the broker, and answers none of them.
func (cl *client) swallow(ctx context.Context, s *silence, op string, call func()) error {
	if s.calls.Add(1)%2 == 0 {
		call()
	}
	select {
	case <-ctx.Done():
	case <-s.over:
	case <-cl.gone:
	}
	return driver.Errorf(op, driver.Ambiguous, "%w: whether the call took effect is unknown", errors.Join(errSilent, ctx.Err()))
}
