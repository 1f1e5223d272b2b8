package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// While nothing is in flight the clock looks for leases rarely. A short one that arrives
// then must wake it: otherwise it ends before the clock looks, and the broker hands the
// message out again while its handler runs.
func TestShortLeaseAfterAnIdleTime(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.caps.Lease = time.Hour
	var sent time.Time // of the first extension of the second message
	f.onSettle = func(batch []driver.Settlement) error {
		for _, e := range batch {
			if e.Disposition == driver.Extend && e.Receipt.Seq == 2 && sent.IsZero() {
				sent = time.Now()
			}
		}
		return nil
	}
	h := func(_ context.Context, d *core.Delivery) error {
		if d.ID == "long" {
			time.Sleep(5 * time.Second)
		}
		return nil
	}
	bubble(t, f, h, func(*core.Consumer) {
		var end time.Time
		for _, id := range []string{"short", "long"} {
			m := msg(id, "")
			m.Deadline = time.Now().Add(time.Second)
			end = m.Deadline
			f.push(m)
			time.Sleep(10 * time.Second)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if sent.IsZero() || sent.After(end) {
			t.Errorf("a lease that ended at %v was extended at %v", end, sent)
		}
	})
}
