package core_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

var ackFirst = edit("ackfirst", func(p *core.Policy) { p.AckFirst = true })

// A message that arrives while a commit is on its way is not covered by it: run then, it
// would come again after a crash, although AckFirst says at most once.
func TestAckFirstRunsOnlyWhatTheCommitCovers(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	committed := int64(0)
	f.onSettle = func(batch []driver.Settlement) error {
		f.mu.Unlock()
		time.Sleep(time.Second) // the broker takes its time
		f.mu.Lock()
		committed = max(committed, batch[len(batch)-1].Receipt.Seq)
		return nil
	}
	runs := 0
	h := func(_ context.Context, d *core.Delivery) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		runs++
		if d.Offset > committed {
			t.Errorf("message %d runs with a commit of %d", d.Offset, committed)
		}
		return nil
	}
	bubble(t, f, h, func(*core.Consumer) {
		for i := range 20 {
			f.push(msg(fmt.Sprint("m", i), ""))
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(time.Minute)
	}, ackFirst)
	if runs != 20 {
		t.Errorf("%d of 20 ran", runs)
	}
}

// Messages that wait for their commit when their partition is lost are nobody's: they
// must leave the budget, or each loss makes it smaller.
func TestAckFirstGivesTheBudgetBackWhenAPartitionIsLost(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	f.onSettle = func([]driver.Settlement) error { return driver.Errorf("settle", driver.Transient, "down") }
	bubble(t, f, func(context.Context, *core.Delivery) error { return nil }, func(s *core.Consumer) {
		f.push(msg("m1", ""), msg("m2", ""))
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		f.sub.Revoke(ctx, []string{""})
		time.Sleep(time.Minute)
		if st := s.Status(); st.InFlight != 0 {
			t.Errorf("%d in flight of a lost partition", st.InFlight)
		}
	}, ackFirst)
}

func TestAckFirstHaltsWhereHaltIsAsked(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		s, err := c.Start(t.Context(), in, func(context.Context, *core.Delivery) error { return errors.New("no") },
			ackFirst, edit("halt", func(p *core.Policy) { p.Exhausted = core.ExhaustedHalt }))
		if err != nil {
			t.Fatal(err)
		}
		f.push(msg("m1", ""))
		time.Sleep(time.Minute)
		select {
		case <-s.Done():
		default:
			t.Errorf("goes on: %+v", s.Status().Totals)
		}
		_ = c.Close(context.Background())
	})
}

// A redrive for another group of a log is passed over. Elsewhere the header is a
// stranger's, and the message is handled like any other.
func TestARedriveForAnotherGroup(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.SettleMode{driver.UpTo, driver.Each} {
		for _, first := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, ack first %v", mode, first), func(t *testing.T) {
				t.Parallel()
				f := newFake(mode)
				var handled, foreign atomic.Int32
				bubble(t, f, func(_ context.Context, d *core.Delivery) error {
					handled.Add(1)
					if _, other := d.Header(driver.HeaderGroup); other {
						foreign.Add(1)
					}
					return nil
				}, func(s *core.Consumer) {
					for i := range 200 {
						m := msg(fmt.Sprint("m", i), fmt.Sprint("k", i%3))
						if i%2 == 0 {
							m.Headers = []core.Header{{Key: driver.HeaderGroup, Value: "other"}}
						}
						f.push(m)
						time.Sleep(time.Duration(i%4) * time.Millisecond)
					}
					time.Sleep(time.Minute)
					if st := s.Status(); st.InFlight != 0 || st.Keys != 0 || st.Queued != 0 {
						t.Errorf("left over: %+v", st)
					}
				}, edit("p", func(p *core.Policy) {
					p.AckFirst = first
					if !first {
						p.Order = core.ByKey
					}
				}))
				final, _ := f.settlements()
				last := final[len(final)-1].Receipt.Seq
				switch {
				case mode == driver.UpTo && (handled.Load() != 100 || foreign.Load() != 0 || last != 200):
					t.Errorf("%d handled, %d of them for another group, committed up to %d", handled.Load(), foreign.Load(), last)
				case mode == driver.Each && (handled.Load() != 200 || len(final) != 200):
					t.Errorf("%d handled and %d settled of 200", handled.Load(), len(final))
				}
			})
		}
	}
}
