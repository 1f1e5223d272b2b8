package core_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func TestPanicAndGoexitAreFailedAttempts(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	n := 0
	h := func(_ context.Context, d *core.Delivery) error {
		n++
		switch n {
		case 1:
			panic("boom")
		case 2:
			var m map[string]int
			m["x"] = 1 //nolint:staticcheck // the panic is the point: one of the runtime's own
		}
		return nil
	}
	bubble(t, f, h, func(*core.Consumer) {
		f.push(msg("m1", ""))
		time.Sleep(time.Hour)
	})
	if n != 3 {
		t.Errorf("handled %d times, want 3", n)
	}
	final, _ := f.settlements()
	if len(final) != 1 || final[0].Disposition != driver.Ack {
		t.Errorf("settled %v", final)
	}
}

func TestGoexitInAHandlerIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	runs := 0
	bubble(t, f, func(context.Context, *core.Delivery) error {
		if runs++; runs == 1 {
			runtime.Goexit()
		}
		return nil
	}, func(*core.Consumer) {
		f.push(msg("m1", ""), msg("m2", ""))
		time.Sleep(time.Hour)
		if final, _ := f.settlements(); len(final) != 2 {
			t.Errorf("settled %v", final)
		}
	}, edit("one", func(p *core.Policy) { p.Concurrency = 1 }))
	if runs != 3 {
		t.Errorf("handled %d times, want 3", runs)
	}
}
