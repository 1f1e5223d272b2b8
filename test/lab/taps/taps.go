// Package taps is what those share who stand between core and an adapter and write a
// history of what passes: which delivery a receipt is of, what a commit is about, when a
// partition came and went, and the words of package history for it.
package taps

import (
	"context"
	"errors"
	"strconv"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
)

// Position is how a place in a log is written; "" = no log.
func Position(offset int64) string {
	if offset < 0 {
		return ""
	}
	return strconv.FormatInt(offset, 10)
}

// Class is the word for the answer to a settlement, "" = accepted.
func Class(err error) string {
	switch c := driver.ClassOf(err); {
	case err == nil:
		return ""
	case errors.Is(err, driver.LeaseLost):
		return history.LeaseLost
	case c == 0:
		return "unclassified"
	default:
		return c.String()
	}
}

var outcomes = map[driver.Disposition]string{
	driver.Ack: history.Ack, driver.Nack: history.Nack, driver.Return: history.Return,
	driver.Reject: history.Reject, driver.Extend: history.Extend, driver.Hold: history.Ack,
}

// Outcome is the word for a disposition. Hold acks what is before it.
func Outcome(d driver.Disposition) string { return outcomes[d] }

// Owned returns sub with its Assigned and Revoke watched. assigned is called before core
// hears of a partition. gone is called with history.OpLost before core does, where
// ownership has ended already, and otherwise after core has let go: with history.OpRevoke,
// or with OpLost if ownership ended meanwhile.
func Owned(sub driver.Subscription, assigned func(driver.Assignment), gone func(op history.Op, partitions []string)) driver.Subscription {
	inner := sub
	inner.Assigned = func(a driver.Assignment) {
		assigned(a)
		sub.Assigned(a)
	}
	inner.Revoke = func(ctx context.Context, partitions []string) {
		lost := ctx.Err() != nil
		if lost {
			gone(history.OpLost, partitions)
		}
		sub.Revoke(ctx, partitions)
		switch {
		case lost:
		case ctx.Err() != nil: // ownership ended while core was letting go
			gone(history.OpLost, partitions)
		default:
			gone(history.OpRevoke, partitions)
		}
	}
	return inner
}
