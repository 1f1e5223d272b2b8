// Package backoff computes waits between attempts.
package backoff

import "time"

// Shape spreads a wait.
type Shape uint8

// The shapes.
const (
	Full Shape = iota // uniform in [0, w)
	Half              // uniform in [w/2, w*3/2)
	Exact
)

// Wait returns how long to wait after the n-th failure (1, 2, …):
// min(limit, base·2^(n-1)), spread by shape with r uniform in [0, 1). It never
// overflows; n < 1 counts as 1.
func Wait(n int, base, limit time.Duration, shape Shape, r float64) time.Duration {
	w := base
	for range max(n, 1) - 1 {
		if w > limit/2 { // the next doubling passes limit, and might overflow
			w = limit
			break
		}
		w *= 2
	}
	w = min(w, limit)
	switch shape {
	case Exact:
		return w
	case Half:
		return time.Duration(float64(w) * (0.5 + r))
	default:
		return time.Duration(float64(w) * r)
	}
}
