package cli_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/cli"
)

// --idle counts from the last message, or from when there was something to read: a group that
// takes longer than that to come together is no idle one.
func TestIdleCountsFromWhatCanCome(t *testing.T) {
	t.Parallel()
	const idle, join = 2 * time.Second, 15 * time.Second
	cases := map[string]struct {
		assigned time.Duration // when the first partition is, 0 = never
		came     []time.Duration
		want     time.Duration
	}{
		"at once, nothing comes":      {assigned: time.Nanosecond, want: idle},
		"late, nothing comes":         {assigned: 5 * time.Second, want: 5*time.Second + idle},
		"late, and messages":          {assigned: 5 * time.Second, came: []time.Duration{6 * time.Second, 7 * time.Second}, want: 7*time.Second + idle},
		"others have all there is":    {want: join + idle},
		"messages before it is known": {came: []time.Duration{time.Second}, want: time.Second + idle},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var took atomic.Int64
				assigned := func() bool { return c.assigned > 0 && time.Since(began) >= c.assigned }
				came, stop := cli.WatchIdle(idle, join, assigned, func() { took.Store(int64(time.Since(began))) })
				for _, at := range c.came {
					time.AfterFunc(at, came)
				}
				time.Sleep(time.Minute)
				if got := time.Duration(took.Load()); got < c.want || got > c.want+100*time.Millisecond {
					t.Errorf("it ended after %v, want %v", got, c.want)
				}
				stop()
			})
		})
	}
}

func TestIdleThatWasStoppedEndsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over := false
		_, stop := cli.WatchIdle(time.Second, time.Second, func() bool { return true }, func() { over = true })
		time.Sleep(time.Second / 2)
		stop()
		time.Sleep(time.Minute)
		if over {
			t.Error("it ended what was over")
		}
	})
}
