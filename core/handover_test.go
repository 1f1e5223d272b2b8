package core_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
)

// TestHandOversInARow: owners that leave before they have read as far as the first one did
// tell on what that one told.
func TestHandOversInARow(t *testing.T) {
	t.Parallel()
	const n = 1000
	keys := []string{"a", "b", "c", "d", "stuck"}
	for name, layers := range map[string][]core.Layer{"by key": {byKey}, "without order": {edit("many", func(p *core.Policy) { p.MaxInFlight = 1 << 14 })}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := logFake(n, keys...)
			var seen runs
			h := func(stuck string) core.Handler {
				return func(ctx context.Context, d *core.Delivery) error {
					if d.Key == "stuck" && d.ID != stuck {
						<-ctx.Done()
						return ctx.Err()
					}
					seen.add(d)
					return nil
				}
			}
			impatient := edit("drain", func(p *core.Policy) { p.DrainTimeout, p.Concurrency = -1, n })
			bubble(t, f, h(""), func(*core.Consumer) { time.Sleep(time.Second) }, append(layers, impatient)...)
			for _, read := range []struct {
				messages int
				stuck    string // done by this owner
			}{{6, "m4"}, {1, ""}, {0, ""}, {40, "m9"}} {
				g := f.next(t, n, keys...)
				g.ready = g.ready[:read.messages]
				bubble(t, g, h(read.stuck), func(*core.Consumer) { time.Sleep(time.Second) }, append(layers, impatient)...)
				f = g
			}
			g := f.next(t, n, keys...)
			bubble(t, g, func(_ context.Context, d *core.Delivery) error { seen.add(d); return nil }, func(*core.Consumer) { time.Sleep(time.Second) }, layers...)
			for i := 1; i <= n; i++ {
				if got := len(seen.of[fmt.Sprint("m", i)]); got != 1 {
					t.Fatalf("m%d was done %d times", i, got)
				}
			}
		})
	}
}
