package cli

import "time"

// WatchIdle is --idle of consume, without a broker.
func WatchIdle(idle, join time.Duration, assigned func() bool, over func()) (came, stop func()) {
	w := watchIdle(idle, join, assigned, over)
	return w.came, w.stop
}
