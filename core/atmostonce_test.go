package core_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func TestAckFirstSettlesBeforeTheHandler(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.SettleMode{driver.Each, driver.UpTo} {
		f := newFake(mode)
		settledAtStart := -1
		h := func(context.Context, *core.Delivery) error {
			final, _ := f.settlements()
			settledAtStart = len(final)
			return errors.New("too late")
		}
		bubble(t, f, h, func(*core.Consumer) {
			f.push(msg("m1", ""))
			time.Sleep(time.Minute)
		}, edit("ackfirst", func(p *core.Policy) { p.AckFirst = true }))
		if settledAtStart != 1 {
			t.Errorf("%v: %d settled when the handler started", mode, settledAtStart)
		}
		if final, _ := f.settlements(); len(final) != 1 {
			t.Errorf("%v: settled %v", mode, final)
		}
	}
}

func TestAckFirstRunsAFailingHandlerOnce(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	runs := 0
	bubble(t, f, func(context.Context, *core.Delivery) error { runs++; return errors.New("no") }, func(s *core.Consumer) {
		f.push(msg("m1", ""))
		time.Sleep(time.Hour)
		if st := s.Status(); st.InFlight != 0 || st.Totals.Discarded != 1 {
			t.Errorf("status %+v", st)
		}
	}, edit("ackfirst", func(p *core.Policy) { p.AckFirst = true }))
	if runs != 1 {
		t.Errorf("handled %d times, want at most once", runs)
	}
}
