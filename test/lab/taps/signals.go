package taps

import (
	"fmt"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/test/lab/history"
)

// Signals is a core.Observer that writes core's signals into a history.
type Signals func(history.Event)

// Published implements core.Observer.
func (Signals) Published(core.PublishInfo) {}

// Attempted implements core.Observer.
func (Signals) Attempted(*core.Delivery, core.AttemptInfo) {}

// Settled implements core.Observer.
func (Signals) Settled(core.SettleInfo) {}

// Signalled implements core.Observer.
func (emit Signals) Signalled(g core.Signal) {
	emit(history.Event{Op: history.OpLog, Partition: g.Partition, N: g.Count, Outcome: string(g.Kind), Class: fmt.Sprintf("signal %s: %.200v", g.Kind, g.Err)})
}
