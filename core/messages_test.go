package core_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func TestMessagesIterator(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	synctest.Test(t, func(t *testing.T) {
		f.wake = make(chan struct{}, 1)
		c := client(f)
		for i := range 5 {
			f.push(msg(fmt.Sprint("m", i), ""))
		}
		var open []*core.Delivery
		for d, err := range c.Messages(t.Context(), in) {
			if err != nil {
				t.Fatal(err)
			}
			if open = append(open, d); len(open) == 4 {
				break
			}
			if len(open) == 3 { // out of order, all but the second
				if err := errors.Join(open[2].Ack(), open[0].Ack()); err != nil {
					t.Error(err)
				}
				if err := open[0].Ack(); !errors.Is(err, core.ErrAlreadySettled) {
					t.Errorf("second ack: %v", err)
				}
			}
		}
		final, _ := f.settlements()
		got := map[driver.Disposition]int{}
		for _, s := range final {
			got[s.Disposition]++
		}
		if got[driver.Ack] != 2 || got[driver.Return] != 3 {
			t.Errorf("settled %v, want 2 acks and 3 returns", got)
		}
		_ = c.Close(context.Background())
	})
}
