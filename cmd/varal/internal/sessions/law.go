package sessions

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
	"github.com/varal-go/varal/core"
)

// maxBackoff caps the doubling on both sides.
const maxBackoff = time.Minute

// fails decides whether an attempt fails: the same ones for a seed, on every broker and
// on both sides, so that a comparison compares the same work.
func (o *Options) fails(session, n uint32, try int) bool {
	return ticket.Chance(o.Seed, session, n, try) < o.Transient
}

// wait is core's back-off law, for the peer: after failure 1, 2, … of a message.
func (o *Options) wait(failures int) time.Duration {
	w := o.Backoff
	for range failures - 1 {
		if w > maxBackoff/2 {
			w = maxBackoff
			break
		}
		w *= 2
	}
	switch o.Jitter {
	case core.HalfJitter:
		return time.Duration(float64(w) * (0.5 + rand.Float64()))
	case core.FullJitter:
		return time.Duration(float64(w) * rand.Float64())
	}
	return w
}

// ceiling is the rate that no system can pass which runs a session's messages one after
// the other: S sessions, each busy s/(1-p) with attempts and, summed over
// the failures k = 1, 2, …, Σ p^k·b·2^(k-1) = p·b/(1-2p) with waiting. b is the mean
// wait; full jitter halves it. 0 = no such bound (nothing takes time); where p ≥ 1/2 the
// sum is bounded by the cap alone, and no formula is given.
func (o *Options) ceiling() float64 {
	p, b := o.Transient, o.meanBackoff().Seconds()
	if p >= 0.5 {
		return 0
	}
	c := float64(o.Sessions) / (o.Service.Seconds()/(1-p) + p*b/(1-2*p))
	if math.IsInf(c, 0) || math.IsNaN(c) {
		return 0
	}
	return c
}

func (o *Options) meanBackoff() time.Duration {
	if o.Jitter == core.FullJitter {
		return o.Backoff / 2
	}
	return o.Backoff
}
